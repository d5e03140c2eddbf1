"""Small solvers of the equations behind the built-in sets; they know nothing of sets and files."""

from .unsolvable import Unsolvable

__all__ = ["Unsolvable"]

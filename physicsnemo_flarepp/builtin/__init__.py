"""Built-in data sets made by small solvers, in the file layouts of the published sets."""

from .engine import generate

__all__ = ["generate"]

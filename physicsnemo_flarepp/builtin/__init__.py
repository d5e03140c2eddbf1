"""Built-in data sets made by small solvers, in the file layouts of the published sets."""

from .engine import generate, read_stamp

__all__ = ["generate", "read_stamp"]

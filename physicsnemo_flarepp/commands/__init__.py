"""The command ``flarepp`` and its verbs."""

from .dispatch import main, run

__all__ = ["main", "run"]

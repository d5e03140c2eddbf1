"""The command ``flarepp`` and its verbs."""

from .dispatch import main

__all__ = ["main"]

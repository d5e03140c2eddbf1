"""Models under PhysicsNeMo's ``Module`` contract."""

from .backbone import MixerBackbone
from .flarepp import FlarePP

__all__ = ["FlarePP", "MixerBackbone"]

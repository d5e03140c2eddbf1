"""Models under PhysicsNeMo's ``Module`` contract."""

from .backbone import MixerBackbone
from .conversion import from_physicsnemo, to_physicsnemo
from .flarepp import FlarePP
from .gnot import GNOT
from .lno import LNO
from .perceiver_io import PerceiverIO
from .served import serve
from .set_transformer import SetTransformer

__all__ = [
    "GNOT",
    "LNO",
    "FlarePP",
    "MixerBackbone",
    "PerceiverIO",
    "SetTransformer",
    "from_physicsnemo",
    "serve",
    "to_physicsnemo",
]

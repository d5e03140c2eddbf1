"""Models under PhysicsNeMo's ``Module`` contract."""

from .backbone import MixerBackbone
from .flarepp import FlarePP
from .gnot import GNOT
from .lno import LNO
from .perceiver_io import PerceiverIO
from .physicsnemo_models import from_physicsnemo, to_physicsnemo, view_physicsnemo
from .set_transformer import SetTransformer
from .token_model import TokenModel

__all__ = [
    "GNOT",
    "LNO",
    "FlarePP",
    "MixerBackbone",
    "PerceiverIO",
    "SetTransformer",
    "TokenModel",
    "from_physicsnemo",
    "to_physicsnemo",
    "view_physicsnemo",
]

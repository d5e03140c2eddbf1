"""Token mixers of the matched backbone, all ``(B, N, C) -> (B, N, C)``."""

from .attention import AttentionMixer
from .base import Mixer, check_init, draw_weights
from .flare import FlareMixer
from .flarepp import FlarePPMixer
from .layers import make_norm
from .transolver import Transolver3Mixer, TransolverMixer, TransolverPlusMixer

MIXERS: dict[str, type[Mixer]] = {
    "flarepp": FlarePPMixer,
    "flare": FlareMixer,
    "attention": AttentionMixer,
    "transolver": TransolverMixer,
    "transolver_plus": TransolverPlusMixer,
    "transolver3": Transolver3Mixer,
}

__all__ = [
    "MIXERS",
    "AttentionMixer",
    "FlareMixer",
    "FlarePPMixer",
    "Mixer",
    "Transolver3Mixer",
    "TransolverMixer",
    "TransolverPlusMixer",
    "check_init",
    "draw_weights",
    "make_norm",
]

"""Exact prediction on meshes larger than memory, and latent states to query anywhere."""

from .api import decode_state, encode_state, predict
from .state import LatentState, model_fingerprint

__all__ = ["LatentState", "decode_state", "encode_state", "model_fingerprint", "predict"]

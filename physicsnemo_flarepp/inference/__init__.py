"""Exact prediction on meshes larger than memory, and latent states to query anywhere."""

from .prediction import decode_state, encode_state, predict
from .routes import RoutingWeights, routing_queries, routing_spectra, routing_weights
from .state import LatentState, model_fingerprint

__all__ = [
    "LatentState",
    "RoutingWeights",
    "decode_state",
    "encode_state",
    "model_fingerprint",
    "predict",
    "routing_queries",
    "routing_spectra",
    "routing_weights",
]

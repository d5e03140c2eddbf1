"""Pure functions on tensors: attention with its log-normaliser, and the routing algebra."""

from .attention import attention_backward, attention_with_lse
from .pointwise import split_linear, unit_scale
from .routing import decode, encode, merge_partials

__all__ = [
    "attention_backward",
    "attention_with_lse",
    "decode",
    "encode",
    "merge_partials",
    "split_linear",
    "unit_scale",
]

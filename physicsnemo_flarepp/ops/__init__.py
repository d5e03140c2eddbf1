"""Pure functions on tensors: attention with its log-normaliser, and the routing algebra."""

from .attention import attention_backward, attention_with_lse
from .collectives import all_gather, all_reduce, global_sum, group_size, sum_over_group
from .plain import plain_operators
from .pointwise import split_linear, unit_scale, without_autocast
from .routing import decode, encode, merge_over_group, merge_partials

__all__ = [
    "all_gather",
    "all_reduce",
    "attention_backward",
    "attention_with_lse",
    "decode",
    "encode",
    "global_sum",
    "group_size",
    "merge_over_group",
    "merge_partials",
    "plain_operators",
    "split_linear",
    "sum_over_group",
    "unit_scale",
    "without_autocast",
]

"""Pure functions on tensors: attention with its log-normaliser, routing algebra, errors."""

from .attention import attention_backward, attention_with_lse
from .collectives import all_gather, all_reduce, global_sum, group_size, sum_over_group
from .errors import field_errors, relative_l2
from .kernels import plain_operators, without_autocast
from .merging import merge_over_group, merge_partials
from .pointwise import rms_norm, rotate_rows, split_linear, unit_scale
from .routing import decode, encode

__all__ = [
    "all_gather",
    "all_reduce",
    "attention_backward",
    "attention_with_lse",
    "decode",
    "encode",
    "field_errors",
    "global_sum",
    "group_size",
    "merge_over_group",
    "merge_partials",
    "plain_operators",
    "relative_l2",
    "rms_norm",
    "rotate_rows",
    "split_linear",
    "sum_over_group",
    "unit_scale",
    "without_autocast",
]

"""Checks of constructor arguments and of what ``forward`` is called with."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..ops.checks import check_mask


def check_integers(least: int, values: Mapping[str, int | None]) -> None:
    """Raise unless every named value is an integer of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_sizes(
    n_layers: int,
    n_hidden: int,
    n_head: int,
    others: Mapping[str, int | None],
    mlp_ratio: float,
    dropout: float = 0.0,
) -> None:
    """Raise unless sizes are positive integers, heads divide the width, and ratios are ratios."""
    check_integers(1, {"n_layers": n_layers, "n_hidden": n_hidden, "n_head": n_head, **others})
    if n_hidden % n_head:
        raise ValueError(
            f"n_hidden must be divisible by n_head, got n_hidden={n_hidden}, n_head={n_head}"
        )
    if not isinstance(mlp_ratio, int | float) or not mlp_ratio > 0:
        raise ValueError(f"mlp_ratio must be positive, got {mlp_ratio!r}")
    if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout!r}")


def check_tokens(name: str, value: Tensor, width: int, batch: int, rows: tuple[int, ...]) -> None:
    """Raise unless ``value`` is (batch, n, width) with n among ``rows`` (empty: any n)."""
    if value.ndim != 3:
        raise ValueError(f"{name} must have shape (B, N, {width}), got {tuple(value.shape)}")
    if value.shape[-1] != width:
        raise ValueError(
            f"{name} must have {width} channels as the model was built with, "
            f"got {value.shape[-1]} in shape {tuple(value.shape)}"
        )
    if value.shape[0] != batch or (rows and value.shape[1] not in rows):
        wanted = " or ".join(map(str, rows)) or "any number of"
        raise ValueError(
            f"{name} must have batch {batch} and {wanted} rows, got {tuple(value.shape)}"
        )


def check_token_mask(mask: Tensor, batch: int, n_tokens: int, whole: bool) -> None:
    """Raise unless ``mask`` is boolean (B, N) with a real token in every ``whole`` sample.

    The last condition is read on the device: on CUDA it is asserted there, without a host sync.
    """
    check_mask("token_mask", mask, (batch, n_tokens))
    if not whole:  # the real tokens may be on other ranks
        return
    real = mask.any(-1).all()
    if mask.device.type != "cpu":
        torch._assert_async(real, "token_mask is False for every token of a sample")
    elif not real:
        empty = (~mask.any(-1)).nonzero().flatten().tolist()
        raise ValueError(
            f"token_mask is False for every token of sample(s) {empty}; drop these samples"
        )

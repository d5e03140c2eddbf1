r"""Splitting the tokens of one attention call into parts, so that it fills the device.

Attention between M latents and N tokens leaves a kernel few pieces of work where it is parallel
over samples, heads and latents alone. A part of the tokens can stand as a sample of its own: with
tokens stored as (B, N, H, D) that is a view. Parts of keys give partial gathers, which merge; parts
of queries are independent; gradients of latents, which all parts share, add up.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from .kernels import accumulation_dtype

VARIABLE = "FLAREPP_SPLITS"
# A shorter part costs more to start than it spares, by estimate on GPUs and as measured on CPUs.
TOKENS_PER_PART = 1024
# The memory-efficient backward kernel counts blocks of 64 keys in an int16; beyond that it runs all
# keys of a head in one block.
MOST_KEYS = 64 * (2**15 - 1)


def work_items(
    backend: str, backward: bool, batch: int, heads: int, queries: int, keys: int
) -> int | None:
    """Count the pieces of work that a kernel runs side by side: thread blocks, or tasks on a CPU.

    The rules by which torch 2.10 to 2.15 launches them, for heads of up to 128 channels.
    """
    if backend == "cpu":
        block = 256 if queries >= 768 else 64 if queries >= 192 else 32
        return batch * heads * (1 if backward else -(-queries // block))
    if backend == "efficient":
        return batch * heads * -(-(keys if backward else queries) // 64)
    return batch * heads * -(-keys // 128) if backend == "flash" and backward else None


def choose_splits(
    backend: str,
    backward: bool,
    sizes: tuple[int, int, int, int],
    slots: int,
    wanted: int | None = None,
) -> int:
    """Return the number of parts into which a call splits its longer axis; 1 leaves it whole."""
    latents, tokens = sorted(sizes[2:])
    wanted = wanted or _wanted_by_environment()
    if wanted is not None:
        return max(1, min(wanted, tokens))
    wraps = backend == "efficient" and backward and sizes[3] == tokens
    least = -(-tokens // MOST_KEYS) if wraps else 1
    items = work_items(backend, backward, *sizes)
    if not items or items > slots // 2:
        return least
    most = min(slots // items, tokens // max(TOKENS_PER_PART, latents))
    # Equal parts spare the call for the remainder and the copy that joins it to the others.
    equal = (parts for parts in range(most, 3 * most // 4, -1) if tokens % parts == 0)
    return max(least, next(equal, most))


def count_slots(device: torch.device) -> int:
    """Return how many pieces of work fill a device: two per multiprocessor, or one per thread."""
    if device.type == "cpu":
        return torch.get_num_threads()
    if device.type == "cuda" and torch.cuda.is_available():
        return 2 * _multiprocessors(device)
    return 1


@torch.compiler.assume_constant_result
def slots_at_most(device: torch.device) -> float:
    """Return :func:`count_slots` for a graph: without limit if the environment asks for parts."""
    wanted = _wanted_by_environment()
    return count_slots(device) if wanted is None else 0 if wanted == 1 else math.inf


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def check_splits(splits: int | None) -> None:
    """Raise unless ``splits`` is None or a number of parts."""
    if splits is not None and (not isinstance(splits, int) or splits < 1):
        raise ValueError(f"splits must be None or an integer of at least 1, got {splits!r}")


def _wanted_by_environment() -> int | None:
    text = os.environ.get(VARIABLE, "auto")
    if text in ("", "auto"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f'{VARIABLE} must be "auto" or a number of at least 1, got {text!r}')
    return int(text)


def call_in_parts(
    function: Callable[..., tuple[Tensor, ...]],
    arguments: Sequence[Tensor | None],
    axes: Sequence[int | None],
    splits: int,
) -> list[tuple[Tensor, ...]]:
    """Call a function on equal parts of the tokens at once, and on the tokens that remain."""
    batch, n_tokens = next(
        (argument.shape[0], argument.shape[axis])
        for argument, axis in zip(arguments, axes, strict=True)
        if argument is not None and axis is not None
    )
    length = n_tokens // splits
    bounds = [(0, splits * length, splits)]
    if splits * length < n_tokens:
        bounds.append((splits * length, n_tokens, 1))
    results = []
    for start, stop, parts in bounds:
        views = [
            None if x is None else _parts_as_samples(x, axis, start, stop, parts)
            for x, axis in zip(arguments, axes, strict=True)
        ]
        results.append(tuple(y.unflatten(0, (batch, parts)) for y in function(*views)))
    return results


def _parts_as_samples(x: Tensor, axis: int | None, start: int, stop: int, parts: int) -> Tensor:
    """Put parts beside samples; a view for one sample, and for equal parts in (B, N, ...) order."""
    if axis is None:
        return x[:, None].expand(-1, parts, *x.shape[1:]).flatten(0, 1)
    x = x.narrow(axis, start, stop - start)
    return x.unflatten(axis, (parts, (stop - start) // parts)).movedim(axis, 1).flatten(0, 1)


def join_tokens(parts: Sequence[Tensor]) -> Tensor:
    """Bring results (B, S, H, n, ...) of parts back to (B, H, N, ...)."""
    whole = [part.movedim(1, 2).flatten(2, 3) for part in parts]
    if len(whole) == 1:
        return whole[0]
    # Joined where the heads are innermost, the order of the results.
    return torch.cat([part.transpose(1, 2) for part in whole], 1).transpose(1, 2)


def add_shares(parts: Sequence[Tensor]) -> Tensor:
    """Add up gradients (B, S, ...) of what the parts share, half precision in fp32."""
    dtype = accumulation_dtype(parts[0].dtype)
    return torch.stack([part.sum(1, dtype=dtype) for part in parts]).sum(0).to(parts[0].dtype)

"""Checks of what attention and its merges are called with.

They read shapes, dtypes and devices, and the values of weights on the host, which waits for no
device and costs microseconds. The fused kernels believe their arguments: on shapes that disagree
they end the process or give numbers. What torch checks itself is not checked here. Under
``torch.compile`` and ``torch.export`` the functions skip these checks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NORMALISERS = (torch.float32, torch.float64)


def check_floats(**tensors: Tensor) -> None:
    """Raise unless the named tensors share one floating dtype and one device."""
    dtypes = [tensor.dtype for tensor in tensors.values()]
    if len(set(dtypes)) > 1 or dtypes[0] not in _FLOATS:
        raise TypeError(
            f"{', '.join(tensors)} must share one floating dtype, got "
            f"{', '.join(map(str, dtypes))}; cast them before the call"
        )
    check_devices(**tensors)


def check_devices(**tensors: Tensor) -> None:
    """Raise unless the named tensors share one device."""
    devices = [tensor.device for tensor in tensors.values()]
    if len(set(devices)) > 1:
        raise ValueError(
            f"{', '.join(tensors)} must be on one device, got {', '.join(map(str, devices))}; "
            "move them before the call"
        )


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    key_mask: Tensor | None = None,
    key_weights: Tensor | None = None,
    names: Sequence[str] = ("q", "k", "v"),
) -> None:
    """Raise unless (B, H, M, D), (B, H, N, D) and (B, H, N, E) can attend; D is at least 1."""
    shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v))
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError(f"{', '.join(names)} must have shape (B, H, tokens, D), got {shapes}")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "{} (B,H,M,D), {} (B,H,N,D) and {} (B,H,N,E) disagree: got ".format(*names) + shapes
        )
    if q.shape[3] == 0:
        raise ValueError(f"{', '.join(names)} must have at least one channel, got {shapes}")
    check_floats(**dict(zip(names, (q, k, v), strict=True)))
    if scale is not None and not 0.0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    per_key = (k.shape[0], k.shape[2])
    if key_mask is not None:
        check_mask("key_mask", key_mask, per_key)
        check_devices(k=k, key_mask=key_mask)
    if key_weights is not None:
        check_weights("key_weights", key_weights, per_key, key_mask)
        check_devices(k=k, key_weights=key_weights)


def check_mask(name: str, mask: Tensor, shape: tuple[int, int]) -> None:
    """Raise unless ``mask`` is boolean of this shape (B, N)."""
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True = real token), got {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(f"{name} must have shape (B, N) = {shape}, got {tuple(mask.shape)}")


def check_weights(
    name: str,
    weights: Tensor,
    shape: tuple[int, int],
    mask: Tensor | None = None,
    first: int = 0,
) -> None:
    """Raise unless ``weights`` are real numbers or booleans of this shape (B, N).

    On the host their values are read too: finite and at least 0 wherever ``mask`` is not False.
    Messages count tokens from ``first``.
    """
    if weights.dtype not in (*_FLOATS, torch.bool):
        raise TypeError(f"{name} must be of a floating dtype, got {weights.dtype}; cast it")
    if weights.shape != shape:
        raise ValueError(f"{name} must have shape (B, N) = {shape}, got {tuple(weights.shape)}")
    if weights.device.type != "cpu" or weights.dtype == torch.bool or weights.numel() == 0:
        return
    low, high = weights.detach().aminmax()  # NaN wins in both
    if low >= 0 and high < math.inf:
        return
    good = (weights >= 0) & (weights < math.inf)
    good = good if mask is None else good | ~mask
    if not good.all():
        sample, index = (~good).nonzero()[0].tolist()
        raise ValueError(
            f"{name} holds {weights[sample, index].item()} at index {first + index} of sample "
            f"{sample}; weights must be finite and at least 0, where 0 removes a token"
        )


def check_results(q: Tensor, v: Tensor, grad_out: Tensor, out: Tensor, lse: Tensor) -> None:
    """Raise unless the results of an attention and a gradient fit its queries and values."""
    expected = (*q.shape[:3], v.shape[3])
    for name, value in (("grad_out", grad_out), ("out", out)):
        if value.shape != expected:
            raise ValueError(
                f"{name} must have shape (B, H, M, E) = {expected}, got {tuple(value.shape)}"
            )
    check_floats(q=q, grad_out=grad_out, out=out)
    check_pair(out, lse)


def check_pair(out: Tensor, lse: Tensor) -> None:
    """Raise unless ``lse`` has one fp32 or fp64 number for each row of ``out``."""
    if out.ndim == 0 or out.shape[:-1] != lse.shape:
        raise ValueError(
            "out must have the shape of lse and one axis more, got "
            f"{tuple(out.shape)} and {tuple(lse.shape)}"
        )
    if out.dtype not in _FLOATS or lse.dtype not in _NORMALISERS:
        raise TypeError(
            f"out must be of a floating dtype and lse fp32 or fp64, got {out.dtype} and {lse.dtype}"
        )
    check_devices(out=out, lse=lse)

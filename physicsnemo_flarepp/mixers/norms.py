"""The two normalisations of the paper."""

from torch import nn

NORMS = ("layer", "rms")


def make_norm(kind: str, width: int, affine: bool = True) -> nn.Module:
    """Build "layer" (LayerNorm, for fp32 runs) or "rms" (RMSNorm, for mixed precision).

    Examples
    --------
    >>> make_norm("rms", 16)
    RMSNorm((16,), eps=1e-06, elementwise_affine=True)
    """
    if kind == "layer":
        return nn.LayerNorm(width, elementwise_affine=affine)
    if kind == "rms":
        return nn.RMSNorm(width, eps=1e-6, elementwise_affine=affine)
    raise ValueError(f"norm must be one of {NORMS}, got {kind!r}")

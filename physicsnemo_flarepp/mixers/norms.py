"""The two normalisations of the paper."""

from jaxtyping import Float
from torch import Tensor, nn

from ..ops import rms_norm, unit_scale

EPSILON = {"layer": 1e-5, "rms": 1e-6}


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm in the dtype of its input, under autocast too."""

    eps: float
    weight: nn.Parameter

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Normalise and scale each row."""
        return rms_norm(x, self.weight, self.eps)


def make_norm(kind: str, width: int) -> nn.Module:
    """Build "layer" (LayerNorm, for fp32 runs) or "rms" (RMSNorm, for mixed precision).

    Examples
    --------
    >>> make_norm("rms", 16)
    RMSNorm((16,), eps=1e-06, elementwise_affine=True)
    """
    if kind not in EPSILON:
        raise ValueError(f"norm must be one of {sorted(EPSILON)}, got {kind!r}")
    cls = nn.LayerNorm if kind == "layer" else RMSNorm
    return cls(width, eps=EPSILON[kind])


def normalize_rows(kind: str, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
    """Normalise the rows of each head as :func:`make_norm` does, without affine weights.

    Works in the projections' own layout, heads innermost, so nothing is copied.
    """
    rows = unit_scale(x.transpose(1, 2), EPSILON[kind], center=kind == "layer")
    return rows.transpose(1, 2)

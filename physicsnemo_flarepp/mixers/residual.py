"""Residual layers of one width: what deep projections and feed-forwards are made of."""

from jaxtyping import Float
from physicsnemo.nn import get_activation
from torch import Tensor, nn

# The published runs use the approximation everywhere in the backbone.
_GELUS = {"gelu": "tanh", "gelu_exact": "none"}


def make_activation(act: str) -> nn.Module:
    """Build an activation: "gelu" (tanh), "gelu_exact", or one by PhysicsNeMo's name."""
    name = act.lower() if isinstance(act, str) else act
    if name in _GELUS:
        return nn.GELU(_GELUS[name])
    try:
        return get_activation(act)
    except (KeyError, AttributeError) as error:
        message = error.args[0] if isinstance(error, KeyError) else "expected a string"
        raise ValueError(f"act={act!r} is not an activation: {message}") from error


class ResidualLayer(nn.Module):
    r""":math:`x + \mathrm{act}(W x + b)`, of width ``dim``."""

    def __init__(self, dim: int, act: str) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.act = make_activation(act)

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Apply the layer row by row."""
        return x + self.act(self.linear(x))


class ResidualMLP(nn.Module):
    r"""``n_layers`` times :math:`x + \mathrm{act}(W x + b)`, then :math:`x + W x + b`.

    Keys, values and the feed-forward of FLARE's first paper are of this form, with four layers.
    """

    def __init__(self, dim: int, n_layers: int, act: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(ResidualLayer(dim, act) for _ in range(n_layers)))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Apply the layers row by row."""
        x = self.layers(x)
        return x + self.output(x)

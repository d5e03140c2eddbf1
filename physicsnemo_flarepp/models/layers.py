"""Pointwise parts of the matched backbone and one residual block."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from physicsnemo.nn import get_activation
from torch import Tensor, nn

from ..mixers import Mixer, make_norm

# The published runs use the approximation everywhere in the backbone.
_GELUS = {"gelu": "tanh", "gelu_exact": "none"}


def make_activation(act: str) -> nn.Module:
    """Build an activation: "gelu" (tanh approximation), "gelu_exact", or a name of PhysicsNeMo's.

    Examples
    --------
    >>> make_activation("gelu"), make_activation("gelu_exact"), make_activation("silu")
    (GELU(approximate='tanh'), GELU(approximate='none'), SiLU())
    """
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


class InProjection(nn.Module):
    """Lift per-token inputs to the hidden width (Linear, act, residual layers, Linear).

    Parameters
    ----------
    embedding_dim, functional_dim : int
        Widths of the two inputs; the embedding's may be 0.
    dim : int
        Hidden width C.
    n_layers : int
        Residual layers between the first and the last Linear.
    act : str
        Name of the activation.
    """

    def __init__(
        self, embedding_dim: int, functional_dim: int, dim: int, n_layers: int, act: str
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.first = nn.Linear(embedding_dim + functional_dim, dim)
        self.act = make_activation(act)
        self.layers = nn.Sequential(*(ResidualLayer(dim, act) for _ in range(n_layers)))
        self.last = nn.Linear(dim, dim)

    def forward(
        self, fx: Float[Tensor, "B _N F"], embedding: Float[Tensor, "B N E"] | None = None
    ) -> Float[Tensor, "B N C"]:
        """Project ``embedding`` next to ``fx``; a single row of ``fx`` is projected once."""
        if embedding is None:
            x = self.first(fx)
        elif fx.shape[1] == embedding.shape[1]:
            x = self.first(torch.cat((embedding, fx), -1))
        else:
            weight_embedding = self.first.weight[:, : self.embedding_dim]
            weight_fx = self.first.weight[:, self.embedding_dim :]
            x = F.linear(embedding, weight_embedding) + F.linear(fx, weight_fx, self.first.bias)
        x = self.layers(self.act(x))
        return x + self.last(x)


class OutProjection(nn.Sequential):
    """Read the outputs off the hidden width: norm, residual layers, Linear."""

    def __init__(self, dim: int, out_dim: int, n_layers: int, act: str, norm: str) -> None:
        super().__init__(
            make_norm(norm, dim),
            *(ResidualLayer(dim, act) for _ in range(n_layers + 1)),
            nn.Linear(dim, out_dim),
        )


class FeedForward(nn.Sequential):
    """Linear, act, Linear."""

    def __init__(self, dim: int, ratio: float, act: str) -> None:
        hidden = round(dim * ratio)
        super().__init__(nn.Linear(dim, hidden), make_activation(act), nn.Linear(hidden, dim))


class Block(nn.Module):
    """Residual block ``x + mixer(norm x)``, then ``x + ffn(norm x)``.

    Parameters
    ----------
    mixer : Mixer
        The token mixer.
    mlp_ratio : float
        Hidden width of the feed-forward over the mixer's width.
    act, norm : str
        Names of the activation and the normalisation.
    dropout : float
        Dropout on both branches.
    """

    def __init__(self, mixer: Mixer, mlp_ratio: float, act: str, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm_mixer = make_norm(norm, mixer.dim)
        self.mixer = mixer
        self.norm_ffn = make_norm(norm, mixer.dim)
        self.ffn = FeedForward(mixer.dim, mlp_ratio, act)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B N C"], token_mask: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B N C"]:
        """Mix across tokens, then transform each."""
        x = x + self.dropout(self.mixer(self.norm_mixer(x), token_mask))
        return x + self.dropout(self.ffn(self.norm_ffn(x)))

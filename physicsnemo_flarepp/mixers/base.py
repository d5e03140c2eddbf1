"""What every token mixer shares."""

from abc import ABC, abstractmethod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import split_linear
from ..ops.attention import TokenWeights

# Of the first weights: ours, and the published runs'.
INITS = ("balanced", "paper")
# What a balanced residual projection adds to the identity, over what it would be without it.
_RESIDUAL_SHARE = 0.25


class Mixer(nn.Module, ABC):
    r"""A map of tokens to tokens, :math:`(B, N, C) \to (B, N, C)`, for any N.

    Subclasses implement :meth:`forward`, call :meth:`reset_parameters` at the end of their
    constructor, and extend it where weights need more than :func:`draw_weights`.

    A mixer in which tokens meet only in sums over tokens can also be run in stages, on any part
    of the tokens at a time: ``n_gathers`` times :meth:`gather` over all parts, merged by
    :func:`~physicsnemo_flarepp.ops.merge_partials` and finished by :meth:`close`; then
    :meth:`scatter` on each part alone. Streaming and stored latents are built on these three. All
    four agree: ``forward(x) == scatter(x, latents)`` up to rounding. Token weights enter the
    gathers only; mixers take them as they are, and the model scales them
    (:mod:`~physicsnemo_flarepp.models.weights`).

    Parameters
    ----------
    dim : int
        Channels C.
    heads : int
        Heads H; must divide ``dim``.

    Attributes
    ----------
    context_group : str or None
        Name of the process group whose ranks own disjoint tokens of the same samples; None
        (default) when ``x`` holds them all. Set by ``parallel.enable_context_parallel``.
    n_gathers : int
        Gathers over all tokens that :meth:`scatter` needs; 0 if tokens meet in other ways, and the
        mixer has no stages and cannot be sharded.
    """

    context_group: str | None = None
    n_gathers: int = 0

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide dim, got dim={dim}, heads={heads}")
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N C"]:
        """Mix the tokens of each sample; tokens of weight 0 or False influence no other token."""

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the initial weights; see :func:`draw_weights`."""
        draw_weights(self, init)

    @property
    def output(self) -> nn.Linear:
        """The last layer, which writes to the residual stream."""
        return cast(nn.Linear, self.out)

    @property
    def is_random(self) -> bool:
        """Whether two calls on the same tokens give different results."""
        return False

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H M E"], Float[Tensor, "B H M"]]:
        r"""Gather some of the tokens: the partial result number ``len(latents)``.

        Parameters
        ----------
        x : torch.Tensor
            Any of the tokens, shape :math:`(B, N, C)`; N may be 0.
        latents : tuple of torch.Tensor
            Results of :meth:`close` for the gathers before this one.
        token_weights : torch.Tensor, optional
            Weights :math:`(B, N)` of these tokens, or a mask.

        Returns
        -------
        tuple[torch.Tensor, torch.Tensor]
            Weighted mean over these tokens and the logarithm of its weight, fp32 or fp64: a pair
            that ``merge_partials`` merges with those of other tokens, weighted alike.
        """
        raise self._has_no_stages()

    def close(
        self,
        out: Float[Tensor, "B H M E"],
        lse: Float[Tensor, "B H M"],
        latents: tuple[Tensor, ...],
    ) -> Float[Tensor, "B H M D"]:
        """Turn the merged gather number ``len(latents)`` into the latent that later stages use."""
        return out

    def scatter(
        self, x: Float[Tensor, "B N C"], latents: tuple[Tensor, ...]
    ) -> Float[Tensor, "B N C"]:
        """Return each token's mixer output from all ``n_gathers`` latents and itself alone."""
        raise self._has_no_stages()

    def _has_no_stages(self) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} cannot run in stages (n_gathers = 0)")

    def split_heads(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B H N D"]:
        """View channels as heads."""
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def merge_heads(self, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B N C"]:
        """Undo :meth:`split_heads`; free when ``x`` is stored with the heads innermost."""
        return x.transpose(1, 2).flatten(2)

    def project_heads(
        self, x: Float[Tensor, "B N C"], linear: nn.Linear
    ) -> list[Float[Tensor, "B H N D"]]:
        """Apply a Linear of several times ``dim`` rows; one tensor per ``dim`` rows, in heads."""
        parts = linear.out_features // self.dim
        return [self.split_heads(y) for y in split_linear(x, linear.weight, linear.bias, parts)]

    def project_some_heads(
        self, x: Float[Tensor, "B N C"], linear: nn.Linear, start: int, stop: int
    ) -> list[Float[Tensor, "B H N D"]]:
        """Return the tensors ``start:stop`` of :meth:`project_heads` at their share of the cost."""
        rows = slice(start * self.dim, stop * self.dim)
        parts = split_linear(x, linear.weight[rows], linear.bias[rows], stop - start)
        return [self.split_heads(y) for y in parts]


def check_init(init: str) -> None:
    """Raise on a name that is not in ``INITS``."""
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")


def draw_weights(module: nn.Module, init: str = "paper") -> None:
    """Draw every Linear inside with zero bias, and reset every norm.

    Parameters
    ----------
    module : nn.Module
        Whatever holds the layers.
    init : str, optional
        "paper" draws from N(0, 0.02), "balanced" with the variance 1 / inputs: rows of unit scale
        keep it, whatever the number of channels.

    Examples
    --------
    >>> wide, narrow = nn.Linear(1000, 100), nn.Linear(10, 1000)
    >>> draw_weights(nn.Sequential(wide, narrow), "balanced")
    >>> round(wide.weight.std().item(), 3), round(narrow.weight.std().item(), 1)
    (0.032, 0.3)
    """
    check_init(init)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            std = 0.02 if init == "paper" else part.in_features**-0.5
            nn.init.normal_(part.weight, std=std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            part.reset_parameters()


def add_identity(linear: nn.Linear, dim: int, init: str = "paper") -> None:
    """Add the identity to each ``dim`` rows of a projection: x + W x + b, at no cost per token."""
    with torch.no_grad():
        if init == "balanced":
            linear.weight *= _RESIDUAL_SHARE
        for rows in linear.weight.split(dim):
            rows += torch.eye(dim, dtype=rows.dtype, device=rows.device)

"""What every token mixer shares, and the two ways in which tokens meet in one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import (
    attention_with_lse,
    encode,
    merge_over_group,
    merge_partials,
    rotate_rows,
    split_linear,
    sum_over_group,
)
from ..ops.attention import TokenWeights, attention_of_part
from .layers import ResidualMLP, is_bare

# Of the first weights: ours, and the published runs'.
INITS = ("balanced", "paper")
# What a balanced residual map adds to the identity, over what it would be without it.
_RESIDUAL_SHARE = 0.25
Tokens = Float[Tensor, "B N C"]
# A gather over tokens, (B, H, M, E), and what it weighs, (B, H, M).
Gathered = tuple[Tensor, Tensor]
Latents = tuple[Tensor, ...]
# Queries (B, H, M, D), keys (B, H, N, D) and values (B, H, N, E).
AttentionInputs = tuple[Tensor, Tensor, Tensor]


class Mixer(nn.Module, ABC):
    r"""A map of tokens to tokens, :math:`(B, N, C) \to (B, N, C)`, for any N.

    Subclasses implement :meth:`forward`, call :meth:`reset_parameters` at the end of their
    constructor, and extend it where weights need more than :func:`draw_weights`.

    A mixer in which tokens meet only in gathers over tokens can also be run in stages, on any part
    of the tokens at a time: ``n_gathers`` times :meth:`gather` over all parts, joined by
    :meth:`merge` and turned into a latent by :meth:`finish`; then :meth:`scatter` on each part
    alone. Streaming and stored latents are built on these. All agree:
    ``forward(x) == scatter(x, latents)`` up to rounding. A gather is a softmax over tokens
    (:class:`SoftmaxMixer`) or a sum (:class:`SumMixer`). Token weights enter the gathers only;
    mixers take them as they are, and the model scales them
    (:func:`~physicsnemo_flarepp.models.token_model.weigh_tokens`).

    Attributes
    ----------
    dim, heads : int
        Channels C, and heads H, which divide them.
    context_group : str or None
        Name of the process group whose ranks own disjoint tokens of the same samples; None
        (default) when ``x`` holds them all. Set by ``parallel.enable_context_parallel``.
    n_gathers : int
        Gathers over all tokens that :meth:`scatter` needs; 0 if tokens meet in other ways, and the
        mixer has no stages and cannot be sharded.
    weight_of_nothing : float
        What a gather weighs that saw no token.
    attention_dropout : float
        Probability with which softmax weights are dropped in training; stages leave it out, like
        all dropout, and streaming refuses models that have it switched on.
    rotary : bool
        Rotate keys by the position of their token. Stages do not know positions, so a mixer with
        it has none.
    """

    context_group: str | None = None
    n_gathers: int = 0
    attention_dropout: float = 0.0
    rotary: bool = False
    weight_of_nothing: float = 0.0

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide dim, got dim={dim}, heads={heads}")
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads

    @abstractmethod
    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Mix the tokens of each sample; tokens of weight 0 or False influence no other token."""

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the initial weights; see :func:`draw_weights`."""
        draw_weights(self, init)

    def set_context_group(self, name: str | None) -> None:
        """Gather over the tokens of all ranks of a group, or with None over those given alone."""
        self.context_group = name

    @property
    def output(self) -> nn.Linear:
        """The last layer, which writes to the residual stream."""
        return cast(nn.Linear, self.out)

    @property
    def is_random(self) -> bool:
        """Whether two calls on the same tokens give different results."""
        return self.dropout > 0

    @property
    def dropout(self) -> float:
        """The attention dropout of this call."""
        return self.attention_dropout if self.training else 0.0

    def set_options(self, attention_dropout: float, rotary: bool) -> None:
        """Set what sequences ask of a mixer: see the attributes of these names."""
        self.attention_dropout = attention_dropout
        self.rotary = rotary
        if rotary:
            if self.head_dim % 2:
                raise ValueError(f"rotary keys need an even width per head, got {self.head_dim}")
            self.n_gathers = 0

    def place(self, key: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
        """Return keys of all tokens, rotated by their positions if the mixer is rotary."""
        return rotate_rows(key) if self.rotary else key

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return next(self.parameters()).dtype

    def gather(
        self, x: Float[Tensor, "B N C"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Gather some of the tokens, 0 or more: the partial result number ``len(latents)``.

        ``latents`` are the results of :meth:`finish` for the gathers before this one. Returns what
        was gathered, (B, H, M, E), and what it weighs, (B, H, M) in fp32 or fp64: a pair that
        :meth:`merge` joins with those of other tokens.
        """
        raise self._has_no_stages()

    def gather_again(
        self,
        x: Float[Tensor, "B N C"],
        latents: Latents,
        token_weights: TokenWeights | None,
        whole: Gathered,
    ) -> Gathered:
        """Return a pair whose gradients, if they are those of ``whole``, are right for ``x``.

        ``whole`` is the merged gather over all tokens, of which ``x`` are some. In a sum a summand
        has the gradient of the sum.
        """
        return self.gather(x, latents, token_weights)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Join gathers over disjoint tokens."""
        raise self._has_no_stages()

    def merge_ranks(self, part: Gathered) -> Gathered:
        """Join the gathers of all ranks of the context group, without derivatives."""
        raise self._has_no_stages()

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H M D"]:
        """Turn the merged gather number ``len(latents)`` into the latent that later stages use."""
        return gathered[0]

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
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
        self,
        x: Float[Tensor, "B N C"],
        layer: nn.Module,
        parts: int,
        start: int = 0,
        stop: int | None = None,
    ) -> list[Float[Tensor, "B H N D"]]:
        """Return parts ``start:stop`` of ``layer(x).chunk(parts, -1)`` in heads, at their cost.

        Of a list of layers, each makes one part.
        """
        stop = parts if stop is None else stop
        if isinstance(layer, nn.ModuleList):
            projected = tuple(part(x) for part in layer[start:stop])
        elif is_bare(layer):
            weight: Tensor = layer.weight
            bias: Tensor = layer.bias
            if (start, stop) != (0, parts):
                width = len(bias) // parts
                rows = slice(start * width, stop * width)
                weight, bias = weight[rows], bias[rows]
            projected = split_linear(x, weight, bias, stop - start)
        else:
            projected = layer(x).chunk(parts, -1)[start:stop]
        return [self.split_heads(y) for y in projected]


class SoftmaxMixer(Mixer):
    r"""A mixer whose gathers are softmaxes over tokens: pairs :math:`(O, L)`, the log-weight last.

    Subclasses say what attends to what (:meth:`attention_inputs`).
    """

    scale: float | None = None
    weight_of_nothing = -torch.inf

    @abstractmethod
    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return the queries of gather number ``len(latents)``, and keys and values of tokens."""

    def gather(
        self, x: Float[Tensor, "B N C"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Gather these tokens into output and log-normaliser."""
        inputs = self.attention_inputs(x, latents)
        return attention_with_lse(*inputs, scale=self.scale, key_weights=token_weights)

    def gather_again(
        self,
        x: Float[Tensor, "B N C"],
        latents: Latents,
        token_weights: TokenWeights | None,
        whole: Gathered,
    ) -> Gathered:
        """Return the whole gather, with the gradients that these tokens have in it."""
        inputs = self.attention_inputs(x, latents)
        return attention_of_part(*inputs, whole, scale=self.scale, key_weights=token_weights)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Merge by log-normalisers."""
        return merge_partials(*zip(*parts, strict=True))

    def merge_ranks(self, part: Gathered) -> Gathered:
        """Merge by log-normalisers over the context group."""
        return merge_over_group(*part, self.context_group)

    def queries_like(
        self, queries: Float[Tensor, "#one H M D"], k: Float[Tensor, "B H N D"]
    ) -> Float[Tensor, "B H M D"]:
        """Return learned queries in the batch size and dtype of keys."""
        return queries.to(k.dtype).expand(k.shape[0], -1, -1, -1)


class RoutingMixer(SoftmaxMixer):
    """FLARE and FLARE++: tokens gather into latents and read them back through the same keys."""

    n_projections: int  # of a token, of which the last two are its routing key and value
    project: nn.Module
    key_norm: nn.Module

    def normalize_key(self, key: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
        """Return keys from their projection."""
        # Heads innermost, as they come: attention would return other layouts, to be copied. Under
        # CUDA's autocast LayerNorm returns fp32.
        return self.place(self.key_norm(key.transpose(1, 2)).transpose(1, 2).to(key.dtype))

    def routing_keys(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B H N D"]:
        """Return the keys of the tokens."""
        n = self.n_projections
        return self.normalize_key(self.project_heads(x, self.project, n, n - 2, n - 1)[0])


class SumMixer(Mixer):
    r"""A mixer whose gathers are weighted sums over tokens: pairs :math:`(S, W)`, sum and weight.

    Divided at the end only (:meth:`finish`): the weight of a part may be next to nothing, where a
    mean and a logarithm have no derivatives.
    """

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """Add up."""
        sums, weights = zip(*parts, strict=True)
        return torch.stack(sums).sum(0), torch.stack(weights).sum(0)

    def merge_ranks(self, part: Gathered) -> Gathered:
        """Add up over the context group, differentiably and in one collective."""
        joined = sum_over_group(torch.cat((part[0], part[1][..., None]), -1), self.context_group)
        return joined[..., :-1], joined[..., -1]


def check_init(init: str) -> None:
    """Raise on a name that is not in ``INITS``."""
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")


def draw_weights(module: nn.Module, init: str = "paper") -> None:
    """Draw every Linear inside with zero bias, and reset every norm.

    "paper" draws from N(0, 0.02), "balanced" with the variance 1 / inputs: rows of unit scale keep
    it, whatever the number of channels.
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
    for part in module.modules():
        if isinstance(part, ResidualMLP) and init == "balanced":
            _shrink(part)


def _shrink(residual: nn.Module) -> None:
    """Scale what new residual layers add to the identity."""
    with torch.no_grad():
        for layer in residual.modules():
            if isinstance(layer, nn.Linear):
                layer.weight *= _RESIDUAL_SHARE


def make_projections(
    dim: int, layers: Sequence[int], act: str, residual: bool
) -> nn.Linear | nn.ModuleList:
    """Build projections of tokens by their residual layers: one Linear for all if none has any."""
    if not any(layers):
        return nn.Linear(dim, len(layers) * dim)
    if not residual:
        raise ValueError("residual_projections=False, but projections with layers are residual")
    return nn.ModuleList(ResidualMLP(dim, n, act) for n in layers)


def add_identity(projections: nn.Module, dim: int, init: str = "paper") -> None:
    """Add the identity to each ``dim`` rows of a projection: x + W x + b, at no cost per token.

    Projections with layers have it already.
    """
    if isinstance(projections, nn.Linear):
        if init == "balanced":
            _shrink(projections)
        with torch.no_grad():
            for rows in projections.weight.split(dim):
                rows += torch.eye(dim, dtype=rows.dtype, device=rows.device)


class OneGatherMixer(SoftmaxMixer):
    """A mixer that gathers the tokens once, by a softmax over them.

    Subclasses say with which queries, keys and values (``attention_inputs``), what becomes of the
    gathered latents (:meth:`transform`) and how each token reads them (``scatter``).
    """

    n_gathers = 1

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Gather the tokens, work on the latents, return them."""
        q, k, v = self.attention_inputs(x, ())
        z = encode(q, k, v, scale=self.scale, key_weights=token_weights, group=self.context_group)
        return self.scatter(x, (self.transform(z),))

    @abstractmethod
    def transform(self, z: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M E"]:
        """Turn the gathered latents into what the tokens read."""

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H M E"]:
        """Work on the gathered latents."""
        return self.transform(gathered[0])

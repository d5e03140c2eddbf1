"""What all models share: inputs, checks, the pass through the blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from physicsnemo.core import ModelMetaData, Module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..mixers import draw_weights
from ..mixers.base import TokenWeights
from ..ops import sum_over_group
from ..ops.attention import join_weights
from ..ops.checks import check_devices, check_mask, check_weights
from ..ops.collectives import sum_shared_gradients
from ..ops.kernels import accumulation_dtype, is_plain, plain_operators
from .layers import AnyBlock, balance_outputs

_DEFAULT_REF = 8
TOTAL_WEIGHT = 1e4


@dataclass
class MetaData(ModelMetaData):
    """What PhysicsNeMo may do with these models."""

    amp: bool = True
    bf16: bool = True
    onnx: bool = True


class TokenModel(Module):
    """A model of tokens that meet only in the mixers of its blocks.

    Subclasses set ``in_projection``, ``blocks`` and ``out_projection``, and ``time_embedding`` and
    ``time_projection`` with ``time_input``. Masks, weights, grids, checkpointing, context
    parallelism, streaming and ShardTensors then work alike for all:
    :class:`~physicsnemo_flarepp.models.MixerBackbone` and FlarePP, the complete architectures
    PerceiverIO, SetTransformer, GNOT and LNO, and views of PhysicsNeMo's models.
    :class:`~physicsnemo_flarepp.models.FlarePP` describes ``forward`` and the arguments;
    ``positions`` embed every token of the grid, (N, E), in place of the unified ones.
    """

    in_projection: nn.Module
    blocks: Sequence[AnyBlock]
    out_projection: nn.Module
    positions: Tensor
    # Off in copies for ShardTensors, whose gradients are summed outside.
    sums_shared_gradients = True

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        structured_shape: Sequence[int] | None = None,
        unified_pos: bool = False,
        ref: int = 8,
        positions: Float[Tensor, "N E"] | None = None,
        time_input: bool = False,
        checkpoint_blocks: bool | float = False,
        meta: ModelMetaData | None = None,
    ) -> None:
        super().__init__(meta=meta or MetaData())
        check_integers(1, {"functional_dim": functional_dim, "out_dim": out_dim})
        check_integers(1, {"embedding_dim": 1 if embedding_dim is None else embedding_dim})
        self.functional_dim, self.out_dim = functional_dim, out_dim
        self.structured_shape = None if structured_shape is None else tuple(structured_shape)
        if positions is None:
            positions = grid_positions(structured_shape, unified_pos, ref, embedding_dim)
        self.unified_pos = positions is not None
        if positions is not None:
            # Rebuilt from the arguments, so it need not travel in checkpoints.
            self.register_buffer("positions", positions, persistent=False)
            embedding_dim = positions.shape[-1]
        self.embedding_dim, self.time_input = embedding_dim, time_input
        if not 0 <= checkpoint_blocks <= 1:
            raise ValueError(
                f"checkpoint_blocks is {checkpoint_blocks}, expected a share of the blocks, 0 to 1"
            )
        self.checkpoint_blocks = checkpoint_blocks
        self.init = "paper"  # of those that have no such argument

    def reset_parameters(self) -> None:
        """Draw the first weights as ``init`` says, then let the mixers set their own."""
        draw_weights(self, self.init)
        for block in self.blocks:
            block.mixer.reset_parameters(self.init)
        if self.init == "balanced":
            balance_outputs(self.blocks, self.out_projection)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that the model was built with, by name."""
        return self._args["__args__"]

    @property
    def token_width(self) -> int:
        """Channels of a token as it comes in, ``embedding`` and ``fx`` together."""
        return self.functional_dim + (self.embedding_dim or 0)

    @property
    def context_group(self) -> str | None:
        """Name of the group over which the tokens are spread; None when they are all here."""
        return self.blocks[0].mixer.context_group

    @property
    def stream_width(self) -> int:
        """Channels of the hidden state that goes from block to block."""
        return self.blocks[0].mixer.dim

    def forward(
        self,
        fx: Float[Tensor, "B *tokens F"],
        embedding: Float[Tensor, "B *tokens E"] | None = None,
        time: Float[Tensor, " B"] | None = None,
        token_mask: Bool[Tensor, "B N"] | None = None,
        token_weights: Float[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B *tokens out"]:
        """Predict the fields at the tokens."""
        if any(hasattr(value, "_spec") for value in (fx, embedding)):
            # Upwards and late: only callers that hold PhysicsNeMo's ShardTensors get here.
            from ..parallel.shard_tensor import forward_shards

            return forward_shards(self, fx, embedding, time, token_mask, token_weights)
        if self.unified_pos and embedding is not None:
            self.check_replaced(fx.shape[0], tuple(embedding.shape))
            embedding = None
        one_row = fx.ndim == 3 and fx.shape[1] == 1 and embedding is not None
        layout = fx if embedding is None or not one_row else embedding
        on_grid = self.structured_shape is not None and layout.ndim != 3
        fx = self._as_tokens(fx)
        embedding = None if embedding is None else self._as_tokens(embedding)
        if self.unified_pos:
            embedding = self.positions.to(fx.dtype).expand(fx.shape[0], -1, -1)
        if not torch.compiler.is_compiling():
            self.check_inputs(fx, embedding, time, token_mask, token_weights)
        if self.sums_shared_gradients:
            fx, time = sum_shared_gradients(fx, embedding, time, self.context_group)
        weights = weigh_tokens(token_mask, token_weights, fx.dtype, self.context_group)
        x = self.embed(fx, embedding, time, weights)
        share = float(self.checkpoint_blocks) if torch.is_grad_enabled() else 0.0
        for number, block in enumerate(self.blocks):
            if int((number + 1) * share) > int(number * share):
                x = _checkpoint(block, x, weights)
            else:
                x = block(x, weights)
        y = self.read_out(x, weights)
        return y.unflatten(1, self.structured_shape) if on_grid else y

    def embed(
        self,
        fx: Float[Tensor, "B _N F"],
        embedding: Float[Tensor, "B N E"] | None = None,
        time: Float[Tensor, " B"] | None = None,
        weights: TokenWeights | None = None,
    ) -> Float[Tensor, "B N C"]:
        """Return the hidden state of the tokens before the first block."""
        if weights is not None:
            # 0 * NaN is NaN in every product below, so padding is cleared at the source.
            padding = weights[..., None] == 0
            if fx.shape[1] == weights.shape[1]:
                fx = fx.masked_fill(padding, 0.0)
            embedding = None if embedding is None else embedding.masked_fill(padding, 0.0)
        x = self.in_projection(fx, embedding)
        if time is not None:
            x = x + self.time_projection(self.time_embedding(time).to(x.dtype))[:, None]
        return x

    def read_out(
        self, x: Float[Tensor, "B N C"], weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N out"]:
        """Return the outputs of the tokens after the last block; those of weight 0 give 0."""
        y = self.out_projection(x)
        return y if weights is None else y.masked_fill(weights[..., None] == 0, 0.0)

    def _as_tokens(self, value: Tensor) -> Tensor:
        """Flatten a grid to tokens."""
        is_grid = value.ndim > 3 and tuple(value.shape[1:-1]) == self.structured_shape
        return value.flatten(1, -2) if is_grid else value

    def check_replaced(self, batch: int, shape: tuple[int, ...]) -> None:
        """Raise on an embedding that is replaced by positions and does not even fit the grid."""
        grid = tuple(self.structured_shape or ())
        if shape[0] != batch or shape[1:-1] not in (grid, (torch.Size(grid).numel(),)):
            raise ValueError(
                "with unified_pos=True the grid makes the embedding; leave it out. Yours does not "
                f"even fit: expected a batch of {batch} and the grid {grid}, got {shape}"
            )

    def check_inputs(
        self,
        fx: Tensor,
        embedding: Tensor | None,
        time: Tensor | None,
        token_mask: Tensor | None = None,
        token_weights: Tensor | None = None,
    ) -> None:
        """Raise on tokens, times, masks or weights that do not fit the model or each other."""
        batch, width = fx.shape[0], self.embedding_dim
        for name, value in (("fx", fx), ("embedding", embedding)):
            if value is not None and not value.is_floating_point():
                raise TypeError(f"{name} must be a floating tensor, got {value.dtype}")
        check_tokens("fx", fx, self.functional_dim, batch, ())
        n_tokens = fx.shape[1]
        if (embedding is None) != (width is None):
            given = "is missing" if embedding is None else f"has shape {tuple(embedding.shape)}"
            raise ValueError(f"embedding {given}: the model was built with embedding_dim={width}")
        rows: tuple[int, ...] = ()
        if self.structured_shape is not None and self.context_group is None:
            rows = (torch.Size(self.structured_shape).numel(),)
        if embedding is not None and width is not None:
            check_tokens("embedding", embedding, width, batch, rows)
            n_tokens = embedding.shape[1]
            rows = (n_tokens, 1)
        check_tokens("fx", fx, self.functional_dim, batch, rows)
        if self.time_input != (time is not None):
            raise ValueError(
                f"time must be given exactly when time_input is set: time_input="
                f"{self.time_input}, time={'given' if time is not None else None}"
            )
        if time is not None and time.shape != (batch,):
            raise ValueError(f"time must have shape (B,) = {(batch,)}, got {tuple(time.shape)}")
        if token_mask is not None:
            check_token_mask(token_mask, batch, n_tokens, whole=self.context_group is None)
        if token_weights is not None:
            check_devices(fx=fx, token_weights=token_weights)
            check_weights("token_weights", token_weights, (batch, n_tokens), token_mask)


def _checkpoint(block: nn.Module, x: Tensor, weights: TokenWeights | None) -> Tensor:
    """Run a block that is run again in the backward pass, whose thread may be another one."""

    def plain_block(x: Tensor, weights: TokenWeights | None) -> Tensor:
        with plain_operators():
            return block(x, weights)

    return checkpoint(plain_block if is_plain() else block, x, weights, use_reentrant=False)


def grid_positions(
    shape: Sequence[int] | None, unified_pos: bool, ref: int, embedding_dim: int | None
) -> Float[Tensor, "N E"] | None:
    """Return the positions that a model asks for, None for none; raise on what contradicts it."""
    check_integers(1, {"ref": ref})
    if shape is not None and (
        len(shape) not in (2, 3) or any(int(size) != size or size <= 0 for size in shape)
    ):
        raise ValueError(f"structured_shape must be 2 or 3 positive integers, got {tuple(shape)}")
    if not unified_pos:
        if ref != _DEFAULT_REF:
            raise ValueError(f"ref={ref} has no effect without unified_pos=True; leave it out")
        return None
    if shape is None:
        raise ValueError("unified_pos=True needs structured_shape, got None; pass the grid's shape")
    width = ref ** len(shape)
    if embedding_dim not in (None, width):
        raise ValueError(
            f"embedding_dim={embedding_dim} has no effect with unified_pos=True, which makes "
            f"ref**{len(shape)} = {width} channels from the grid; leave it out"
        )
    return unified_positions(shape, ref)


def unified_positions(shape: Sequence[int], ref: int) -> Float[Tensor, "N R"]:
    r"""Distances of every point of a unit grid to the points of a :math:`\mathrm{ref}^d` grid.

    Agrees with PhysicsNeMo's ``unified_pos`` in 2-D and extends it to 3-D. Shape
    :math:`(N, \mathrm{ref}^d)`, points in row-major order.
    """
    return torch.cdist(_unit_grid(shape), _unit_grid([ref] * len(shape))).float()


def _unit_grid(shape: Sequence[int]) -> Tensor:
    axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)


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
    io_layers: int = 0,
    dropout: float = 0.0,
) -> None:
    """Raise unless sizes are positive integers, heads divide the width, and ratios are ratios."""
    check_integers(0, {"io_layers": io_layers})
    check_integers(1, {"n_layers": n_layers, "n_hidden": n_hidden, "n_head": n_head, **others})
    if n_hidden % n_head:
        raise ValueError(f"n_hidden must be divisible by n_head, got {n_hidden} and {n_head}")
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
    """Raise unless ``mask`` is boolean (B, N) with a real token in every ``whole`` sample."""
    check_mask("token_mask", mask, (batch, n_tokens))
    if not whole:  # the real tokens may be on other ranks
        return
    empty = ~mask.any(-1)
    if mask.device.type != "cpu":  # asserted there, without a host sync
        torch._assert_async(~empty.any(), "token_mask is False for every token of a sample")
    elif empty.any():
        raise ValueError(
            f"token_mask is False for every token of sample(s) {empty.nonzero().flatten().tolist()}"
            "; drop these samples"
        )


def weigh_tokens(
    token_mask: Bool[Tensor, "B N"] | None,
    token_weights: Float[Tensor, "B N"] | None,
    dtype: torch.dtype,
    group: str | None = None,
) -> TokenWeights | None:
    r"""Return what mixers take as the weights of tokens: a mask as it is, weights on their scale.

    In the continuum a gather is an integral over the geometry; tokens are its quadrature points and
    :math:`w_n`, the area or volume of token n, its weights: splitting a token into several that
    share its weight changes nothing. Only ratios within a sample matter: its weights are scaled to
    one total, over the tokens of all chunks and ranks. Mixers whose gathers are softmaxes do not
    see the total. The Transolvers add 1e-5 *tokens* to the weight of each slice, so there the total
    says what a token is: one of 10,000. It cannot be N, which splitting a token changes.
    """
    weights = join_weights(token_mask, token_weights)
    if weights is None or token_weights is None:
        return weights
    if weights.requires_grad:
        # A weight of 0 is padding, whose own output jumps to 0 there: no derivative, so none.
        weights = weights.masked_fill(weights == 0, 0.0)
    total = weights.sum(-1, dtype=torch.float64)
    # Where values are not read, a negative weight must still not pass for a number.
    total = total.masked_fill((weights < 0).any(-1), torch.nan)
    total = sum_over_group(total, group)
    if not torch.compiler.is_compiling():
        check_totals(total)
    return scale_weights(weights, total, dtype)


def scale_weights(
    weights: TokenWeights, total: Float[Tensor, " B"], dtype: torch.dtype
) -> Float[Tensor, "B N"]:
    """Scale some of the weights, of which those of a whole sample add up to ``total``.

    Positive weights stay positive, however small: 0 means padding.
    """
    dtype = accumulation_dtype(dtype)
    scaled = weights.double() / total[:, None] * TOTAL_WEIGHT
    scaled = scaled.to(dtype).clamp(min=torch.finfo(dtype).tiny)
    return scaled.masked_fill(weights == 0, 0.0)


def check_totals(total: Float[Tensor, " B"]) -> None:
    """Raise unless every sample has a positive, finite total; on CUDA without a host sync."""
    good = (total > 0) & (total < torch.inf)
    if total.device.type != "cpu":
        torch._assert_async(good.all(), "token_weights are negative, NaN, infinite or all 0")
    elif not good.all():
        sample = int((~good).nonzero()[0])
        reason = f"add up to {total[sample].item()}; rescale them"
        if total[sample] == 0:
            reason = "are 0 for every token, or it has no token; drop the sample"
        raise ValueError(f"token_weights of sample {sample} {reason}")

"""The paper's matched backbone, in which only the token mixer changes."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from physicsnemo.core import ModelMetaData, Module
from physicsnemo.nn import PositionalEmbedding
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..mixers import MIXERS, Mixer, check_init, draw_weights, make_norm
from ..mixers.base import TokenWeights
from ..ops.checks import check_devices, check_weights
from .checks import (
    check_architecture,
    check_grid,
    check_integers,
    check_ratios,
    check_token_mask,
    check_tokens,
)
from .layers import (
    AnyBlock,
    Block,
    InProjection,
    JoinedInputs,
    OutProjection,
    balance_outputs,
    linear_chain,
    stack_blocks,
)
from .positions import unified_positions
from .weights import weigh_tokens


@dataclass
class MetaData(ModelMetaData):
    """What PhysicsNeMo may do with these models."""

    amp: bool = True
    bf16: bool = True


class MixerBackbone(Module):
    r"""Surrogate for fields on point sets, grids and meshes with an exchangeable token mixer.

    In-projection, ``n_layers`` residual blocks ``x + mixer(norm x)``, ``x + ffn(norm x)``,
    out-projection. Everything but the mixer acts on each token alone. The constructor and
    ``forward`` accept what ``physicsnemo.models.flare.FLARE`` does, in the same order. Second
    derivatives need :func:`~physicsnemo_flarepp.ops.plain_operators` around the call.

    Parameters
    ----------
    functional_dim : int
        Channels F of ``fx``.
    out_dim : int
        Channels of the output.
    embedding_dim : int, optional
        Channels E of ``embedding``. None (default) for a model of ``fx`` alone, or with
        ``unified_pos``.
    n_layers : int, optional, default=8
        Blocks B of the paper.
    n_hidden : int, optional, default=128
        Hidden width C.
    dropout : float, optional, default=0.0
        Dropout on the two branches of each block.
    n_head : int, optional, default=8
        Heads H; must divide ``n_hidden``.
    act : str, optional, default="gelu"
        Activation, by PhysicsNeMo's names; "gelu" is the tanh approximation, as in the published
        runs, and "gelu_exact" the other.
    mlp_ratio : float, optional, default=2.0
        Hidden width of the feed-forward over ``n_hidden``.
    slice_num : int, optional, default=64
        Latents or slices M per head.
    unified_pos : bool, optional, default=False
        Use distances to a reference grid as the embedding (needs ``structured_shape``).
    ref : int, optional, default=8
        Reference points per axis for ``unified_pos``.
    structured_shape : sequence of int, optional
        Shape of the grid, 2-D or 3-D, if the tokens form one.
    time_input : bool, optional, default=False
        Accept ``time`` and add its embedding to every token.
    use_te : bool, optional, default=False
        Only False: kept so that PhysicsNeMo configs apply. True raises.
    norm : str, optional, default="layer"
        "layer", or "rms" for mixed precision.
    io_layers : int, optional, default=2
        Residual layers in each of the two projections.
    seed_norm, shared_projections, anchored_queries : bool, optional
        Options of the flarepp mixer (:class:`~physicsnemo_flarepp.mixers.FlarePPMixer`).
        Defaults True, False, False.
    residual_projections : bool, optional, default=True
        Start the projections of flare and flarepp at the identity.
    checkpoint_blocks : bool, optional, default=False
        Recompute each block in the backward pass instead of storing its activations.
    activation_checkpointing : bool, optional, default=False
        PhysicsNeMo's name for ``checkpoint_blocks``; either turns it on.
    mixer : str, optional, default="flarepp"
        "flarepp", "flare", "attention", "transolver", "transolver_plus" or "transolver3".
    orthogonal_slices : bool, optional, default=False
        Start the slice weights of the Transolvers orthogonal, as their papers do; the published
        runs in this backbone draw them from N(0, 0.02).
    noise_at_evaluation : bool, optional, default=False
        Let transolver_plus draw its Gumbel noise in ``eval()`` too, as in the published runs. Its
        predictions are then random, and cannot be streamed.
    plain_projections : bool, optional, default=False
        Project inputs and outputs as PhysicsNeMo's FLARE does: Linear(in, 2C), act, Linear(2C, C),
        and norm, Linear(C, out). ``io_layers`` is not used then.
    init : str, optional, default="balanced"
        How the first weights are drawn. "balanced" keeps the scale of unit inputs through every
        layer and lets all branches together add less to the stream than it has, so that training
        starts at once, for any number of channels and blocks. "paper" draws every weight from
        N(0, 0.02), as the published runs do. Checkpoints hold their weights, so this concerns new
        models only.

    Forward
    -------
    fx : torch.Tensor
        Shape :math:`(B, N, F)`, :math:`(B, *\mathrm{grid}, F)`, or :math:`(B, 1, F)`: one row for
        all tokens, projected once and added to every token.
    embedding : torch.Tensor, optional
        Shape :math:`(B, N, E)` or :math:`(B, *\mathrm{grid}, E)`. Not used with ``unified_pos``.
    time : torch.Tensor, optional
        Shape :math:`(B,)`, required with ``time_input``.
    token_mask : torch.Tensor, optional
        Boolean :math:`(B, N)`, True for real tokens. Masked tokens may hold anything, NaN
        included; they influence nothing and give 0.
    token_weights : torch.Tensor, optional
        Floating :math:`(B, N)`, at least 0: the length, area or volume a token stands for. Only
        ratios within a sample matter; 0 is a masked token. Gathers then integrate over the
        geometry instead of averaging over tokens, so that the prediction does not depend on how
        the mesh is refined. No gradient flows to them. Negative, NaN or infinite weights and a
        sample of zeros raise on the host; on CUDA, where reading them would wait for the device,
        they fail an assertion there. Compiled models check nothing: all but zeros gives NaN.

    Outputs
    -------
    torch.Tensor
        Shape :math:`(B, N, \mathrm{out\_dim})`, or on the grid if ``fx`` came on the grid, or one
        row of it beside an ``embedding`` on the grid.

    Examples
    --------
    >>> import torch
    >>> model = MixerBackbone(3, 1, n_layers=1, n_hidden=32, n_head=4, mixer="transolver3")
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 1])
    """

    mixers: tuple[str, ...] = tuple(MIXERS)
    init: str = "paper"  # of subclasses that have no such argument
    in_projection: nn.Module
    blocks: Sequence[AnyBlock]
    out_projection: nn.Module
    positions: Tensor

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        n_layers: int = 8,
        n_hidden: int = 128,
        dropout: float = 0.0,
        n_head: int = 8,
        act: str = "gelu",
        mlp_ratio: float = 2.0,
        slice_num: int = 64,
        unified_pos: bool = False,
        ref: int = 8,
        structured_shape: Sequence[int] | None = None,
        time_input: bool = False,
        use_te: bool = False,
        norm: str = "layer",
        io_layers: int = 2,
        seed_norm: bool = True,
        residual_projections: bool = True,
        shared_projections: bool = False,
        anchored_queries: bool = False,
        checkpoint_blocks: bool = False,
        activation_checkpointing: bool = False,
        mixer: str = "flarepp",
        orthogonal_slices: bool = False,
        noise_at_evaluation: bool = False,
        plain_projections: bool = False,
        init: str = "balanced",
    ) -> None:
        super().__init__(meta=MetaData())
        check_integers(
            1,
            {
                "functional_dim": functional_dim,
                "out_dim": out_dim,
                "embedding_dim": 1 if embedding_dim is None else embedding_dim,
                "n_layers": n_layers,
                "n_hidden": n_hidden,
                "n_head": n_head,
                "slice_num": slice_num,
                "ref": ref,
            },
        )
        check_integers(0, {"io_layers": io_layers})
        check_ratios(mlp_ratio, dropout)
        check_architecture(n_hidden, n_head, mixer, self.mixers)
        check_grid(structured_shape, unified_pos)
        check_init(init)
        if use_te:
            raise ValueError(
                "use_te=True is not supported: Transformer Engine does not return the "
                "log-normaliser that exact sharding and streaming need; pass use_te=False"
            )
        self.n_hidden = n_hidden
        self.init = init
        self.time_input = time_input
        self.use_te = use_te
        self.checkpoint_blocks = checkpoint_blocks or activation_checkpointing
        self._set_inputs(functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref)

        in_dim = functional_dim + (self.embedding_dim or 0)
        self.in_projection = (
            JoinedInputs(linear_chain((in_dim, 2 * n_hidden, n_hidden), act))
            if plain_projections
            else InProjection(self.embedding_dim or 0, functional_dim, n_hidden, io_layers, act)
        )
        if time_input:
            self.time_embedding = PositionalEmbedding(n_hidden)
            self.time_projection = nn.Sequential(
                nn.Linear(n_hidden, n_hidden), nn.SiLU(), nn.Linear(n_hidden, n_hidden)
            )
        options = {
            "norm": norm,
            "slice_num": slice_num,
            "seed_norm": seed_norm,
            "residual_projections": residual_projections,
            "shared_projections": shared_projections,
            "anchored_queries": anchored_queries,
            "orthogonal_slices": orthogonal_slices,
            "noise_at_evaluation": noise_at_evaluation,
        }
        self.blocks = stack_blocks(
            Block(_make_mixer(mixer, n_hidden, n_head, options), mlp_ratio, act, norm, dropout)
            for _ in range(n_layers)
        )
        self.out_projection = (
            nn.Sequential(make_norm(norm, n_hidden), nn.Linear(n_hidden, out_dim))
            if plain_projections
            else OutProjection(n_hidden, out_dim, io_layers, act, norm)
        )
        self.reset_parameters()

    def _set_inputs(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None,
        structured_shape: Sequence[int] | None,
        unified_pos: bool,
        ref: int,
    ) -> None:
        """Remember what ``forward`` takes and gives."""
        self.functional_dim = functional_dim
        self.out_dim = out_dim
        self.unified_pos = unified_pos
        self.structured_shape = None if structured_shape is None else tuple(structured_shape)
        if unified_pos and structured_shape is not None:
            # Rebuilt from the arguments, so it need not travel in checkpoints.
            positions = unified_positions(structured_shape, ref)
            self.register_buffer("positions", positions, persistent=False)
            embedding_dim = positions.shape[-1]
        self.embedding_dim = embedding_dim

    def reset_parameters(self) -> None:
        """Draw the first weights as ``init`` says, then let the mixers set their own."""
        draw_weights(self, self.init)
        for block in self.blocks:
            block.mixer.reset_parameters(self.init)
        if self.init == "balanced":
            balance_outputs(self.blocks, self.out_projection)

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
        embedding = None if self.unified_pos else embedding
        one_row = fx.ndim == 3 and fx.shape[1] == 1 and embedding is not None
        layout = fx if embedding is None or not one_row else embedding
        on_grid = self.structured_shape is not None and layout.ndim != 3
        fx, embedding = self._as_tokens(fx, embedding)
        if not torch.compiler.is_compiling():
            self.check_inputs(fx, embedding, time, token_mask, token_weights)
        weights = weigh_tokens(token_mask, token_weights, fx.dtype, self.context_group)
        x = self.embed(fx, embedding, time, weights)
        for block in self.blocks:
            if self.checkpoint_blocks and torch.is_grad_enabled():
                x = checkpoint(block, x, weights, use_reentrant=False)
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

    def _as_tokens(self, fx: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Flatten grids to tokens and supply the unified positions."""
        if self.structured_shape is not None:
            fx = self._flatten_grid(fx)
            embedding = None if embedding is None else self._flatten_grid(embedding)
        if self.unified_pos:
            embedding = self.positions.to(fx.dtype).expand(fx.shape[0], -1, -1)
        return fx, embedding

    def _flatten_grid(self, value: Tensor) -> Tensor:
        is_grid = tuple(value.shape[1:-1]) == self.structured_shape
        return value.flatten(1, -2) if is_grid and value.ndim > 3 else value

    def check_inputs(
        self,
        fx: Tensor,
        embedding: Tensor | None,
        time: Tensor | None,
        token_mask: Tensor | None = None,
        token_weights: Tensor | None = None,
    ) -> None:
        """Raise on tokens, times, masks or weights that do not fit the model or each other."""
        for name, value in (("fx", fx), ("embedding", embedding)):
            if value is not None and not value.is_floating_point():
                raise TypeError(f"{name} must be a floating tensor, got {value.dtype}")
        check_tokens("fx", fx, self.functional_dim, fx.shape[0], ())
        width = self.embedding_dim
        if width is not None and embedding is None:
            raise ValueError(
                f"embedding is missing: the model was built with embedding_dim={width}; "
                f"pass a tensor of shape (B, N, {width})"
            )
        if width is None and embedding is not None:
            raise ValueError(
                "the model takes no embedding (embedding_dim=None), "
                f"got one of shape {tuple(embedding.shape)}; build it with embedding_dim"
            )
        batch = fx.shape[0]
        grid: tuple[int, ...] = ()
        if self.structured_shape is not None and self.context_group is None:
            grid = (torch.Size(self.structured_shape).numel(),)
        if embedding is None or width is None:
            check_tokens("fx", fx, self.functional_dim, batch, grid)
            n_tokens = fx.shape[1]
        else:
            check_tokens("embedding", embedding, width, batch, grid)
            n_tokens = embedding.shape[1]
            check_tokens("fx", fx, self.functional_dim, batch, (n_tokens, 1))
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


def _make_mixer(name: str, dim: int, heads: int, options: dict) -> Mixer:
    """Build a mixer with those of the backbone's options that it has."""
    cls = MIXERS[name]
    known = inspect.signature(cls).parameters
    return cls(dim, heads, **{key: value for key, value in options.items() if key in known})

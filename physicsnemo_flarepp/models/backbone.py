"""The paper's matched backbone, in which only the token mixer changes."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from physicsnemo.nn import PositionalEmbedding
from torch import nn

from ..mixers import MIXERS, check_init, make_norm
from .layers import (
    InProjection,
    JoinedInputs,
    OutProjection,
    linear_chain,
    make_block,
    stack_blocks,
)
from .token_model import TokenModel, check_integers, check_sizes


class MixerBackbone(TokenModel):
    r"""Surrogate for fields on point sets, grids and meshes with an exchangeable token mixer.

    :class:`~physicsnemo_flarepp.models.FlarePP` with other mixers: everything else is the same, and
    acts on each token alone, ``forward`` and all arguments that are not listed here included. An
    option that a mixer does not have raises, unless it has its default or None.

    Parameters
    ----------
    mixer : str, optional, default="flarepp"
        "flarepp", "flare", "attention", "transolver", "transolver_plus" or "transolver3".
    slice_num : int, optional, default=64
        Latents or slices M per head; attention has none.
    seed_norm, shared_projections, anchored_queries : bool, optional
        Options of flarepp (:class:`~physicsnemo_flarepp.mixers.FlarePPMixer`). Defaults True,
        False, False.
    residual_projections : bool, optional, default=True
        Start the projections of flare and flarepp at the identity.
    unit_scale : bool, optional, default=False
        Give flare the scale 1 of its first paper.
    orthogonal_slices : bool, optional, default=False
        Start the slice weights of the Transolvers orthogonal, as their papers do; the published
        runs in this backbone draw them from N(0, 0.02).
    noise_at_evaluation : bool, optional, default=False
        Let transolver_plus draw its Gumbel noise in ``eval()`` too, as in the published runs. Its
        predictions are then random, and cannot be streamed.

    Examples
    --------
    >>> import torch
    >>> model = MixerBackbone(3, 1, n_layers=1, n_hidden=32, n_head=4, mixer="transolver3")
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 1])
    """

    mixers: tuple[str, ...] = tuple(MIXERS)
    _overridable_args = {"checkpoint_blocks", "activation_checkpointing", "checkpointing_ratio"}

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
        slice_num: int | None = 64,
        unified_pos: bool = False,
        ref: int = 8,
        structured_shape: Sequence[int] | None = None,
        time_input: bool = False,
        use_te: bool = False,
        activation_checkpointing: bool | float = False,
        norm: str = "layer",
        io_layers: int = 2,
        seed_norm: bool = True,
        residual_projections: bool = True,
        shared_projections: bool = False,
        anchored_queries: bool = False,
        checkpoint_blocks: bool | float = False,
        mixer: str = "flarepp",
        orthogonal_slices: bool = False,
        noise_at_evaluation: bool = False,
        plain_projections: bool = False,
        init: str = "balanced",
        plus: bool = False,
        checkpointing_ratio: float = 0.0,
        projection_layers: int = 0,
        synthesis_layers: int = 0,
        ffn_layers: int = 0,
        unit_scale: bool = False,
    ) -> None:
        if mixer not in self.mixers:
            raise ValueError(f"mixer must be one of {sorted(self.mixers)}, got {mixer!r}")
        if plus:
            raise ValueError('plus=True is mixer="transolver_plus" here; leave plus out')
        if mixer == "flare" and plain_projections and not seed_norm:
            seed_norm = True  # from_physicsnemo of 0.3.1 wrote False for what FLARE does not have
        options = {
            "slice_num": slice_num,
            "seed_norm": seed_norm,
            "residual_projections": residual_projections,
            "shared_projections": shared_projections,
            "anchored_queries": anchored_queries,
            "orthogonal_slices": orthogonal_slices,
            "noise_at_evaluation": noise_at_evaluation,
            "projection_layers": projection_layers,
            "synthesis_layers": synthesis_layers,
            "unit_scale": unit_scale,
        }
        known = mixer_options(MixerBackbone, mixer, options, norm=norm, act=act)
        latents = {"slice_num": slice_num} if "slice_num" in known else {}
        check_sizes(n_layers, n_hidden, n_head, latents, mlp_ratio, io_layers, dropout)
        depths = {name: value for name, value in known.items() if name.endswith("_layers")}
        check_integers(0, {"ffn_layers": ffn_layers, **depths})
        check_init(init)
        if use_te:
            raise ValueError(
                "use_te=True is not supported: Transformer Engine does not return the "
                "log-normaliser that exact sharding and streaming need; pass use_te=False"
            )
        if plain_projections and io_layers != 2:
            raise ValueError(
                f"io_layers={io_layers} has no effect with plain_projections=True; leave one out"
            )
        if ffn_layers and mlp_ratio != 2:
            raise ValueError(
                f"mlp_ratio={mlp_ratio} has no effect with ffn_layers={ffn_layers}; leave one out"
            )
        super().__init__(
            *(functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref),
            time_input=time_input,
            checkpoint_blocks=checkpoint_blocks or activation_checkpointing or checkpointing_ratio,
        )
        self.n_hidden = n_hidden
        self.init = init
        self.use_te = use_te
        self.in_projection = (
            JoinedInputs(linear_chain((self.token_width, 2 * n_hidden, n_hidden), act))
            if plain_projections
            else InProjection(self.token_width, n_hidden, io_layers, act)
        )
        if time_input:
            self.time_embedding = PositionalEmbedding(n_hidden)
            self.time_projection = nn.Sequential(
                nn.Linear(n_hidden, n_hidden), nn.SiLU(), nn.Linear(n_hidden, n_hidden)
            )
        make_mixer = partial(MIXERS[mixer], n_hidden, n_head, **known)
        self.blocks = stack_blocks(
            make_block(make_mixer(), mlp_ratio, act, norm, dropout, ffn_layers)
            for _ in range(n_layers)
        )
        self.out_projection = (
            nn.Sequential(make_norm(norm, n_hidden), nn.Linear(n_hidden, out_dim))
            if plain_projections
            else OutProjection(n_hidden, out_dim, io_layers, act, norm)
        )
        self.reset_parameters()


def mixer_options(
    model: type[nn.Module], mixer: str, options: dict[str, Any], **shared: str
) -> dict[str, Any]:
    """Return the options that a mixer has; raise on others that are not `model`'s defaults."""
    if mixer not in MIXERS:
        raise ValueError(f"mixer must be one of {sorted(MIXERS)}, got {mixer!r}")
    defaults = inspect.signature(model).parameters
    parameters = {key: inspect.signature(cls).parameters for key, cls in MIXERS.items()}
    for name, value in options.items():
        having = [key for key in MIXERS if name in parameters[key]]
        if mixer not in having and value not in (None, defaults[name].default):
            raise ValueError(
                f"{name}={value!r} has no effect with mixer={mixer!r}, only with "
                f"{', '.join(having)}; leave it out, or choose another mixer"
            )
    given = options | shared
    return {name: value for name, value in given.items() if name in parameters[mixer]}

r"""PhysicsNeMo's FLARE, FLAREPlusPlus and Transolver as models of ours, and conversions both ways.

A view shares the weights of a model. A conversion gives a new model that computes the same
function; where there is none, it raises with the option that stands in the way. What differs only
in how it is written is folded into the weights: the scale of the scores (ours is
:math:`D^{-1/2}`), and FLARE's projection before its per-head maps.
"""

from collections.abc import Callable
from typing import Any, cast

import physicsnemo
import physicsnemo.models.flare
import torch
from torch import Tensor, nn

from ..mixers import FlareMixer, FlarePPMixer
from ..mixers.physicsnemo_layers import (
    FlarePlusPlusStages,
    FlareStages,
    add_stages,
    is_known_model,
)
from .backbone import MixerBackbone
from .flarepp import FlarePP
from .layers import Block, JoinedInputs, stack_blocks
from .token_model import TokenModel

# Arguments that both have, with the same meaning.
_SHARED = (
    "functional_dim out_dim embedding_dim n_layers n_hidden n_head mlp_ratio slice_num unified_pos "
    "ref structured_shape time_input"
).split()
_EXACT_GELU = "gelu_exact"
Convert = Callable[..., dict[str, Tensor]]


def view_physicsnemo(model: nn.Module) -> TokenModel:
    """Return a model of PhysicsNeMo's as one of ours that shares its weights.

    It computes what the model does, and takes in addition what a
    :class:`~physicsnemo_flarepp.models.FlarePP` takes: ``token_mask``, ``token_weights``, one row
    of ``fx`` for all tokens, and ShardTensors. ``parallel.enable_context_parallel`` and the
    functions of ``inference`` call it by themselves. Nothing is copied and nothing about the model
    changes: training one trains the other. Save and load the model itself, and make a new view
    after moving it.

    Parameters
    ----------
    model : torch.nn.Module
        ``physicsnemo.models``'s FLARE, FLAREPlusPlus (which no release up to 2.2 has) or
        Transolver, without Transformer Engine; Transolver without ``structured_shape``, for which
        it runs convolutions over the grid. A model of ours is returned as it is. Other models
        raise TypeError, options under which tokens meet in other ways ValueError.

    Examples
    --------
    >>> model = physicsnemo.models.flare.FLARE(2, 1, embedding_dim=3, n_hidden=16, n_head=2)
    >>> fx, x, areas = torch.rand(1, 50, 2), torch.rand(1, 50, 3), torch.rand(1, 50)
    >>> view_physicsnemo(model)(fx, x, token_weights=areas).shape
    torch.Size([1, 50, 1])
    """
    if isinstance(model, TokenModel):
        return model
    if not is_known_model(model):
        raise TypeError(
            "model must be a FlarePP, a MixerBackbone, or PhysicsNeMo's FLARE, FLAREPlusPlus or "
            f"Transolver, got {type(model).__name__}; pass the model inside of a wrapper"
        )
    return PhysicsNeMoView(model)


class PhysicsNeMoView(TokenModel):
    """The view of a model that :func:`view_physicsnemo` returns."""

    def __init__(self, model: Any) -> None:
        given = model._args["__args__"]
        super().__init__(
            *(given["functional_dim"], given["out_dim"], model.embedding_dim),
            structured_shape=model.structured_shape,
            positions=model.embedding[0] if model.unified_pos else None,
            time_input=model.time_input,
            checkpoint_blocks=given.get("activation_checkpointing", False),
            meta=model.meta,
        )
        self._args["__args__"] = given
        self.in_projection = JoinedInputs(model.preprocess)
        if model.time_input:
            self.time_embedding = model.time_embed
            self.time_projection = model.time_fc
        # Their dropout is inside the attention layer.
        self.blocks = stack_blocks(
            Block(block.ln_1, add_stages(block.Attn), *block.ln_mlp1) for block in model.blocks
        )
        self.out_projection = model.blocks[-1].ln_mlp2
        self.training = model.training

    def save(self, *args, **options) -> None:
        """Refuse: the model behind this view has the name and the weights to save."""
        raise TypeError(
            "this is a view of a PhysicsNeMo model, made by view_physicsnemo; save that model "
            "instead"
        )


def from_physicsnemo(model: nn.Module) -> MixerBackbone:
    """Return PhysicsNeMo's FLARE or FLAREPlusPlus as a model of ours that computes the same.

    Use :func:`~physicsnemo_flarepp.models.view_physicsnemo` for masks, weights, shards and
    streaming on the model as it is; convert it to use ours in configs, checkpoints and routing
    figures.

    Parameters
    ----------
    model : torch.nn.Module
        ``physicsnemo.models.flare.FLARE``, or FLAREPlusPlus where PhysicsNeMo has it, with
        ``dropout=0``.

    Returns
    -------
    MixerBackbone
        With ``plain_projections``, of the mixer "flare", or a FlarePP without ``seed_norm``.

    Examples
    --------
    >>> theirs = physicsnemo.models.flare.FLARE(2, 1, embedding_dim=3, n_hidden=16, n_head=2)
    >>> fx, x = torch.rand(1, 50, 2), torch.rand(1, 50, 3)
    >>> torch.allclose(from_physicsnemo(theirs)(fx, x), theirs(fx, x), atol=1e-5)
    True
    """
    view = view_physicsnemo(model)
    mixer = view.blocks[0].mixer
    given = view.settings
    if isinstance(view, FlarePP) or not isinstance(mixer, FlareStages | FlarePlusPlusStages):
        raise ValueError(
            f"{type(model).__name__} computes no function of ours; expected PhysicsNeMo's FLARE or "
            "FLAREPlusPlus. view_physicsnemo uses PhysicsNeMo's Transolver as it is"
        )
    _check_options(given, {"dropout": 0.0}, "FlarePP drops from both branches of a block")
    arguments = {name: given[name] for name in _SHARED}
    arguments["act"] = _EXACT_GELU if given["act"].lower() == "gelu" else given["act"]
    arguments |= {"plain_projections": True, "residual_projections": False}
    del arguments["embedding_dim" if view.unified_pos else "ref"]
    is_flare = isinstance(mixer, FlareStages)
    arguments |= {} if is_flare else {"seed_norm": False}
    ours = MixerBackbone(**arguments, mixer="flare") if is_flare else FlarePP(**arguments)
    ours = ours.to(next(model.parameters()))
    convert: Convert = _flare_from if is_flare else _flarepp_from
    state = {name.replace(".layers.", "."): value for name, value in _outside(view).items()}
    for number, block in enumerate(view.blocks):
        state |= _below(f"blocks.{number}.mixer", convert(block.mixer))
    ours.load_state_dict(state)
    return ours.train(model.training)


def to_physicsnemo(model: MixerBackbone) -> nn.Module:
    """Return a model of ours as PhysicsNeMo's FLARE or FLAREPlusPlus, if one computes the same.

    Parameters
    ----------
    model : MixerBackbone
        Of the mixer "flarepp" or "flare" with ``plain_projections``, LayerNorm, an activation that
        PhysicsNeMo has ("gelu_exact" is its "gelu"), no dropout, and an integer ``mlp_ratio``;
        FLARE++ without ``seed_norm`` and ``anchored_queries``. The values of "flare" must be one
        map per head of its keys, as they are in models that came from PhysicsNeMo.

    Raises
    ------
    ValueError
        With the option for which PhysicsNeMo has no model.
    ImportError
        If the installed PhysicsNeMo has no FLAREPlusPlus.
    """
    if type(model) not in (MixerBackbone, FlarePP):
        raise ValueError(f"PhysicsNeMo has no model for {type(model).__name__}")
    given = model.settings
    mixer = given["mixer"]
    if mixer not in ("flare", "flarepp"):
        raise ValueError(f"PhysicsNeMo has no model for mixer={mixer!r}, only for flare, flarepp")
    required = {"plain_projections": True, "norm": "layer", "dropout": 0.0, "ffn_layers": 0}
    required |= {"projection_layers": 0, "synthesis_layers": 0, "unit_scale": False}
    if mixer == "flarepp":
        required |= {"seed_norm": False, "anchored_queries": False}
    _check_options(given, required, f"so PhysicsNeMo's {mixer} computes something else")
    act = given["act"].lower()
    if act == "gelu":
        raise ValueError(
            f'act="gelu" is the tanh approximation; PhysicsNeMo\'s "gelu" is {_EXACT_GELU!r}'
        )
    if given["mlp_ratio"] != int(given["mlp_ratio"]):
        raise ValueError(f"PhysicsNeMo needs an integer mlp_ratio, got {given['mlp_ratio']}")
    if model.embedding_dim is None:
        raise ValueError("PhysicsNeMo's models need embedding_dim, which is None")
    if model.unified_pos and len(model.structured_shape or ()) != 2:
        raise ValueError("PhysicsNeMo has unified_pos on 2-D grids only")
    arguments = {name: given[name] for name in _SHARED}
    arguments["act"] = "gelu" if act == _EXACT_GELU else act
    arguments["mlp_ratio"] = int(given["mlp_ratio"])
    name = {"flare": "FLARE", "flarepp": "FLAREPlusPlus"}[mixer]
    if not hasattr(physicsnemo.models.flare, name):
        raise ImportError(
            f"PhysicsNeMo {physicsnemo.__version__} has no {name}; install one that has it, or "
            "stay with FlarePP, which is a physicsnemo.Module"
        )
    theirs = getattr(physicsnemo.models.flare, name)(**arguments).to(next(model.parameters()))
    view = view_physicsnemo(theirs)
    convert: Convert = _flare_to if mixer == "flare" else _flarepp_to
    own = model.state_dict()
    state = {name: own[name.replace(".layers.", ".")] for name in _outside(view)}
    for number, (block, target) in enumerate(zip(model.blocks, view.blocks, strict=True)):
        state |= _below(f"blocks.{number}.mixer.layer", convert(block.mixer, target.mixer.scale))
    view.load_state_dict(state)
    return theirs.train(model.training)


def _outside(view: nn.Module) -> dict[str, Tensor]:
    """Return the weights outside of the mixers."""
    return {name: value for name, value in view.state_dict().items() if ".mixer." not in name}


def _check_options(given: dict, required: dict, reason: str) -> None:
    for name, value in required.items():
        if given[name] != value:
            raise ValueError(f"{name} is {given[name]!r}, expected {value!r}: {reason}")


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _linear(name: str, linear: nn.Linear) -> dict[str, Tensor]:
    return _below(name, {"weight": linear.weight.detach(), "bias": linear.bias.detach()})


def _flarepp_from(stages: FlarePlusPlusStages) -> dict[str, Tensor]:
    """Fold the scale into the seeds and, for the queries, into the synthesis values."""
    factor = stages.scale * stages.head_dim**0.5
    rows = torch.ones(4, stages.dim, dtype=torch.float64, device=stages.layer.q_seed.device)
    rows[1] = factor
    rows = rows.flatten().to(stages.layer.q_seed.dtype)
    return {
        "seeds": stages.layer.q_seed.detach()[0] * factor,
        "project.weight": stages.layer.in_projection.weight.detach() * rows[:, None],
        "project.bias": stages.layer.in_projection.bias.detach() * rows,
        **_linear("out", stages.layer.out_linear),
    }


def _flarepp_to(mixer: FlarePPMixer, scale: float) -> dict[str, Tensor]:
    if not torch.isclose(torch.tensor(scale), torch.tensor(mixer.head_dim**-0.5)):
        raise ValueError(f"FLAREPlusPlus scales its scores by {scale}, expected D**-0.5")
    project = cast(nn.Linear, mixer.project)  # projection_layers is 0
    weight, bias = project.weight.detach(), project.bias.detach()
    if len(bias) == 2 * mixer.dim:  # shared_projections: the same keys and values twice
        weight, bias = weight.repeat(2, 1), bias.repeat(2)
    return {
        "q_seed": mixer.seeds.detach()[None],
        "in_projection.weight": weight,
        "in_projection.bias": bias,
        **_linear("out_linear", mixer.out),
    }


def _flare_from(stages: FlareStages) -> dict[str, Tensor]:
    """Multiply FLARE's projection with its per-head maps, and fold the scale into the queries."""
    by_head = (stages.heads, stages.head_dim)
    weight = stages.layer.in_project_x.weight.detach().double().unflatten(0, by_head)
    bias = stages.layer.in_project_x.bias.detach().double().unflatten(0, by_head)
    weights, biases = [], []
    for head_map in (stages.layer.self_k, stages.layer.self_v):
        matrix = head_map.weight.detach().double()
        weights.append((matrix @ weight).flatten(0, 1))
        biases.append((bias @ matrix.T + head_map.bias.detach()).flatten())
    return {
        "queries": stages.layer.q_global.detach()[0] * stages.scale * stages.head_dim**0.5,
        "project.weight": torch.cat(weights),
        "project.bias": torch.cat(biases),
        **_linear("out", stages.layer.out_linear),
    }


def _flare_to(mixer: FlareMixer, scale: float) -> dict[str, Tensor]:
    """Take the keys for FLARE's projection, and find the map of them that the values are."""
    by_head = (mixer.heads, mixer.head_dim)
    project = cast(nn.Linear, mixer.project)  # projection_layers is 0
    weight, bias = project.weight.detach().double(), project.bias.detach().double()
    keys, values = (part.unflatten(0, by_head) for part in weight.chunk(2))
    key_bias, value_bias = (part.unflatten(0, by_head) for part in bias.chunk(2))
    # values = S keys for the columns of all heads, and value_bias = S key_bias + s.
    known = torch.cat((keys.transpose(1, 2).flatten(0, 1), key_bias))
    wanted = torch.cat((values.transpose(1, 2).flatten(0, 1), value_bias))
    ones = torch.cat((torch.zeros(len(known) - mixer.heads), torch.ones(mixer.heads)))
    known = torch.cat((known, ones.to(known)[:, None]), 1)
    solution = torch.linalg.lstsq(known, wanted).solution
    misfit = (known @ solution - wanted).norm() / wanted.norm()
    if misfit > 1e-5:
        raise ValueError(
            "the values of a block are not a map of its keys that all heads share (misfit "
            f"{misfit:.1e}), as in PhysicsNeMo's FLARE; only models converted from there go back"
        )
    identity = torch.eye(mixer.head_dim, dtype=torch.float64, device=weight.device)
    return {
        "q_global": mixer.queries.detach()[None] * mixer.head_dim**-0.5 / scale,
        "in_project_x.weight": weight[: mixer.dim],
        "in_project_x.bias": bias[: mixer.dim],
        "self_k.weight": identity,
        "self_k.bias": torch.zeros_like(identity[0]),
        "self_v.weight": solution[:-1].T,
        "self_v.bias": solution[-1],
        **_linear("out_linear", mixer.out),
    }

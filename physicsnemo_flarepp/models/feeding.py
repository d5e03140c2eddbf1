"""What a model is fed: its sizes from the data, and the arguments of ``forward`` from a batch.

Every model family has its own idea of where coordinates, features and globals go. One entry of
:data:`INPUT_RULES` states it: the tensors that ``forward`` gets, and which of them give the
constructor its sizes. The trainer then treats all models alike: ``model(**adapter(batch))``.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from tensordict import TensorDict
from torch import Tensor

from ..mixers.physicsnemo_layers import class_path

GRID = "grid"


@dataclass(frozen=True)
class InputLayout:
    """Channels d, f, g and o of the entries of a batch, 0 for an entry that is absent.

    `grid` is the shape of the grid that the tokens of every case form; None for point sets, and
    for draws of points from a grid.
    """

    coordinates: int
    features: int
    globals: int
    fields: int
    grid: tuple[int, ...] | None = None


@dataclass(frozen=True)
class InputRule:
    """Arguments of ``forward`` from a batch, and those of the constructor that are widths.

    `widths` names the input, or "fields", of each; a layout of another kind holds sizes by name.
    """

    inputs: Callable[[Any, TensorDict], dict[str, Tensor]]
    widths: Mapping[str, str] = field(default_factory=dict)

    def sizes(self, layout: InputLayout, arguments: Mapping[str, Any]) -> dict[str, int | None]:
        """Return the sizes of a model for data of a layout, as its arguments have it."""
        if not isinstance(layout, InputLayout):
            return asdict(layout)
        tokens = {"coordinates": layout.coordinates, "features": layout.features}
        shapes: dict[str, tuple[int, ...]] = {k: (1, 1, n) for k, n in tokens.items() if n}
        shapes |= {"globals": (1, layout.globals)} if layout.globals else {}
        batch = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
        given = {"unified_pos": False, **arguments, "structured_shape": None}
        inputs = self.inputs(SimpleNamespace(**given), cast(TensorDict, batch))
        found = {name: tensor.shape[-1] for name, tensor in inputs.items()}
        found["fields"] = layout.fields
        return {size: found.get(name) for size, name in self.widths.items()}


def build_model(
    cfg: Mapping[str, Any] | DictConfig, layout: InputLayout, precision: str = "fp32"
) -> Module:
    """Build the model of a config, on the CPU, for data of a given layout.

    Sizes that follow from the data (``functional_dim``, ``embedding_dim``, ``out_dim``, ...) are
    filled in; a size in the config must agree with the data. ``structured_shape: grid`` stands
    for the grid of the data. An argument that the class does not have must be null, and is left
    out. Where a class has a ``norm`` and the config does not choose one, it is LayerNorm for fp32
    and RMSNorm for mixed precision, as in the published runs.
    """
    plain = OmegaConf.to_container(OmegaConf.create(cast(DictConfig, cfg)), resolve=True)
    arguments = cast(dict[str, Any], plain)
    cls = _model_class(arguments.pop("_target_", None))
    rule = _rule(cls)
    arguments = _known_arguments(cls, arguments)
    if "norm" in inspect.signature(cls.__init__).parameters and arguments.get("norm") is None:
        arguments["norm"] = "layer" if precision == "fp32" else "rms"
    if arguments.get("time_input"):
        raise ValueError(
            "model.time_input is True, but in batches time is a feature; set time_input to false"
        )
    for name, value in rule.sizes(layout, arguments).items():
        given = arguments.get(name)
        if given is not None and given != value:
            raise ValueError(
                f"model.{name} is {given}, but the data needs {value} ({layout}); remove it from "
                "the config, it is filled in from the data"
            )
        arguments[name] = value
    if arguments.get("structured_shape") is not None:
        arguments["structured_shape"] = _grid_shape(arguments["structured_shape"], layout)
    return cls(**arguments)


def input_adapter(model: Module) -> Callable[[TensorDict], dict[str, Tensor]]:
    """Return the function from a batch to the keyword arguments of ``model.forward``.

    It only slices, expands and concatenates tensors where they are: nothing waits for the device.
    Pass the bare model; a wrapped one (DistributedDataParallel, ``torch.compile``) is called with
    the same arguments.
    """
    return partial(_rule(type(model)).inputs, model)


def takes_weights(model: Module) -> bool:
    """Return whether the gathers of a model weigh its tokens by the batch's ``weights``."""
    return "token_weights" in inspect.signature(model.forward).parameters


def _backbone_inputs(model: Module, batch: TensorDict) -> dict[str, Tensor]:
    """Tokens in one in-projection, as in the paper; globals as one row that is broadcast."""
    tokens, present = ("coordinates", "features"), batch.keys()
    if model.unified_pos:
        inputs = {"fx": _join(batch, *tokens, "globals")}
    elif "globals" in present:
        inputs = {"fx": batch["globals"][:, None], "embedding": _join(batch, *tokens)}
    else:
        inputs = {"fx": _join(batch, *tokens)}
    named = {"token_mask": "token_mask", "token_weights": "weights"}
    return inputs | {name: batch[key] for name, key in named.items() if key in present}


def _transolver_inputs(model: Module, batch: TensorDict) -> dict[str, Tensor]:
    """Coordinates as embedding, the rest as function; PhysicsNeMo's FLARE and Transolver."""
    _check_tokens(model, batch)
    if model.unified_pos:
        return {"fx": _join(batch, "coordinates", "features", "globals")}
    values = [key for key in ("features", "globals") if key in batch.keys()] or ["coordinates"]
    return {"fx": _join(batch, *values), "embedding": batch["coordinates"]}


def _geotransolver_inputs(model: Module, batch: TensorDict) -> dict[str, Tensor]:
    """Tokens, and as context the point cloud of the case and its globals."""
    _check_tokens(model, batch)
    if getattr(model, "include_local_features", False) and batch["coordinates"].shape[-1] != 3:
        raise ValueError(
            "model.include_local_features is True, but its neighbour search needs 3 coordinates "
            f"and the data has {batch['coordinates'].shape[-1]}; set it to false"
        )
    inputs = {
        "local_embedding": _join(batch, "coordinates", "features"),
        "local_positions": batch["coordinates"],
        "geometry": batch["coordinates"],
    }
    if "globals" in batch.keys():
        inputs["global_embedding"] = batch["globals"][:, None]
    return inputs


def _sequence_inputs(model: Module, batch: TensorDict) -> dict[str, Tensor]:
    """Return tokens and mask; the layout of sequences holds the sizes by name."""
    return {key: batch[key] for key in ("tokens", "token_mask") if key in batch.keys()}


_SIZES = {"functional_dim": "fx", "embedding_dim": "embedding", "out_dim": "fields"}
_GEO = {"functional_dim": "local_embedding", "geometry_dim": "geometry"}
_GEO |= {"global_dim": "global_embedding", "out_dim": "fields"}
_BACKBONE = InputRule(_backbone_inputs, _SIZES)
_TRANSOLVER = InputRule(_transolver_inputs, _SIZES)
_OURS, _THEIRS = "physicsnemo_flarepp.models", "physicsnemo.models"
# By the path of the class, so that only the model in use is imported; subclasses are fed alike.
# A model file may ask for these classes only: load_model builds no other without being told to.
INPUT_RULES: dict[str, InputRule] = {
    f"{_OURS}.flarepp.FlarePP": _BACKBONE,
    f"{_OURS}.backbone.MixerBackbone": _BACKBONE,
    f"{_OURS}.perceiver_io.PerceiverIO": _BACKBONE,
    f"{_OURS}.set_transformer.SetTransformer": _BACKBONE,
    f"{_OURS}.gnot.GNOT": _BACKBONE,
    f"{_OURS}.lno.LNO": _BACKBONE,
    "physicsnemo_flarepp.sequences.classifier.SequenceClassifier": InputRule(_sequence_inputs),
    f"{_THEIRS}.flare.flare.FLARE": _TRANSOLVER,
    f"{_THEIRS}.flare.flare.FLAREPlusPlus": _TRANSOLVER,  # in no release up to 2.2
    f"{_THEIRS}.transolver.transolver.Transolver": _TRANSOLVER,
    f"{_THEIRS}.geotransolver.geotransolver.GeoTransolver": InputRule(_geotransolver_inputs, _GEO),
}
_KNOWN = f"known are {', '.join(INPUT_RULES)} and their subclasses"


def listed_class(path: str) -> type[Module] | None:
    """Return the class of :data:`INPUT_RULES` with this path, None if it is not listed."""
    if path not in INPUT_RULES:
        return None
    try:
        return get_class(path)
    except (HydraException, ImportError) as error:
        raise ValueError(f"{path} is not in what is installed here: {error}") from error


def _join(batch: TensorDict, *keys: str) -> Tensor:
    """Concatenate the entries that are present along channels, with globals at every token."""
    present = batch.keys()
    n_tokens = batch["coordinates"].shape[1]
    parts = [
        batch[key][:, None].expand(-1, n_tokens, -1) if key == "globals" else batch[key]
        for key in keys
        if key in present
    ]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def _check_tokens(model: Module, batch: TensorDict) -> None:
    """Raise on padding, and on tokens that are not the grid that a convolution runs over."""
    if "token_mask" in batch.keys():
        raise ValueError(
            f"{type(model).__name__} takes no token_mask, but cases of different length were "
            "padded; set data.batch_size and data.batch_size_test to 1, draw as many tokens with "
            "data.n_points and data.n_points_test, or use physicsnemo_flarepp.MixerBackbone"
        )
    n_tokens = batch["coordinates"].shape[1]
    shape = model.structured_shape
    if shape is not None and n_tokens != math.prod(shape):
        raise ValueError(
            f"{type(model).__name__} was built for the grid {tuple(shape)} of {math.prod(shape)} "
            f"tokens, but the batch has {n_tokens}; set data.n_points to null and use no context "
            "parallelism, or set model.structured_shape to null"
        )


def _model_class(target: str | None) -> type[Module]:
    if target is None:
        raise ValueError(
            "the model config has no `_target_`; give the path of a class, for example "
            "physicsnemo_flarepp.FlarePP"
        )
    try:
        return get_class(target)
    except (HydraException, ImportError, ValueError) as error:
        raise ValueError(
            f"model._target_ {target!r} cannot be imported ({error}); {_KNOWN}"
        ) from error


def _rule(cls: type[Module]) -> InputRule:
    """Return the entry of the class or of its nearest ancestor."""
    paths = map(class_path, cls.__mro__)
    if rule := next((INPUT_RULES[path] for path in paths if path in INPUT_RULES), None):
        return rule
    raise ValueError(
        f"how to feed {class_path(cls)} is not known; {_KNOWN}. To add a class, "
        "give physicsnemo_flarepp.models.feeding.INPUT_RULES an entry: its path -> "
        "InputRule(inputs, widths). A wrapped model (DDP, torch.compile) must be unwrapped first"
    )


def _known_arguments(cls: type[Module], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the constructor has; raise on others unless they are None."""
    accepted = list(inspect.signature(cls.__init__).parameters)[1:]
    hints = []
    for name, value in arguments.items():
        if name not in accepted and value is not None:
            near = " or ".join(map(repr, difflib.get_close_matches(name, accepted, n=3)))
            hints.append(f"{name!r} (did you mean {near}?)" if near else repr(name))
    if hints:
        raise ValueError(
            f"model: {cls.__name__} has no argument {'; '.join(hints)}. Its arguments are "
            f"{accepted}"
        )
    return {name: value for name, value in arguments.items() if name in accepted}


def _grid_shape(given: Any, layout: InputLayout) -> tuple[int, ...]:
    """Return the grid of the data, which `given` must be or stand for."""
    if layout.grid is None:
        raise ValueError(
            f"model.structured_shape is {given!r}, but the tokens of the data do not form a grid; "
            "set it to null"
        )
    if given != GRID and tuple(given) != layout.grid:
        raise ValueError(
            f"model.structured_shape is {given!r}, but the grid of the data is {layout.grid}; "
            f"set it to {GRID!r}"
        )
    return layout.grid

"""Turning context parallelism on for a model, and comparing the ranks at the first step.

The tokens of PhysicsNeMo's GeoTransolver meet in two places, the slices of every GALE layer and
those of the geometry's tokenizer. Both are sums over tokens, which are completed over the ranks
here; the rest acts on a token or on slices. The layers keep their weights and run their own code
around that.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..mixers.physicsnemo_layers import class_path, find_mixers, is_known_model
from ..ops import sum_over_group
from ..ops.collectives import sum_shared_gradients

DEBUG_VARIABLE = "FLAREPP_DEBUG_CONTEXT"
_PENDING = "_pending_comparison"
_SUMMING = "_summing_time"
_GEOTRANSOLVER = "physicsnemo.models.geotransolver.geotransolver.GeoTransolver"
# Of PhysicsNeMo's slices: the range of the temperature, and what is added to the weight of each.
_TEMPERATURES = (0.5, 5.0)
_EPSILON = 1e-2


def enable_context_parallel(
    model: nn.Module, group: ProcessGroup | None, debug: bool | None = None
) -> nn.Module:
    """Let a model work on token shards, of which each rank of ``group`` passes its own; return it.

    Everything but the gathering of tokens into latents is local to a token, so only the mixers
    change: they gather over the tokens of all ranks. Each rank gets the outputs of its own tokens.
    Parameters must be equal on all ranks (same seed, or
    ``physicsnemo.domain_parallel.sync_module_over_mesh``), and their gradients are summed by
    :func:`~physicsnemo_flarepp.parallel.sync_gradients`.

    Parameters
    ----------
    model : torch.nn.Module
        A model whose mixers are flarepp, flare, transolver, transolver_plus or transolver3, or a
        PerceiverIO, SetTransformer, GNOT or LNO, or PhysicsNeMo's FLARE, FLAREPlusPlus,
        Transolver or GeoTransolver (GALE attention; each rank passes its own points of
        ``local_embedding`` and ``geometry`` and all of ``global_embedding``), bare or wrapped.
        Full attention raises: its cost in traffic grows with the number of tokens.
    group : ProcessGroup or None
        The ranks that share each sample, ``mesh["context"].get_group()``. None turns it off.
    debug : bool, optional
        Compare batch size, sizes of the model, dtypes, parameters and more across the ranks at
        the first step, and fail on all of them with a message that names the rank that differs.
        Default: on if the environment variable FLAREPP_DEBUG_CONTEXT is set and not "0". The
        comparison runs in eager mode only: call a model once before compiling it.
    """
    mixers, name = find_mixers(model), None if group is None else group.group_name
    geotransolvers = [m for m in model.modules() if class_path(type(m)) == _GEOTRANSOLVER]
    if not mixers and not geotransolvers:
        raise ValueError(
            f"{type(model).__name__} has no token mixer that is known here; use FlarePP, "
            "MixerBackbone, or PhysicsNeMo's FLARE, FLAREPlusPlus or Transolver"
        )
    for mixer in mixers:
        if group is not None and mixer.n_gathers == 0:
            raise ValueError(
                f"{type(mixer).__name__} cannot be sharded over tokens: every token attends to all "
                "others, so keys and values of size N would travel; choose another mixer"
            )
    if group is not None and any(getattr(part, "unified_pos", False) for part in model.modules()):
        raise ValueError(
            "unified_pos=True makes positions for the whole grid; build the model with "
            "embedding_dim and pass each rank its rows of models.token_model.unified_positions"
        )
    for mixer in mixers:
        mixer.set_context_group(name)
    for part in geotransolvers:
        shard_geotransolver(part, name)
    for part in filter(is_known_model, model.modules()):
        _sum_time_gradients(part, group)
    _remove_hook(model, _PENDING)  # a comparison that has not run: another rank may never join it
    if debug is None:
        debug = os.environ.get(DEBUG_VARIABLE, "0") != "0"
    if debug and group is not None:
        _compare_first_step(model, group)
    return model


def _sum_time_gradients(model: nn.Module, group: ProcessGroup | None) -> None:
    """Sum the gradient of ``time`` in a model of PhysicsNeMo's, as ours do by themselves."""

    def pass_time(module: nn.Module, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
        bound = dict(zip(("fx", "embedding", "time"), arguments, strict=False)) | keywords
        if bound.get("time") is not None:
            _, bound["time"] = sum_shared_gradients(bound["fx"], None, bound["time"], group)
        return (), bound

    _remove_hook(model, _SUMMING)
    if group is not None:
        model.__dict__[_SUMMING] = model.register_forward_pre_hook(pass_time, with_kwargs=True)


def _compare_first_step(model: nn.Module, group: ProcessGroup) -> None:
    """Compare the ranks before the first eager forward pass of ``model``."""

    def compare(module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if torch.compiler.is_compiling():
            return
        _remove_hook(module, _PENDING)
        tensors = [v for v in (*arguments, *keywords.values()) if isinstance(v, Tensor)]
        signatures: list[dict[str, object]] = [{}] * dist.get_world_size(group)
        dist.all_gather_object(signatures, _signature(module, tensors), group=group)
        check_signatures(signatures, dist.get_process_group_ranks(group))

    model.__dict__[_PENDING] = model.register_forward_pre_hook(compare, with_kwargs=True)


def _remove_hook(model: nn.Module, name: str) -> None:
    if (handle := model.__dict__.pop(name, None)) is not None:
        handle.remove()


def _signature(model: nn.Module, tensors: Sequence[Tensor]) -> dict[str, object]:
    """Collect what must be equal on all ranks of a context group."""
    mixers = find_mixers(model)
    parameters, kind = list(model.parameters()), tensors[0].device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else "off"
    return {
        "batch size": [t.shape[0] for t in tensors],
        "heads": [mixer.heads for mixer in mixers],
        "channels": [mixer.dim for mixer in mixers],
        "mixers": [type(mixer).__name__ for mixer in mixers],
        "number of parameters": sum(p.numel() for p in parameters),
        "sum of parameters": sum(p.detach().double().sum().item() for p in parameters),
        "dtypes of inputs": [str(t.dtype) for t in tensors],
        "dtypes of parameters": sorted({str(p.dtype) for p in parameters}),
        "autocast": str(autocast),
        "training": model.training,
        "gradients": torch.is_grad_enabled(),
    }


def check_signatures(signatures: Sequence[dict[str, object]], ranks: Sequence[int]) -> None:
    """Raise, naming the ranks, unless all signatures equal the first one."""
    differences = [
        f"rank {rank} has {what} {signature[what]}, rank {ranks[0]} has {expected}"
        for what, expected in signatures[0].items()
        for rank, signature in zip(ranks, signatures, strict=True)
        if signature[what] != expected
    ]
    if differences:
        raise ValueError(
            f"the ranks of the context group disagree: {'; '.join(differences)}; all of them must "
            "see the same samples with the same model and differ in their tokens only"
        )


def shard_geotransolver(model: Any, group_name: str | None) -> None:
    """Let a GeoTransolver gather over a group, or None over its own tokens again."""
    given = model._args["__args__"]
    required = {
        "attention_type": ("GALE", "its layers gather otherwise"),
        "structured_shape": (None, "it runs convolutions over the grid"),
        "include_local_features": (False, "its ball queries look for neighbours on other ranks"),
        "plus": (False, "it draws noise at every call"),
        "use_te": (False, "Transformer Engine has no sums over ranks"),
    }
    for name, (value, reason) in required.items():
        if group_name is not None and given.get(name, value) != value:
            raise ValueError(
                f"GeoTransolver with {name}={given[name]!r} cannot be sharded over tokens: "
                f"{reason}; expected {name}={value!r}"
            )
    places = [(block.Attn, "_compute_slices_from_projections") for block in model.blocks]
    if model.context_builder.geometry_tokenizer is not None:
        places.append((model.context_builder.geometry_tokenizer, "_compute_slices"))
    for layer, method in places:
        layer.__dict__.pop(method, None)
        if group_name is not None:
            layer.__dict__[method] = partial(_gather_slices, layer, group_name)


def _gather_slices(
    layer: Any, group_name: str, scores: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weights (B, N, H, S) of this rank's tokens and the slices (B, H, S, D) of all."""
    temperature = layer.temperature.clamp(*_TEMPERATURES).to(scores.dtype)
    weights = (scores / temperature).softmax(-1).to(scores.dtype)
    total = sum_over_group(weights.sum(1), group_name) + _EPSILON
    shares = torch.einsum("bnhs,bnhd->bhsd", weights / total[:, None], values)
    return weights, sum_over_group(shares, group_name)

"""Predict, encode once, query anywhere."""

import os

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import TrainingState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..models import TokenModel, view_physicsnemo
from ..progress import progress_bar
from .arrays import ArrayLike, Output, TokenInputs
from .state import LatentState, model_fingerprint
from .streams import TokenPasses, Transfers, resolve_chunk_size, token_ranges

# What computes the function of the model inside; of any other wrapper that is not known.
_WRAPPERS = (OptimizedModule, DistributedDataParallel, FullyShardedDataParallel)


@torch.no_grad()
def predict(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None = None,
    *,
    chunk_size: int | str = "auto",
    offload: str | os.PathLike | None = "cpu",
    out: ArrayLike | str | os.PathLike | None = None,
    progress: bool = True,
    time: Float[Tensor, " B"] | None = None,
    token_mask: ArrayLike | None = None,
    token_weights: ArrayLike | None = None,
    stream_dtype: torch.dtype | None = None,
    return_state: bool = False,
) -> Tensor | ArrayLike | tuple[Tensor | ArrayLike, LatentState]:
    r"""Return what the model's ``forward`` gives, for clouds of any length.

    The tokens are worked on chunk by chunk: the gathers of each block merge exactly, so the
    result is that of the plain forward up to rounding, while the memory needed beyond inputs,
    outputs and the hidden states is that of one chunk. No gradients.

    Parameters
    ----------
    model : torch.nn.Module
        FlarePP, any mixer but "attention", or PhysicsNeMo's FLARE, FLAREPlusPlus or Transolver
        (:func:`~physicsnemo_flarepp.models.view_physicsnemo`); compiled and DDP models are
        unwrapped. If its mixers have a context-parallel group, each rank passes its own tokens and
        gets their outputs. Runs in the dtype of the model, or under ``torch.autocast``.
    fx, embedding : ArrayLike
        As in the model's ``forward``, as tensors, NumPy arrays, memory maps, zarr or h5py arrays;
        only chunks are read, and cast to the dtype of the model. An array (N, F) is a batch of
        one.
    chunk_size : int or "auto", optional
        Tokens per chunk; "auto" takes what a quarter of the memory allows, or half of what is
        free if that is less.
    offload : "cpu", "device", None or path-like, optional
        Where the hidden states (B, N, C) wait between passes: host memory, the model's device
        ("device" or None), or unnamed files in the directory given.
    out : ArrayLike or path-like, optional
        Where the result goes. An array of shape :math:`(B, N, \mathrm{out\_dim})` is filled with
        NaN first, so that rows an interrupted call did not reach are NaN. A path ending in
        ``.npy`` is written as ``<path>.partial`` and renamed when complete. Default: a new
        tensor, on the host unless the hidden states stay on the device.
    progress : bool, optional
        Show a progress bar if stderr is a terminal.
    time, token_mask, token_weights
        As in the model's ``forward``; mask and weights may be any array, (N,) for a batch of one.
        Weights are read once before all else, since only their ratios count.
    stream_dtype : torch.dtype, optional
        Store the hidden states in this dtype, e.g. ``torch.bfloat16`` for half the memory at the
        price of exactness. Default: as the plain forward has them.
    return_state : bool, optional
        Also return the state that :func:`encode_state` would give, at no further cost.

    Returns
    -------
    torch.Tensor or ArrayLike
        Shape :math:`(B, N, \mathrm{out\_dim})`, or on the grid as the plain forward; the array
        ``out`` itself; for a path a read-only memory map. With `return_state` a pair.

    Examples
    --------
    >>> from physicsnemo_flarepp import MixerBackbone
    >>> model = MixerBackbone(3, 1, n_layers=2, n_hidden=32, n_head=4)
    >>> x = torch.rand(1, 1000, 3)
    >>> torch.allclose(predict(model, x, chunk_size=300), model(x), atol=1e-5)
    True
    """
    model = unwrap(model)
    inputs = TokenInputs(model, fx, embedding, time, token_mask, token_weights)
    passes = TokenPasses(inputs, chunk_size, offload, stream_dtype)
    device = inputs.device if passes.place == "device" else torch.device("cpu")
    output = Output(out, inputs, device, passes.transfers)
    visits = passes.visits + len(passes.ranges)
    with output, progress_bar("predict", visits, progress) as passes.advance:
        latents = passes.gather()
        for rows, y in passes.read_out(latents):
            output.write(rows, y)
        output.finish()
    return (output.result(), _state(inputs, latents)) if return_state else output.result()


@torch.no_grad()
def encode_state(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None = None,
    *,
    chunk_size: int | str = "auto",
    offload: str | os.PathLike | None = "cpu",
    progress: bool = True,
    time: Float[Tensor, " B"] | None = None,
    token_mask: ArrayLike | None = None,
    token_weights: ArrayLike | None = None,
    stream_dtype: torch.dtype | None = None,
) -> LatentState:
    """Gather a cloud into the latents of every block, with which any point can be evaluated.

    Parameters
    ----------
    model, fx, embedding, chunk_size, offload, progress
        As in :func:`predict`.
    time, token_mask, token_weights, stream_dtype
        As in :func:`predict`.

    Returns
    -------
    LatentState
        On the model's device; its size does not depend on N.

    Examples
    --------
    >>> from physicsnemo_flarepp import MixerBackbone
    >>> model = MixerBackbone(3, 1, n_layers=2, n_hidden=32, n_head=4, slice_num=16)
    >>> encode_state(model, torch.rand(1, 1000, 3)).shapes[0]
    ((1, 4, 16, 8), (1, 4, 16, 8))
    """
    model = unwrap(model)
    inputs = TokenInputs(model, fx, embedding, time, token_mask, token_weights)
    passes = TokenPasses(inputs, chunk_size, offload, stream_dtype)
    with progress_bar("encode", passes.visits, progress) as passes.advance:
        latents = passes.gather()
    return _state(inputs, latents)


def _state(inputs: TokenInputs, latents: tuple[tuple[Tensor, ...], ...]) -> LatentState:
    """Return the state of a cloud from the latents that were gathered."""
    fingerprint = model_fingerprint(inputs.model)
    # Copies: the caller's time may change, and what inference_mode makes has no derivatives.
    with torch.inference_mode(False):
        if latents[0][0].is_inference():
            latents = tuple(tuple(latent.clone() for latent in block) for block in latents)
        time = None if inputs.time is None else inputs.time.clone()
        return LatentState(latents, fingerprint, time)


def decode_state(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None,
    state: LatentState,
    chunk_size: int | str | None = None,
    *,
    out: ArrayLike | str | os.PathLike | None = None,
    progress: bool = True,
) -> Tensor | ArrayLike:
    """Evaluate a model at any points from the latents of a cloud.

    Each row depends on its own point and the state only, so points have no weights. At the points
    of the cloud it is the prediction of the whole cloud. If ``fx`` or ``embedding`` is a tensor
    that requires a gradient, the result is differentiable with respect to it (the latents count
    as constants): once, or any number of times inside
    :func:`~physicsnemo_flarepp.ops.plain_operators`.

    Parameters
    ----------
    model : TokenModel
        The model that made ``state``.
    fx, embedding : ArrayLike
        Inputs at the points, as in :func:`predict`. A model with ``unified_pos`` evaluates its
        grid if ``embedding`` is None, else takes the distances to the reference points.
    state : LatentState
        From :func:`encode_state`; its time is used.
    chunk_size : int or "auto", optional
        Points per chunk. None is "auto".
    out, progress
        As in :func:`predict`.

    Returns
    -------
    torch.Tensor or ArrayLike
        As :func:`predict`; a new tensor is made on the model's device.

    Examples
    --------
    >>> from physicsnemo_flarepp import MixerBackbone
    >>> model = MixerBackbone(3, 1, n_layers=2, n_hidden=32, n_head=4)
    >>> state = encode_state(model, torch.rand(1, 1000, 3))
    >>> probe = torch.rand(1, 5, 3, requires_grad=True)
    >>> decode_state(model, probe, None, state).sum().backward()
    >>> probe.grad.shape
    torch.Size([1, 5, 3])
    """
    model = unwrap(model)
    state.check_model(model)
    inputs = TokenInputs(model, fx, embedding, state.time, any_points=True)
    if inputs.batch != state.batch:
        raise ValueError(
            f"fx must have the batch of the state, {state.batch}, got {inputs.batch}; "
            "expand it, or encode the clouds one by one"
        )
    differentiable = torch.is_grad_enabled() and inputs.require_grad
    if differentiable and out is not None:
        raise ValueError("out cannot be given when an input requires a gradient; pass out=None")
    latents = state.to(inputs.device).latents
    ranges = token_ranges(inputs.n_tokens, resolve_chunk_size(chunk_size, model, inputs.batch))
    transfers = Transfers(inputs.device)
    output = Output(out, inputs, inputs.device, transfers)

    def evaluate(rows):
        fx, embedding, _ = rows
        x = model.embed(fx, embedding, inputs.time)
        for block, gathered in zip(model.blocks, latents, strict=True):
            x = block.update(x, gathered)
        return model.read_out(x)

    with progress_bar("decode", len(ranges), progress) as advance:
        chunks = transfers.prefetch(lambda index: inputs.load(*ranges[index]), len(ranges))
        if differentiable:
            parts = [evaluate(rows) for _, rows in chunks]
            return torch.cat(parts, 1).reshape(output.full_shape)
        with torch.no_grad(), output:
            for index, rows in chunks:
                output.write(ranges[index], evaluate(rows))
                advance()
            output.finish()
    return output.result()


def unwrap(model: nn.Module) -> TokenModel:
    """Return the model inside a compiled, DDP or FSDP one; raise if it cannot be streamed."""
    while isinstance(model, _WRAPPERS):
        if isinstance(model, FullyShardedDataParallel):
            # A rank holds a part of the weights only, and nothing gathers them for a chunk.
            ranks = dist.get_world_size(model.process_group)
            if ranks > 1 and model.training_state != TrainingState.SUMMON_FULL_PARAMS:
                raise ValueError(
                    "the weights are sharded over ranks; predict inside `with "
                    "FullyShardedDataParallel.summon_full_params(model):`, or use the plain forward"
                )
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.module
    model = view_physicsnemo(model)
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        raise ValueError(
            "the weights are sharded over ranks by fully_shard; call unshard() on every module "
            "that has it first, or take the plain forward"
        )
    for block in model.blocks:
        name = type(block.mixer).__name__
        if block.mixer.n_gathers == 0:
            raise ValueError(
                f"{name} cannot be streamed: every token looks at every other one; use the plain "
                'forward, or mixer="flarepp"'
            )
        if block.mixer.is_random:
            raise ValueError(
                f"{name} draws noise, which differs from pass to pass (PhysicsNeMo's plus=True "
                "always does); call model.eval() with noise_at_evaluation off, or train it plainly"
            )
    if any(type(m).__module__.startswith("torch.ao.nn.quantized") for m in model.modules()):
        raise ValueError(
            "the model has dynamically quantised layers, whose scale differs from chunk to chunk; "
            "use the plain forward, or the model before its quantisation"
        )
    if any(isinstance(m, nn.Dropout) and m.training and m.p > 0 for m in model.modules()):
        raise ValueError(
            "dropout is on, and differs from pass to pass; build the model with dropout=0 to train "
            "it streamed, or call model.eval()"
        )
    return model

"""Loss and gradients of a mesh of any size, in the memory of one chunk."""

import os
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..inference.arrays import ArrayLike, TokenArray, TokenInputs
from ..inference.prediction import unwrap
from ..inference.streams import TokenPasses
from ..models import TokenModel
from ..ops.kernels import accumulation_dtype
from ..progress import progress_bar
from .gradient_passes import GradientPasses
from .losses import LossOverSums, RelativeL2


def streamed_step(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None,
    target: ArrayLike,
    *,
    chunk_size: int | str = "auto",
    loss: LossOverSums | None = None,
    time: Float[Tensor, " B"] | None = None,
    token_mask: ArrayLike | None = None,
    token_weights: ArrayLike | None = None,
    offload: str | os.PathLike | None = "cpu",
    stream_dtype: torch.dtype | None = None,
    factor: float | Tensor = 1.0,
    progress: bool = False,
) -> Float[Tensor, ""]:
    r"""Return the loss of a whole mesh and add its gradients to ``.grad``, chunk by chunk.

    Equal to ``loss.backward()`` of the plain forward up to rounding, in memory that, beyond the
    inputs and the hidden states that wait elsewhere, is that of one chunk. Clipping, accumulation
    over cases, moving averages and :func:`~physicsnemo_flarepp.parallel.sync_gradients` follow as
    after a plain backward pass. After an error ``.grad`` is as it was before.

    Parameters
    ----------
    model : MixerBackbone
        As in :func:`~physicsnemo_flarepp.inference.predict`; without dropout or noise. Runs in the
        dtype of the model, or under the caller's ``torch.autocast``. DDP is unwrapped, and its
        reduction does not run: use ``sync_gradients``.
    fx, embedding, chunk_size, time, token_mask, token_weights, progress
        As in :func:`~physicsnemo_flarepp.inference.predict`: any storage, of which only chunks are
        read. With a context group each rank passes its own tokens. An input that requires a
        gradient raises: :func:`streamed_gradients` gives those of inputs.
    target : ArrayLike
        Shape :math:`(B, N, O)`, (N, O) for a batch of one, or on the grid; read alike.
    loss : LossOverSums, optional
        Default: :class:`RelativeL2` over the tokens that `token_mask` leaves, that is
        :func:`~physicsnemo_flarepp.training.losses.relative_l2_loss`.
    offload, stream_dtype : optional
        Where, and in which dtype, the hidden states that enter each block and one gradient of that
        size wait: :math:`(\mathrm{blocks} + 1) B N C` numbers. As in
        :func:`~physicsnemo_flarepp.inference.predict`; in bfloat16 gradients are no longer exact.
    factor : float or torch.Tensor, optional
        Multiplies the gradients, not the loss that is returned: 1 / batches for accumulation, or
        the scale of a gradient scaler.

    Returns
    -------
    torch.Tensor
        The loss, detached; with a context group that of all its tokens.

    Examples
    --------
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=3, out_dim=1, n_layers=2, n_hidden=32, n_head=4)
    >>> x, y = torch.rand(1, 1000, 3), torch.rand(1, 1000, 1)
    >>> loss = streamed_step(model, x, None, y, chunk_size=300)
    >>> bool(loss.isfinite()), model.blocks[0].mixer.seeds.grad.shape
    (True, torch.Size([4, 64, 8]))
    """
    model = unwrap(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    inputs = TokenInputs(model, fx, embedding, time, token_mask, token_weights)
    if inputs.require_grad or not parameters:
        reason = "an input requires one; detach it, or call streamed_gradients"
        raise ValueError(
            "streamed_step gives the gradients of parameters: "
            + (reason if parameters else "none of them requires one")
        )
    loss = RelativeL2(token_mask) if loss is None else loss
    passes = TokenPasses(inputs, chunk_size, offload, stream_dtype, len(model.blocks) + 1)
    value, gradients = _run(passes, target, loss, parameters, {}, factor, progress)
    for parameter, summed in zip(parameters, gradients, strict=True):
        summed = summed.to(parameter.dtype)
        parameter.grad = summed if parameter.grad is None else parameter.grad.add_(summed)
    return value


def streamed_gradients(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None,
    objective: LossOverSums,
    *,
    target: ArrayLike | None = None,
    wanted: Sequence[str] | None = None,
    out: Mapping[str, ArrayLike] | None = None,
    chunk_size: int | str = "auto",
    time: Float[Tensor, " B"] | None = None,
    token_mask: ArrayLike | None = None,
    token_weights: ArrayLike | None = None,
    offload: str | os.PathLike | None = "cpu",
    stream_dtype: torch.dtype | None = None,
    progress: bool = False,
) -> tuple[Float[Tensor, ""], dict[str, ArrayLike]]:
    """Return an objective of a whole mesh and its gradients by the inputs, chunk by chunk.

    Equal to the gradients of the plain forward up to rounding, in the memory of
    :func:`streamed_step`, whose objective is the loss. One forward and one backward pass give the
    gradients by the inputs of all tokens.

    Parameters
    ----------
    model, fx, embedding, time, token_mask, token_weights, chunk_size, offload, stream_dtype
        As in :func:`streamed_step`. Inputs may require gradients; those are not added to ``.grad``.
    objective : LossOverSums
        A function of sums over tokens: ``sums(prediction, target, rows)`` of the tokens
        ``rows[0]:rows[1]``, and ``value(sums)``, one number. A force or an average is one.
    target : ArrayLike, optional
        What ``sums`` needs to know of each token, such as its area vector, :math:`(B, N, T)` or
        (N, T) for a batch of one; None is passed on without it.
    wanted : sequence of str, optional
        Inputs whose gradients are wanted: any of "fx", "embedding", "token_weights" and "target".
        By default all that are given but the target.
    out : Mapping of str to arrays, optional
        Arrays to write them to, of the shapes of the inputs: tensors, NumPy arrays, memory maps or
        zarr arrays. Others are returned in new tensors on the host.

    Returns
    -------
    tuple[torch.Tensor, dict]
        The objective, detached, and the arrays by name. Tokens of weight 0 or masked get 0. With a
        context group the objective is that of all tokens, each rank gets the gradients of its own,
        and the row of ``fx`` that all tokens share has its whole gradient on every rank.

    Examples
    --------
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=3, out_dim=1, n_layers=2, n_hidden=32, n_head=4)
    >>> class Average:
    ...     def sums(self, prediction, areas, rows):
    ...         return torch.stack(((prediction * areas).sum(), areas.sum()))
    ...
    ...     def value(self, sums):
    ...         return sums[0] / sums[1]
    >>> x, areas = torch.rand(1, 1000, 3), torch.rand(1, 1000, 1)
    >>> average, gradients = streamed_gradients(
    ...     model, x, None, Average(), target=areas, wanted=("fx", "target"), chunk_size=300
    ... )
    >>> {name: tuple(gradient.shape) for name, gradient in gradients.items()}
    {'fx': (1, 1000, 3), 'target': (1, 1000, 1)}
    """
    model = unwrap(model)
    given = {"fx": fx, "embedding": embedding, "token_weights": token_weights, "target": target}
    given = {k: v.detach() if isinstance(v, Tensor) else v for k, v in given.items()}
    results = _arrays_for(given, wanted, out or {}, model)
    target = given.pop("target")
    inputs = TokenInputs(model, time=time, token_mask=token_mask, **given)
    grid = model.structured_shape
    places = {name: TokenArray(name, array, grid) for name, array in results.items()}
    passes = TokenPasses(inputs, chunk_size, offload, stream_dtype, len(model.blocks) + 1)
    value, _ = _run(passes, target, objective, [], places, 1.0, progress)
    return value, results


def _arrays_for(
    given: Mapping[str, ArrayLike | None],
    wanted: Sequence[str] | None,
    out: Mapping[str, ArrayLike],
    model: TokenModel,
) -> dict[str, ArrayLike]:
    replaced = "embedding" if model.unified_pos else None  # made from the grid, whatever is given
    known = [name for name, value in given.items() if value is not None and name != replaced]
    if wanted is None:
        wanted = [name for name in known if name != "target"]
    arrays = {}
    for name in dict.fromkeys((*wanted, *out)):
        if name not in known:
            raise ValueError(
                f"wanted: there is no gradient of {name!r}, because the model gets no such input; "
                f"choose from {', '.join(known)}"
            )
        value = given[name]
        if name not in out:
            dtype = accumulation_dtype(TokenArray(name, value).meta().dtype)
            arrays[name] = torch.empty(tuple(value.shape), dtype=dtype)
            continue
        arrays[name] = array = out[name]
        flags = getattr(array, "flags", None)
        writable = hasattr(array, "__setitem__") and getattr(flags, "writeable", True)
        if not writable or tuple(array.shape) != tuple(value.shape):
            raise ValueError(
                f"out[{name!r}] must be a writable array of the shape {tuple(value.shape)} of "
                f"{name}, got {tuple(array.shape)}{'' if writable else ', read-only'}"
            )
    return arrays


def _run(
    passes: TokenPasses,  # with a stream for each block and one for the gradient
    target: ArrayLike | None,
    loss: LossOverSums,
    parameters: list[nn.Parameter],
    places: Mapping[str, TokenArray],
    factor: float | Tensor,
    progress: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss and the gradients of the parameters in fp64; fills the places."""
    if not isinstance(loss, LossOverSums):
        raise TypeError(
            f"loss must have sums(prediction, target, rows) and value(sums), got "
            f"{type(loss).__name__}: a loss that is not a function of sums over tokens cannot be "
            "streamed; use the plain forward, or leave it out for the relative L2"
        )
    targets, expected = None, (passes.inputs.batch, passes.inputs.n_tokens)
    if target is not None:
        targets = TokenArray("target", target, passes.model.structured_shape)
        if len(targets.shape) != 3 or targets.shape[:2] != expected:
            raise ValueError(
                f"target must have a row for each of the {expected[1]} tokens of the {expected[0]} "
                f"samples, got the shape {tuple(target.shape)}"
            )
    work = GradientPasses(passes, targets, loss, parameters, places)
    visits = 2 * (passes.visits + len(passes.ranges))
    with progress_bar("streamed step", visits, progress) as passes.advance:
        value = work.run(factor)
    return value, work.gradients

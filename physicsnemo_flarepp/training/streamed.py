"""Loss and gradients of a mesh of any size, in the memory of one chunk."""

import os

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..inference.inputs import ArrayLike, TokenArray, TokenInputs
from ..inference.prediction import plan_passes, storage_place, unwrap
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
    after a plain backward pass.

    Parameters
    ----------
    model : MixerBackbone
        As in :func:`~physicsnemo_flarepp.inference.predict`; without dropout or noise. Runs in the
        dtype of the model, or under the caller's ``torch.autocast``. DDP is unwrapped, and its
        reduction does not run: use ``sync_gradients``.
    fx, embedding, time, token_mask, token_weights
        As in :func:`~physicsnemo_flarepp.inference.predict`: any storage, of which only chunks are
        read. With a context group each rank passes its own tokens.
    target : ArrayLike
        Shape :math:`(B, N, O)`, (N, O) for a batch of one, or on the grid; read alike.
    chunk_size : int or "auto", optional
        Tokens per chunk; "auto" takes what a quarter of the memory allows, or half of what is
        free if that is less.
    loss : LossOverSums, optional
        Default: :class:`RelativeL2` over the tokens that `token_mask` leaves, that is
        :func:`~physicsnemo_flarepp.training.losses.relative_l2_loss`.
    offload : "cpu", "device", None or path-like, optional
        Where the hidden states that enter each block, and one gradient of that size, wait:
        :math:`(\mathrm{blocks} + 1) B N C` numbers. As in
        :func:`~physicsnemo_flarepp.inference.predict`.
    stream_dtype : torch.dtype, optional
        Store them in this dtype, e.g. ``torch.bfloat16``; gradients are then no longer exact.
    factor : float or torch.Tensor, optional
        Multiplies the gradients, not the loss that is returned: 1 / batches for accumulation, or
        the scale of a gradient scaler.
    progress : bool, optional
        Show a progress bar if stderr is a terminal.

    Returns
    -------
    torch.Tensor
        The loss, detached; with a context group that of all its tokens.

    Raises
    ------
    ValueError
        As :func:`~physicsnemo_flarepp.inference.predict`; also if no parameter or an input requires
        a gradient. ``.grad`` is then as it was before, and so after any other error.
    TypeError
        If the loss is not one over sums.

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
    loss = RelativeL2(token_mask) if loss is None else loss
    if not isinstance(loss, LossOverSums):
        raise TypeError(
            f"loss must have sums(prediction, target, rows) and value(sums), got "
            f"{type(loss).__name__}: a loss that is no function of sums over tokens cannot be "
            "streamed; use the plain forward, or leave it out for the relative L2"
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    inputs = TokenInputs(model, fx, embedding, time, token_mask, token_weights)
    if inputs.require_grad or not parameters:
        raise ValueError(
            "streamed_step gives the gradients of parameters: "
            + ("an input requires one; detach it" if parameters else "none of them requires one")
        )
    targets = _check_target(target, inputs, model.structured_shape)
    place = storage_place(offload)
    n_streams = len(model.blocks) + 1  # the last one for the gradient
    passes, visits = plan_passes(model, inputs, chunk_size, place, stream_dtype, n_streams)
    work = GradientPasses(passes, targets, loss, parameters)
    visits = 2 * (visits + len(passes.ranges))
    with progress_bar("streamed step", visits, progress) as passes.advance:
        value = work.run(factor)
    for parameter, summed in zip(parameters, work.gradients, strict=True):
        summed = summed.to(parameter.dtype)
        parameter.grad = summed if parameter.grad is None else parameter.grad.add_(summed)
    return value


def _check_target(
    target: ArrayLike, inputs: TokenInputs, grid: tuple[int, ...] | None
) -> TokenArray:
    array = TokenArray("target", target, grid)
    expected = (inputs.batch, inputs.n_tokens)
    if len(array.shape) != 3 or array.shape[:2] != expected:
        raise ValueError(
            f"target must have a row for each of the {expected[1]} tokens of the {expected[0]} "
            f"samples, got the shape {tuple(target.shape)}"
        )
    return array

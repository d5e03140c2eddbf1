r"""Collectives over the ranks that share one token sequence, and the two differentiable sums.

A *context group* is a set of ranks that each own some tokens of the same samples. What the ranks
compute from latents is replicated; what they compute from tokens is their own. Gradients of
replicated tensors therefore stay *partial* on each rank, one summand of the true gradient, until
something sums them: the backward pass of :func:`sum_over_group` and of
:func:`~physicsnemo_flarepp.ops.encode`, or the synchronisation of the parameters' gradients.

Everything goes through the functional collectives of torch, which ``torch.compile`` traces without
a graph break. No collective runs in half precision: such payloads travel in fp32.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import distributed_c10d as c10d

from .checks import check_floats
from .kernels import accumulation_dtype

Group = dist.ProcessGroup | str


def group_name(group: Group) -> str:
    """Return the name under which torch knows a process group; a name is returned as it is.

    Names can be copied, pickled and traced where process groups cannot, so modules hold names.
    """
    return group if isinstance(group, str) else group.group_name


def group_size(group: Group | None) -> int:
    """Count the ranks of a group; 1 for None."""
    if group is None:
        return 1
    name: Any = group_name(group)  # torch has a type of its own for names, in some versions
    return c10d._get_group_size_by_name(name)


def group_rank(group: Group) -> int:
    """Return the place of this rank in a group."""
    name: Any = group_name(group)
    return c10d._resolve_process_group(name).rank()


def all_reduce(x: Tensor, op: str, group: Group) -> Tensor:
    """Reduce ``x``, of one shape on all ranks, with "sum" or "max"; not differentiable.

    Half precision is reduced in fp32; the result has the dtype of ``x``.
    """
    payload = _payload(x)
    name = group_name(group)
    return _finished(torch.ops._c10d_functional.all_reduce, payload, (op, name), name).to(x.dtype)


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Stack the ``x`` of all ranks, of one shape, on a new first axis in rank order.

    Not differentiable. Half precision is gathered in fp32; the result has the dtype of ``x``.
    """
    payload = _payload(x)
    name = group_name(group)
    size = group_size(name)
    gather = torch.ops._c10d_functional.all_gather_into_tensor
    rows = _finished(gather, payload.flatten(), (size, name), name)
    return rows.view(size, *x.shape).to(x.dtype)


def sum_over_group(x: Float[Tensor, "*shape"], group: Group | None) -> Float[Tensor, "*shape"]:
    r"""Sum shard-wise contributions to a replicated latent, differentiably.

    .. math::

        y = \sum_r x_r, \qquad \bar x_r = \sum_s \bar y_s

    Each rank goes on to use :math:`y` with its own tokens, so the gradients that arrive are
    partial and are summed on their way back to the shards. None or a group of one rank returns
    ``x``, which has one shape on all ranks.
    """
    return _sum(x, group, both_ways=True)


def global_sum(x: Float[Tensor, "*shape"], group: Group | None) -> Float[Tensor, "*shape"]:
    r"""Sum shard-wise contributions to a loss that every rank then differentiates.

    .. math::

        y = \sum_r x_r, \qquad \bar x_r = \bar y

    All ranks hold the same loss and call ``backward`` on it once, each for its own tokens:
    nothing is summed on the way back, and no collective runs there.
    """
    return _sum(x, group, both_ways=False)


def _sum(x: Tensor, group: Group | None, both_ways: bool) -> Tensor:
    if not torch.compiler.is_compiling():
        check_floats(x=x)
    if group is None or group_size(group) == 1:
        return x
    return _Sum.apply(x, group_name(group), both_ways)


def _payload(x: Tensor) -> Tensor:
    """Return what travels for ``x``: contiguous, and never in half precision."""
    if x.is_floating_point():
        x = x.to(accumulation_dtype(x.dtype))
    return x.contiguous()


def _finished(collective, payload: Tensor, arguments: tuple, name: str) -> Tensor:
    """Run a functional collective to its end, naming this rank if it fails."""
    wait = torch.ops._c10d_functional.wait_tensor
    if torch.compiler.is_compiling():
        return wait(collective(payload, *arguments))
    try:
        return wait(collective(payload, *arguments))
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {dist.get_rank()}: {collective.__name__} of shape {tuple(payload.shape)} "
            f"{payload.dtype} over {group_size(name)} ranks failed: {error}. Another rank ended, "
            "or called with another batch size, head count, number of latents or dtype; "
            "enable_context_parallel(..., debug=True) compares them at the first step"
        ) from error


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, name: str, both_ways: bool) -> Tensor:
        ctx.name, ctx.both_ways = name, both_ways
        return all_reduce(x, "sum", name)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return all_reduce(grad, "sum", ctx.name) if ctx.both_ways else grad, None, None


def sum_shared_gradients(
    fx: Tensor, embedding: Tensor | None, time: Tensor | None, group: Group | None
) -> tuple[Tensor, Tensor | None]:
    """Return ``fx`` and ``time``; gradients of what the ranks share arrive summed.

    Left alone is what is computed from parameters, such as the code of an encoder in front of the
    model: ``sync_gradients`` sums the gradients of its parameters, and must find parts.
    """
    if group is None or group_size(group) == 1 or not torch.is_grad_enabled():
        return fx, time
    name = group_name(group)
    if embedding is not None and _is_input(fx):
        rows, tokens = fx.shape[1], embedding.shape[1]
        fx = _SumShared.apply(fx, name, rows != 1, rows != tokens)
    if time is not None and _is_input(time):
        time = _SumShared.apply(time, name, False, True)
    return fx, time


def _is_input(x: Tensor) -> bool:
    """Return whether a gradient is asked for, and no parameter is behind ``x``."""
    if not x.requires_grad or isinstance(x, nn.Parameter):
        return False
    if torch.compiler.is_compiling():
        return x.is_leaf  # where others come from, a graph cannot ask
    nodes, seen = [x.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            return False
        nodes += [parent for parent, _ in node.next_functions]
    return True


class _SumShared(torch.autograd.Function):
    """Identity whose gradient is summed over the group if the ranks share the tensor.

    A rank that owns one token cannot tell the row of this token from one for all tokens. Some
    other rank can: it holds several rows or none, or one for another number of tokens. Where every
    rank owns exactly one token, rows are taken for those of the tokens.
    """

    @staticmethod
    def forward(ctx, x: Tensor, name: str, is_own: bool, is_shared: bool) -> Tensor:
        ctx.name, ctx.is_own, ctx.is_shared = name, is_own, is_shared
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        shape = (grad.shape[0], 1, grad.shape[-1]) if grad.ndim == 3 else grad.shape
        part = grad.new_zeros(shape) if ctx.is_own else grad
        votes = [grad.new_full((1,), float(vote)) for vote in (ctx.is_own, ctx.is_shared)]
        total = all_reduce(torch.cat((part.flatten(), *votes)), "sum", ctx.name)
        if ctx.is_own:
            return grad, None, None, None
        is_shared = (total[-2] == 0) & (total[-1] > 0)
        return torch.where(is_shared, total[:-2].view(shape), grad), None, None, None

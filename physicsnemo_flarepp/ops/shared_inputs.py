"""Gradients of inputs that all ranks of a context group hold: one row of ``fx``, and ``time``.

The backward pass of a rank gives such an input the part that its own tokens contribute. Here the
parts are summed, so that the gradient on every rank is that of one process.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .collectives import Group, all_reduce, group_name, group_size


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

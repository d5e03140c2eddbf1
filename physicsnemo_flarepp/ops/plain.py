"""The choice between fused operators and plain ones that can be differentiated any number of times.

The fused operators save memory and time, and have first derivatives only: second ones and forward
mode raise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.autograd import forward_ad

# Read in forward passes only: the backward pass may run in a thread that does not see it.
_plain: ContextVar[bool] = ContextVar("plain_operators", default=False)


def is_plain() -> bool:
    """Return whether operators are built from differentiable operations of torch at present."""
    return _plain.get()


def use_plain() -> bool:
    """Return :func:`is_plain`; raise under transforms that fused operators do not have."""
    if is_plain():
        return True
    if not torch.compiler.is_compiling() and (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    ):
        raise RuntimeError(
            "the fused operators have no transforms of torch.func (grad, vmap, jvp) and no forward "
            "mode; run the forward pass inside `with physicsnemo_flarepp.ops.plain_operators():`"
        )
    return False


@contextmanager
def plain_operators() -> Iterator[None]:
    """Build every operator from operations that torch differentiates again and in forward mode.

    For ``torch.func``, Hessians and losses with derivatives of the prediction, as in
    physics-informed training. Same values and gradients up to rounding. Attention scores are then
    stored, M numbers per token and head, and steps are slower. Derivatives over the ranks of a
    context group stay first ones.

    The forward pass must run inside; the backward pass may run anywhere. The choice holds for
    models of this package, and for PhysicsNeMo's through
    :func:`~physicsnemo_flarepp.models.view_physicsnemo`, in the calling thread only.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=2, out_dim=1, n_layers=1, n_hidden=16, n_head=2)
    >>> x = torch.rand(1, 50, 2, requires_grad=True)
    >>> with plain_operators():
    ...     u = model(x)
    >>> (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    >>> du.square().sum().backward()  # a loss on derivatives
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)

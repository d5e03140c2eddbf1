"""The choice between fused operators and plain ones that can be differentiated any number of times.

The fused operators save memory and time, and have first derivatives only: second ones and forward
mode raise.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

_plain = False


def is_plain() -> bool:
    """Return whether operators are built from differentiable operations of torch at present."""
    return _plain


@contextmanager
def plain_operators() -> Iterator[None]:
    """Build every operator from operations that torch differentiates again and in forward mode.

    For ``torch.func``, Hessians and losses with derivatives of the prediction, as those of
    physics-informed training. Same values and gradients up to rounding. Attention scores are then
    stored, M numbers per token and head, and steps are slower. Derivatives over the ranks of a
    context group stay first ones.

    The forward pass must run inside. So must the backward pass of a model with
    ``checkpoint_blocks``, which runs blocks again. The choice holds for all threads of the process.

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
    global _plain
    before, _plain = _plain, True
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        _plain = before

"""FLARE: routing through learned, fixed queries."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import attention_with_lse, decode, encode
from .base import Mixer, TokenWeights, add_identity


class FlareMixer(Mixer):
    r"""Low-rank attention through M learned queries per head (paper, "fixed-query routing").

    .. math::

        z = \mathrm{SDPA}(q, k, v), \qquad y = \mathrm{SDPA}(k, q, z)

    with scale :math:`D^{-1/2}`, as in the paper and unlike ``physicsnemo.nn.FLARE``, which uses 1,
    a shared projection and per-head key and value maps.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    slice_num : int
        Latents M per head.
    residual_projections : bool, optional, default=True
        Start key and value projections at the identity.
    """

    n_gathers = 1

    def __init__(
        self, dim: int, heads: int, slice_num: int, residual_projections: bool = True
    ) -> None:
        super().__init__(dim, heads)
        self.residual_projections = residual_projections
        self.queries = nn.Parameter(torch.empty(heads, slice_num, self.head_dim))
        self.project = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the queries and start the projections near the identity."""
        super().reset_parameters(init)
        # Scores of 0.02 gather one and the same mean into all latents.
        nn.init.normal_(self.queries, std=0.02 if init == "paper" else 1.0)
        if self.residual_projections:
            add_identity(self.project, self.dim, init)

    def forward(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N C"]:
        """Gather the tokens into M latents per head and return them."""
        k, v = self.project_heads(x, self.project)
        q = self.queries_for(k)
        z = encode(q, k, v, key_weights=token_weights, group=self.context_group)
        return self.out(self.merge_heads(decode(k, q, z)))

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H M"]]:
        """Gather these tokens into the latents z."""
        k, v = self.project_heads(x, self.project)
        return attention_with_lse(self.queries_for(k), k, v, key_weights=token_weights)

    def scatter(
        self, x: Float[Tensor, "B N C"], latents: tuple[Tensor, ...]
    ) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        (k,) = self.project_some_heads(x, self.project, 0, 1)
        y = decode(k, self.queries_for(k), latents[0].to(k.dtype))
        return self.out(self.merge_heads(y))

    def queries_for(self, k: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H M D"]:
        """Return the learned queries in the batch size and dtype of the keys."""
        return self.queries.to(k.dtype).expand(k.shape[0], -1, -1, -1)

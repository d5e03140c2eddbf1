"""Full self-attention, the unrestricted reference."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .base import Mixer


class AttentionMixer(Mixer):
    r"""Multi-head self-attention over all tokens, :math:`O(N^2)` in time.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.project = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def forward(
        self, x: Float[Tensor, "B N C"], token_mask: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B N C"]:
        """Let every token attend to every real token."""
        if x.shape[1] == 0:  # the fused CPU kernel dies on an empty key set
            return self.out(x)
        q, k, v = self.project_heads(x, self.project)
        mask = None if token_mask is None else token_mask[:, None, None, :]
        return self.out(self.merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))

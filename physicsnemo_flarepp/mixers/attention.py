"""Full self-attention, the unrestricted reference."""

from torch import nn

from ..ops import encode
from .base import Mixer, Tokens, TokenWeights


class AttentionMixer(Mixer):
    r"""Multi-head self-attention over all tokens, :math:`O(N^2)` in time.

    Parameters
    ----------
    dim, heads, attention_dropout, rotary
        As in :class:`FlareMixer`; rotary positions rotate the queries, too.
    """

    def __init__(
        self, dim: int, heads: int, attention_dropout: float = 0.0, rotary: bool = False
    ) -> None:
        super().__init__(dim, heads)
        self.set_options(attention_dropout, rotary)
        self.project = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Let every token attend to every real token."""
        q, k, v = self.project_heads(x, self.project, 3)
        q, k = self.place(q), self.place(k)
        y = encode(q, k, v, key_weights=token_weights, dropout=self.dropout)
        return self.out(self.merge_heads(y))

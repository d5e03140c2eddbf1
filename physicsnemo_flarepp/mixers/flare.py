"""FLARE: routing through learned, fixed queries."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import decode, encode
from .base import (
    AttentionInputs,
    Latents,
    RoutingMixer,
    Tokens,
    TokenWeights,
    add_identity,
    make_projections,
)
from .layers import make_norm


class FlareMixer(RoutingMixer):
    r"""Low-rank attention through M learned queries per head (paper, "fixed-query routing").

    .. math::

        z = \mathrm{SDPA}(q, k, v), \qquad y = \mathrm{SDPA}(k, q, z)

    with scale :math:`D^{-1/2}`, as in the paper and unlike ``physicsnemo.nn.FLARE``, which uses 1,
    a shared projection and per-head key and value maps.

    Parameters
    ----------
    dim, heads, slice_num : int
        Channels C, heads H and latents M per head; options that are not listed are as in
        :class:`~physicsnemo_flarepp.models.MixerBackbone`.
    query_key_norm : bool, optional, default=False
        Normalise queries and keys per head, as in the authors' runs on sequences.
    attention_dropout : float, optional, default=0.0
        Probability with which softmax weights are dropped in training.
    rotary : bool, optional, default=False
        Rotate keys by the position of their token.
    """

    n_gathers = 1
    n_projections = 2

    def __init__(
        self,
        dim: int,
        heads: int,
        slice_num: int,
        residual_projections: bool = True,
        projection_layers: int = 0,
        unit_scale: bool = False,
        act: str = "gelu",
        norm: str = "layer",
        query_key_norm: bool = False,
        attention_dropout: float = 0.0,
        rotary: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        self.set_options(attention_dropout, rotary)
        norms = [make_norm(norm, self.head_dim) if query_key_norm else nn.Identity() for _ in "qk"]
        self.query_norm, self.key_norm = norms
        self.residual_projections = residual_projections
        self.scale = 1.0 if unit_scale else self.head_dim**-0.5
        self.queries = nn.Parameter(torch.empty(heads, slice_num, self.head_dim))
        layers = (projection_layers, projection_layers)
        self.project = make_projections(dim, layers, act, residual_projections)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the queries and start the projections near the identity."""
        super().reset_parameters(init)
        # Scores of 0.02 gather one and the same mean into all latents; balanced ones are about 1.
        published = 0.1 if self.scale == 1 else 0.02
        std = published if init == "paper" else self.head_dim**-0.5 / self.scale
        nn.init.normal_(self.queries, std=std)
        if self.residual_projections:
            add_identity(self.project, self.dim, init)

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Gather the tokens into M latents per head and return them."""
        q, k, v = self.attention_inputs(x, ())
        scale, dropout, group = self.scale, self.dropout, self.context_group
        z = encode(q, k, v, scale=scale, key_weights=token_weights, group=group, dropout=dropout)
        return self.out(self.merge_heads(decode(k, q, z, scale=scale, dropout=dropout)))

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return the learned queries, and keys and values of the tokens."""
        k, v = self.project_heads(x, self.project, 2)
        return self.routing_queries(k), self.normalize_key(k), v

    def routing_queries(self, like: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H M D"]:
        """Return the learned queries in the batch size and dtype of keys."""
        return self.queries_like(self.query_norm(self.queries)[None], like)

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        k = self.routing_keys(x)
        y = decode(k, self.routing_queries(k), latents[0].to(k.dtype), scale=self.scale)
        return self.out(self.merge_heads(y))

"""FLARE++: routing through queries synthesised from the input."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import decode, encode
from .base import (
    AttentionInputs,
    Gathered,
    Latents,
    RoutingMixer,
    Tokens,
    TokenWeights,
    add_identity,
    make_projections,
)
from .layers import make_norm, normalize_rows

# Standard deviation of the scores of balanced seeds.
SEED_SHARPNESS = 2.0


class FlarePPMixer(RoutingMixer):
    r"""Low-rank attention whose M routing queries per head are gathered from the tokens.

    .. math::

        q = \mathrm{SDPA}(\tilde q, \tilde k, \tilde v), \qquad
        z = \mathrm{SDPA}(q, k, v), \qquad
        y = \mathrm{SDPA}(k, q, z)

    with learned seeds :math:`\tilde q` and scale :math:`D^{-1/2}`.

    Where :math:`\tilde k` is normalised with affine weights, the weight multiplies the seeds
    instead, which is the same score at M rather than N rows; the bias adds the same number to all
    scores of a seed, cancels in the softmax, and does not exist.

    Parameters
    ----------
    anchored_queries : bool, optional, default=False
        The authors' later variant: :math:`q = \mathrm{norm}(q_\mathrm{fixed}) + \sigma(g_h)\,
        q_\mathrm{dynamic}`, with :math:`\tilde k = \tilde v` one projection, and :math:`k`
        normalised. Only the norms of seeds and :math:`k` have affine weights.
    attention_dropout, rotary
        As in :class:`FlareMixer`; rotary positions rotate :math:`\tilde k` and :math:`k`.
    dim, heads, slice_num
        Channels C, heads H and latents M per head; the other options are as in
        :class:`~physicsnemo_flarepp.models.FlarePP`.
    """

    n_gathers = 2

    def __init__(
        self,
        dim: int,
        heads: int,
        slice_num: int,
        norm: str = "layer",
        seed_norm: bool = True,
        residual_projections: bool = True,
        shared_projections: bool = False,
        anchored_queries: bool = False,
        projection_layers: int = 0,
        synthesis_layers: int = 0,
        act: str = "gelu",
        attention_dropout: float = 0.0,
        rotary: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        self.set_options(attention_dropout, rotary)
        self.norm = norm
        self.residual_projections = residual_projections
        self.anchored_queries = anchored_queries
        self.normalize_source = seed_norm or anchored_queries
        width = self.head_dim
        self.seeds = nn.Parameter(torch.empty(heads, slice_num, width))
        synthesis = 0 if shared_projections else 1 if anchored_queries else 2
        self.n_projections = synthesis + 2
        if shared_projections and synthesis_layers:
            found = f"synthesis_layers={synthesis_layers}"
            raise ValueError(f"{found} has no effect with shared_projections=True; leave one out")
        layers = (*[synthesis_layers] * synthesis, projection_layers, projection_layers)
        self.project = make_projections(dim, layers, act, residual_projections)
        self.out = nn.Linear(dim, dim)
        self.seed_norm = make_norm(norm, width) if seed_norm else nn.Identity()
        self.key_norm = make_norm(norm, width) if anchored_queries else nn.Identity()
        if seed_norm and not anchored_queries:
            self.source_weight = nn.Parameter(torch.empty(width))
        if anchored_queries:
            self.anchors = nn.Parameter(torch.empty(heads, slice_num, width))
            self.gate = nn.Parameter(torch.empty(heads, 1, 1))
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw seeds and anchors, start projections near the identity and the gates at 0.25."""
        super().reset_parameters(init)
        std = 0.02 if init == "paper" else 1.0
        nn.init.normal_(self.seeds, std=std)
        if init == "balanced" and isinstance(self.seed_norm, nn.LayerNorm | nn.RMSNorm):
            # Queries are means of tokens: sharp enough that each is the mean of few.
            nn.init.constant_(self.seed_norm.weight, SEED_SHARPNESS)
        if self.residual_projections:
            add_identity(self.project, self.dim, init)
        if hasattr(self, "source_weight"):
            nn.init.ones_(self.source_weight)
        if self.anchored_queries:
            nn.init.normal_(self.anchors, std=std)
            nn.init.constant_(self.gate, 0.25)

    def project_tokens(self, x: Float[Tensor, "B N C"]) -> tuple[Float[Tensor, "B H N D"], ...]:
        r"""Return :math:`\tilde k, \tilde v, k, v`, each of shape :math:`(B, H, N, D)`."""
        parts = self.project_heads(x, self.project, self.n_projections)
        return *self.synthesis_pair(parts), self.normalize_key(parts[-2]), parts[-1]

    def synthesis_pair(
        self, parts: Sequence[Float[Tensor, "B H N D"]]
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, "B H N D"]]:
        r"""Return :math:`\tilde k, \tilde v` from the first projections of the tokens."""
        key = normalize_rows(self.norm, parts[0]) if self.normalize_source else parts[0]
        return self.place(key), key if self.anchored_queries else parts[1]

    def seed_queries(self, like: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H M D"]:
        """Return the queries of the synthesis, in the batch size and dtype of ``like``."""
        seeds = self.seed_norm(self.seeds)
        if hasattr(self, "source_weight"):
            seeds = seeds * self.source_weight
        return self.queries_like(seeds[None], like)

    def anchor(self, q: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M D"]:
        """Turn gathered queries into routing queries: themselves, or tied to the fixed ones."""
        if not self.anchored_queries:
            return q
        anchors = normalize_rows(self.norm, self.anchors[None])
        return (anchors + self.gate.sigmoid() * q).to(q.dtype)

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Synthesise the queries, gather the tokens into M latents per head, return them."""
        source_key, source_value, k, v = self.project_tokens(x)
        gather = partial(
            encode, key_weights=token_weights, group=self.context_group, dropout=self.dropout
        )
        q = self.anchor(gather(self.seed_queries(source_key), source_key, source_value))
        z = gather(q, k, v)
        return self.out(self.merge_heads(decode(k, q, z, dropout=self.dropout)))

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return what gathers the dynamic queries, then what gathers the latents z."""
        n = self.n_projections
        if not latents:
            needed = 1 if self.anchored_queries else 2
            k, v = self.synthesis_pair(self.project_heads(x, self.project, n, 0, needed))
            return self.seed_queries(k), k, v
        k, v = self.project_heads(x, self.project, n, n - 2)
        return latents[0].to(k.dtype), self.normalize_key(k), v

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H M D"]:
        """Anchor the gathered queries; the latents z are the gather itself."""
        return gathered[0] if latents else self.anchor(gathered[0])

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        k = self.routing_keys(x)
        q, z = (latent.to(k.dtype) for latent in latents)
        return self.out(self.merge_heads(decode(k, q, z)))

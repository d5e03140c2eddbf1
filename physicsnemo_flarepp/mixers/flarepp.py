"""FLARE++: routing through queries synthesised from the input."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops import decode, encode
from .base import Mixer, add_identity
from .norms import make_norm


class FlarePPMixer(Mixer):
    r"""Low-rank attention whose M routing queries per head are gathered from the tokens.

    .. math::

        q = \mathrm{SDPA}(\tilde q, \tilde k, \tilde v), \qquad
        z = \mathrm{SDPA}(q, k, v), \qquad
        y = \mathrm{SDPA}(k, q, z)

    with learned seeds :math:`\tilde q` and scale :math:`D^{-1/2}`.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    slice_num : int
        Latents M per head.
    norm : str, optional, default="layer"
        Kind of the normalisations inside the mixer: "layer" or "rms".
    seed_norm : bool, optional, default=True
        Normalise seeds and :math:`\tilde k` per head, as in the authors' runs.
    residual_projections : bool, optional, default=True
        Start every token projection at the identity.
    shared_projections : bool, optional, default=False
        Tie :math:`\tilde k, \tilde v` to :math:`k, v` and drop their projections.
    anchored_queries : bool, optional, default=False
        The authors' later variant: :math:`q = \mathrm{norm}(q_\mathrm{fixed}) + \sigma(g_h)\,
        q_\mathrm{dynamic}`, with :math:`\tilde k = \tilde v` one projection, normalised without
        affine weights, and :math:`k` normalised.
    """

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
    ) -> None:
        super().__init__(dim, heads)
        self.residual_projections = residual_projections
        self.shared_projections = shared_projections
        self.anchored_queries = anchored_queries
        width = self.head_dim
        self.seeds = nn.Parameter(torch.empty(heads, slice_num, width))
        synthesis = 0 if shared_projections else 1 if anchored_queries else 2
        self.project = nn.Linear(dim, (synthesis + 2) * dim)
        self.out = nn.Linear(dim, dim)
        self.seed_norm = make_norm(norm, width) if seed_norm else nn.Identity()
        if anchored_queries:
            self.anchors = nn.Parameter(torch.empty(heads, slice_num, width))
            self.anchor_norm = make_norm(norm, width)
            self.gate = nn.Parameter(torch.empty(heads, 1, 1))
            self.synthesis_norm = make_norm(norm, width, affine=False)
            self.key_norm = make_norm(norm, width)
        else:
            self.synthesis_norm = make_norm(norm, width) if seed_norm else nn.Identity()
            self.key_norm = nn.Identity()

    def reset_parameters(self) -> None:
        """Draw seeds and anchors, start projections near the identity and the gates at 0.25."""
        nn.init.normal_(self.seeds, std=0.02)
        if self.residual_projections:
            add_identity(self.project, self.dim)
        if self.anchored_queries:
            nn.init.normal_(self.anchors, std=0.02)
            nn.init.constant_(self.gate, 0.25)

    def project_tokens(self, x: Float[Tensor, "B N C"]) -> tuple[Float[Tensor, "B H N D"], ...]:
        r"""Give :math:`\tilde k, \tilde v, k, v`, each of shape :math:`(B, H, N, D)`."""
        parts = [self.split_heads(part) for part in self.project(x).split(self.dim, -1)]
        source_key, source_value, key, value = parts[0], parts[1], parts[-2], parts[-1]
        dtype = key.dtype  # under autocast the norms return fp32
        source_key = self.synthesis_norm(source_key).to(dtype)
        if self.anchored_queries:
            source_value = source_key
        return source_key, source_value, self.key_norm(key).to(dtype), value

    def anchor(self, q: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M D"]:
        """Turn gathered queries into routing queries: itself, or anchored to the fixed ones."""
        if not self.anchored_queries:
            return q
        return (self.anchor_norm(self.anchors) + self.gate.sigmoid() * q).to(q.dtype)

    def routing_queries(
        self,
        source_key: Float[Tensor, "B H N D"],
        source_value: Float[Tensor, "B H N D"],
        token_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H M D"]:
        """Synthesise the routing queries from the tokens."""
        seeds = self.seed_norm(self.seeds).to(source_key.dtype)
        seeds = seeds.expand(source_key.shape[0], -1, -1, -1)
        return self.anchor(encode(seeds, source_key, source_value, key_mask=token_mask))

    def forward(
        self, x: Float[Tensor, "B N C"], token_mask: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B N C"]:
        """Synthesise the queries, gather the tokens into M latents per head, return them."""
        source_key, source_value, k, v = self.project_tokens(x)
        q = self.routing_queries(source_key, source_value, token_mask)
        z = encode(q, k, v, key_mask=token_mask)
        return self.out(self.merge_heads(decode(k, q, z)))

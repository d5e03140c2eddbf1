"""PerceiverIO: one gather into a latent sequence, a transformer on it, one read."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers import make_norm
from ..mixers.base import AttentionInputs, Latents, OneGatherMixer
from ..ops import decode
from .layers import BareBlock, InProjection, LatentBlock, OutProjection, stack_blocks
from .token_model import TokenModel, check_sizes


class PerceiverMixer(OneGatherMixer):
    r"""Cross-attention into M latents, self-attention blocks on them, cross-attention back.

    The latents are the queries of the gather themselves. Neither cross-attention has a residual
    path or a feed-forward; each ends in a Linear.
    """

    def __init__(
        self, dim: int, heads: int, slice_num: int, n_layers: int, mlp_ratio: float, act: str
    ) -> None:
        super().__init__(dim, heads)
        self.latents = nn.Parameter(torch.empty(heads, slice_num, self.head_dim))
        self.norm_gather = make_norm("layer", dim)
        self.project = nn.Linear(dim, 2 * dim)
        self.gathered = nn.Linear(dim, dim)
        self.blocks = nn.Sequential(
            *(LatentBlock(dim, heads, mlp_ratio, act, bias=False) for _ in range(n_layers))
        )
        self.norm_latents = make_norm("layer", dim)
        self.project_latents = nn.Linear(dim, 2 * dim)
        self.norm_read = make_norm("layer", dim)
        self.query = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the latents from N(0, 1), other weights from N(0, 0.02)."""
        super().reset_parameters(init)
        nn.init.normal_(self.latents)

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return the latents as queries, and keys and values of the normalised tokens."""
        k, v = self.project_heads(self.norm_gather(x), self.project, 2)
        return self.queries_like(self.latents[None], k), k, v

    def transform(self, z: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M E"]:
        """Run the self-attention blocks; give keys and values of the latents side by side."""
        latents = self.blocks(self.gathered(self.merge_heads(z).to(self.dtype)))
        pair = self.project_heads(self.norm_latents(latents), self.project_latents, 2)
        return torch.cat(pair, -1).to(z.dtype)

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Let each token attend to the latents."""
        q = self.split_heads(self.query(self.norm_read(x)))
        k, v = latents[0].to(q.dtype).chunk(2, -1)
        return self.out(self.merge_heads(decode(q, k, v)))


class PerceiverIO(TokenModel):
    """PerceiverIO as configured in the FLARE study (Jaegle et al., 2021).

    In-projection, cross-attention of learned latents to the tokens, ``n_layers`` self-attention
    blocks on the latents, cross-attention of the tokens to the latents, out-projection. The only
    gather is a softmax over tokens, so masks, token shards, streaming and latent states work.

    ``forward`` takes and returns what that of :class:`~physicsnemo_flarepp.models.FlarePP` does,
    but for ``time``; arguments that are not listed mean what they mean there.

    Parameters
    ----------
    n_layers, slice_num : int, optional
        Self-attention blocks on the latents, and latents M. Defaults 8 and 512.
    mlp_ratio : float, optional, default=4.0
        Hidden width of the feed-forwards over C.

    Examples
    --------
    >>> model = PerceiverIO(3, 1, n_layers=1, n_hidden=32, n_head=4, slice_num=16)
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 1])
    """

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        n_layers: int = 8,
        n_hidden: int = 128,
        n_head: int = 8,
        slice_num: int = 512,
        mlp_ratio: float = 4.0,
        act: str = "gelu",
        structured_shape: Sequence[int] | None = None,
        unified_pos: bool = False,
        ref: int = 8,
        io_layers: int = 2,
        checkpoint_blocks: bool = False,
    ) -> None:
        check_sizes(n_layers, n_hidden, n_head, {"slice_num": slice_num}, mlp_ratio, io_layers)
        inputs = (functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref)
        super().__init__(*inputs, checkpoint_blocks=checkpoint_blocks)
        self.in_projection = InProjection(self.token_width, n_hidden, io_layers, act)
        mixer = PerceiverMixer(n_hidden, n_head, slice_num, n_layers, mlp_ratio, act)
        self.blocks = stack_blocks([BareBlock(mixer)])
        self.out_projection = OutProjection(n_hidden, out_dim, io_layers, act, "layer")
        self.reset_parameters()

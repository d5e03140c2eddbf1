"""Set Transformer: blocks whose tokens meet in inducing points."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers import make_norm
from ..mixers.base import AttentionInputs, Latents, OneGatherMixer, Tokens
from ..mixers.layers import make_activation
from ..ops import decode
from .layers import InProjection, OutProjection, make_block, stack_blocks
from .token_model import TokenModel, check_sizes


class AttentionRest(nn.Module):
    r"""What follows the attention in a multihead attention block.

    .. math::

        o = \mathrm{LN}(q + a), \qquad \mathrm{LN}(o + \mathrm{act}(W o + b))

    with the projected queries :math:`q` and what they attended to, :math:`a`.
    """

    def __init__(self, dim: int, act: str) -> None:
        super().__init__()
        self.norm_attended = make_norm("layer", dim)
        self.linear = nn.Linear(dim, dim)
        self.act = make_activation(act)
        self.norm_out = make_norm("layer", dim)

    def forward(self, q: Tokens, attended: Tokens) -> Tokens:
        """Add, normalise, transform, normalise."""
        o = self.norm_attended(q + attended)
        return self.norm_out(o + self.act(self.linear(o)))


class InducedSetMixer(OneGatherMixer):
    r"""Induced set attention: :math:`\mathrm{MAB}(x, \mathrm{MAB}(I, x))`, :math:`I` learned.

    The scores of both attentions are scaled by :math:`C^{-1/2}`.
    """

    def __init__(self, dim: int, heads: int, slice_num: int, act: str) -> None:
        super().__init__(dim, heads)
        self.scale = dim**-0.5
        self.inducing = nn.Parameter(torch.empty(1, slice_num, dim))
        self.query_inducing = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, 2 * dim)
        self.rest_inducing = AttentionRest(dim, act)
        self.query = nn.Linear(dim, dim)
        self.project_latents = nn.Linear(dim, 2 * dim)
        self.rest = AttentionRest(dim, act)
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the inducing points by Xavier's rule for (1, M, C), other weights N(0, 0.02)."""
        super().reset_parameters(init)
        nn.init.xavier_uniform_(self.inducing)

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return the inducing points as queries, and keys and values of the tokens."""
        k, v = self.project_heads(x, self.project, 2)
        return self.queries_like(self.split_heads(self.query_inducing(self.inducing)), k), k, v

    def transform(self, z: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M E"]:
        """Finish the first block; give keys and values of its result side by side."""
        gathered = self.merge_heads(z).to(self.dtype)
        latents = self.rest_inducing(self.query_inducing(self.inducing), gathered)
        return torch.cat(self.project_heads(latents, self.project_latents, 2), -1).to(z.dtype)

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Run the second block, with the tokens for queries."""
        projected = self.query(x)
        q = self.split_heads(projected)
        k, v = latents[0].to(q.dtype).chunk(2, -1)
        return self.rest(projected, self.merge_heads(decode(q, k, v, scale=self.scale)))


class SetTransformer(TokenModel):
    """Set Transformer as configured in the FLARE study (Lee et al., 2019).

    In-projection, ``n_layers`` blocks ``x + ISAB(norm x)``, ``x + ffn(norm x)``, out-projection.
    Each block gathers by one softmax over tokens, so masks, token shards, streaming and latent
    states work.

    ``forward`` takes and returns what that of :class:`~physicsnemo_flarepp.models.FlarePP` does,
    but for ``time``; arguments that are not listed mean what they mean there.

    Parameters
    ----------
    slice_num : int, optional, default=64
        Inducing points M of each block.
    attention_act : str, optional, default="gelu_exact"
        Activation inside the attention blocks; ``act`` is that of projections and feed-forwards.

    Examples
    --------
    >>> model = SetTransformer(3, 1, n_layers=1, n_hidden=32, n_head=4, slice_num=16)
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
        slice_num: int = 64,
        mlp_ratio: float = 2.0,
        act: str = "gelu",
        attention_act: str = "gelu_exact",
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
        sizes = (n_hidden, n_head, slice_num)
        mixers = (InducedSetMixer(*sizes, attention_act) for _ in range(n_layers))
        self.blocks = stack_blocks(make_block(mixer, mlp_ratio, act, "layer") for mixer in mixers)
        self.out_projection = OutProjection(n_hidden, out_dim, io_layers, act, "layer")
        self.reset_parameters()

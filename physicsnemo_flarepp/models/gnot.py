"""GNOT: normalised linear attention between two embeddings, and experts gated by position."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers import make_norm
from ..mixers.base import Gathered, Latents, SumMixer, Tokens, TokenWeights
from ..mixers.layers import sum_tokens
from .layers import BareBlock, Embedding, Function, join_inputs, linear_chain, stack_blocks
from .token_model import TokenModel, check_sizes


class LinearAttention(nn.Module):
    r"""Attention whose scores factor over features, normalised per query.

    .. math::

        y = \frac{q \sum_n k_n^\top v_n}{q \cdot \sum_n k_n} + q

    per head, with q and k softmaxed over their D features. Token n enters with weight
    :math:`k_{nd}` in feature d, so what a query reads are D weighted sums and their weights: the
    *context*, of shape :math:`(B, H, D, D + 1)`. Only ratios matter; weights are made to sum to 1.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.by_head = (heads, dim // heads)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def gather(self, x: Tokens, token_weights: TokenWeights | None) -> Gathered:
        """Sum the values of the tokens, and their keys, in fp32 or better."""
        keys = self.key(x).unflatten(-1, self.by_head)
        keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
        values = self.value(x).unflatten(-1, self.by_head)
        return sum_tokens(F.softmax(keys, -1), values, token_weights)

    def forward(self, x: Tokens, context: Float[Tensor, "B H D E"]) -> Tokens:
        """Read the context at each token."""
        q = F.softmax(self.query(x).unflatten(-1, self.by_head).transpose(1, 2), -1)
        read = q.to(context.dtype) @ context
        y = (read[..., :-1] / read[..., -1:]).to(q.dtype) + q
        return self.out(y.transpose(1, 2).flatten(2).to(x.dtype))


class GatedExperts(nn.Module):
    """A norm of the mean of several feed-forwards, weighted by a gate per token."""

    def __init__(self, dim: int, hidden: int, n_experts: int, act: str) -> None:
        super().__init__()
        widths = (dim, hidden, dim)
        self.experts = nn.ModuleList(linear_chain(widths, act) for _ in range(n_experts))
        self.norm = make_norm("layer", dim)

    def forward(self, x: Tokens, gate: Float[Tensor, "B N experts"]) -> Tokens:
        """Mix what the experts make of each token."""
        parts = zip(gate.split(1, -1), self.experts, strict=True)
        return self.norm(sum(share * expert(x) for share, expert in parts))


class GNOTLayer(SumMixer):
    r"""Cross-attention to the function, gated experts, self-attention, gated experts.

    The state of a token is :math:`(e, f, p)` side by side: the embedding e of its coordinates and
    its raw channels p, which stay, and the function f. As in the study every layer starts again
    from e: its queries are e, it attends to f, and what it gives becomes the next layer's f.
    """

    n_gathers = 2

    def __init__(
        self, dim: int, heads: int, gate_dim: int, hidden: int, n_experts: int, act: str
    ) -> None:
        super().__init__(dim, heads)
        self.widths = (dim, dim, gate_dim)
        self.gate = linear_chain((gate_dim, hidden, hidden, n_experts), act)
        self.norm_query = make_norm("layer", dim)
        self.norm_function = make_norm("layer", dim)
        self.cross = LinearAttention(dim, heads)
        self.experts_cross = GatedExperts(dim, hidden, n_experts, act)
        self.norm_self = make_norm("layer", dim)
        self.attend = LinearAttention(dim, heads)
        self.experts_self = GatedExperts(dim, hidden, n_experts, act)

    def forward(
        self, x: Float[Tensor, "B N W"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N W"]:
        """Return the state with the next function in it."""
        latent = self.finish(self.merge_ranks(self.gather(x, (), token_weights)), ())
        h = self._cross(x, latent)
        sums = self.attend.gather(self.norm_self(h), token_weights)
        return self._finish(x, h, self.finish(self.merge_ranks(sums), (latent,)))

    def _gates(self, x: Tensor) -> Tensor:
        return F.softmax(self.gate(x.split(self.widths, -1)[2]), -1)

    def _cross(self, x: Tensor, context: Tensor) -> Tensor:
        """Run the first half of the layer."""
        h = x.split(self.widths, -1)[0]
        h = h + self.cross(self.norm_query(h), context)
        return h + self.experts_cross(h, self._gates(x))

    def _finish(self, x: Tensor, h: Tensor, context: Tensor) -> Tensor:
        """Run the second half of the layer on what the first gave, and renew the state."""
        h = h + self.attend(self.norm_self(h), context)
        h = h + self.experts_self(h, self._gates(x))
        embedding, _, raw = x.split(self.widths, -1)
        return torch.cat((embedding, h.to(x.dtype), raw), -1)

    def gather(
        self, x: Float[Tensor, "B N W"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Sum the function of these tokens first, then their own features."""
        if latents:
            return self.attend.gather(self.norm_self(self._cross(x, latents[0])), token_weights)
        function = self.norm_function(x.split(self.widths, -1)[1])
        return self.cross.gather(function, token_weights)

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H D E"]:
        """Put sums and weights together to the context."""
        total, weight = gathered
        return torch.cat((total, weight[..., None]), -1) / weight.sum(-1)[..., None, None]

    def scatter(self, x: Float[Tensor, "B N W"], latents: Latents) -> Float[Tensor, "B N W"]:
        """Return the next state of these tokens."""
        return self._finish(x, self._cross(x, latents[0]), latents[1])


class TwoEmbeddings(nn.Module):
    """Embed each token twice, as coordinates and as function, and keep its raw channels.

    With unified positions, both embeddings see the positions alone.
    """

    def __init__(self, in_dim: int, dim: int, act: str, unified_pos: bool) -> None:
        super().__init__()
        self.unified_pos = unified_pos
        self.coordinates = linear_chain((in_dim, 2 * dim, dim), act)
        self.function = linear_chain((in_dim, 2 * dim, dim), act)
        self.placeholder = nn.Parameter(torch.empty(dim))

    def forward(self, fx: Function, embedding: Embedding | None = None) -> Float[Tensor, "B N W"]:
        """Return the state of each token before the first layer."""
        raw = fx if self.unified_pos else join_inputs(fx, embedding)
        seen = embedding if self.unified_pos else raw
        function = self.function(seen) + self.placeholder
        coordinates = self.coordinates(seen)
        return torch.cat((coordinates, function, raw.to(function.dtype)), -1)


class FunctionHead(nn.Sequential):
    """Read the outputs off the function in the state of each token."""

    def __init__(self, dim: int, out_dim: int, act: str) -> None:
        super().__init__(*linear_chain((dim, 2 * dim, out_dim), act))
        self.dim = dim

    def forward(self, x: Float[Tensor, "B N W"]) -> Float[Tensor, "B N out"]:
        """Apply the layers to the function."""
        return super().forward(x[..., self.dim : 2 * self.dim])


class GNOT(TokenModel):
    """General Neural Operator Transformer as configured in the FLARE study (Hao et al., 2023).

    Both attentions of a layer are normalised sums over tokens, so masks, token shards, streaming
    and latent states work. Embeddings and gates see all channels of a token.

    With ``unified_pos``, which the study uses on the grids of Darcy, Airfoil and Pipe, the
    embeddings see the distances to a reference grid *instead* of the inputs: coefficient and
    geometry reach the model only through the gates of the experts.

    ``forward`` takes and returns what that of :class:`~physicsnemo_flarepp.models.FlarePP` does,
    but for ``time``; arguments that are not listed mean what they mean there.

    Parameters
    ----------
    n_experts : int, optional, default=3
        Feed-forwards of each mixture.
    mlp_ratio : float, optional, default=2.0
        Hidden width of experts and gates over C.
    act : str, optional, default="gelu_exact"
        Activation.

    Examples
    --------
    >>> model = GNOT(3, 1, n_layers=1, n_hidden=32, n_head=4)
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 1])
    """

    in_projection: TwoEmbeddings

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None = None,
        n_layers: int = 8,
        n_hidden: int = 128,
        n_head: int = 8,
        n_experts: int = 3,
        mlp_ratio: float = 2.0,
        act: str = "gelu_exact",
        structured_shape: Sequence[int] | None = None,
        unified_pos: bool = False,
        ref: int = 8,
        checkpoint_blocks: bool = False,
    ) -> None:
        check_sizes(n_layers, n_hidden, n_head, {"n_experts": n_experts}, mlp_ratio)
        inputs = (functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref)
        super().__init__(*inputs, checkpoint_blocks=checkpoint_blocks)
        raw = functional_dim if unified_pos else self.token_width
        seen = self.token_width - functional_dim if unified_pos else raw
        hidden = round(n_hidden * mlp_ratio)
        self.in_projection = TwoEmbeddings(seen, n_hidden, act, unified_pos)
        sizes = (n_hidden, n_head, raw, hidden, n_experts)
        layers = [GNOTLayer(*sizes, act) for _ in range(n_layers)]
        self._stream_width = sum(layers[0].widths)  # two embeddings and the raw inputs
        self.blocks = stack_blocks(map(BareBlock, layers))
        self.out_projection = FunctionHead(n_hidden, out_dim, act)
        self.reset_parameters()

    @property
    def stream_width(self) -> int:
        """Channels of the state of a token: two embeddings and the raw inputs."""
        return self._stream_width

    def reset_parameters(self) -> None:
        """Draw every Linear from a truncated N(0, 0.02), the placeholder from [0, 1/C]."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm):
                part.reset_parameters()
        placeholder = self.in_projection.placeholder
        nn.init.uniform_(placeholder, 0.0, 1 / len(placeholder))

"""Transolver-3: slice attention with its projections fused by associativity."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..ops import encode
from .base import Gathered, Latents, SumMixer, Tokens, TokenWeights
from .layers import affine_map, sum_tokens


class Transolver3Mixer(SumMixer):
    r"""Physics attention that never forms the :math:`N \times C` token projections.

    The slice logits come from the product of the slice and address weights,
    :math:`W_h = W_\mathrm{slice} W_{x,h}` of shape :math:`(G, C)`, the value projection is applied
    to the G slice averages, and the output projection to the G slice results:

    .. math::

        w_h = \mathrm{softmax}_G\big((x W_h^\top + b_h)/\tau_h\big), \quad
        s_h = \frac{w_h^\top x}{\sum_n w_h + 10^{-5}} W_{f,h}^\top + b_{f,h}, \quad
        y = \sum_h w_h \big(\mathrm{SDPA}(s_h)\, W_{\mathrm{out},h}\big) + b_\mathrm{out}

    Unlike the unfused layer the value bias is not damped by the normaliser's 1e-5. The parameters
    are those of the unfused layer, so weights can be copied between the two. Adapters and hooks on
    the projections see the axes of their inputs, never the tokens.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    slice_num : int
        Slices G.
    orthogonal_slices : bool, optional, default=False
        Start the slice weights orthogonal, as the original paper does, instead of N(0, 0.02).
    """

    n_gathers = 1
    epsilon = 1e-5

    def __init__(
        self, dim: int, heads: int, slice_num: int, orthogonal_slices: bool = False
    ) -> None:
        super().__init__(dim, heads)
        self.orthogonal_slices = orthogonal_slices
        self.address = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.slice = nn.Linear(self.head_dim, slice_num)
        self.temperature = nn.Parameter(torch.empty(heads, 1, 1))
        self.attend = nn.Linear(self.head_dim, 3 * self.head_dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the slice weights like all others, or orthogonal; make the temperatures 0.5."""
        super().reset_parameters(init)
        if self.orthogonal_slices:
            nn.init.orthogonal_(self.slice.weight)
        nn.init.constant_(self.temperature, 0.5)

    def slice_weights(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N H G"]:
        """Return each token's distribution over the slices from one (C, H G) projection."""
        by_head = (self.heads, self.head_dim)
        tau = self.temperature  # not clamped, unlike Transolver's
        address, address_bias = affine_map(self.address, self.dim)
        slices, slice_bias = affine_map(self.slice, self.head_dim)
        weight = slices @ address.unflatten(0, by_head)  # (H, G, C)
        bias = address_bias.unflatten(0, by_head) @ slices.T + slice_bias
        logits = F.linear(x, (weight / tau).flatten(0, 1), (bias / tau[..., 0]).flatten())
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.softmax(logits.unflatten(-1, (self.heads, -1)), -1)

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Average tokens into slices, project and attend there, spread the results."""
        weights = self.slice_weights(x)
        gathered = self.merge_ranks(sum_tokens(weights, x, token_weights))
        return self.spread(weights, self.attend_slices(gathered))

    def attend_slices(self, gathered: Gathered) -> Float[Tensor, "B H G D"]:
        """Project the averaged tokens to values and let the slices attend to each other."""
        total, weight = gathered
        raw = (total / (weight + self.epsilon)[..., None]).to(self.dtype)
        value, bias = (
            t.unflatten(0, (self.heads, self.head_dim)) for t in affine_map(self.value, self.dim)
        )
        slices = torch.einsum("bhgc,hdc->bhgd", raw, value) + bias[:, None]
        q, k, v = self.attend(slices).chunk(3, -1)
        return encode(q, k, v)

    def spread(
        self, weights: Float[Tensor, "B N H G"], slices: Float[Tensor, "B H G D"]
    ) -> Float[Tensor, "B N C"]:
        """Project the attended slices to outputs and spread them to the tokens."""
        out, bias = affine_map(self.out, self.dim)
        out = out.unflatten(1, (self.heads, self.head_dim))  # (C, H, D)
        spread = torch.einsum("bhgd,chd->bhgc", slices, out)
        # One (H G)-wide product sums over heads and slices at once.
        return weights.flatten(2).to(spread.dtype) @ spread.flatten(1, 2) + bias

    def gather(
        self, x: Float[Tensor, "B N C"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Sum these tokens, unprojected, into the slices."""
        return sum_tokens(self.slice_weights(x), x, token_weights)

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H G D"]:
        """Average, project, and let the slices attend to each other."""
        return self.attend_slices(gathered).to(gathered[0].dtype)

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Spread the attended slices to each token."""
        return self.spread(self.slice_weights(x), latents[0].to(self.dtype))

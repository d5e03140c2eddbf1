"""Transolver-3: slice attention with its projections fused by associativity."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .base import Mixer, TokenWeights
from .slices import average_over_group, average_tokens, damp_average


class Transolver3Mixer(Mixer):
    r"""Physics attention that never forms the :math:`N \times C` token projections.

    The slice logits come from the product of the slice and address weights,
    :math:`W_h = W_\mathrm{slice} W_{x,h}` of shape :math:`(G, C)`, the value projection is applied
    to the G slice averages, and the output projection to the G slice results:

    .. math::

        w_h = \mathrm{softmax}_G\big((x W_h^\top + b_h)/\tau_h\big), \quad
        s_h = \frac{w_h^\top x}{\sum_n w_h + 10^{-5}} W_{f,h}^\top + b_{f,h}, \quad
        y = \sum_h w_h \big(\mathrm{SDPA}(s_h)\, W_{\mathrm{out},h}\big) + b_\mathrm{out}

    Unlike the unfused layer the value bias is not damped by the normaliser's 1e-5. The parameters
    are those of the unfused layer, so weights can be copied between the two.

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
        weight = self.slice.weight @ self.address.weight.unflatten(0, by_head)  # (H, G, C)
        bias = self.address.bias.unflatten(0, by_head) @ self.slice.weight.T + self.slice.bias
        logits = F.linear(x, (weight / tau).flatten(0, 1), (bias / tau[..., 0]).flatten())
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.softmax(logits.unflatten(-1, (self.heads, -1)), -1)

    def forward(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N C"]:
        """Average tokens into slices, project and attend there, spread the results."""
        weights = self.slice_weights(x)
        raw = average_over_group(
            weights, x, token_weights, "bnhg,bnc->bhgc", self.epsilon, self.context_group
        )
        return self.spread(weights, self.attend_slices(raw))

    def attend_slices(self, raw: Float[Tensor, "B H G C"]) -> Float[Tensor, "B H G D"]:
        """Project the averaged tokens to values and let the slices attend to each other."""
        by_head = (self.heads, self.head_dim)
        value = self.value.weight.unflatten(0, by_head)  # (H, D, C)
        slices = torch.einsum("bhgc,hdc->bhgd", raw, value)
        slices = slices + self.value.bias.unflatten(0, by_head)[:, None]
        q, k, v = self.attend(slices).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)

    def spread(
        self, weights: Float[Tensor, "B N H G"], slices: Float[Tensor, "B H G D"]
    ) -> Float[Tensor, "B N C"]:
        """Project the attended slices to outputs and spread them to the tokens."""
        out = self.out.weight.unflatten(1, (self.heads, self.head_dim))  # (C, H, D)
        spread = torch.einsum("bhgd,chd->bhgc", slices, out)
        # One (H G)-wide product sums over heads and slices at once.
        y = weights.flatten(2).to(spread.dtype) @ spread.flatten(1, 2)
        return y + self.out.bias

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H G C"], Float[Tensor, "B H G"]]:
        """Average these tokens, unprojected, into the slices."""
        return average_tokens(self.slice_weights(x), x, token_weights, "bnhg,bnc->bhgc")

    def close(
        self,
        out: Float[Tensor, "B H G C"],
        lse: Float[Tensor, "B H G"],
        latents: tuple[Tensor, ...],
    ) -> Float[Tensor, "B H G D"]:
        """Project the averages and let the slices attend to each other."""
        return self.attend_slices(damp_average(out, lse, self.epsilon)).to(out.dtype)

    def scatter(
        self, x: Float[Tensor, "B N C"], latents: tuple[Tensor, ...]
    ) -> Float[Tensor, "B N C"]:
        """Spread the attended slices to each token."""
        return self.spread(self.slice_weights(x), latents[0])

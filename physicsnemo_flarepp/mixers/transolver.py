"""Slice attention: Transolver and Transolver++ on PhysicsNeMo's layer, and Transolver-3."""

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from physicsnemo.nn import gumbel_softmax
from physicsnemo.nn.module.physics_attention import PhysicsAttentionIrregularMesh
from torch import Tensor, nn

from ..ops import encode
from .base import Gathered, Latents, SumMixer, Tokens, TokenWeights
from .layers import affine_map, sum_tokens

InHeads = Float[Tensor, "B N H D"]
SliceWeights = Float[Tensor, "B N H G"]
Slices = Float[Tensor, "B H G D"]


class SliceMixer(SumMixer):
    """Tokens are averaged into slices, the slices attend to each other and are spread back."""

    n_gathers = 1
    epsilon = 1e-5

    def project_tokens(
        self, x: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B N *address"], Float[Tensor, "B N *value"]]:
        """Return what addresses the slices and what they sum: the tokens, or projections."""
        return x, x

    @abstractmethod
    def slice_weights(self, address: Float[Tensor, "B N *address"]) -> SliceWeights:
        """Return each token's distribution over the slices, in fp32 or better."""

    @abstractmethod
    def project_slices(self, averages: Float[Tensor, "B H G E"]) -> Float[Tensor, "B H G F"]:
        """Return queries, keys and values of the averaged slices side by side."""

    @abstractmethod
    def spread(self, slices: Slices, weights: SliceWeights) -> Tokens:
        """Return the attended slices to the tokens and project them."""

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Average tokens into slices, let the slices attend, spread them back."""
        address, value = self.project_tokens(x)
        weights = self.slice_weights(address)
        gathered = self.merge_ranks(sum_tokens(weights, value, token_weights))
        return self.spread(self.attend_slices(gathered), weights)

    def attend_slices(self, gathered: Gathered) -> Slices:
        """Average the tokens of each slice and let the slices attend to each other."""
        total, weight = gathered
        averages = (total / (weight + self.epsilon)[..., None]).to(self.dtype)
        q, k, v = self.project_slices(averages).chunk(3, -1)
        return encode(q, k, v, dropout=self.dropout)

    def gather(
        self, x: Float[Tensor, "B N C"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Sum these tokens into the slices."""
        address, value = self.project_tokens(x)
        return sum_tokens(self.slice_weights(address), value, token_weights)

    def finish(self, gathered: Gathered, latents: Latents) -> Slices:
        """Average, and let the slices attend to each other."""
        return self.attend_slices(gathered).to(gathered[0].dtype)


class PhysicsAttentionStages(SliceMixer):
    """Transolver's algebra on a layer of PhysicsNeMo's, :attr:`layer`, whoever made it."""

    temperature_range: tuple[float, float]
    layer: Any

    def project_tokens(self, x: Tokens) -> tuple[InHeads, InHeads]:
        """Project the tokens twice."""
        return self.layer.project_input_onto_slices(x)

    def logits(self, address: InHeads) -> SliceWeights:
        """Return the scores of the slices in fp32 or better."""
        logits = self.layer.in_project_slice(address)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def slice_weights(self, address: InHeads) -> SliceWeights:
        """Return each token's distribution over the slices."""
        temperature = self.layer.temperature.clamp(*self.temperature_range)
        return F.softmax(self.logits(address) / temperature, -1)

    def project_slices(self, averages: Slices) -> Float[Tensor, "B H G F"]:
        """Return queries, keys and values side by side."""
        return self.layer.qkv_project(averages)

    def spread(self, slices: Slices, weights: SliceWeights) -> Tokens:
        """Return the slices to the tokens and project them."""
        return self.layer._project_attention_outputs(slices, weights.to(slices.dtype))

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Spread the attended slices to each token."""
        address = self.layer.in_project_x(x).unflatten(-1, (self.heads, self.head_dim))
        return self.spread(latents[0].to(address.dtype), self.slice_weights(address))


class PhysicsAttentionPlusStages(PhysicsAttentionStages):
    """Transolver++'s algebra: one projection, a temperature per token, Gumbel noise."""

    noise_at_evaluation: bool

    @property
    def is_random(self) -> bool:
        """Whether Gumbel noise is drawn."""
        return self.training or self.noise_at_evaluation

    def project_tokens(self, x: Tokens) -> tuple[InHeads, InHeads]:
        """Return one projection, twice."""
        projected = self.layer.project_input_onto_slices(x)
        return projected, projected

    def slice_weights(self, address: InHeads) -> SliceWeights:
        """Return each token's distribution over the slices, sharpened by its own temperature."""
        logits = self.logits(address)
        tau = (self.layer.temperature + self.layer.proj_temperature(address)).clamp(min=0.01)
        return gumbel_softmax(logits, tau) if self.is_random else F.softmax(logits / tau, -1)


class TransolverMixer(PhysicsAttentionStages):
    r"""Physics attention: tokens are averaged into slices, slices attend, and are spread back.

    The weights, their names, the slice attention and the output are those of
    ``physicsnemo.nn``'s layer, held in :attr:`layer`. Three details follow the authors'
    published runs instead of PhysicsNeMo 2.2: the temperature is clamped to [0.1, 5] (PhysicsNeMo:
    [0.5, 5]), slice sums are divided by the weight plus 1e-5 (1e-2), and the softmax runs in fp32.
    Masks and token weights are ours; with weights the 1e-5 counts in 1/10,000 of their total.

    Parameters
    ----------
    dim, heads, slice_num : int
        Channels C, heads H and slices G.
    orthogonal_slices : bool, optional, default=False
        Start the slice weights orthogonal, as the original papers do, instead of N(0, 0.02).
    attention_dropout : float, optional, default=0.0
        Of the attention between slices.
    """

    plus = False
    temperature_range = (0.1, 5.0)

    def __init__(
        self,
        dim: int,
        heads: int,
        slice_num: int,
        orthogonal_slices: bool = False,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, heads)
        self.attention_dropout = attention_dropout
        self.orthogonal_slices = orthogonal_slices
        self.layer = PhysicsAttentionIrregularMesh(
            dim, heads, self.head_dim, 0.0, slice_num, use_te=False, plus=self.plus
        )
        self.reset_parameters()

    def reset_parameters(self, init: str = "paper") -> None:
        """Draw the slice weights like all others, or orthogonal; make the temperatures 0.5."""
        super().reset_parameters(init)
        if self.orthogonal_slices:
            nn.init.orthogonal_(self.layer.in_project_slice.weight)
        nn.init.constant_(self.layer.temperature, 0.5)

    @property
    def output(self) -> nn.Linear:
        """The last layer, which writes to the residual stream."""
        return self.layer.out_linear


class TransolverPlusMixer(PhysicsAttentionPlusStages, TransolverMixer):
    r"""Transolver++: one projection for address and value, a temperature per token, Gumbel noise.

    The published code draws the noise at evaluation too, which makes predictions random; here it
    is drawn in training only unless ``noise_at_evaluation`` asks for it. The temperature of a
    token is floored at 0.01.

    Parameters
    ----------
    dim, heads, slice_num, orthogonal_slices
        As in :class:`TransolverMixer`.
    noise_at_evaluation : bool, optional, default=False
        Draw Gumbel noise in ``eval()`` as well.
    """

    plus = True

    def __init__(
        self,
        dim: int,
        heads: int,
        slice_num: int,
        orthogonal_slices: bool = False,
        noise_at_evaluation: bool = False,
    ) -> None:
        super().__init__(dim, heads, slice_num, orthogonal_slices)
        self.noise_at_evaluation = noise_at_evaluation


class Transolver3Mixer(SliceMixer):
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
    dim, heads, slice_num, orthogonal_slices
        As in :class:`TransolverMixer`.
    """

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

    def slice_weights(self, address: Tokens) -> SliceWeights:
        """Return each token's distribution over the slices from one (C, H G) projection."""
        by_head = (self.heads, self.head_dim)
        tau = self.temperature  # not clamped, unlike Transolver's
        weight, bias = affine_map(self.address, self.dim)
        slices, slice_bias = affine_map(self.slice, self.head_dim)
        weight = slices @ weight.unflatten(0, by_head)  # (H, G, C)
        bias = bias.unflatten(0, by_head) @ slices.T + slice_bias
        logits = F.linear(address, (weight / tau).flatten(0, 1), (bias / tau[..., 0]).flatten())
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.softmax(logits.unflatten(-1, (self.heads, -1)), -1)

    def project_slices(self, averages: Float[Tensor, "B H G C"]) -> Float[Tensor, "B H G F"]:
        """Project the averaged tokens to values, and these to queries, keys and values."""
        value, bias = (
            t.unflatten(0, (self.heads, self.head_dim)) for t in affine_map(self.value, self.dim)
        )
        return self.attend(torch.einsum("bhgc,hdc->bhgd", averages, value) + bias[:, None])

    def spread(self, slices: Slices, weights: SliceWeights) -> Tokens:
        """Project the attended slices to outputs and return them to the tokens."""
        out, bias = affine_map(self.out, self.dim)
        out = out.unflatten(1, (self.heads, self.head_dim))  # (C, H, D)
        spread = torch.einsum("bhgd,chd->bhgc", slices, out)
        # One (H G)-wide product sums over heads and slices at once.
        return weights.flatten(2).to(spread.dtype) @ spread.flatten(1, 2) + bias

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Spread the attended slices to each token."""
        return self.spread(latents[0].to(self.dtype), self.slice_weights(x))

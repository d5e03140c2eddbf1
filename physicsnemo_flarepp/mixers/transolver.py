"""Transolver and Transolver++ slices, on PhysicsNeMo's layer."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from physicsnemo.nn import gumbel_softmax
from physicsnemo.nn.module.physics_attention import PhysicsAttentionIrregularMesh
from torch import Tensor, nn

from ..ops import encode
from .base import Gathered, Latents, SumMixer, Tokens, TokenWeights
from .layers import sum_tokens


class PhysicsAttentionStages(SumMixer):
    """Transolver's algebra on a layer of PhysicsNeMo's, :attr:`layer`, whoever made it."""

    n_gathers = 1
    temperature_range: tuple[float, float]
    epsilon: float
    layer: Any

    def project_tokens(
        self, x: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B N H D"], Float[Tensor, "B N H D"]]:
        """Return what addresses the slices and what they sum."""
        return self.layer.project_input_onto_slices(x)

    def slice_weights(self, address: Float[Tensor, "B N H D"]) -> Float[Tensor, "B N H G"]:
        """Return each token's distribution over the slices, in fp32 or better."""
        logits = self.layer.in_project_slice(address)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.softmax(logits / self.layer.temperature.clamp(*self.temperature_range), -1)

    def attend_slices(self, gathered: Gathered) -> Float[Tensor, "B H G D"]:
        """Average the tokens of each slice and let the slices attend to each other."""
        total, weight = gathered
        slices = (total / (weight + self.epsilon)[..., None]).to(self.dtype)
        q, k, v = self.layer.qkv_project(slices).chunk(3, -1)
        return encode(q, k, v, dropout=self.dropout)

    def mix(self, x: Tokens, token_weights: TokenWeights | None) -> Tokens:
        """Sum tokens into slices, let the slices attend, spread them back."""
        address, value = self.project_tokens(x)
        weights = self.slice_weights(address)
        slices = self.attend_slices(self.merge_ranks(sum_tokens(weights, value, token_weights)))
        return self.layer._project_attention_outputs(slices, weights.to(slices.dtype))

    def gather(
        self, x: Float[Tensor, "B N C"], latents: Latents, token_weights: TokenWeights | None = None
    ) -> Gathered:
        """Sum these tokens into the slices."""
        address, value = self.project_tokens(x)
        return sum_tokens(self.slice_weights(address), value, token_weights)

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H G D"]:
        """Average, and let the slices attend to each other."""
        return self.attend_slices(gathered).to(gathered[0].dtype)

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Spread the attended slices to each token."""
        address = self.layer.in_project_x(x).unflatten(-1, (self.heads, self.head_dim))
        weights = self.slice_weights(address).to(address.dtype)
        return self.layer._project_attention_outputs(latents[0].to(address.dtype), weights)


class PhysicsAttentionPlusStages(PhysicsAttentionStages):
    """Transolver++'s algebra: one projection, a temperature per token, Gumbel noise."""

    noise_at_evaluation: bool

    @property
    def is_random(self) -> bool:
        """Whether Gumbel noise is drawn."""
        return self.training or self.noise_at_evaluation

    def project_tokens(
        self, x: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B N H D"], Float[Tensor, "B N H D"]]:
        """Return one projection, twice."""
        projected = self.layer.project_input_onto_slices(x)
        return projected, projected

    def slice_weights(self, address: Float[Tensor, "B N H D"]) -> Float[Tensor, "B N H G"]:
        """Return each token's distribution over the slices, sharpened by its own temperature."""
        logits = self.layer.in_project_slice(address)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tau = (self.layer.temperature + self.layer.proj_temperature(address)).clamp(min=0.01)
        if self.is_random:
            return gumbel_softmax(logits, tau)
        return F.softmax(logits / tau, -1)


class TransolverMixer(PhysicsAttentionStages):
    r"""Physics attention: tokens are averaged into slices, slices attend, and are spread back.

    The weights, their names, the slice attention and the output are those of
    ``physicsnemo.nn``'s layer, held in :attr:`layer`. Three details follow the authors'
    published runs instead of PhysicsNeMo 2.2: the temperature is clamped to [0.1, 5] (PhysicsNeMo:
    [0.5, 5]), slice sums are divided by the weight plus 1e-5 (1e-2), and the softmax runs in fp32.
    Masks and token weights are ours; with weights the 1e-5 counts in 1/10,000 of their total.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    slice_num : int
        Slices G.
    orthogonal_slices : bool, optional, default=False
        Start the slice weights orthogonal, as the original papers do, instead of N(0, 0.02).
    attention_dropout : float, optional, default=0.0
        Probability with which softmax weights between slices are dropped in training.
    """

    plus = False
    temperature_range = (0.1, 5.0)
    epsilon = 1e-5

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

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Average tokens into slices, let the slices attend, spread them back."""
        return self.mix(x, token_weights)


class TransolverPlusMixer(PhysicsAttentionPlusStages, TransolverMixer):
    r"""Transolver++: one projection for address and value, a temperature per token, Gumbel noise.

    The published code draws the noise at evaluation too, which makes predictions random; here it
    is drawn in training only unless ``noise_at_evaluation`` asks for it. The temperature of a
    token is floored at 0.01.

    Parameters
    ----------
    dim, heads : int
        Channels C and heads H.
    slice_num : int
        Slices G.
    orthogonal_slices : bool, optional, default=False
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

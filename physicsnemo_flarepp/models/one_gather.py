"""What PerceiverIO, SetTransformer and LNO share: one gather per mixer, and work on its latents."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers.base import Gathered, Latents, Mixer, SoftmaxMixer, Tokens, TokenWeights
from ..ops import encode


class OneGatherMixer(SoftmaxMixer):
    """A mixer that gathers the tokens once, by a softmax over them.

    Subclasses say with which queries, keys and values (``attention_inputs``), what becomes of the
    gathered latents (:meth:`transform`) and how each token reads them (``scatter``).
    """

    n_gathers = 1

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Gather the tokens, work on the latents, return them."""
        q, k, v = self.attention_inputs(x, ())
        z = encode(q, k, v, scale=self.scale, key_weights=token_weights, group=self.context_group)
        return self.scatter(x, (self.transform(z),))

    @abstractmethod
    def transform(self, z: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M E"]:
        """Turn the gathered latents into what the tokens read."""

    def finish(self, gathered: Gathered, latents: Latents) -> Float[Tensor, "B H M E"]:
        """Work on the gathered latents."""
        return self.transform(gathered[0])


def keys_and_values(
    mixer: Mixer, z: Float[Tensor, "B M C"], layer: nn.Module
) -> Float[Tensor, "B H M E"]:
    """Project latents to the keys and values that tokens read, side by side: E = 2 D."""
    return torch.cat(mixer.project_heads(z, layer, 2), -1)

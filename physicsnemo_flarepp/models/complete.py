"""What the complete architectures of the comparison share: inputs, checks, and one gather."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from physicsnemo.core import Module
from torch import Tensor

from ..mixers import Mixer
from ..mixers.base import TokenWeights
from ..ops import attention_with_lse, encode
from .backbone import MetaData, MixerBackbone
from .checks import check_architecture, check_grid, check_integers, check_ratios

_SIZES = (
    "functional_dim",
    "out_dim",
    "embedding_dim",
    "ref",
    "n_layers",
    "n_hidden",
    "n_head",
    "slice_num",
    "n_experts",
)
_INPUTS = (
    "functional_dim",
    "out_dim",
    "embedding_dim",
    "structured_shape",
    "unified_pos",
    "ref",
)


class CompleteModel(MixerBackbone):
    r"""A model that is compared as a whole, with the inputs and checks of the matched backbone.

    Subclasses call this constructor, which builds no layer, with the ``locals()`` of their own, and
    then set ``in_projection``, ``blocks`` and ``out_projection``. Masks, grids, checkpointing,
    context parallelism, streaming and ShardTensors then work as for
    :class:`~physicsnemo_flarepp.models.MixerBackbone`.

    Parameters
    ----------
    given : Mapping
        Arguments by name, of :class:`~physicsnemo_flarepp.models.MixerBackbone` and ``n_experts``,
        and whatever else; those that are known are checked.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        # Past the backbone's own constructor: its layers are not those of these models.
        Module.__init__(self, meta=MetaData())
        sizes = {name: given[name] for name in _SIZES if name in given}
        if given["embedding_dim"] is None:
            del sizes["embedding_dim"]
        check_integers(1, sizes)
        check_integers(0, {"io_layers": given.get("io_layers", 0)})
        check_ratios(given["mlp_ratio"], dropout=0.0)
        check_architecture(given["n_hidden"], given["n_head"])
        check_grid(given["structured_shape"], given["unified_pos"])
        self.init = "paper"  # drawn as in the study
        self.time_input = False
        self.checkpoint_blocks = given["checkpoint_blocks"]
        self._set_inputs(**{name: given[name] for name in _INPUTS})

    @property
    def token_width(self) -> int:
        """Channels of a token as it comes in, ``embedding`` and ``fx`` together."""
        return self.functional_dim + (self.embedding_dim or 0)


class OneGatherMixer(Mixer):
    r"""A mixer that gathers the tokens once, by a softmax over them.

    Subclasses say with which queries, keys and values (:meth:`project_tokens`), what becomes of
    the gathered latents (:meth:`close`) and how each token reads them (:meth:`scatter`).

    Attributes
    ----------
    scale : float or None
        Factor on the scores of the gather; None for :math:`D^{-1/2}`.
    """

    n_gathers = 1
    scale: float | None = None

    @abstractmethod
    def project_tokens(
        self, x: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H N D"], Float[Tensor, "B H N D"]]:
        """Return queries, and keys and values of the tokens."""

    def forward(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N C"]:
        """Gather the tokens, work on the latents, return them."""
        q, k, v = self.project_tokens(x)
        z = encode(q, k, v, scale=self.scale, key_weights=token_weights, group=self.context_group)
        return self.scatter(x, (self.close(z, None, ()),))

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H M"]]:
        """Gather these tokens."""
        q, k, v = self.project_tokens(x)
        return attention_with_lse(q, k, v, scale=self.scale, key_weights=token_weights)

    @abstractmethod
    def close(
        self,
        out: Float[Tensor, "B H M D"],
        lse: Float[Tensor, "B H M"] | None,
        latents: tuple[Tensor, ...],
    ) -> Float[Tensor, "B H M E"]:
        """Turn the gathered latents into what the tokens read; ``lse`` is not used."""


def keys_and_values(
    mixer: Mixer, z: Float[Tensor, "B M C"], linear: torch.nn.Linear
) -> Float[Tensor, "B H M E"]:
    """Project latents to the keys and values that tokens read, side by side: E = 2 D."""
    return torch.cat(mixer.project_heads(z, linear), -1)

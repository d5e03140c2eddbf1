"""What the complete architectures of the comparison share: inputs, checks, and one gather."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from physicsnemo.core import Module
from torch import Tensor

from ..mixers import Mixer
from ..mixers.base import TokenWeights
from ..ops import attention_with_lse, encode
from .backbone import MetaData, MixerBackbone
from .checks import check_architecture, check_grid, check_integers, check_ratios


class CompleteModel(MixerBackbone):
    r"""A model that is compared as a whole, with the inputs and checks of the matched backbone.

    Subclasses call this constructor, which builds no layer, and then set ``in_projection``,
    ``blocks`` and ``out_projection``. Masks, grids, checkpointing, context parallelism, streaming
    and ShardTensors then work as for :class:`~physicsnemo_flarepp.models.MixerBackbone`.

    Parameters
    ----------
    functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref, checkpoint_blocks
        As in :class:`~physicsnemo_flarepp.models.MixerBackbone`.
    mlp_ratio, io_layers
        Checked to be positive, and an integer of at least 0.
    n_layers, n_hidden, n_head, slice_num, n_experts
        Checked to be positive integers; a model that has no slices or experts leaves them out.
    """

    def __init__(
        self,
        functional_dim: int,
        out_dim: int,
        embedding_dim: int | None,
        structured_shape: Sequence[int] | None,
        unified_pos: bool,
        ref: int,
        checkpoint_blocks: bool,
        mlp_ratio: float,
        io_layers: int = 0,
        *,
        n_layers: int,
        n_hidden: int,
        n_head: int,
        slice_num: int = 1,
        n_experts: int = 1,
    ) -> None:
        # Past the backbone's own constructor: its layers are not those of these models.
        Module.__init__(self, meta=MetaData())
        given = {
            "functional_dim": functional_dim,
            "out_dim": out_dim,
            "ref": ref,
            "n_layers": n_layers,
            "n_hidden": n_hidden,
            "n_head": n_head,
            "slice_num": slice_num,
            "n_experts": n_experts,
        }
        if embedding_dim is not None:
            given["embedding_dim"] = embedding_dim
        check_integers(1, given)
        check_integers(0, {"io_layers": io_layers})
        check_ratios(mlp_ratio, dropout=0.0)
        check_architecture(n_hidden, n_head)
        check_grid(structured_shape, unified_pos)
        self.time_input = False
        self.checkpoint_blocks = checkpoint_blocks
        self._set_inputs(functional_dim, out_dim, embedding_dim, structured_shape, unified_pos, ref)

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

"""The three stages for PhysicsNeMo's own attention layers.

A layer is given them where it is, by a change of its class alone: its parameters, their names and
its checkpoints stay. As long as all tokens are here and weigh the same it runs its own forward.
"""

from abc import abstractmethod
from functools import cache
from typing import Any

import physicsnemo.nn
from jaxtyping import Float
from physicsnemo.nn.module.physics_attention import PhysicsAttentionIrregularMesh
from torch import Tensor, nn

from ..ops import attention_with_lse, decode, encode
from .base import Mixer, TokenWeights
from .transolver import TransolverMixer, TransolverPlusMixer


class ServedLayer(Mixer):
    """A layer of PhysicsNeMo's with the stages of a mixer.

    Never constructed: :func:`give_stages` makes a class of it and of the layer's own class, and
    the layer an instance of that.

    Attributes
    ----------
    own : type
        The class the layer was made as.
    """

    own: type[nn.Module]
    out_linear: nn.Linear
    out_dropout: nn.Dropout

    def forward(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None = None
    ) -> Float[Tensor, "B N C"]:
        """Run the layer's own forward, or ours where tokens are sharded or weighted."""
        if token_weights is None and self.context_group is None:
            return self.own.forward(self, x)
        return self.mix(x, token_weights)

    @abstractmethod
    def mix(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None
    ) -> Float[Tensor, "B N C"]:
        """Compute what the layer's own forward does, over weighted tokens of all ranks."""

    def finish(self, y: Float[Tensor, "B H N D"]) -> Float[Tensor, "B N C"]:
        """Merge the heads and project."""
        return self.out_dropout(self.out_linear(self.merge_heads(y)))

    def reset_parameters(self, init: str = "paper") -> None:
        """Leave the weights alone: PhysicsNeMo's models draw them."""

    def __reduce_ex__(self, protocol):
        # The class is made at run time, so copies and pickles find it through the layer's own.
        return _empty_layer, (self.own, getattr(self, "plus", False)), self.__dict__


class FlareStages(ServedLayer):
    """``physicsnemo.nn.FLARE``: learned queries; keys and values from one projection per head."""

    n_gathers = 1
    scale: float
    q_global: nn.Parameter
    in_project_x: nn.Linear
    self_k: nn.Linear
    self_v: nn.Linear

    def keys_and_values(
        self, x: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, "B H N D"]]:
        """Return the keys and values of the tokens."""
        projected = self.split_heads(self.in_project_x(x))
        return self.self_k(projected), self.self_v(projected)

    def queries_for(self, k: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H M D"]:
        """Return the learned queries in the batch size and dtype of the keys."""
        return self.q_global.to(k.dtype).expand(k.shape[0], -1, -1, -1)

    def mix(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None
    ) -> Float[Tensor, "B N C"]:
        """Gather the tokens of all ranks into the latents and return them."""
        k, v = self.keys_and_values(x)
        q, group = self.queries_for(k), self.context_group
        z = encode(q, k, v, scale=self.scale, key_weights=token_weights, group=group)
        return self.finish(decode(k, q, z, scale=self.scale))

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H M"]]:
        """Gather these tokens into the latents z."""
        k, v = self.keys_and_values(x)
        q = self.queries_for(k)
        return attention_with_lse(q, k, v, scale=self.scale, key_weights=token_weights)

    def scatter(
        self, x: Float[Tensor, "B N C"], latents: tuple[Tensor, ...]
    ) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        k = self.self_k(self.split_heads(self.in_project_x(x)))
        z = latents[0].to(k.dtype)
        return self.finish(decode(k, self.queries_for(k), z, scale=self.scale))


class FlarePlusPlusStages(ServedLayer):
    """``physicsnemo.nn.FLAREPlusPlus``: as our mixer, without norms on seeds and keys."""

    n_gathers = 2
    scale: float
    q_seed: nn.Parameter
    in_projection: nn.Linear

    def mix(
        self, x: Float[Tensor, "B N C"], token_weights: TokenWeights | None
    ) -> Float[Tensor, "B N C"]:
        """Synthesise the queries, gather the tokens of all ranks into the latents, return them."""
        source_key, source_value, k, v = self.project_heads(x, self.in_projection)
        scale, group = self.scale, self.context_group
        seeds = self.seeds_for(k)
        q = encode(
            seeds, source_key, source_value, scale=scale, key_weights=token_weights, group=group
        )
        z = encode(q, k, v, scale=self.scale, key_weights=token_weights, group=group)
        return self.finish(decode(k, q, z, scale=self.scale))

    def gather(
        self,
        x: Float[Tensor, "B N C"],
        latents: tuple[Tensor, ...],
        token_weights: TokenWeights | None = None,
    ) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H M"]]:
        """Gather these tokens: first into the queries, then into the latents z."""
        first = 2 * len(latents)
        k, v = self.project_some_heads(x, self.in_projection, first, first + 2)
        q = latents[0].to(k.dtype) if latents else self.seeds_for(k)
        return attention_with_lse(q, k, v, scale=self.scale, key_weights=token_weights)

    def scatter(
        self, x: Float[Tensor, "B N C"], latents: tuple[Tensor, ...]
    ) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        (k,) = self.project_some_heads(x, self.in_projection, 2, 3)
        q, z = (latent.to(k.dtype) for latent in latents)
        return self.finish(decode(k, q, z, scale=self.scale))

    def seeds_for(self, k: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H M D"]:
        """Return the seeds in the batch size and dtype of the keys."""
        return self.q_seed.to(k.dtype).expand(k.shape[0], -1, -1, -1)


class PhysicsAttentionStages(ServedLayer, TransolverMixer):
    """Transolver's layer, with the range of temperatures and the epsilon that PhysicsNeMo has."""

    temperature_range = (0.5, 5.0)
    epsilon = 1e-2
    mix = TransolverMixer.forward

    @property
    def layer(self) -> nn.Module:
        """Where :class:`TransolverMixer` finds the weights: here."""
        return self


class PhysicsAttentionPlusStages(PhysicsAttentionStages, TransolverPlusMixer):
    """Transolver++'s layer, which draws Gumbel noise at evaluation too."""

    noise_at_evaluation = True


# By the paths of the classes, which are imported by who has such a model.
SERVED_MODELS = {
    "physicsnemo.models.flare.flare.FLARE",
    "physicsnemo.models.flare.flare.FLAREPlusPlus",
    "physicsnemo.models.transolver.transolver.Transolver",
}
# By the exact class: a subclass may compute something else.
STAGES: dict[type[nn.Module], type[ServedLayer]] = {
    physicsnemo.nn.FLARE: FlareStages,
    PhysicsAttentionIrregularMesh: PhysicsAttentionStages,
}
if hasattr(physicsnemo.nn, "FLAREPlusPlus"):  # in no release up to 2.2
    STAGES[physicsnemo.nn.FLAREPlusPlus] = FlarePlusPlusStages


def give_stages(layer: Any) -> Mixer:
    """Put the stages of a mixer on an attention layer of PhysicsNeMo's, in place.

    Parameters
    ----------
    layer : torch.nn.Module
        ``physicsnemo.nn``'s FLARE, FLAREPlusPlus or PhysicsAttentionIrregularMesh, built without
        Transformer Engine; a layer that has stages is left as it is.

    Returns
    -------
    Mixer
        The same layer.

    Examples
    --------
    >>> layer = give_stages(physicsnemo.nn.FLARE(dim=32, heads=4, dim_head=8))
    >>> isinstance(layer, physicsnemo.nn.FLARE), layer.n_gathers
    (True, 1)
    """
    if isinstance(layer, Mixer):
        return layer
    own: Any = type(layer)
    if "StructuredMesh" in own.__name__:
        raise ValueError(
            f"{own.__name__} runs convolutions over the grid, so tokens meet outside of its gather "
            "and it cannot be sharded, streamed or weighted; build the model with "
            "structured_shape=None"
        )
    if own not in STAGES:
        known = ", ".join(cls.__name__ for cls in STAGES)
        raise TypeError(f"{own.__name__} cannot be given stages; known are {known}")
    if layer.use_te:
        raise ValueError(
            f"{own.__name__} was built with use_te=True: Transformer Engine does not return the "
            "log-normaliser that sharding and streaming need; build the model with use_te=False "
            "and load its weights"
        )
    layer.dim, layer.head_dim = layer.out_linear.out_features, layer.dim_head
    layer.__class__ = _staged_class(own, getattr(layer, "plus", False))
    return layer


@cache
def _staged_class(own: Any, plus: bool) -> type[ServedLayer]:
    stages = PhysicsAttentionPlusStages if plus else STAGES[own]
    return type(f"{own.__name__}InStages", (stages, own), {"own": own})


def _empty_layer(own: Any, plus: bool) -> ServedLayer:
    cls = _staged_class(own, plus)
    return cls.__new__(cls)


def served_layers(model: nn.Module) -> list[Mixer]:
    """Put stages on the attention layers of all PhysicsNeMo models inside ``model``; return them.

    Examples
    --------
    >>> from physicsnemo.models.flare import FLARE
    >>> model = FLARE(2, 1, embedding_dim=3, n_layers=2, n_hidden=16, n_head=2)
    >>> [layer.n_gathers for layer in served_layers(nn.Sequential(model))]
    [1, 1]
    """
    served: list[Any] = [part for part in model.modules() if is_served(part)]
    return [give_stages(block.Attn) for part in served for block in part.blocks]


def is_served(model: nn.Module) -> bool:
    """Return whether a model is one of PhysicsNeMo's in which tokens meet in known layers only."""
    return f"{type(model).__module__}.{type(model).__qualname__}" in SERVED_MODELS

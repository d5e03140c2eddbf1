"""The stages of a mixer for PhysicsNeMo's own attention layers.

The adapter of a layer holds it and changes nothing about it: parameters, names and checkpoints
stay. As long as all tokens are here and weigh the same the layer runs its own forward.
"""

from abc import abstractmethod
from typing import Any

import physicsnemo.nn
from jaxtyping import Float
from physicsnemo.nn.module.physics_attention import PhysicsAttentionIrregularMesh
from torch import Tensor, nn

from ..ops import decode, encode
from ..ops.kernels import is_plain
from .base import AttentionInputs, Latents, Mixer, SoftmaxMixer, Tokens, TokenWeights
from .transolver import PhysicsAttentionPlusStages, PhysicsAttentionStages


class LayerStages(Mixer):
    """A layer of PhysicsNeMo's, :attr:`layer`, as a mixer."""

    layer: Any

    def __init__(self, layer: Any) -> None:
        super().__init__(layer.heads * layer.dim_head, layer.heads)
        self.layer = layer
        self.training = layer.training

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Run the layer's own forward, or ours where tokens are sharded or weighted."""
        if token_weights is None and self.context_group is None and not is_plain():
            return self.layer(x)
        return self.mix(x, token_weights)

    @abstractmethod
    def mix(self, x: Tokens, token_weights: TokenWeights | None) -> Tokens:
        """Compute what the layer's own forward does, over weighted tokens of all ranks."""

    @property
    def context_group(self) -> str | None:
        """The group, kept with the layer: the same for all of its adapters."""
        return getattr(self.layer, "context_group", None)

    @context_group.setter
    def context_group(self, name: str | None) -> None:
        self.layer.context_group = name

    def set_context_group(self, name: str | None) -> None:
        """Let the layer gather over a group wherever it is called, in its own model too."""
        super().set_context_group(name)
        if name is None:
            self.layer.__dict__.pop("forward", None)
        else:
            self.layer.forward = self.forward

    def reset_parameters(self, init: str = "paper") -> None:
        """Leave the weights alone: PhysicsNeMo's models draw them."""


class RoutingStages(LayerStages, SoftmaxMixer):
    """What FLARE and FLAREPlusPlus share."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.scale = layer.scale

    def encode(self, inputs: AttentionInputs, token_weights: TokenWeights | None) -> Tensor:
        """Gather the tokens of all ranks."""
        group = self.context_group
        return encode(*inputs, scale=self.scale, key_weights=token_weights, group=group)

    def read(self, k: Tensor, q: Tensor, z: Tensor) -> Float[Tensor, "B N C"]:
        """Return the latents z to each token through its key, and project."""
        y = self.merge_heads(decode(k, q.to(k.dtype), z.to(k.dtype), scale=self.scale))
        return self.layer.out_dropout(self.layer.out_linear(y))


class FlareStages(RoutingStages):
    """``physicsnemo.nn.FLARE``: learned queries; keys and values from one projection per head."""

    n_gathers = 1

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return the learned queries, and keys and values of the tokens."""
        projected = self.split_heads(self.layer.in_project_x(x))
        k, v = self.layer.self_k(projected), self.layer.self_v(projected)
        return self.queries_like(self.layer.q_global, k), k, v

    def mix(self, x: Tokens, token_weights: TokenWeights | None) -> Tokens:
        """Gather the tokens of all ranks into the latents and return them."""
        q, k, v = self.attention_inputs(x, ())
        return self.read(k, q, self.encode((q, k, v), token_weights))

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        k = self.layer.self_k(self.split_heads(self.layer.in_project_x(x)))
        return self.read(k, self.queries_like(self.layer.q_global, k), latents[0])


class FlarePlusPlusStages(RoutingStages):
    """``physicsnemo.nn.FLAREPlusPlus``: as our mixer, without norms on seeds and keys."""

    n_gathers = 2

    def attention_inputs(self, x: Float[Tensor, "B N C"], latents: Latents) -> AttentionInputs:
        """Return what gathers the queries, then what gathers the latents z."""
        first = 2 * len(latents)
        k, v = self.project_heads(x, self.layer.in_projection, 4, first, first + 2)
        q = latents[0].to(k.dtype) if latents else self.queries_like(self.layer.q_seed, k)
        return q, k, v

    def mix(self, x: Tokens, token_weights: TokenWeights | None) -> Tokens:
        """Synthesise the queries, gather the tokens of all ranks into the latents, return them."""
        source_key, source_value, k, v = self.project_heads(x, self.layer.in_projection, 4)
        seeds = self.queries_like(self.layer.q_seed, k)
        q = self.encode((seeds, source_key, source_value), token_weights)
        return self.read(k, q, self.encode((q, k, v), token_weights))

    def scatter(self, x: Float[Tensor, "B N C"], latents: Latents) -> Float[Tensor, "B N C"]:
        """Return z to each token through its key."""
        (k,) = self.project_heads(x, self.layer.in_projection, 4, 2, 3)
        return self.read(k, *latents)


class TransolverStages(LayerStages, PhysicsAttentionStages):
    """Transolver's layer, with the range of temperatures and the epsilon that PhysicsNeMo has."""

    temperature_range = (0.5, 5.0)
    epsilon = 1e-2
    mix = PhysicsAttentionStages.forward


class TransolverPlusStages(TransolverStages, PhysicsAttentionPlusStages):
    """Transolver++'s layer, which draws Gumbel noise at evaluation too."""

    noise_at_evaluation = True


# By the paths of the classes, which are imported by who has such a model.
KNOWN_MODELS = {
    "physicsnemo.models.flare.flare.FLARE",
    "physicsnemo.models.flare.flare.FLAREPlusPlus",
    "physicsnemo.models.transolver.transolver.Transolver",
}
# By the exact class: a subclass may compute something else.
STAGES: dict[type[nn.Module], type[LayerStages]] = {
    physicsnemo.nn.FLARE: FlareStages,
    PhysicsAttentionIrregularMesh: TransolverStages,
}
if hasattr(physicsnemo.nn, "FLAREPlusPlus"):  # in no release up to 2.2
    STAGES[physicsnemo.nn.FLAREPlusPlus] = FlarePlusPlusStages


def add_stages(layer: Any) -> LayerStages:
    """Return an attention layer of PhysicsNeMo's as a mixer that shares its weights."""
    cls: Any = type(layer)
    if "StructuredMesh" in cls.__name__:
        raise ValueError(
            f"{cls.__name__} runs convolutions over the grid, so it cannot be sharded, streamed or "
            "weighted; build the model with structured_shape=None"
        )
    if cls not in STAGES:
        known = ", ".join(known.__name__ for known in STAGES)
        raise TypeError(f"{cls.__name__} is not an attention layer with stages; known are {known}")
    if layer.use_te:
        raise ValueError(
            f"{cls.__name__} has use_te=True: Transformer Engine returns no log-normaliser, which "
            "sharding and streaming need; build it with use_te=False and load its weights"
        )
    return TransolverPlusStages(layer) if getattr(layer, "plus", False) else STAGES[cls](layer)


def find_mixers(model: nn.Module) -> list[Mixer]:
    """Return the mixers in a model, and adapters of those in PhysicsNeMo's models inside it."""
    known: list[Any] = [part for part in model.modules() if is_known_model(part)]
    own = [part for part in model.modules() if isinstance(part, Mixer)]
    return own + [add_stages(block.Attn) for part in known for block in part.blocks]


def is_known_model(model: nn.Module) -> bool:
    """Return whether a model is one of PhysicsNeMo's in which tokens meet in known layers only."""
    return class_path(type(model)) in KNOWN_MODELS


def class_path(cls: type) -> str:
    """Return the path by which a class is imported."""
    return f"{cls.__module__}.{cls.__qualname__}"

"""Pointwise parts of the models, and their blocks."""

import importlib
import importlib.util
import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..mixers import Mixer, make_norm
from ..mixers.base import Latents, Tokens, TokenWeights
from ..mixers.layers import ResidualLayer, ResidualMLP, is_bare, make_activation
from ..ops import encode

# Rows of the function, or one for all tokens, and positions, as they enter a model.
Function = Float[Tensor, "B _N F"]
Embedding = Float[Tensor, "B N E"]
# Scale of what a balanced new model predicts, in standard deviations of the fields.
_FIRST_PREDICTION = 0.1


class InProjection(nn.Module):
    """Lift per-token inputs to the hidden width (Linear, act, residual layers, Linear)."""

    def __init__(self, in_dim: int, dim: int, n_layers: int, act: str) -> None:
        super().__init__()
        self.first = nn.Linear(in_dim, dim)
        self.act = make_activation(act)
        self.layers = nn.Sequential(*(ResidualLayer(dim, act) for _ in range(n_layers)))
        self.last = nn.Linear(dim, dim)

    def forward(self, fx: Function, embedding: Embedding | None = None) -> Tokens:
        """Project ``embedding`` next to ``fx``; a single row of ``fx`` is projected once."""
        if embedding is None:
            x = self.first(fx)
        elif fx.shape[1] == embedding.shape[1] or not is_bare(self.first):
            x = self.first(join_inputs(fx, embedding))
        else:
            of_embedding, of_fx = self.first.weight.tensor_split([embedding.shape[-1]], 1)
            x = F.linear(embedding, of_embedding) + F.linear(fx, of_fx, self.first.bias)
        x = self.layers(self.act(x))
        return x + self.last(x)


class OutProjection(nn.Sequential):
    """Read the outputs off the hidden width: norm, residual layers, Linear."""

    def __init__(self, dim: int, out_dim: int, n_layers: int, act: str, norm: str) -> None:
        super().__init__(
            make_norm(norm, dim),
            *(ResidualLayer(dim, act) for _ in range(n_layers + 1)),
            nn.Linear(dim, out_dim),
        )


class Block(nn.Module):
    """Residual block ``x + mixer(norm x)``, then ``x + ffn(norm x)``, with dropout on both."""

    def __init__(
        self,
        norm_mixer: nn.Module,
        mixer: Mixer,
        norm_ffn: nn.Module,
        ffn: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm_mixer, self.mixer = norm_mixer, mixer
        self.norm_ffn, self.ffn = norm_ffn, ffn
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Mix across tokens, then transform each."""
        x = x + self.dropout(self.mixer(self.norm_mixer(x), token_weights))
        return x + self.dropout(self.ffn(self.norm_ffn(x)))

    def update(self, x: Tokens, latents: Latents) -> Tokens:
        """Return the block's output, without dropout, for some tokens from the latents of all."""
        x = x + self.mixer.scatter(self.norm_mixer(x), latents)
        return x + self.ffn(self.norm_ffn(x))


def make_block(
    mixer: Mixer, mlp_ratio: float, act: str, norm: str, dropout: float = 0.0, ffn_layers: int = 0
) -> Block:
    """Build a block around a mixer, its feed-forward ``mlp_ratio`` times as wide, or residual."""
    dim = mixer.dim
    norms = [make_norm(norm, dim) for _ in range(2)]
    widths = (dim, round(dim * mlp_ratio), dim)
    ffn = ResidualMLP(dim, ffn_layers, act) if ffn_layers else linear_chain(widths, act)
    return Block(norms[0], mixer, norms[1], ffn, dropout)


class BareBlock(nn.Module):
    """A mixer alone as a block: what is around it in :class:`Block`, it does itself or omits."""

    def __init__(self, mixer: Mixer) -> None:
        super().__init__()
        self.norm_mixer = nn.Identity()
        self.mixer = mixer

    def forward(self, x: Tokens, token_weights: TokenWeights | None = None) -> Tokens:
        """Run the mixer."""
        return self.mixer(x, token_weights)

    def update(self, x: Tokens, latents: Latents) -> Tokens:
        """Return the block's output, without dropout, for some tokens from the latents of all."""
        return self.mixer.scatter(x, latents)


AnyBlock = Block | BareBlock


def balance_outputs(blocks: Sequence[AnyBlock], out_projection: nn.Module) -> None:
    """Scale new layers that write to the stream, and the one that reads the prediction off it.

    All branches together then add less to the stream than it has, whatever the depth, and the first
    prediction is next to the mean of the fields.
    """
    share = (2 * len(blocks)) ** -0.5
    with torch.no_grad():
        for block in blocks:
            block.mixer.output.weight *= share
            if isinstance(block, Block):
                ffn = block.ffn
                last = ffn.output if isinstance(ffn, ResidualMLP) else _last(ffn)
                last.weight *= share
        _last(out_projection).weight *= _FIRST_PREDICTION


def _last(layers: nn.Module) -> nn.Linear:
    return cast(nn.Linear, cast(nn.Sequential, layers)[-1])


def start_at_zero(model: nn.Module, out_dim: int) -> None:
    """Let a new model predict zero: its last layer starts with zeros, and learns as any other."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    if layers and layers[-1].out_features == out_dim:
        for parameter in layers[-1].parameters():
            nn.init.zeros_(parameter)


def stack_blocks(blocks: Iterable[AnyBlock]) -> Sequence[AnyBlock]:
    """Hold blocks in an ``nn.ModuleList``, by the type of its members."""
    return cast(Sequence[AnyBlock], nn.ModuleList(blocks))


class LatentBlock(nn.Module):
    """Pre-norm transformer block on latents: self-attention among them, then a feed-forward."""

    def __init__(self, dim: int, heads: int, mlp_ratio: float, act: str, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = make_norm("layer", dim)
        self.project = nn.Linear(dim, 3 * dim, bias)
        self.out = nn.Linear(dim, dim)
        self.norm_ffn = make_norm("layer", dim)
        self.ffn = linear_chain((dim, round(dim * mlp_ratio), dim), act)

    def forward(self, z: Float[Tensor, "B M C"]) -> Float[Tensor, "B M C"]:
        """Let every latent attend to all, then transform each."""
        projected = self.project(self.norm_attention(z)).unflatten(-1, (3 * self.heads, -1))
        q, k, v = projected.transpose(1, 2).chunk(3, 1)
        z = z + self.out(encode(q, k, v).transpose(1, 2).flatten(2))
        return z + self.ffn(self.norm_ffn(z))


def linear_chain(widths: Sequence[int], act: str) -> nn.Sequential:
    """Build Linear layers from width to width with activations between them."""
    first, *others = itertools.starmap(nn.Linear, itertools.pairwise(widths))
    pairs = ((make_activation(act), linear) for linear in others)
    return nn.Sequential(first, *itertools.chain.from_iterable(pairs))


def join_inputs(fx: Function, embedding: Embedding | None) -> Float[Tensor, "B N W"]:
    """Put ``embedding`` and ``fx`` side by side, a single row of ``fx`` at every token."""
    if embedding is None:
        return fx
    return torch.cat((embedding, fx.expand(-1, embedding.shape[1], -1)), -1)


class JoinedInputs(nn.Module):
    """An MLP on ``embedding`` and ``fx`` side by side."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, fx: Function, embedding: Embedding | None = None) -> Tokens:
        """Project each token; a single row of ``fx`` is that of every token."""
        return self.mlp(join_inputs(fx, embedding))


# PhysicsNeMo's LoRA (``LoRAConfig(wrap_mlp=True)``) finds feed-forwards by name, in a list that is
# meant to be extended. These are those of Block, LatentBlock and GNOT's experts.
FEED_FORWARDS = r"\.(ffn|experts_\w+\.experts\.\d+)\.\d+$"
with warnings.catch_warnings():
    # Of PhysicsNeMo, that its LoRA is experimental: only who uses it can act on it.
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("physicsnemo.experimental.peft"):  # in no release before 2.2
        peft = importlib.import_module("physicsnemo.experimental.peft.apply")
        peft._MLP_TARGET_PATTERNS.append(FEED_FORWARDS)

r"""Where latent routes draw from and return to: the factors of the routing matrix of a head.

For one head the mixer applies :math:`W = W_\mathrm{dec} W_\mathrm{enc}` of rank at most M, with
scores :math:`S = Q K^\top / \sqrt D`, encode weights :math:`\mathrm{softmax}` of S over the tokens
and decode weights over the routes. Nothing larger than the chosen routes x N is formed: the
log-normalisers are those of the streamed gathers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..mixers.flare import FlareMixer
from ..mixers.flarepp import FlarePPMixer
from ..models import TokenModel
from ..ops import group_size
from .arrays import ArrayLike, TokenInputs
from .prediction import unwrap
from .streams import TokenPasses

RoutingMixer = FlarePPMixer | FlareMixer


@dataclass(frozen=True)
class RoutingWeights:
    r"""Encode and decode weights of some routes of one head.

    Parameters
    ----------
    block, head, n_routes : int
        Which head, and its number M of routes.
    routes, masses : torch.Tensor
        Numbers of the R routes, of the greatest mass first, and their share in what the tokens get
        back, :math:`\sum_n w_n W_\mathrm{dec}[n, m] / \sum_n w_n`; the masses of all M add up to 1.
    encode, decode : torch.Tensor
        Weight of each token in what a route gathers, (R, N), whose rows add up to 1; and of a route
        in what each token gets back, (R, N), at most 1.
    """

    block: int
    head: int
    routes: Int[Tensor, " R"]
    masses: Float[Tensor, " R"]
    encode: Float[Tensor, "R N"]
    decode: Float[Tensor, "R N"]
    n_routes: int

    def cpu(self) -> "RoutingWeights":
        """Return the same weights on the host, as figures need them."""
        tensors = ("routes", "masses", "encode", "decode")
        return replace(self, **{name: getattr(self, name).cpu() for name in tensors})


@torch.no_grad()
def routing_weights(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None = None,
    *,
    block: int,
    head: int,
    routes: int | None = None,
    chunk_size: int | str = "auto",
    time: Float[Tensor, " B"] | None = None,
    token_weights: ArrayLike | None = None,
) -> RoutingWeights:
    """Return the encode and decode weights of the routes of one head that carry most.

    Parameters
    ----------
    model : TokenModel
        With the mixer flarepp or flare.
    fx, embedding, chunk_size, time, token_weights
        One case, as in :func:`~physicsnemo_flarepp.inference.predict`.
    block, head : int
        Which head; negative numbers count from the end.
    routes : int, optional
        How many routes, by mass; None gives all M.

    Examples
    --------
    >>> from physicsnemo_flarepp import MixerBackbone
    >>> model = MixerBackbone(3, 1, n_layers=2, n_hidden=32, n_head=4, slice_num=16)
    >>> weights = routing_weights(model, torch.rand(1, 500, 3), block=1, head=0, routes=4)
    >>> weights.encode.shape, [round(float(row.sum()), 3) for row in weights.encode]
    (torch.Size([4, 500]), [1.0, 1.0, 1.0, 1.0])
    """
    passes = _one_case(model, fx, embedding, chunk_size, time, token_weights)
    model, inputs = passes.model, passes.inputs
    block = _resolve("block", block, len(model.blocks))
    mixer = _routing_mixer(model, block)
    head = _resolve("head", head, mixer.heads)
    n_routes = (mixer.seeds if isinstance(mixer, FlarePPMixer) else mixer.queries).shape[1]
    wanted = n_routes if routes is None else routes
    if not 1 <= wanted <= n_routes:
        raise ValueError(f"routes is {routes}, expected 1 to {n_routes}, or None for all")

    _, queries, lse = next(islice(_blocks(passes), block, None))
    dtype = queries.dtype
    queries, lse = queries[head].double(), lse[head].double()
    n_tokens = inputs.n_tokens
    total = torch.zeros(n_routes, dtype=torch.float64, device=inputs.device)
    measure = torch.zeros((), dtype=torch.float64, device=inputs.device)
    # M x rows stays below routes x N, whatever the chunks are.
    rows = max(1, wanted * n_tokens // n_routes)
    wanted_scores = (passes, block, queries[None], slice(head, head + 1), rows)
    for _, scores, w in _scores(*wanted_scores):
        total += scores[0].softmax(0) @ w
        measure += w.sum()
    masses, chosen = (total / measure).sort(descending=True, stable=True)
    masses, chosen = masses[:wanted], chosen[:wanted]
    encode = torch.empty(wanted, n_tokens, dtype=dtype, device=inputs.device)
    decode = torch.empty_like(encode)
    for (start, stop), scores, w in _scores(*wanted_scores):
        picked = scores[0, chosen]
        encode[:, start:stop] = (picked + w.log() - lse[chosen, None]).exp()
        decode[:, start:stop] = (picked - scores[0].logsumexp(0)).exp()
    return RoutingWeights(block, head, chosen, masses.to(dtype), encode, decode, n_routes)


@torch.no_grad()
def routing_spectra(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None = None,
    *,
    chunk_size: int | str = "auto",
    time: Float[Tensor, " B"] | None = None,
    token_weights: ArrayLike | None = None,
) -> Float[Tensor, "blocks heads M"]:
    r"""Return the singular values of the routing matrix of every head, the largest first.

    :math:`W = W_\mathrm{dec} W_\mathrm{enc}` is N x N and never formed: with QR factors
    :math:`W_\mathrm{dec} = Q_1 R_1` and :math:`W_\mathrm{enc}^\top = Q_2 R_2`, accumulated chunk by
    chunk, its singular values are those of the M x M matrix :math:`R_1 R_2^\top`. With weights
    they are taken in the norm that the weights define, :math:`\sum_n w_n x_n^2`, as the operator
    on fields has them.

    Parameters
    ----------
    model, fx, embedding, chunk_size, time, token_weights
        As in :func:`routing_weights`.

    Returns
    -------
    torch.Tensor
        fp64. If there are fewer tokens than routes the last values are 0.

    Examples
    --------
    >>> from physicsnemo_flarepp import MixerBackbone
    >>> model = MixerBackbone(3, 1, n_layers=2, n_hidden=32, n_head=4, slice_num=16)
    >>> routing_spectra(model, torch.rand(1, 500, 3)).shape
    torch.Size([2, 4, 16])
    """
    passes = _one_case(model, fx, embedding, chunk_size, time, token_weights)

    def append_rows(factor: Tensor, rows: Tensor) -> Tensor:  # the triangular factor of both
        return torch.linalg.qr(torch.cat((factor, rows), 1), mode="r").R

    spectra = []
    for number, queries, lse in _blocks(passes):
        lse = lse.double()[..., None]
        shape = (len(queries), 0, queries.shape[1])
        left = right = queries.new_empty(shape, dtype=torch.float64)
        for _, scores, w in _scores(passes, number, queries.double(), slice(None)):
            left = append_rows(left, (scores.softmax(1) * w.sqrt()).mT)
            right = append_rows(right, (scores + w.log() / 2 - lse).exp().mT)
        values = torch.linalg.svdvals(left @ right.mT)
        missing = queries.shape[1] - values.shape[-1]
        spectra.append(torch.nn.functional.pad(values, (0, missing)))
    return torch.stack(spectra)


@torch.no_grad()
def routing_queries(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None = None,
    *,
    chunk_size: int | str = "auto",
    time: Float[Tensor, " B"] | None = None,
    token_weights: ArrayLike | None = None,
) -> Float[Tensor, "blocks heads M D"]:
    """Return the routing queries of every head: synthesised by flarepp, learned by flare.

    Arguments are as in :func:`routing_weights`.
    """
    passes = _one_case(model, fx, embedding, chunk_size, time, token_weights)
    return torch.stack([queries for _, queries, _ in _blocks(passes)])


def _one_case(
    model: nn.Module,
    fx: ArrayLike,
    embedding: ArrayLike | None,
    chunk_size: int | str,
    time: Tensor | None,
    token_weights: ArrayLike | None,
) -> TokenPasses:
    model = unwrap(model)
    for number in range(len(model.blocks)):
        _routing_mixer(model, number)
    if group_size(model.context_group) > 1:
        raise ValueError(
            "the model spreads tokens over a context group; load it anew in one process and give "
            "it the whole case"
        )
    inputs = TokenInputs(model, fx, embedding, time, token_weights=token_weights)
    if inputs.batch != 1:
        raise ValueError(f"fx has a batch of {inputs.batch}; give one case at a time")
    return TokenPasses(inputs, chunk_size, "cpu")


def _resolve(name: str, index: int, size: int) -> int:
    if not -size <= index < size:
        raise ValueError(f"{name} is {index}, but the model has {size}; choose 0 to {size - 1}")
    return index % size


def _routing_mixer(model: TokenModel, block: int) -> RoutingMixer:
    mixer = model.blocks[block].mixer
    if isinstance(mixer, RoutingMixer):
        return mixer
    raise TypeError(
        f"{type(mixer).__name__} has no routing queries; routes can be shown of models with the "
        "mixer flarepp or flare"
    )


def _blocks(passes: TokenPasses) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield number, queries (H, M, D) and encode log-normalisers (H, M) of each block.

    While a block is yielded the stream holds the hidden states that enter it.
    """
    for number, latents, gathered in passes.blocks():
        mixer = _routing_mixer(passes.model, number)
        queries = latents[0][0] if isinstance(mixer, FlarePPMixer) else mixer.queries
        yield number, queries, gathered[-1][1][0]


def _scores(
    passes: TokenPasses,
    number: int,
    queries: Float[Tensor, "h M D"],
    heads: slice,
    rows: int | None = None,
) -> Iterator[tuple[tuple[int, int], Float[Tensor, "h M n"], Float[Tensor, " n"]]]:
    """Yield ranges of at most `rows` tokens, their scaled scores and their weights, in fp64."""
    block, mixer = passes.model.blocks[number], _routing_mixer(passes.model, number)
    scale = mixer.scale or mixer.head_dim**-0.5
    for index, x, weights in passes.stored(number):
        keys = mixer.routing_keys(block.norm_mixer(x))
        keys = keys[0, heads].double()
        weights = keys.new_ones(keys.shape[1]) if weights is None else weights[0].double()
        start = passes.ranges[index][0]
        size = rows or max(1, keys.shape[1])
        for part, w in zip(keys.split(size, dim=1), weights.split(size), strict=True):
            yield (start, start + part.shape[1]), queries @ part.mT * scale, w
            start += part.shape[1]

"""Which tokens of a case, and which cases of a split, this rank reads.

Both choices depend only on (seed, epoch, case) and on the shard, never on history or on threads,
so that a run can be resumed and the ranks of a context group agree without communication.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np
from jaxtyping import Float
from torch.utils.data import Sampler

from ..meshes.polygons import Rows
from ..parallel.ranks import split_bounds

# Entries of a sample that have one row per token.
TOKEN_KEYS = ("coordinates", "features", "fields", "tokens", "weights")


def check_shard(name: str, shard: tuple[int, int]) -> tuple[int, int]:
    """Return `shard` as two ints, or say why it is not a (rank, size) pair."""
    rank, size = (int(part) for part in shard)
    if size < 1 or not 0 <= rank < size:
        raise ValueError(
            f"{name} shard is (rank, size) = ({rank}, {size}); expected size >= 1 and "
            "0 <= rank < size"
        )
    return rank, size


def token_rows(
    n_tokens: int, n_points: int | None, shard: tuple[int, int], seed: int, shuffled: bool = False
) -> Rows:
    """Return the rows of one case that a shard reads, ascending; a slice if they are contiguous.

    The draw of `n_points` rows without replacement (all if None) is the same on every rank; the
    shard (rank, size) is a contiguous part of it, so the shards together are the draw. If the rows
    are stored in `shuffled` order, a contiguous block is a random draw and cheap to read; it
    starts anywhere and wraps around at the end of the case.
    """
    rank, size = shard
    if n_points is None or n_points >= n_tokens:
        return slice(*split_bounds(n_tokens, size, rank))
    start, stop = split_bounds(n_points, size, rank)
    rng = np.random.default_rng(seed)
    if shuffled:
        first = int(rng.integers(n_tokens))
        if first + n_points <= n_tokens:
            return slice(first + start, first + stop)
        return np.sort(np.arange(first, first + n_points) % n_tokens)[start:stop]
    drawn = rng.choice(n_tokens, n_points, replace=False, shuffle=False)
    return np.sort(drawn)[start:stop]


def inclusion_probabilities(
    weights: Float[np.ndarray, " N"], n_points: int
) -> Float[np.ndarray, " N"]:
    """Return how likely each row is drawn among `n_points`: proportional to its weight, at most 1.

    At least `n_points` weights must be positive.
    """
    certain = np.zeros(len(weights), dtype=bool)
    while True:
        rest = weights[~certain].sum()
        likely = weights * ((n_points - certain.sum()) / rest if rest > 0 else 0.0)
        likely[certain] = 1.0
        # Each round finds the rows that the probability freed by the last one makes certain.
        over = likely > 1.0
        if not over.any():
            return likely
        certain |= over


def weighted_rows(
    weights: Float[np.ndarray, " N"], n_points: int | None, shard: tuple[int, int], seed: int
) -> tuple[Rows, Float[np.ndarray, " n"]]:
    """Return rows of one case drawn by weight, and weights that compensate for it, in O(N).

    As :func:`token_rows`, with the `weights` of all tokens. The weight of a drawn row is divided by
    the probability of drawing it, so that a weighted sum over the draw is on average the sum over
    the case.
    """
    rank, size = shard
    if n_points is None or n_points >= len(weights):
        rows = token_rows(len(weights), n_points, shard, seed)
        return rows, weights[rows]
    positive = np.count_nonzero(weights)
    if positive < n_points:
        raise ValueError(
            f"{n_points} tokens cannot be drawn by weight: {positive} of {len(weights)} have one. "
            "Set data.n_points lower, or data.sampling_density to 'cells'"
        )
    likely = inclusion_probabilities(weights, n_points)
    rng = np.random.default_rng(seed)
    # Equally spaced marks on the probabilities laid end to end hit each row as often as it is
    # likely; neighbours in the file would be drawn together or not at all, so they are shuffled.
    order = rng.permutation(np.flatnonzero(likely))
    ends = np.cumsum(likely[order])
    # The last end is n_points up to rounding, and every mark must lie before it.
    marks = (np.arange(n_points) + rng.random()) * (ends[-1] / n_points)
    drawn = np.sort(order[np.minimum(np.searchsorted(ends, marks, "right"), len(order) - 1)])
    rows = drawn[slice(*split_bounds(n_points, size, rank))]
    return rows, weights[rows] / likely[rows]


@dataclass(eq=False)
class CaseSampler(Sampler[int]):
    """Order of the cases that one data rank reads in an epoch.

    `shard` is (rank, size) among data-parallel ranks. `shuffle` draws a new order each epoch from
    (seed, epoch). `equal_counts` repeats the first cases so that every rank reads the same number,
    which collectives in every training step need; without it each case is read exactly once over
    all ranks, which a test metric needs.
    """

    n_cases: int
    shard: tuple[int, int] = (0, 1)
    _: KW_ONLY
    shuffle: bool = False
    seed: int = 0
    equal_counts: bool = False

    def __post_init__(self) -> None:
        self.rank, self.size = check_shard("data", self.shard)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of `epoch`, from its first case."""
        self.epoch, self._skip = epoch, 0

    def skip(self, n_cases: int) -> None:
        """Leave out this rank's first `n_cases` of the current epoch, to resume inside it."""
        count = len(self._order())
        if not 0 <= n_cases <= count:
            raise ValueError(f"cannot skip {n_cases} cases: this rank reads {count} in an epoch")
        self._skip = n_cases

    def _order(self) -> np.ndarray:
        """Return all cases that this rank reads in the epoch."""
        order = np.arange(self.n_cases)
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.n_cases)
        if self.equal_counts:
            order = np.resize(order, -(-self.n_cases // self.size) * self.size)
        return order[self.rank :: self.size]

    def __len__(self) -> int:
        return len(self._order()) - self._skip

    def __iter__(self) -> Iterator[int]:
        yield from map(int, self._order()[self._skip :])

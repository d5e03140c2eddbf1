"""What all readers share: a case is a table of tokens, of which a rank reads the rows it owns.

Draws depend only on (seed, epoch, case) and on the shard, never on history or on threads, so that a
run can be resumed and the ranks of a context group agree without communication.
"""

import copy
import os
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from jaxtyping import Float
from physicsnemo.datapipes import Reader, Transform
from tensordict import TensorDict

from ...files import reading
from ...meshes.polygons import Rows
from ...parallel.ranks import split_bounds
from ..validation import check_finite, check_range, check_unique
from .case_tables import COLUMN_GROUPS, TokenTable
from .names import MEASURE, NO_WEIGHTS

# Entries of a sample that have one row per token.
TOKEN_KEYS = ("coordinates", "features", "fields", "tokens", "weights")
_MODES = ("fixed", "epoch")
DENSITIES = ("cells", "area")
# Transforms of PhysicsNeMo that change a token by itself, whatever their arguments.
_POINTWISE = {"BroadcastGlobalFeatures", "Normalize", "Purge", "Rename", "Scale", "Translate"}
_CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes that this process could still take, in a container those of its limit."""
    free = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / f"memory.{n}").read_text().strip() for n in ("max", "current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # no container, or one of the older kind
        return free


class KeptCases:
    """The cases used last, by id, in a `share` of the memory that is free or that they take."""

    def __init__(self, share: float) -> None:
        self._share = share / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        # State, case and bytes by id.
        self._kept: OrderedDict[str, tuple[Hashable, Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, case_id: str) -> Any:
        """Return a case as it was kept, or None."""
        return self._kept.get(case_id, (None, None, 0))[1]

    def find(self, case_id: str, state: Hashable) -> Any:
        """Return a case, or None if it is not kept or its files were in another state."""
        with self._lock:
            known, case, _ = self._kept.get(case_id, (None, None, 0))
            if case is None or known != state:
                return None
            self._kept.move_to_end(case_id)
            return case

    def keep(self, case_id: str, state: Hashable, case: Any, size: int) -> None:
        """Keep a case of `size` bytes if it fits."""
        free = free_memory() if self._share > 0 else 0
        with self._lock:
            self._bytes -= self._kept.pop(case_id, (None, None, 0))[2]
            # The case is in memory already, so it is not part of what is free.
            allowed = self._share * (free + self._bytes + size)
            if size > allowed:
                return
            while self._bytes + size > allowed:
                self._bytes -= self._kept.popitem(last=False)[1][2]
            self._kept[case_id] = state, case, size
            self._bytes += size


def check_shard(name: str, shard: tuple[int, int]) -> tuple[int, int]:
    """Return `shard` as two ints, or say why it is not a (rank, size) pair."""
    rank, size = map(int, shard)
    if not 0 <= rank < size:
        raise ValueError(
            f"{name} shard is (rank, size) = ({rank}, {size}), expected 0 <= rank < size"
        )
    return rank, size


def token_rows(
    n_tokens: int, n_points: int | None, shard: tuple[int, int], seed: int, shuffled: bool = False
) -> Rows:
    """Return the rows of one case that a shard reads, ascending; a slice if they are contiguous.

    The draw of `n_points` rows (all if None) is the same on every rank; the shard (rank, size) is a
    contiguous part of it. Of `shuffled` rows a contiguous block, which may wrap around, is a random
    draw and cheap to read.
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
    """Return how likely each row is drawn among `n_points`: as its weight says, at most 1."""
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
    """Return rows of one case drawn by weight, and their weights divided by the probabilities.

    So a weighted sum over the draw is on average the sum over the case.
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


@dataclass(frozen=True)
class ReaderOptions:
    """Which tokens of a case a reader gives, the same for all readers.

    Parameters
    ----------
    n_points : int or None
        Draw this many tokens per case without replacement; None, or too many, reads all.
    sampling, seed
        ``fixed``: the draw of a case never changes. ``epoch``: a fresh draw each epoch. A
        DataLoader with a seed replaces that of the draws.
    shard : tuple[int, int]
        (rank, size) in the context group; the reader reads and keeps only its part of the tokens.
    weights, density : str
        Column of weights of the tokens: ``none``, ``measure`` or a stored array. Tokens are drawn
        as ``cells``, all equally likely, or by ``area``, as their weights say.
    pin_memory : bool
        Pin the tensors for asynchronous copies to a GPU.
    memory : float
        Share of the free memory in which decoded cases stay between epochs; 0 keeps none.
    """

    n_points: int | None = None
    sampling: str = "fixed"
    shard: tuple[int, int] = (0, 1)
    seed: int = 0
    weights: str = NO_WEIGHTS
    density: str = "cells"
    pin_memory: bool = False
    memory: float = 0.25

    def __post_init__(self) -> None:
        for name, value, valid, expected in (
            ("sampling_density", self.density, self.density in DENSITIES, f"one of {DENSITIES}"),
            ("sampling", self.sampling, self.sampling in _MODES, f"one of {_MODES}"),
            ("n_points", self.n_points, self.n_points is None or self.n_points > 0, "at least 1"),
            ("memory", self.memory, 0 <= self.memory <= 1, "a share of the free memory, 0 to 1"),
        ):
            if not valid:
                raise ValueError(f"data.{name} is {value!r}, expected {expected}")
        if self.density == "area" and self.weights == NO_WEIGHTS:
            raise ValueError(
                "data.sampling_density is 'area', but weights is 'none': set data.weights to "
                "'measure', or data.sampling_density to 'cells'"
            )
        object.__setattr__(self, "shard", check_shard("context", self.shard))


class CaseReader(Reader):
    r"""Base of the readers: cases with ids, point sampling and context shards.

    A subclass gives :meth:`open_case` and :meth:`describe_case`. A sample is a TensorDict with

    - ``coordinates`` :math:`(N, d)`, ``fields`` :math:`(N, o)`, optional ``features``
      :math:`(N, f)`, all float32, optional ``globals`` :math:`(g,)`,
    - optional ``weights`` :math:`(N,)` float32, what each token stands for,
    - ``tokens`` :math:`(N,)` int64: the row of each token in its source, for plotting and for
      per-point statistics,

    and metadata with ``case_id``, ``source``, ``field_names``, ``feature_names``,
    ``global_names`` (one name per channel, the same in all cases), ``association``, ``grid``
    (shape or None) and what the subclass adds for plotting.

    There is one of `case_ids` per sample; `grid` is the shape of the structured grid that the
    tokens of a whole case form in row-major order. A subclass takes `options` and hands it on:
    ``DarcyReader(root, options=ReaderOptions(n_points=1024))`` or, in YAML,
    ``{_target_: ${dp:DarcyReader}, root: ..., options: {n_points: 1024}}``.
    """

    def __init__(
        self,
        *,
        case_ids: Sequence[str],
        grid: tuple[int, ...] | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(options, ReaderOptions):
            options = ReaderOptions(**(options or {}))
        super().__init__(pin_memory=options.pin_memory)
        if not case_ids:
            raise ValueError(f"{type(self).__name__}: the split is empty; it needs at least 1 case")
        check_unique(case_ids, type(self).__name__)
        self.case_ids = list(case_ids)
        # What the first case opened has and all others must have; clear it to start anew.
        self.common: dict[str, Any] = {}
        self.grid = grid
        self.options = options
        self._seed_base = options.seed
        # Those that look at other tokens get all of a draw, of which the shard is kept after them.
        self.transforms: tuple[Transform, ...] = ()
        self._transforming = threading.Lock()
        # Cases that were read whole once, and found without values out of proportion.
        self._in_range: set[int] = set()
        self._kept_cases = KeptCases(options.memory)

    def with_options(self, **changes: Any) -> "CaseReader":
        """Return a reader of the same cases with other options."""
        other = copy.copy(self)
        other.options = replace(self.options, **changes)
        return other

    @abstractmethod
    def open_case(self, index: int) -> TokenTable:
        """Return case `index` as lazy columns."""

    def case_state(self, index: int) -> Hashable:
        """Return what changes when the files of case `index` do, of which a case may be kept."""
        return None

    def case(self, index: int) -> TokenTable:
        """Return case `index` from memory, or opened and then kept if it was decoded."""
        case_id, state = self.case_ids[index], self.case_state(index)
        table = self._kept_cases.find(case_id, state)
        return self._keep(index, state, self.open_case(index)) if table is None else table

    def _keep(self, index: int, state: Hashable, table: TokenTable) -> TokenTable:
        if self.options.memory > 0 and (table.decoded or table.held):
            table, size = table.to_keep(self.options.weights)
            self._kept_cases.keep(self.case_ids[index], state, table, size)
        return table

    def rows_in_memory(self, cases: Iterable[int]) -> int | None:
        """Return the most rows that a draw from one of the cases looks at.

        None unless the samples of all of them are rows of arrays in memory.
        """
        if self.transforms:
            return None
        tables = [self._kept_cases.get(self.case_ids[index]) for index in cases]
        if not all(table is not None and "coordinates" in table.joined for table in tables):
            return None
        most = max((table.n_tokens for table in tables), default=0)
        drawn = self.options.n_points if self.options.density == "cells" else None
        return most if drawn is None else min(drawn, most)

    def __len__(self) -> int:
        return len(self.case_ids)

    def set_epoch(self, epoch: int) -> None:
        """Choose the draws of `epoch`; with fixed sampling all epochs are the same."""
        super().set_epoch(0 if self.options.sampling == "fixed" else epoch)

    @abstractmethod
    def describe_case(self, index: int) -> dict[str, Any]:
        """Return where case `index` comes from, without reading it; at least ``source``."""

    def describe_names(self) -> list[str]:
        """Return lines about what of the files is taken for what; none where that is fixed."""
        return []

    def source_files(self) -> list[Path]:
        """Return the files or stores that the cases are read from; none for data in memory."""
        sources = dict.fromkeys(self.describe_case(index)["source"] for index in range(len(self)))
        return [Path(source) for source in sources if Path(source).exists()]

    def source_hashes(self) -> dict[str, str]:
        """Return a hash of each case that is in no file; none for data in files."""
        return {}

    def _check_common(self, table: TokenTable) -> None:
        """Keep what the first case opened says about all cases; raise if this one differs."""
        if self.common == table.kind:
            return
        for what, found in table.kind.items():
            # Threads open cases at the same time; setdefault looks and sets in one step.
            known = self.common.setdefault(what, found)
            if found != known:
                raise ValueError(
                    f"{table.source}: {what} is {found!r}, but {known!r} in another; all cases of "
                    "a set need the same. Name arrays that all have, or leave this case out"
                )

    def _load_sample(self, index: int) -> dict[str, torch.Tensor]:
        table = self.case(index)
        self._check_common(table)
        channels, case_id = table.channels(), self.case_ids[index]
        # Transforms that look at other tokens need all of a draw.
        whole = not all(
            type(t).__name__ in _POINTWISE and type(t).__module__.startswith("physicsnemo.")
            for t in self.transforms
        )
        rows, weights = self._draw(index, table, (0, 1) if whole else self.options.shard)
        sample = {} if weights is None else {"weights": torch.from_numpy(weights)}
        groups = [name for name in COLUMN_GROUPS if getattr(table, name)]
        for name in [*groups, *(["globals"] if table.global_values else [])]:
            with reading(table.source):
                values = table.read_globals() if name == "globals" else table.read(name, rows)
            if name not in table.joined:
                named = channels.get(name, ("x", "y", "z"))
                check_finite(table.source, case_id, name, values, named)
            if not (name == "globals" or table.checked or index in self._in_range):
                check_range(table.source, case_id, name, values)
            sample[name] = torch.from_numpy(values)
        if len(sample["coordinates"]) == table.n_tokens:
            self._in_range.add(index)
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        sample["tokens"] = torch.from_numpy(rows)
        if self.transforms:
            sample = self._transform(sample, index)
        return self._keep_shard(sample) if whole and self.options.shard[1] > 1 else sample

    def _transform(self, sample: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
        """Return what the transforms make of a sample; what they draw depends on the case alone."""
        data = TensorDict(sample)
        # One transform serves several reading threads, each with the draws of its own case.
        with self._transforming:
            for transform in self.transforms:
                if transform.stochastic:
                    transform.set_generator(self._index_generator(index))
                data = transform(data)
        changed = dict(data.items())
        for name in ("coordinates", "fields"):
            if name not in changed:
                raise ValueError(
                    "data.transforms must keep coordinates and fields, but leave "
                    f"{', '.join(changed) or 'nothing'}"
                )
        return changed

    def _keep_shard(self, sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the part of a whole sample that this rank of the context group owns."""
        rank, size = self.options.shard
        count = len(sample["coordinates"])
        kept = slice(*split_bounds(count, size, rank))
        for name in TOKEN_KEYS:
            if name in sample and len(sample[name]) != count:
                names = ", ".join(type(transform).__name__ for transform in self.transforms)
                raise ValueError(
                    f"data.transforms ({names}) leave {count} rows of coordinates, but "
                    f"{len(sample[name])} of {name}; to shard them, drop the same tokens of both"
                )
        return {key: value[kept].clone() if key in TOKEN_KEYS else value
                for key, value in sample.items()}  # fmt: skip

    def _draw(
        self, index: int, table: TokenTable, shard: tuple[int, int]
    ) -> tuple[Rows, np.ndarray | None]:
        """Return which tokens are read, and their weights as float32 if there are any."""
        options, name = self.options, self.options.weights
        draw = (options.n_points, shard, self._index_generator(index).initial_seed())
        if name == NO_WEIGHTS:
            return token_rows(table.n_tokens, *draw, table.shuffled), None
        if options.density == "area":
            whole = self._read_weights(index, table, name, slice(0, table.n_tokens))
            rows, weights = weighted_rows(whole, *draw)
        else:
            rows = token_rows(table.n_tokens, *draw, table.shuffled)
            weights = self._read_weights(index, table, name, rows)
        return rows, weights.astype(np.float32)

    def _read_weights(self, index: int, table: TokenTable, name: str, rows: Rows) -> np.ndarray:
        weights = table.read_weights(name, rows, self.case_ids[index])
        # A shard may lie in a part of the case that has no weight, the case may not.
        if not weights.any() and self.options.shard[1] == 1:
            raise ValueError(
                f"{table.source}: all {len(weights)} tokens of case {self.case_ids[index]} have "
                f"weight 0 in {name}. Repair the array, or leave the case out"
            )
        return weights

    def read_measure(self, index: int) -> np.ndarray | None:
        """Return the weights of all tokens of a case, or their areas, (N,); None if not known."""
        table = self.case(index)
        name = MEASURE if self.options.weights == NO_WEIGHTS else self.options.weights
        if name not in table.weights:
            return None
        return self._read_weights(index, table, name, slice(0, table.n_tokens))

    def _get_sample_metadata(self, index: int) -> dict[str, Any]:
        return {
            "case_id": self.case_ids[index],
            "field_names": self.common["fields"],
            "feature_names": self.common["features"],
            "global_names": self.common["globals"],
            "association": self.common["association"],
            "grid": self.grid,
            **self.describe_case(index),
        }

"""What all readers share: a case is a table of tokens, of which a rank reads the rows it owns."""

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from physicsnemo.datapipes import Reader, Transform
from tensordict import TensorDict

from ...files import reading
from ...meshes.measures import cloud_areas, grid_areas
from ...parallel.ranks import split_bounds
from ..sampling import TOKEN_KEYS, Rows, check_shard, token_rows, weighted_rows
from ..validation import check_finite, check_range, check_unique, check_weights, missing_name
from .kept_cases import KeptCases

SAMPLING_MODES = ("fixed", "epoch")
DENSITIES = ("cells", "area")
# Choices of `weights` that are no names of arrays.
NO_WEIGHTS, MEASURE = "none", "measure"
_COLUMN_GROUPS = ("coordinates", "features", "fields")
Part = Rows | int | EllipsisType
# Transforms of PhysicsNeMo that change a token by itself, whatever their arguments.
_POINTWISE = {"BroadcastGlobalFeatures", "Normalize", "Purge", "Rename", "Scale", "Translate"}
# Of cells without area: they are tokens like others, and 0 would remove them.
_TINY = float(np.finfo(np.float32).tiny)
# Tokens up to which all columns of a case are computed at once, to keep them.
_WHOLE_TOKENS = 1 << 20


def _is_pointwise(transform: Transform) -> bool:
    kind = type(transform)
    return kind.__name__ in _POINTWISE and kind.__module__.startswith("physicsnemo.")


@dataclass(frozen=True)
class LazyArray:
    """An array of which rows are read or computed when they are asked for, and only these."""

    shape: tuple[int, ...]
    # Gives rows, with an int one entry of the first axis, with ``...`` all.
    read: Callable[[Part], np.ndarray]
    dtype: np.dtype = np.dtype(np.float64)

    def __getitem__(self, rows: Part) -> np.ndarray:
        return self.read(rows)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype=dtype)


# Anything whose first axis is the token axis; a memory map is an ndarray.
Rowwise = np.ndarray | LazyArray


def channel_names(widths: Mapping[str, int]) -> list[str]:
    """Return one name per channel of named arrays; the parts of a vector are told apart.

    Examples
    --------
    >>> channel_names({"p": 1, "shear": 3, "y": 4})
    ['p', 'shear_x', 'shear_y', 'shear_z', 'y_0', 'y_1', 'y_2', 'y_3']
    """
    channels = []
    for name, width in widths.items():
        parts = "xyz"[:width] if width <= 3 else range(width)
        channels += [name] if width == 1 else [f"{name}_{part}" for part in parts]
    return channels


def parameter_names(widths: Mapping[str, int]) -> list[str]:
    """Return one name per number of the values of a case, which need not be vectors in space.

    Examples
    --------
    >>> parameter_names({"speed": 1, "mu": 2})
    ['speed', 'mu_1', 'mu_2']
    """
    return [
        name if width == 1 else f"{name}_{i}"
        for name, width in widths.items()
        for i in range(1, width + 1)
    ]


def point_areas(
    coordinates: Mapping[str, Rowwise], n_tokens: int, grid: tuple[int, ...] | None = None
) -> LazyArray:
    """Return the areas that points of a grid, or else of a planar cloud, stand for.

    Examples
    --------
    >>> point_areas({"xy": np.array([[0, 0], [0, 1], [2, 0], [2, 1]])}, 4, (2, 2))[slice(0, 2)]
    array([0.5, 0.5])
    """

    def compute(rows: Rows) -> np.ndarray:
        columns = [np.asarray(column[slice(0, n_tokens)]) for column in coordinates.values()]
        points = np.concatenate([column.reshape(n_tokens, -1) for column in columns], axis=1)
        return (cloud_areas(points) if grid is None else grid_areas(points, grid))[rows]

    return LazyArray((n_tokens,), compute)


def distinct_names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, or raise if one of them is listed twice.

    Examples
    --------
    >>> distinct_names("fields", ["p", "p"])
    Traceback (most recent call last):
    ValueError: fields is ['p', 'p']; name every array once
    """
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} is {list(names)}; name every array once")
    return tuple(names)


@dataclass(frozen=True)
class TokenTable:
    """One case before anything is read: lazy columns by name, all with the token axis first."""

    source: Path | str
    n_tokens: int
    coordinates: Mapping[str, Rowwise]
    fields: Mapping[str, Rowwise]
    features: Mapping[str, Rowwise] = field(default_factory=dict)
    global_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    association: str = "point"
    weights: Mapping[str, Rowwise] = field(default_factory=dict)
    shuffled: bool = False
    checked: bool = False
    # Whether all columns are in memory or computed from what is, and are worth keeping; and the
    # bytes of decoded files behind them.
    decoded: bool = False
    held: int = 0

    def __post_init__(self) -> None:
        n = self.n_tokens
        for name, column in self.weights.items():
            if tuple(column.shape) not in ((n,), (n, 1)):
                raise ValueError(
                    f"{self.source}: {name} (of the weights) has shape {tuple(column.shape)}, "
                    f"expected ({n},), one weight for each of the {n} tokens. Name another array"
                )
        for group in _COLUMN_GROUPS:
            for name, column in getattr(self, group).items():
                if len(column.shape) not in (1, 2) or column.shape[0] != n:
                    raise ValueError(
                        f"{self.source}: {name} (of the {group}) has shape {tuple(column.shape)}, "
                        f"expected ({n},) or ({n}, channels), one row for each of the {n} tokens. "
                        "Repair the file, or name another array"
                    )

    def widths(self) -> dict[str, dict[str, int]]:
        """Return the number of channels of each column and each value of the case, by group."""
        columns = {key: getattr(self, key) for key in _COLUMN_GROUPS}
        widths = {
            key: {name: math.prod(column.shape[1:]) for name, column in group.items()}
            for key, group in columns.items()
        }
        return widths | {"globals": {n: value.size for n, value in self.global_values.items()}}

    def channels(self) -> dict[str, list[str]]:
        """Return the names of the channels of ``fields``, ``features`` and ``globals``."""
        widths = self.widths()
        named = {key: channel_names(widths[key]) for key in ("fields", "features")}
        return named | {"globals": parameter_names(widths["globals"])}

    def to_keep(self, weights: str) -> tuple["TokenTable", int]:
        """Return the case as it is kept in memory, and its bytes; 0 if it is to stay lazy.

        Columns become arrays of the type that samples have, and so does the column of `weights`. Of
        a case with very many tokens the decoded files are kept instead.
        """
        if not self.decoded or self.n_tokens > _WHOLE_TOKENS:
            return self, self.held
        rows = slice(0, self.n_tokens)
        size = 0

        def whole(column: Rowwise, dtype: type) -> np.ndarray:
            nonlocal size
            values = column[rows]
            mapped = isinstance(values, np.memmap)
            with np.errstate(over="ignore"):
                values = np.asarray(values).astype(dtype, "C", "same_kind", copy=mapped)
            size += values.nbytes
            return values

        with reading(self.source):
            groups = {
                key: {
                    name: whole(column, np.float32) for name, column in getattr(self, key).items()
                }
                for key in _COLUMN_GROUPS
            }
            used = {n: whole(c, np.float64) for n, c in self.weights.items() if n == weights}
        others = self.weights.keys() - used.keys()
        kept = replace(self, **groups, weights={**self.weights, **used})
        return kept, size + (self.held if others else 0)

    def read(self, name: str, rows: Rows) -> np.ndarray:
        """Return the rows of column group `name` as float32, (n, channels)."""
        parts = [np.asarray(column[rows]) for column in getattr(self, name).values()]
        parts = [part[:, None] if part.ndim == 1 else part for part in parts]
        # concatenate copies, so the sample never aliases a read-only memory map. What is too large
        # for float32 becomes infinite, which is told with the name of the file.
        with np.errstate(over="ignore"):
            return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def read_weights(self, name: str, rows: Rows, case_id: str) -> np.ndarray:
        """Return the rows of a column of weights, checked, float64 (n,).

        A cell without area has a tiny one; a 0 in a stored array removes the token from gathers.
        """
        if name not in self.weights:
            if name == MEASURE:
                raise ValueError(
                    f"{self.source}: the area that each token stands for is not known. Set "
                    "data.weights=none training.norm=tokens (an experiment may have set both), or "
                    "data.weights to a stored array of areas or volumes"
                )
            raise missing_name(self.source, "array of weights", name, self.weights)
        with reading(self.source):
            weights = np.asarray(self.weights[name][rows], dtype=np.float64).reshape(-1)
        check_weights(self.source, case_id, name, weights, rows)
        # Weights are given on in float32, where what is positive must stay so.
        positive = (weights > 0) | (name == MEASURE)
        return np.where(positive, np.maximum(weights, _TINY), 0.0)

    def read_globals(self) -> np.ndarray:
        """Return the global values as float32, (g,)."""
        parts = [np.reshape(value, -1) for value in self.global_values.values()]
        return np.concatenate(parts, dtype=np.float32, casting="same_kind")


@dataclass(frozen=True)
class ReaderOptions:
    """Which tokens of a case a reader gives, the same for all readers.

    Parameters
    ----------
    n_points : int or None
        Draw this many tokens per case without replacement; None reads all. A case with fewer is
        read whole.
    sampling : str
        ``fixed``: the draw of a case never changes. ``epoch``: a fresh draw each epoch.
    shard : tuple[int, int]
        (rank, size) in the context group; the reader reads and keeps only its part of the tokens.
    seed : int
        Seed of the draws; a DataLoader with a seed replaces it.
    weights : str
        Column of weights of the tokens: ``none``, ``measure`` or a stored array.
    density : str
        ``cells``: every token is as likely to be drawn. ``area``: as its weight says, which is
        then divided by that; see :func:`~..sampling.weighted_rows`.
    pin_memory : bool
        Pin the tensors for asynchronous copies to a GPU.
    memory : float
        Share of the free memory in which decoded cases stay between epochs; 0 keeps none.

    Examples
    --------
    >>> ReaderOptions(n_points=0)
    Traceback (most recent call last):
    ValueError: n_points is 0, expected None or at least 1
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
        if self.density not in DENSITIES:
            raise ValueError(f"sampling_density is {self.density!r}, expected one of {DENSITIES}")
        if self.density == "area" and self.weights == NO_WEIGHTS:
            raise ValueError(
                "sampling_density is 'area', but weights is 'none': tokens are drawn in proportion "
                "to their weights. Set weights to 'measure', or sampling_density to 'cells'"
            )
        if self.sampling not in SAMPLING_MODES:
            raise ValueError(f"sampling is {self.sampling!r}, expected one of {SAMPLING_MODES}")
        if self.n_points is not None and self.n_points < 1:
            raise ValueError(f"n_points is {self.n_points}, expected None or at least 1")
        if not 0 <= self.memory <= 1:
            raise ValueError(
                f"data.memory is {self.memory}, expected a share of the free memory, 0 to 1"
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

    Parameters
    ----------
    case_ids : Sequence[str]
        One id per sample; an id appears once.
    grid : tuple[int, ...] or None
        Shape of the structured grid that the tokens of a whole case form in row-major order.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read. A subclass takes the same argument and hands it on, so
        that readers are made by ``DarcyReader(root, options=ReaderOptions(n_points=1024))`` or, in
        YAML, by ``{_target_: ${dp:DarcyReader}, root: ..., options: {n_points: 1024}}``.
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
        # What the first case opened has, and all others must have.
        self._common: dict[str, Any] = {}
        self.grid = grid
        self.options = options
        self._seed_base = options.seed
        # Those that look at other tokens get all of a draw, of which the shard is kept after them.
        self.transforms: tuple[Transform, ...] = ()
        self._transforming = threading.Lock()
        # Cases that were read whole once, and found without values out of proportion.
        self._in_range: set[int] = set()
        self._kept_cases = KeptCases(options.memory)

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

    def forget_common(self) -> None:
        """Hold the next case to nothing that cases read before it have."""
        self._common = {}

    def _check_common(self, table: TokenTable) -> None:
        """Keep what the first case opened says about all cases; raise if this one differs."""
        dimension = sum(table.widths()["coordinates"].values())
        kind = {"association": table.association, "dimension": dimension}
        for what, found in {**kind, **table.channels()}.items():
            # Threads open cases at the same time; setdefault looks and sets in one step.
            known = self._common.setdefault(what, found)
            if found != known:
                raise ValueError(
                    f"{table.source}: {what} is {found!r}, but {known!r} was found in "
                    "another case; all cases of a set need the same. Name arrays (and their "
                    "`association`) that all cases hold alike, or leave this case out"
                )

    def _load_sample(self, index: int) -> dict[str, torch.Tensor]:
        table = self.case(index)
        self._check_common(table)
        channels = table.channels()
        whole = not all(map(_is_pointwise, self.transforms))
        rows, weights = self._draw(index, table, (0, 1) if whole else self.options.shard)
        sample = {} if weights is None else {"weights": torch.from_numpy(weights)}
        for name in _COLUMN_GROUPS:
            if getattr(table, name):
                with reading(table.source):
                    values = table.read(name, rows)
                named = channels.get(name, ("x", "y", "z"))
                check_finite(table.source, self.case_ids[index], name, values, named)
                if not (table.checked or index in self._in_range):
                    check_range(table.source, self.case_ids[index], name, values)
                sample[name] = torch.from_numpy(values)
        if len(sample["coordinates"]) == table.n_tokens:
            self._in_range.add(index)
        if table.global_values:
            with reading(table.source):
                values = table.read_globals()
            named = channels["globals"]
            check_finite(table.source, self.case_ids[index], "globals", values, named)
            sample["globals"] = torch.from_numpy(values)
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
                    f"data.transforms leave a sample without {name!r}; it has "
                    f"{', '.join(changed) or 'nothing'}. They must keep coordinates and fields"
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
                    f"{len(sample[name])} of {name}: with parallel.context={size} a rank keeps its "
                    f"part of them. Let the transform that drops tokens change {name!r} alike"
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
                f"{table.source}: case {self.case_ids[index]} has the weight 0 at all "
                f"{len(weights)} tokens read of {name}. Repair the array, or leave the case out"
            )
        return weights

    def read_measure(self, index: int) -> np.ndarray | None:
        """Return the weights of all tokens of a case, or their areas if there are none, (N,).

        None where no area is known.
        """
        table = self.case(index)
        name = MEASURE if self.options.weights == NO_WEIGHTS else self.options.weights
        if name not in table.weights:
            return None
        return self._read_weights(index, table, name, slice(0, table.n_tokens))

    def _get_sample_metadata(self, index: int) -> dict[str, Any]:
        return {
            "case_id": self.case_ids[index],
            "field_names": self._common["fields"],
            "feature_names": self._common["features"],
            "global_names": self._common["globals"],
            "association": self._common["association"],
            "grid": self.grid,
            **self.describe_case(index),
        }

"""Benchmarks in arrays of all cases: Geo-FNO's (.npy, memory-mapped, and .mat) and Darcy flow."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ..specs import BenchmarkSpec, benchmark
from ..validation import check_shape, existing_directory, one_file
from .array_files import map_npy
from .base import MEASURE, NO_WEIGHTS, CaseReader, ReaderOptions, TokenTable, point_areas
from .splits import SplitMissing, apart_split, check_split, positional_split
from .stores import load_mat, mat_shape

# Channel of the Q array that each benchmark predicts, and how many channels Q has.
_Q_CHANNEL = {"airfoil": (4, 5), "pipe": (0, 3)}
_PLASTICITY_TIMES = 20


def stored_cases(root: Path, spec: BenchmarkSpec) -> int:
    """Return how many cases the arrays of a benchmark hold, in all splits."""
    path = one_file(root, spec.files[0], source=spec.source)
    if path.suffix == ".mat":
        return mat_shape(path, "input")[0]
    shape = map_npy(path).shape
    return (shape or (0,))[-1 if spec.name == "elasticity" else 0]


@register()
class GeoFNOReader(CaseReader):
    """Cases of one Geo-FNO benchmark, in the files that its authors publish.

    ========== ================================================= ===================================
    name       files                                             sample
    ========== ================================================= ===================================
    elasticity XY (972, 2, case), sigma (972, case)              x, y -> stress
    airfoil    X, Y (case, 221, 51), Q (case, 5, 221, 51)        x, y -> Mach number, channel 4
    pipe       X, Y (case, 129, 129), Q (case, 3, 129, 129)      x, y -> u_x, channel 0
    plasticity input (case, 101), output (case, 101, 31, 20, 4)  x, y, die(x), t -> 4 channels
    ========== ================================================= ===================================

    The arrays of the first three stay on disk; a sample touches the rows it keeps. One sample of
    plasticity is one of the 20 times of a case, on the undeformed grid [0, 1]^2, with the time in
    [0, 1]; its ``.mat`` file is loaded with the first case. The others may have the weights of
    tokens in a file ``<name>.npy``, (972, case) for elasticity and (case, rows, columns) for grids.

    Parameters
    ----------
    root : str or Path
        Directory with the files, in it or below.
    name : str
        ``elasticity``, ``airfoil``, ``pipe`` or ``plasticity``.
    split : str
        ``train``, ``val`` or ``test``. Validation cases are those of a directory ``val`` with files
        of the same names, or else some that are in neither of the published splits.
    n_train, n_val, n_test : int, optional
        Cases in the splits; the published numbers by default. With an `n_train` of 0 all cases are
        for testing.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read; see :class:`ReaderOptions`.
    """

    def __init__(
        self,
        root: str | Path,
        name: str,
        split: str = "train",
        *,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        openers = {
            "elasticity": self._open_elasticity,
            "airfoil": self._open_grid,
            "pipe": self._open_grid,
            "plasticity": self._open_plasticity,
        }
        if name not in openers:
            raise ValueError(f"name is {name!r}, expected one of {sorted(openers)}")
        spec = benchmark(name)
        self.spec = spec
        self.root = existing_directory(root, expected=spec.files, source=spec.source)
        counts = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        self._apart = split == "val" and (self.root / "val").is_dir()
        if self._apart:
            self.root = self.root / "val"
        self._paths = [one_file(self.root, file, source=spec.source) for file in spec.files]
        self._arrays, self._cases = openers[name](split, counts)
        self._n_times = _PLASTICITY_TIMES if name == "plasticity" else 1
        stem = f"{name}_val" if self._apart else name
        case_ids = [f"{stem}_{case:04d}" for case in range(self._cases.start, self._cases.stop)]
        if name == "plasticity":
            case_ids = [f"{case}_t{t:02d}" for case in case_ids for t in range(self._n_times)]
        super().__init__(
            case_ids=case_ids,
            grid=spec.grid,
            options=options,
        )
        self._weights = self._open_weights(self.options.weights)

    def _open_weights(self, name: str) -> np.ndarray | None:
        """Return the stored weights of all cases, laid out as the fields are."""
        if name in (NO_WEIGHTS, MEASURE):
            return None
        if self.spec.name == "plasticity":
            raise ValueError(
                f"data.weights is {name!r}, but plasticity has no file of weights; choose "
                f"{NO_WEIGHTS!r} or {MEASURE!r}"
            )
        path = one_file(self.root, f"{name}.npy", source=self.spec.source)
        weights = map_npy(path)
        expected = self._arrays["stress" if self.grid is None else "x"].shape
        check_shape(path, "array", weights.shape, expected)
        return weights

    def _split(self, split: str, n_cases: int, counts: dict[str, int | None]) -> slice:
        if self._apart:
            return apart_split(n_cases, counts["n_val"], self._paths[0])
        return positional_split(self.spec, split, n_cases, path=self._paths[0], **counts)

    def _open_elasticity(self, split: str, counts: dict) -> tuple[dict[str, np.ndarray], slice]:
        xy, stress = (map_npy(path) for path in self._paths)
        n_tokens = self.spec.n_tokens
        check_shape(self._paths[0], "array", xy.shape, (n_tokens, 2, "case"))
        check_shape(self._paths[1], "array", stress.shape, (n_tokens, xy.shape[2]))
        return {"xy": xy, "stress": stress}, self._split(split, xy.shape[2], counts)

    def _open_grid(self, split: str, counts: dict) -> tuple[dict[str, np.ndarray], slice]:
        arrays = {key: map_npy(path) for key, path in zip("xyq", self._paths, strict=True)}
        n_cases = len(arrays["x"]) if arrays["x"].ndim else 0
        channels = _Q_CHANNEL[self.spec.name][1]
        expected = {
            "x": ("case", *self.spec.grid),
            "y": (n_cases, *self.spec.grid),
            "q": (n_cases, channels, *self.spec.grid),
        }
        for (key, shape), path in zip(expected.items(), self._paths, strict=True):
            check_shape(path, "array", arrays[key].shape, shape)
        return arrays, self._split(split, n_cases, counts)

    def _open_plasticity(self, split: str, counts: dict) -> tuple[dict[str, np.ndarray], slice]:
        path = self._paths[0]
        nx, ny = self.spec.grid
        n_cases = mat_shape(path, "input")[0]
        check_shape(path, "input", mat_shape(path, "input"), ("case", nx))
        expected = (n_cases, nx, ny, _PLASTICITY_TIMES, len(self.spec.outputs))
        check_shape(path, "output", mat_shape(path, "output"), expected)
        return {}, self._split(split, n_cases, counts)

    @cached_property
    def _plasticity(self) -> dict[str, np.ndarray]:
        """The chosen cases of the ``.mat`` file, loaded when the first one is opened."""
        return {name: load_mat(self._source, name, self._cases) for name in ("input", "output")}

    def open_case(self, index: int) -> TokenTable:
        """Return case `index` as views of the arrays; nothing is read yet."""
        arrays = self._arrays
        if self.spec.name == "plasticity":
            return self._plasticity_case(*divmod(index, self._n_times))
        case = self._cases.start + index
        if self.spec.name == "elasticity":
            coordinates = {"xy": arrays["xy"][:, :, case]}
            field = arrays["stress"][:, case]
        else:
            channel = _Q_CHANNEL[self.spec.name][0]
            coordinates = {axis: arrays[axis][case].reshape(-1) for axis in "xy"}
            field = arrays["q"][case, channel].reshape(-1)
        fields = {self.spec.outputs[0]: field}
        n_tokens = self.spec.n_tokens
        weights = {MEASURE: point_areas(coordinates, n_tokens, self.grid)}
        if self._weights is not None:
            stored = self._weights[:, case] if self.grid is None else self._weights[case]
            weights[self.options.weights] = stored.reshape(-1)
        return TokenTable(
            self._source, n_tokens, coordinates, fields, weights=weights, decoded=True
        )

    def _plasticity_case(self, case: int, time: int) -> TokenTable:
        nx, ny = self.spec.grid
        x, y = np.meshgrid(np.linspace(0, 1, nx), np.linspace(0, 1, ny), indexing="ij")
        die = np.repeat(self._plasticity["input"][case], ny)
        t = np.full(nx * ny, time / (self._n_times - 1))
        fields = self._plasticity["output"][case, :, :, time].reshape(nx * ny, -1)
        coordinates = {"x": x.reshape(-1), "y": y.reshape(-1)}
        return TokenTable(
            self._source,
            nx * ny,
            coordinates,
            dict(zip(self.spec.outputs, fields.T, strict=True)),
            features=dict(zip(self.spec.inputs[2:], (die, t), strict=True)),
            weights={MEASURE: point_areas(coordinates, nx * ny, self.grid)},
        )

    @property
    def _source(self) -> Path:
        return self._paths[-1]

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file of the fields and the case's position in it."""
        case = self._cases.start + index // self._n_times
        return {"source": str(self._source), "position": case}

    def source_files(self) -> list[Path]:
        """Return the files of the coordinates and of the fields."""
        return list(self._paths)


@register()
class DarcyReader(CaseReader):
    """Cases of Darcy flow: x, y, a -> u on 85 x 85 tokens.

    Training reads the first `n_train` cases of the file ``smooth1``, testing the first `n_test`
    of ``smooth2``, MATLAB v5 or v7.3, variables ``coeff`` and ``sol`` of shape
    (case, side, side). Validation reads ``smooth1`` of a directory ``val``, or else the cases
    behind those of training. Tokens run over the grid in row-major order, x along its first axis.
    When the first case is opened the chosen ones are loaded at the reduced resolution (29 MB per
    1000 cases and variable), so a context shard saves nothing but is exact. A further variable of
    that shape may hold the weights of the tokens.

    Parameters
    ----------
    root : str or Path
        Directory with both files, in it or below.
    split : str
        ``train``, ``val`` or ``test``.
    stride : int, optional
        Keep every `stride`-th grid line; by default the one that gives 85 x 85 (5 for the
        published 421 x 421, 1 for 85 x 85).
    n_train, n_val, n_test : int, optional
        Cases in the splits; the published numbers by default. With an `n_train` of 0 testing takes
        all cases of its file by default.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read; see :class:`ReaderOptions`.
    """

    spec = benchmark("darcy")

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        stride: int | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        check_split(split)
        spec = self.spec
        root = existing_directory(root, expected=spec.files, source=spec.source)
        apart = split == "val" and (root / "val").is_dir()
        place = 1 if split == "test" else 0
        self.path = one_file(
            root / "val" if apart else root,
            spec.files[place],
            source=spec.source,
            preferred=spec.published[place],
        )
        shape = mat_shape(self.path, "coeff")
        check_shape(self.path, "coeff", shape, ("case", "side", "side"))
        check_shape(self.path, "sol", mat_shape(self.path, "sol"), shape)
        if apart:
            self._cases = apart_split(shape[0], n_val, self.path)
        else:
            self._cases = self._place(split, shape[0], n_train, n_val, n_test)
        self._step = self._stride(shape[1], stride)
        side = len(range(0, shape[1], self._step))
        line = np.linspace(0, 1, side, dtype=np.float32)
        self._xy = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        super().__init__(
            case_ids=[
                f"darcy_{split}_{case:04d}" for case in range(self._cases.start, self._cases.stop)
            ],
            grid=(side, side),
            options=options,
        )
        name = self.options.weights
        if name not in (NO_WEIGHTS, MEASURE):
            check_shape(self.path, name, mat_shape(self.path, name), shape)

    def _place(
        self, split: str, present: int, n_train: int | None, n_val: int | None, n_test: int | None
    ) -> slice:
        """Return which cases of the file are those of the split."""
        first = self.spec.n_train if n_train is None else n_train
        if split == "val":
            left = present - first
            wanted = min(self.spec.n_val, left) if n_val is None else n_val
            if n_train == 0 or n_val is None and wanted < 1:
                raise SplitMissing(f"{self.path} has no cases left for validation; lower n_train")
            start = first
        else:
            asked, published = (
                (n_train, self.spec.n_train) if split == "train" else (n_test, self.spec.n_test)
            )
            if asked is None and n_train == 0:
                published = present
            wanted, left = published if asked is None else asked, present
            start = 0
        if not 1 <= wanted <= left:
            raise ValueError(
                f"{self.path}: n_{split}={wanted} cases were asked for, the file has {left}"
                f"{' behind those of training' if start else ''}; choose between 1 and {left}"
            )
        return slice(start, start + wanted)

    def _stride(self, side: int, stride: int | None) -> int:
        if stride is not None:
            if stride < 1:
                raise ValueError(f"stride is {stride}, expected at least 1")
            return stride
        intervals = self.spec.grid[0] - 1
        if side < 2 or (side - 1) % intervals:
            raise ValueError(
                f"{self.path}: a grid of {side} x {side} has no stride to {self.spec.grid}; "
                "give `stride`"
            )
        return (side - 1) // intervals

    @cached_property
    def _loaded(self) -> dict[str, np.ndarray]:
        """The chosen cases of every variable that is read, (cases, tokens) each."""
        names = ["coeff", "sol"]
        if self.options.weights not in (NO_WEIGHTS, MEASURE):
            names.append(self.options.weights)
        values = {name: load_mat(self.path, name, self._cases, self._step) for name in names}
        return {name: array.reshape(len(array), -1) for name, array in values.items()}

    def open_case(self, index: int) -> TokenTable:
        """Return case `index` from memory."""
        loaded = self._loaded
        weights = {MEASURE: point_areas({"xy": self._xy}, len(self._xy), self.grid)}
        if self.options.weights in loaded:
            weights[self.options.weights] = loaded[self.options.weights][index]
        return TokenTable(
            self.path,
            len(self._xy),
            {"xy": self._xy},
            {self.spec.outputs[0]: loaded["sol"][index]},
            features={self.spec.inputs[2]: loaded["coeff"][index]},
            weights=weights,
            decoded=True,
        )

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file and the case's position in it."""
        return {"source": str(self.path), "position": self._cases.start + index}

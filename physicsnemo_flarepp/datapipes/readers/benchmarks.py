"""Published layouts: DrivAerML's surfaces, and benchmarks in arrays of all cases."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ...meshes import PolygonMesh
from ..specs import BenchmarkSpec, benchmark
from ..validation import check_shape, check_unique, existing_directory, one_file
from .array_files import load_mat, map_npy, mat_shape
from .base import CaseReader, ReaderOptions
from .case_files import REFERENCE_VALUES, SPLIT_DIRECTORIES, CaseFiles
from .case_tables import TokenTable, make_table
from .contents import Contents, Wanted
from .names import MEASURE, NO_WEIGHTS, Names, Pick
from .own import OwnReader
from .splits import positional_split

# Files of DrivAerML by layout; those with cell centres in tables, and no mesh, name them so.
PATTERNS = {
    "presampled": ("run_*.npz", "*/run_*.npz"),
    "vtp": ("run_*/boundary_*.vtp",),
    "pdmsh": ("run_*/domain_*.pdmsh",),
    "pmsh": ("run_*/*.pmsh", "run_*.pmsh"),
    "zarr": ("run_*.zarr", "*/run_*.zarr"),
}
_CENTRES = {"presampled": "surface_mesh_centers", "zarr": "surface_mesh_centers"}
_PRESAMPLED = "drivaerml_surface_presampled_*"
# Shapes of the arrays of each Geo-FNO benchmark, and the channel of Q that it predicts.
_SHAPES = {
    "airfoil": (("case", 221, 51), ("case", 221, 51), ("case", 5, 221, 51)),
    "elasticity": ((972, 2, "case"), (972, "case")),
    "pipe": (("case", 129, 129), ("case", 129, 129), ("case", 3, 129, 129)),
    "plasticity": (("case", 101), ("case", 101, 31, 20, 4)),
}
_Q_CHANNEL = {"airfoil": 4, "pipe": 0}


def _case_id(root: Path, path: Path) -> str:
    """Return the id of a case: ``run_<i>`` of the file or its directory, else the file's stem."""
    parent = path.parent
    if path.stem.startswith("run_") or parent == root or parent.name in SPLIT_DIRECTORIES:
        return path.stem
    return parent.name


def _find_cases(root: Path, layout: str | None, pattern: str | None) -> tuple[str, Path, CaseFiles]:
    """Return the layout, by default the only one present, the root of the set, and its cases."""
    if layout is not None and layout not in PATTERNS:
        raise ValueError(f"layout is {layout!r}, expected one of {sorted(PATTERNS)}")
    globs = PATTERNS if layout is None else {layout: PATTERNS[layout]}
    if pattern is not None:
        suffixes = {Path(patterns[0]).suffix: name for name, patterns in PATTERNS.items()}
        if Path(pattern).suffix not in suffixes:
            raise ValueError(f"pattern {pattern!r} must end in one of {sorted(suffixes)}")
        globs = {suffixes[Path(pattern).suffix]: (pattern,)}

    def matching(folder: Path) -> dict[str, list[Path]]:
        found = {n: {p for glob in some for p in folder.glob(glob)} for n, some in globs.items()}
        return {name: sorted(paths) for name, paths in found.items() if paths}

    found, nested = matching(root), sorted(root.glob(_PRESAMPLED))
    if not found and len(nested) == 1:
        root, found = nested[0], matching(nested[0])
    if not found:
        raise FileNotFoundError(
            f"{root} holds no case; expected {', '.join(g for gs in globs.values() for g in gs)}. "
            "`flarepp download` fetches the published cases"
        )
    if len(found) > 1:
        raise ValueError(f"{root} holds the layouts {list(found)}; choose one with `layout`")
    ((layout, paths),) = found.items()
    ids = [_case_id(root, path) for path in paths]
    check_unique(ids, str(root))
    return layout, root, CaseFiles({case: (path,) for case, path in zip(ids, paths, strict=True)})


@register()
class DrivAerMLReader(OwnReader):
    """Cases of vehicle surfaces: x, y, z (and normals, areas, globals) -> pressure, wall shear.

    =========== ======================================================= ==========================
    layout      files                                                   what a context shard reads
    =========== ======================================================= ==========================
    presampled  ``run_*.npz`` (surface_mesh_centers, surface_fields)    the file, keeps its rows
    vtp         ``run_*/boundary_*.vtp`` PolyData                       the file, keeps its rows
    pdmsh       ``run_*/domain_*.pdmsh`` DomainMesh of PhysicsNeMo      its cells, memory-mapped
    pmsh        ``run_*/*.pmsh`` Mesh of PhysicsNeMo: the surface alone its cells, memory-mapped
    zarr        ``run_*.zarr`` groups of PhysicsNeMo-Curator            the chunks with its rows
    =========== ======================================================= ==========================

    Tokens are the cells (their centres) or the points of the surface, whichever holds the fields.

    Parameters
    ----------
    root : str or Path
        Root of the set, or, where it holds no case itself, of the only directory
        ``drivaerml_surface_presampled_<size>`` as published.
    split : str
        ``train``, ``test`` or another split of the manifest.
    fields : Sequence[str]
        Arrays to predict; a vector such as ``wallShearStressMeanTrim`` gives 3 channels.
    features : Sequence[str]
        Further inputs: ``normals``, ``areas``, or stored arrays.
    globals, global_names : Sequence[str]
        Values of the whole case: global data of a DomainMesh, arrays of an npz or zarr file,
        columns of ``geo_ref_*.csv`` beside a vtp file. Both names mean the same.
    layout : str, optional
        By default the only one present under `root`.
    pattern : str, optional
        Glob of the files under `root`, for sets that are not laid out like DrivAerML.
    boundary : str
        Boundary of a DomainMesh to read.
    constants, association, allow_missing_chunks, cases, manifest, n_train, n_val, n_test, options
        As in :class:`OwnReader`; without anything that tells the splits there are none.

    Examples
    --------
    >>> reader = DrivAerMLReader("data/drivaerml_raw", fields=["pMeanTrim"])  # doctest: +SKIP
    """

    _by_share = False

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        fields: Any = ("pMeanTrim",),
        features: Any = (),
        globals: Any = None,
        global_names: Sequence[str] = (),
        coordinates: Any = None,
        constants: Mapping[str, float | Sequence[float]] | None = None,
        layout: str | None = None,
        pattern: str | None = None,
        association: str | None = None,
        boundary: str = "vehicle",
        allow_missing_chunks: Sequence[str] = (),
        cases: Any = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        root = existing_directory(
            root,
            expected=[glob for globs in PATTERNS.values() for glob in globs],
            source=f"presampled files are published at {benchmark('drivaerml_40k').source}, raw "
            "ones as neashton/drivaerml on huggingface.co; `flarepp download` fetches both",
        )
        self.layout, root, files = _find_cases(root, layout, pattern)
        super().__init__(
            root,
            split,
            coordinates=coordinates or _CENTRES.get(self.layout),
            features=features,
            fields=fields,
            globals=global_names if globals is None else globals,
            association=association,
            files=files,
            parameters=REFERENCE_VALUES if self.layout == "vtp" else "",
            constants=constants,
            boundary=boundary,
            allow_missing_chunks=allow_missing_chunks,
            options=options,
            cases=cases,
            manifest=manifest,
            n_train=n_train,
            n_val=n_val,
            n_test=n_test,
        )
        self.files = {case: files.cases[case][0] for case in self.case_ids}

    def describe_names(self) -> list[str]:
        """Return nothing: the arrays of a published layout are known."""
        return []

    def open_contents(self, index: int, wanted: Wanted) -> Contents:
        """Return what is in the file of case `index`, which must hold a surface."""
        contents = super().open_contents(index, wanted)
        if contents.mesh is not None and not isinstance(contents.mesh, PolygonMesh):
            raise ValueError(
                f"{contents.source} has cells that are not polygons, or none; expected a surface, "
                "such as pyvista's extract_surface() gives"
            )
        return contents


def stored_cases(root: Path, spec: BenchmarkSpec) -> int:
    """Return how many cases the arrays of a benchmark hold, in all splits."""
    path = one_file(root, spec.files[0], source=spec.source)
    shape = mat_shape(path, "input") if path.suffix == ".mat" else map_npy(path).shape
    return dict(zip(_SHAPES[spec.name][0], shape, strict=False)).get("case", 0)


class _SetReader(CaseReader):
    """Base of the readers of arrays with all cases; a case has a position in them."""

    _names: Names
    _paths: list[Path]
    _cases: slice
    _decoded = True

    @abstractmethod
    def _arrays_of(self, index: int) -> dict[str, np.ndarray]:
        """Return the arrays of one case, by the names that `_names` gives a meaning."""

    def open_case(self, index: int) -> TokenTable:
        """Return case `index` as views of the arrays of all cases."""
        arrays = self._arrays_of(index)
        return make_table(Contents(self._paths[-1], arrays, decoded=self._decoded), self._names)

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file of the fields and the case's position in it."""
        return {"source": str(self._paths[-1]), "position": self._cases.start + index}

    def source_files(self) -> list[Path]:
        """Return the files of the coordinates and of the fields."""
        return list(self._paths)


def _folder(root: str | Path, split: str, spec: BenchmarkSpec) -> tuple[Path, bool]:
    """Return the folder of a split, and whether it is one of validation cases alone."""
    source = f"`flarepp download` fetches them from {spec.source}"
    root = existing_directory(root, expected=spec.files, source=source)
    apart = split == "val" and (root / "val").is_dir()
    return root / "val" if apart else root, apart


def _picks(*names: str, **renamed: str) -> dict[str, Pick]:
    return {name: Pick(array) for name, array in ({n: n for n in names} | renamed).items()}


@register()
class GeoFNOReader(_SetReader):
    """Cases of one Geo-FNO benchmark, in the files that its authors publish.

    ========== ================================================= ===================================
    name       files                                             sample
    ========== ================================================= ===================================
    elasticity XY (972, 2, case), sigma (972, case)              x, y -> stress
    airfoil    X, Y (case, 221, 51), Q (case, 5, 221, 51)        x, y -> Mach number, channel 4
    pipe       X, Y (case, 129, 129), Q (case, 3, 129, 129)      x, y -> u_x, channel 0
    plasticity input (case, 101), output (case, 101, 31, 20, 4)  x, y, die(x), t -> 4 channels
    ========== ================================================= ===================================

    The arrays of the first three stay on disk, and may come with the weights of tokens in a file
    ``<name>.npy``, (972, case) or (case, rows, columns). One sample of plasticity is one of the 20
    times of a case, on the undeformed grid [0, 1]^2, with the time in [0, 1].

    Parameters
    ----------
    root : str or Path
        Directory with the files, in it or below.
    name, split : str
        A benchmark, and ``train``, ``val`` or ``test``. Validation cases are those of a directory
        ``val``, or else some that are in neither of the published splits.
    n_train, n_val, n_test : int, optional
        Cases in the splits, by default as published. With an `n_train` of 0 all are for testing.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read.
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
        if name not in _SHAPES:
            raise ValueError(f"name is {name!r}, expected one of {list(_SHAPES)}")
        self.spec = spec = benchmark(name)
        self.root, apart = _folder(root, split, spec)
        self._paths = [one_file(self.root, file, source=spec.source) for file in spec.files]
        self._timed = name == "plasticity"
        self._arrays = {} if self._timed else {path.stem: map_npy(path) for path in self._paths}
        counts = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        self._cases = positional_split(
            spec, split, self._check_shapes(), path=self._paths[0], alone=apart, **counts
        )
        self._n_times = _SHAPES[name][1][3] if self._timed else 1
        stem = f"{name}_val" if apart else name
        case_ids = [f"{stem}_{case:04d}" for case in range(self._cases.start, self._cases.stop)]
        if self._timed:
            case_ids = [f"{case}_t{t:02d}" for case in case_ids for t in range(self._n_times)]
        super().__init__(case_ids=case_ids, grid=spec.grid, options=options)
        weights = self.options.weights
        if weights not in (NO_WEIGHTS, MEASURE):
            self._arrays[weights] = self._open_weights(weights)
        *coordinates, field = [path.stem for path in self._paths]
        picks = {"coordinates": _picks(*coordinates), "fields": _picks(**{spec.outputs[0]: field})}
        if self._timed:
            picks = {"coordinates": _picks("x", "y"), "fields": _picks(*spec.outputs)}
            self._decoded = False  # all of it is in memory already
        features = _picks(*spec.inputs[2:])
        self._names = Names(**picks, features=features, globals={}, weights=weights, grid=spec.grid)

    def _check_shapes(self) -> int:
        """Compare all shapes with the published ones and return the number of cases."""
        if self._timed:
            path = self._paths[0]
            found = [(path, name, mat_shape(path, name)) for name in ("input", "output")]
        else:
            found = [(path, "array", self._arrays[path.stem].shape) for path in self._paths]
        n_cases: int | str = "case"
        for (path, what, shape), expected in zip(found, _SHAPES[self.spec.name], strict=True):
            check_shape(path, what, shape, [n_cases if n == "case" else n for n in expected])
            n_cases = shape[expected.index("case")]
        return n_cases

    def _open_weights(self, name: str) -> np.ndarray:
        """Return the stored weights of all cases, laid out as the fields are."""
        if self._timed:
            raise ValueError(f"plasticity has no weights {name!r}; choose none or measure")
        path = one_file(self.root, f"{name}.npy", source=self.spec.source)
        weights = map_npy(path)
        like = self._arrays[self._paths[1].stem]  # stress, or y
        check_shape(path, "array", weights.shape, like.shape)
        return weights

    @cached_property
    def _plasticity(self) -> list[np.ndarray]:
        """The chosen cases of the ``.mat`` file, loaded when the first one is opened."""
        return [load_mat(self._paths[0], name, self._cases) for name in ("input", "output")]

    def _arrays_of(self, index: int) -> dict[str, np.ndarray]:
        if self._timed:
            return self._plasticity_case(*divmod(index, self._n_times))
        case = self._cases.start + index
        if self.grid is None:
            return {name: array[..., case] for name, array in self._arrays.items()}
        channel, field = _Q_CHANNEL[self.spec.name], self._paths[-1].stem
        return {n: a[case, channel] if n == field else a[case] for n, a in self._arrays.items()}

    def _plasticity_case(self, case: int, time: int) -> dict[str, np.ndarray]:
        (nx, ny), (die, output) = self.spec.grid, self._plasticity
        x, y = np.meshgrid(np.linspace(0, 1, nx), np.linspace(0, 1, ny), indexing="ij")
        t = np.full((nx, ny), time / (self._n_times - 1))
        features = (np.repeat(die[case], ny).reshape(nx, ny), t)
        values = (x, y, *features, *np.moveaxis(output[case, :, :, time], -1, 0))
        return dict(zip((*self.spec.inputs, *self.spec.outputs), values, strict=True))

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file of the fields and the case's position in it."""
        return super().describe_case(index // self._n_times)


@register()
class DarcyReader(_SetReader):
    """Cases of Darcy flow: x, y, a -> u on 85 x 85 tokens.

    Training reads the first `n_train` cases of the file ``smooth1``, testing the first `n_test`
    of ``smooth2``, MATLAB v5 or v7.3, variables ``coeff`` and ``sol`` of shape
    (case, side, side). Validation reads ``smooth1`` of a directory ``val``, or else the cases
    behind those of training. Tokens run over the grid in row-major order, x along its first axis.
    The chosen cases are loaded together, at the reduced resolution. A further variable of that
    shape may hold the weights of the tokens.

    Parameters
    ----------
    stride : int, optional
        Keep every `stride`-th grid line; by default the one that gives 85 x 85.
    root, split, n_train, n_val, n_test, options
        As in :class:`GeoFNOReader`; with an `n_train` of 0 testing takes all cases of its file.
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
        spec = self.spec
        root, apart = _folder(root, split, spec)
        place = 1 if split == "test" else 0
        where = {"source": spec.source, "preferred": spec.published[place]}
        self.path = one_file(root, spec.files[place], **where)
        self._paths = [self.path]
        shape = mat_shape(self.path, "coeff")
        check_shape(self.path, "coeff", shape, ("case", "side", "side"))
        check_shape(self.path, "sol", mat_shape(self.path, "sol"), shape)
        counts = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        where = {"path": self.path, "alone": apart or split == "test", "with_tests": False}
        self._cases = positional_split(spec, split, shape[0], **where, **counts)
        self._step = self._stride(shape[1], stride)
        side = len(range(0, shape[1], self._step))
        line = np.linspace(0, 1, side, dtype=np.float32)
        self._xy = np.stack(np.meshgrid(line, line, indexing="ij"), -1)
        positions = range(self._cases.start, self._cases.stop)
        ids = [f"darcy_{split}_{case:04d}" for case in positions]
        super().__init__(case_ids=ids, grid=(side, side), options=options)
        weights = self.options.weights
        self._names = Names(
            coordinates=_picks(" xy"),  # not the name of a variable
            features=_picks(**{spec.inputs[2]: "coeff"}),
            fields=_picks(**{spec.outputs[0]: "sol"}),
            globals={},
            weights=weights,
            grid=self.grid,
        )
        if weights not in (NO_WEIGHTS, MEASURE):
            check_shape(self.path, weights, mat_shape(self.path, weights), shape)

    def _stride(self, side: int, stride: int | None) -> int:
        if stride is not None and stride < 1:
            raise ValueError(f"stride is {stride}, expected at least 1")
        if stride is not None:
            return stride
        intervals = self.spec.grid[0] - 1
        if side < 2 or (side - 1) % intervals:
            raise ValueError(
                f"{self.path}: {side} x {side} has no stride to {self.spec.grid}; give `stride`"
            )
        return (side - 1) // intervals

    @cached_property
    def _loaded(self) -> dict[str, np.ndarray]:
        """The chosen cases of every variable that is read, at the reduced resolution."""
        names = {"coeff", "sol", self.options.weights} - {NO_WEIGHTS, MEASURE}
        return {name: load_mat(self.path, name, self._cases, self._step) for name in names}

    def _arrays_of(self, index: int) -> dict[str, np.ndarray]:
        return {" xy": self._xy} | {name: array[index] for name, array in self._loaded.items()}

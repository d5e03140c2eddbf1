"""Vehicle surfaces: DrivAerML in its five layouts, and AhmedML or ShapeNet-Car by naming fields."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physicsnemo.datapipes import register

from ...meshes import ASSOCIATIONS
from ..checks import check_unique, existing_directory
from ..specs import benchmark
from .base import CaseReader, ReaderOptions, TokenTable, distinct_names
from .splits import CaseChoice, named_split
from .surface_tables import SurfaceRequest
from .surfaces import OPENERS

PATTERNS = {
    "presampled": ("run_*.npz", "*/run_*.npz"),
    "vtp": ("run_*/boundary_*.vtp",),
    "pdmsh": ("run_*/domain_*.pdmsh",),
    "pmsh": ("run_*/*.pmsh", "run_*.pmsh"),
    "zarr": ("run_*.zarr", "*/run_*.zarr"),
}
_SUFFIXES = {
    ".npz": "presampled",
    ".vtp": "vtp",
    ".pdmsh": "pdmsh",
    ".pmsh": "pmsh",
    ".zarr": "zarr",
}
_PRESAMPLED = "drivaerml_surface_presampled_*"
_SPLIT_DIRECTORIES = ("train", "val", "valid", "validation", "test")


def case_id(root: Path, path: Path) -> str:
    """Return the id of a case: ``run_<i>`` of the file or its directory, else the file's stem.

    Examples
    --------
    >>> root = Path("data")
    >>> case_id(root, root / "run_7" / "boundary_7.vtp"), case_id(root, root / "train/run_7.npz")
    ('run_7', 'run_7')
    >>> case_id(root, root / "boundary_1_mapped.vtp")
    'boundary_1_mapped'
    """
    parent = path.parent
    if path.stem.startswith("run_") or parent == root or parent.name in _SPLIT_DIRECTORIES:
        return path.stem
    return parent.name


def _globs(layout: str | None, pattern: str | None) -> dict[str, tuple[str, ...]]:
    """Return the globs to look for, by layout."""
    if layout is not None and layout not in PATTERNS:
        raise ValueError(f"layout is {layout!r}, expected one of {sorted(PATTERNS)}")
    if pattern is None:
        return PATTERNS if layout is None else {layout: PATTERNS[layout]}
    suffix = Path(pattern).suffix
    if suffix not in _SUFFIXES:
        raise ValueError(f"pattern {pattern!r} must end in one of {sorted(_SUFFIXES)}")
    return {_SUFFIXES[suffix]: (pattern,)}


def matching_files(root: Path, layout: str | None, pattern: str | None) -> dict[str, list[Path]]:
    """Return the files of all cases under `root` by layout; see :func:`find_cases`."""
    return {
        name: sorted({path for glob in globs for path in root.glob(glob)})
        for name, globs in _globs(layout, pattern).items()
    }


def find_cases(root: Path, layout: str | None, pattern: str | None) -> tuple[str, dict[str, Path]]:
    """Return the layout and id -> file of all cases under `root`.

    Parameters
    ----------
    root : Path
        Root of the set.
    layout : str or None
        Key of :data:`PATTERNS`, or None for the only one present.
    pattern : str or None
        Glob that replaces the published one; its suffix gives the layout.
    """
    found = matching_files(root, layout, pattern)
    present = [name for name, paths in found.items() if paths]
    if not present:
        expected = ", ".join(glob for globs in _globs(layout, pattern).values() for glob in globs)
        raise FileNotFoundError(
            f"{root} holds no case; expected {expected}. Published at "
            "https://huggingface.co/datasets/neashton/drivaerml (raw) and "
            f"{benchmark('drivaerml_40k').source} (presampled)"
        )
    if len(present) > 1:
        raise ValueError(f"{root} holds the layouts {present}; choose one with `layout`")
    paths = found[present[0]]
    ids = [case_id(root, path) for path in paths]
    check_unique(ids, str(root))
    return present[0], dict(zip(ids, paths, strict=True))


@register()
class DrivAerMLReader(CaseReader):
    """Cases of vehicle surfaces: x, y, z (and normals, areas, globals) -> pressure, wall shear.

    Layouts (``presampled``, ``vtp``, ``pdmsh``, ``pmsh``, ``zarr``) and what a context shard reads
    of each are described in :mod:`physicsnemo_flarepp.datapipes.readers.surfaces`. Tokens are the
    cells (their centres) or the points of the surface, whichever holds the fields.

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
    global_names : Sequence[str]
        Values of the whole case: global data of a DomainMesh, arrays of an npz or zarr file,
        columns of ``geo_ref_*.csv`` beside a vtp file.
    constants : Mapping[str, float or Sequence[float]], optional
        Global values of cases whose files do not hold them, such as older curated files:
        ``{"U_inf": [38.889, 0, 0], "rho_inf": 1}``.
    layout : str, optional
        By default the only one present under `root`.
    pattern : str, optional
        Glob of the files under `root`, for sets that are not laid out like DrivAerML.
    association : str, optional
        ``cell`` or ``point``; by default the one that holds the fields.
    boundary : str
        Boundary of a DomainMesh to read.
    allow_missing_chunks : Sequence[str]
        Zarr arrays that may lack chunks because these hold nothing but the fill value; any other
        requested array with a chunk missing is an error.
    cases : Sequence[str], SplitName or SplitFraction, optional
        Ids of this split. Without it: `manifest`, ``manifest.json`` under `root`, or directories
        ``train``, ``val`` and ``test``.
    manifest : str or Path, optional
        File with {"train": [ids], "test": [ids]}.
    n_train, n_val, n_test : int, optional
        Keep the first cases of the split.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read; see :class:`ReaderOptions`.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        fields: Sequence[str] = ("pMeanTrim",),
        features: Sequence[str] = (),
        global_names: Sequence[str] = (),
        constants: Mapping[str, float | Sequence[float]] | None = None,
        layout: str | None = None,
        pattern: str | None = None,
        association: str | None = None,
        boundary: str = "vehicle",
        allow_missing_chunks: Sequence[str] = (),
        cases: CaseChoice | None = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        if association is not None and association not in ASSOCIATIONS:
            raise ValueError(f"association is {association!r}, expected one of {ASSOCIATIONS}")
        if not fields:
            raise ValueError("fields is empty; name at least one array to predict")
        published = benchmark("drivaerml_40k")
        root = existing_directory(
            root,
            expected=[p for globs in PATTERNS.values() for p in globs],
            source=published.source,
        )
        nested = sorted(root.glob(_PRESAMPLED))
        if len(nested) == 1 and not any(matching_files(root, layout, pattern).values()):
            root = nested[0]
        self.layout, found = find_cases(root, layout, pattern)
        self.files = named_split(
            root,
            split,
            found,
            cases=cases,
            manifest=manifest,
            n_cases={"train": n_train, "val": n_val, "test": n_test}.get(split),
        )
        super().__init__(
            case_ids=list(self.files),
            association=association,
            options=options,
        )
        self.request = SurfaceRequest(
            distinct_names("fields", fields),
            distinct_names("features", features),
            distinct_names("global_names", global_names),
            association,
            boundary,
            tuple(allow_missing_chunks),
            self.options.weights,
            dict(constants or {}),
        )

    def open_case(self, index: int) -> TokenTable:
        """Return the surface of case `index`."""
        path = self.files[self.case_ids[index]]
        return OPENERS[self.layout](path, self.request)

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file, its layout and its boundary, so that a mesh can be rebuilt."""
        return {
            "source": str(self.files[self.case_ids[index]]),
            "layout": self.layout,
            "boundary": self.request.boundary,
        }

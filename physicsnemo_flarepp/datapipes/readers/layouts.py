"""DrivAerML as layouts of the reader for own files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physicsnemo.datapipes import register

from ...meshes import PolygonMesh
from ..specs import benchmark
from ..validation import check_unique, existing_directory
from .base import ReaderOptions
from .case_files import SPLIT_DIRECTORIES, CaseFiles
from .contents import Contents, Wanted
from .own import OwnReader
from .parameters import REFERENCE_VALUES
from .splits import CaseChoice

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
    if path.stem.startswith("run_") or parent == root or parent.name in SPLIT_DIRECTORIES:
        return path.stem
    return parent.name


def find_cases(root: Path, layout: str | None, pattern: str | None) -> tuple[str, Path, CaseFiles]:
    """Return the layout, the root of the set, which may be below `root`, and its cases.

    Without a `layout` it is the only one present, and a `pattern` replaces its globs.
    """
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
            "Published at https://huggingface.co/datasets/neashton/drivaerml (raw) and "
            f"{benchmark('drivaerml_40k').source} (presampled)"
        )
    if len(found) > 1:
        raise ValueError(f"{root} holds the layouts {list(found)}; choose one with `layout`")
    ((layout, paths),) = found.items()
    ids = [case_id(root, path) for path in paths]
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
        cases: CaseChoice | None = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        root = existing_directory(
            root,
            expected=[glob for globs in PATTERNS.values() for glob in globs],
            source=benchmark("drivaerml_40k").source,
        )
        self.layout, root, files = find_cases(root, layout, pattern)
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
            cases=cases,
            manifest=manifest,
            n_train=n_train,
            n_val=n_val,
            n_test=n_test,
            options=options,
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
                f"{contents.source} has cells that are not polygons, or none; expected a surface. "
                "Remove lines and vertices, or extract it with pyvista's extract_surface()"
            )
        return contents

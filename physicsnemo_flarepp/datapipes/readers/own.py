"""Cases whose arrays are named: your own files, and the base of all readers with names."""

import glob
import math
import os
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ...meshes import PolygonMesh
from ...meshes.reading import LISTS
from .array_files import LazyArray, Rowwise
from .base import CaseReader, ReaderOptions
from .case_files import CaseFiles, find_files, read_parameters, some
from .case_tables import TokenTable, make_table
from .contents import Contents, Wanted, is_connectivity, open_body, open_files
from .names import MEASURE, RESULT, TO_BODY, Names, complete, is_coordinates, token_shape
from .splits import named_split

# Cases that a guess looks at.
_PROBED = 4


class NamedReader(CaseReader):
    """Base of the readers whose arrays get a meaning by names, or guessed from the first cases.

    `found` has the file of each case; `root`, `split`, `choice` are those of :func:`named_split`.
    """

    def __init__(
        self,
        found: Mapping[str, Path],
        root: Path,
        split: str,
        *,
        names: Mapping[str, Any],
        options: ReaderOptions | Mapping[str, Any] | None = None,
        **choice: Any,
    ) -> None:
        chosen = named_split(root, split, found, **choice)
        super().__init__(case_ids=list(chosen), options=options)
        self._given = Names.parse(**names, weights=self.options.weights)
        self._positions = {case: i for i, case in enumerate(found)}
        self.told: list[str] = []
        self.faults: Mapping[str, str] = {}

    @abstractmethod
    def open_contents(self, index: int, wanted: Wanted) -> Contents:
        """Return what is in the files of case `index`; at least what is wanted."""

    @cached_property
    def _completed(self) -> tuple[Names, list[str]]:
        given = self._given
        if given.is_complete and (given.coordinates or given.association):
            return given, []
        probes = [self.open_contents(0, self._wanted(given))]
        if given.globals is None:
            others = range(1, min(_PROBED, len(self)))
            probes += [self.open_contents(index, Wanted(())) for index in others]
        return complete(given, probes)

    @property
    def names(self) -> Names:
        """What the arrays are taken for, complete."""
        return self._completed[0]

    @property
    def guesses(self) -> list[str]:
        """What was taken for what, where the config does not say it."""
        return [*self.told, *self._completed[1]]

    def check_parameters(self) -> None:
        """Raise if a parameter would be left out of the guessed globals because of a fault."""
        for name, reason in self.faults.items() if self._given.globals is None else ():
            if not RESULT.match(name):
                raise ValueError(
                    f"{reason}. Repair it, or name the values that are inputs: data.globals=[...]"
                )

    def describe_names(self) -> list[str]:
        """Return what is read as what, and what is there but not used."""
        contents, table = self._open(0)
        self._keep(0, self.case_state(0), table)
        told = [f"{key} {' '.join(names) or 'none'}" for key, names in table.channels().items()]
        lines = [f"data: at {table.association}s: {', '.join(told)}"]
        if unused := self.names.unused(contents):
            listed = ", ".join(f"{name} ({where})" for name, where in unused.items())
            lines.append(
                f"data: NOT USED: {listed}. To use them, name inputs in data.features, values of "
                "the whole case in data.globals, and outputs in data.fields"
            )
        return lines

    def open_case(self, index: int) -> TokenTable:
        """Return the tokens of case `index`."""
        return self._open(index)[1]

    def _open(self, index: int) -> tuple[Contents, TokenTable]:
        names = self.names
        contents = self.open_contents(index, self._wanted(names))
        if contents.mesh is None and self.grid is None:
            self.grid = token_shape(contents, names)[1]
        return contents, make_table(contents, names)

    def _wanted(self, names: Names) -> Wanted:
        sizes = self.options.weights == MEASURE or "volumes" in names.arrays("features")
        return Wanted(names.stored(), sizes)


@register()
class OwnReader(NamedReader):
    """Cases in files of your own: meshes, or arrays per case or of all cases.

    Parameters
    ----------
    root : str or Path
        Folder of the cases, or one file of arrays with all of them.
    split : str
        ``train``, ``val``, ``test`` or another split of the manifest.
    coordinates : str, list or mapping, optional
        A name, the names of x, y, z, or ``grid`` for the indices of a grid that comes without.
        Meshes have their own, of which a list such as [x, y] keeps some.
    features, fields, globals : list or mapping, optional
        Further inputs at the tokens, what is predicted, and values of the whole case: names, or
        {name: array[columns]} such as {shear: "surface_fields[1:4]"}. The features ``normals``,
        ``areas`` and ``volumes`` of meshes are computed, and with `body` the signed ``distance``
        to it and the ``direction``. What is not given is guessed; see :attr:`guesses`.
    association : str, optional
        ``cells`` or ``points`` of a mesh; by default those that hold the fields.
    files : str or list of str, optional
        Globs below `root` in which ``{case}`` stands for the id of a case; the files of one id
        make one case. One without ``{case}`` and wildcards is shared by all cases.
    parameters : str, optional
        CSV whose columns are values of the case: one with a row per case, or one per case, with
        ``{case}`` in its name, or with a wildcard and beside the file of the case. By default the
        only CSV in `root` in which the cases are found.
    constants : Mapping[str, float or list], optional
        Values of cases whose files do not hold them.
    layout, shared
        ``files``: every case has files of its own. ``set``: arrays hold all cases along their
        first axis; those of another length, and those in `shared`, are the same in all cases.
    rows : Mapping[str, list], optional
        Rows kept of an array, as [start, stop] or a list of these; stop may be null.
    boundary, body : str, optional
        Part of a DomainMesh: a boundary, or ``interior``. Pattern of the surface of the body in
        the domain, such as ``{case}/drivaer_*.stl``.
    grid : Sequence[int], optional
        Shape of the grid that the tokens form, if the arrays do not show it.
    allow_missing_chunks : Sequence[str]
        Zarr arrays that may lack chunks because these hold nothing but the fill value.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read.
    cases, manifest, n_train, n_val, n_test
        Which cases belong to the split; see
        :func:`~physicsnemo_flarepp.datapipes.readers.splits.named_split`.
    """

    # Whether splits are shares of all cases where nothing says which they have.
    _by_share = True

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        coordinates: Any = None,
        features: Any = None,
        fields: Any = None,
        globals: Any = None,
        association: str | None = None,
        files: str | Sequence[str] | CaseFiles | None = None,
        parameters: str | None = None,
        constants: Mapping[str, Any] | None = None,
        layout: str = "auto",
        shared: Sequence[str] = (),
        rows: Mapping[str, Any] | None = None,
        boundary: str | None = None,
        body: str | None = None,
        grid: Sequence[int] | None = None,
        allow_missing_chunks: Sequence[str] = (),
        cases: Any = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        root = Path(root).expanduser()
        if not isinstance(files, CaseFiles):
            files = find_files(root, [files] if isinstance(files, str) else files, layout)
        self._files = files
        self._opening = {"boundary": boundary, "allow_missing_chunks": tuple(allow_missing_chunks)}
        self._rows = dict(rows or {})
        self._root, self._body = root, body
        found = {case: paths[0] for case, paths in files.cases.items()}
        told = list(files.told)
        if files.whole_set:
            n, self._shared_arrays = _divide_set(self._shared, shared)
            found = {f"case_{i:0{len(str(n - 1))}d}": root for i in range(n)}
            of_cases = [name for name in self._shared.arrays if name not in self._shared_arrays]
            told.append(f"one entry along the first axis is one of {n} cases: {some(of_cases)}")
            if self._shared_arrays:
                told.append(f"the same in all cases: {some(sorted(self._shared_arrays))}")
        super().__init__(
            found,
            root,
            split,
            names={
                **{"coordinates": coordinates, "features": features, "fields": fields},
                **{"globals": globals, "association": association, "grid": grid},
            },
            options=options,
            by_share=self._by_share,
            cases=cases,
            manifest=manifest,
            n_train=n_train,
            n_val=n_val,
            n_test=n_test,
        )
        self._constants = {n: np.asarray(v, dtype=float) for n, v in (constants or {}).items()}
        self._parameters = read_parameters(
            root, parameters, list(found), files.whole_set, found.values()
        )
        self.told = [*told, *self._parameters.told]
        self.faults = self._parameters.faults

    @cached_property
    def _shared(self) -> Contents | None:
        """What all cases share, or of a whole set, the arrays of all cases."""
        paths = self._files.shared
        return open_files(paths, Wanted(**self._opening)) if paths else None

    def open_contents(self, index: int, wanted: Wanted) -> Contents:
        """Return what is in the files of case `index`."""
        case, files = self.case_ids[index], self._files
        if files.whole_set:
            arrays = {
                name: array if name in self._shared_arrays else _entry(array, self._positions[case])
                for name, array in self._shared.arrays.items()
            }
            contents = replace(self._shared, arrays=arrays)
        else:
            chosen = Wanted(wanted.arrays, wanted.sizes, **self._opening)
            contents = open_files(files.cases[case], chosen, case)
            if self._shared is not None:
                contents = contents.join(self._shared)
        contents = contents.with_values(self._case_values(case))
        present = {*contents.values, *contents.arrays}
        constants = {n: v for n, v in self._constants.items() if n not in present}
        contents = replace(
            contents.with_values(constants),
            body=self._open_body(case),
            unreadable={**self._parameters.unreadable, **contents.unreadable},
        )
        kept = {n: _some_rows(contents, n, rows) for n, rows in self._rows.items()
                if n in contents.arrays}  # fmt: skip
        return replace(contents, arrays={**contents.arrays, **kept})

    def case_state(self, index: int) -> Hashable:
        """Return the state of the files of case `index`."""
        paths = self._files.cases.get(self.case_ids[index], ())
        return tuple(map(_file_state, paths))

    def _case_values(self, case: str) -> Mapping[str, np.ndarray]:
        """Return the values of a case in CSV files, if they are used."""
        asked = None if self._given.globals is None else self._given.arrays("globals")
        if asked == set():
            return {}
        beside = self._files.cases.get(case, (self._root / "case",))[0].parent
        required = asked is None or not asked <= self._constants.keys()
        return self._parameters.of_case(case, beside, required)

    def _open_body(self, case: str) -> PolygonMesh | None:
        if self._body is None or self._given.arrays("features").isdisjoint(TO_BODY):
            return None
        pattern = self._body.replace("{case}", glob.escape(case))
        found = sorted(self._root.glob(pattern))
        if len(found) != 1:
            raise ValueError(
                f"data.reader.body {self._body!r} matches {len(found)} files for case {case} in "
                f"{self._root}, expected one: {some(map(str, found), 3)}"
            )
        return open_body(found[0])

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the files, and the boundary, so that a mesh can be opened again."""
        paths = [*self._files.cases.get(self.case_ids[index], ()), *self._files.shared]
        files = [str(path) for path in paths]
        return {"source": files[0], "files": files, "boundary": self._opening["boundary"]}

    def source_files(self) -> list[Path]:
        """Return all files of the cases."""
        listed = [path for case in self.case_ids for path in self._files.cases.get(case, ())]
        # A file that names others stands for the folder they are in.
        return [
            path.parent if path.suffix.lower() in LISTS else path
            for path in (*listed, *self._files.shared)
        ]


def _divide_set(contents: Contents, shared: Sequence[str]) -> tuple[int, set[str]]:
    """Return the number of cases in arrays of all cases, and the arrays that all cases share.

    Cases are as many as the largest array is long; with as many points, coordinates are shared.
    """
    arrays = contents.arrays
    shared = {*shared, *(name for name, array in arrays.items() if is_connectivity(name, array))}
    several = [
        a.shape
        for name, a in arrays.items()
        if a.shape and name not in shared and not (is_coordinates(name) and len(a.shape) <= 2)
    ]
    if not several:
        raise ValueError(
            f"{contents.source} has no array with cases along its first axis, only "
            f"{some(f'{n} {tuple(a.shape)}' for n, a in arrays.items())}"
        )
    n = max(several, key=math.prod)[0]
    as_many = any(array.shape[:2] == (n, n) for array in arrays.values())
    for name, array in arrays.items():
        few = as_many and is_coordinates(name) and math.prod(array.shape[1:]) <= 3
        shared |= {name} if few or array.shape[:1] != (n,) else set()
    return n, shared & arrays.keys()


def _file_state(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written; None if it is missing."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _entry(array: Rowwise, position: int) -> LazyArray:
    """Return one entry along the first axis, read when it is used."""
    shape = tuple(array.shape[1:])
    return LazyArray(shape, lambda rows: np.asarray(array[position])[rows], array.dtype)


def _some_rows(contents: Contents, name: str, spans: Sequence) -> LazyArray:
    """Return the rows of an array that lie in a span, [start, stop], or in one of several."""
    spans = [spans] if spans and not isinstance(spans[0], Sequence) else spans
    array = contents.arrays[name]
    n = array.shape[0]
    kept = np.concatenate([np.arange(n)[slice(*span)] for span in spans])
    if len(kept) == 0:
        raise ValueError(
            f"{contents.source}: data.reader.rows keeps none of the {n} rows of {name}: {spans}"
        )
    shape = (len(kept), *array.shape[1:])
    return LazyArray(shape, lambda rows: np.asarray(array[kept[rows]]), array.dtype)

"""Cases as ``flarepp prepare`` writes them: columns on disk, rows in random order.

    <root>/manifest.json         splits, statistics of the training cases, force convention
    <root>/<case>/case.json      what the columns are, their sizes, checksums and statistics
    <root>/<case>/*.npy          one column each, (N,) or (N, channels)
    <root>/<case>/order.npy      row i of the columns is row order[i] of the original

Plain ``.npy`` files: a block of rows is one read at a known place, without chunks to decompress,
and the header reveals a cut file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ...files import check_inside, read_checked_json, reading
from ...meshes import ASSOCIATIONS
from ..validation import check_shape, existing_directory, missing_name
from .array_files import map_npy
from .base import CaseReader, ReaderOptions
from .case_tables import TokenTable
from .names import MEASURE, NO_WEIGHTS, distinct_names
from .splits import MANIFEST, named_split

CASE_FILE = "case.json"
FORMAT = 1
COLUMN_GROUPS = ("coordinates", "features", "fields", "weights")
# Column of what each token stands for, as a feature; among weights it is called MEASURE.
AREAS = "areas"


def open_column(folder: Path, entry: Mapping[str, Any], n_tokens: int) -> np.ndarray:
    """Return a column of a prepared case, memory-mapped."""
    path = folder / entry["file"]
    with reading(path):
        if path.stat().st_size != entry["size"]:
            raise EOFError(f"it has {path.stat().st_size} bytes, {entry['size']} were written")
        column = map_npy(path)
    check_shape(path, "array", column.shape[:1], (n_tokens,))
    return column


def read_case_file(path: Path) -> dict[str, Any]:
    """Return what a ``case.json`` says, which is as it was written."""
    with reading(path):
        content = read_checked_json(path)
        if content.get("format") == FORMAT:
            _check_case(content)
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}, expected {FORMAT}; prepare the cases again"
        )
    return content


def _check_case(content: Mapping[str, Any]) -> None:
    """Raise ValueError unless a ``case.json`` has all entries: a checksum shows changes only."""
    try:
        columns = content["columns"]
        entries = [entry for group in COLUMN_GROUPS for entry in columns[group].values()]
        check_inside(entry["file"] for entry in (*entries, content["order"]))
        sound = (
            content["n_tokens"] >= 1
            and isinstance(content["n_tokens"], int)
            and content["association"] in ASSOCIATIONS
            and columns["coordinates"]
            and isinstance(content["original"]["source"], str)
            and all(isinstance(entry["size"], int) for entry in (*entries, content["order"]))
            and isinstance(content["seen"], list)
        )
        for values in content["globals"].values():
            np.asarray(values, dtype=np.float64)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it does not describe a case: {type(error).__name__} {error}") from error
    if not sound:
        raise ValueError("it does not describe a case: an entry has the wrong type")


@register()
class PreparedReader(CaseReader):
    """Cases that ``flarepp prepare`` wrote: `n_points` of a case cost as many rows of it.

    Parameters
    ----------
    root : str or Path
        Directory with ``manifest.json`` and a folder for each case.
    fields, features, global_names : Sequence[str], optional
        Columns and values to read; all of them, as they were prepared, by default. ``areas`` among
        the features is what each token stands for.
    split, options, cases, manifest, n_train, n_val, n_test
        As in :class:`OwnReader`. Draws are blocks.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        fields: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        global_names: Sequence[str] | None = None,
        cases: Any = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        root = existing_directory(root, expected=[MANIFEST], source="`flarepp prepare` writes them")
        if not (root / MANIFEST).is_file():
            raise FileNotFoundError(
                f"{root / MANIFEST} is missing: the preparation did not finish. Run `flarepp "
                "prepare` again with the same arguments; it resumes"
            )
        # What a kill left unfinished is in a hidden folder.
        found = {
            str(path.parent.relative_to(root)): path
            for path in root.rglob(CASE_FILE)
            if not path.parent.name.startswith(".")
        }
        self.files = named_split(
            root,
            split,
            found,
            cases=cases,
            manifest=manifest,
            n_train=n_train,
            n_val=n_val,
            n_test=n_test,
        )
        super().__init__(case_ids=list(self.files), options=options)
        self._cases: dict[Path, dict[str, Any]] = {}
        asked = {"fields": fields, "features": features, "globals": global_names}
        self._asked = {
            group: names and distinct_names(group, names) for group, names in asked.items()
        }
        if fields is not None and not fields:
            raise ValueError("fields is empty; name at least one column to predict")

    def _described(self, index: int) -> tuple[Path, dict[str, Any]]:
        """Return the ``case.json`` of a case and what it says; a sample asks for it twice."""
        path = self.files[self.case_ids[index]]
        if path not in self._cases:
            self._cases[path] = read_case_file(path)
        return path, self._cases[path]

    def open_case(self, index: int) -> TokenTable:
        """Return case `index`; its columns are read when rows are."""
        path, content = self._described(index)
        n_tokens, columns = content["n_tokens"], content["columns"]
        areas = columns["weights"].get(MEASURE)
        present = {**columns["features"], **columns["fields"], **columns["weights"]}
        if areas is not None:
            present.setdefault(AREAS, areas)

        def chosen(
            names: Sequence[str] | None, among: Mapping[str, Any], kind: str = "column"
        ) -> dict[str, Any]:
            for name in names or ():
                if name not in among:
                    raise missing_name(path, kind, name, among)
            return {name: among[name] for name in names or ()}

        def opened(group: str) -> dict[str, np.ndarray]:
            entries = columns[group]
            if self._asked.get(group) is not None:
                entries = chosen(self._asked[group], present)
            return {name: open_column(path.parent, e, n_tokens) for name, e in entries.items()}

        weights = {self.options.weights} - {NO_WEIGHTS, MEASURE}
        weights = chosen(weights, present) | ({} if areas is None else {MEASURE: areas})
        values, asked = content["globals"], self._asked["globals"]
        if asked is not None:
            values = chosen(asked, values, "global value")
        return TokenTable(
            path,
            n_tokens,
            opened("coordinates"),
            opened("fields"),
            features=opened("features"),
            global_values={n: np.asarray(v, dtype=np.float64) for n, v in values.items()},
            association=content["association"],
            weights={n: open_column(path.parent, e, n_tokens) for n, e in weights.items()},
            shuffled=True,
        )

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the prepared case and what it was made from, so that a mesh can be rebuilt."""
        path, content = self._described(index)
        order = path.parent / content["order"]["file"]
        source = {"source": str(path), "layout": "prepared", "order": str(order)}
        return source | {"original": content["original"]}

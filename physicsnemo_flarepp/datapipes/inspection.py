"""What is in files of data, and what it would be taken for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from ..meshes import ASSOCIATIONS, PolygonMesh
from .checks import printable
from .readers import OwnReader
from .readers.base import MEASURE, NO_WEIGHTS, Rowwise
from .readers.case_tables import make_table
from .readers.contents import SUFFIXES, Contents, Wanted, open_file
from .readers.guesses import complete
from .readers.names import Names
from .readers.splits import SPLITS

# Texts that stand for themselves on a command line of Hydra, which has words for other values.
_PLAIN = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/.][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class Found:
    """An array, or a value of the whole case, and what it would be taken for.

    Parameters
    ----------
    name, place, shape, kind : str
        Its name, where it is, its shape, and the type of its numbers.
    values : str
        Its range, and how many of its values are no numbers.
    role : str
        What it would be taken for.
    """

    name: str
    place: str
    shape: str
    kind: str
    values: str
    role: str


def describe_contents(contents: Contents, names: Names | None) -> list[Found]:
    """Return all that a case holds; `names` gives the roles, None where no guess was possible."""
    found = []
    if contents.mesh is not None:
        for place in ASSOCIATIONS:
            for name, array in contents.mesh.data.get(place, {}).items():
                role = _role(names, name) if names and names.association == place else "-"
                found.append(_found(name, f"{place} data", array, role))
    for name, array in contents.arrays.items():
        found.append(_found(name, "array", array, _role(names, name)))
    for name, value in contents.values.items():
        found.append(_found(name, "value of the case", value, _role(names, name)))
    for name, reason in contents.unreadable.items():
        found.append(Found(printable(name), "-", "-", "-", printable(reason), "not read"))
    return found


def _found(name: str, place: str, array: Rowwise, role: str) -> Found:
    values = np.asarray(array[...])
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    text = f"{finite.min():.4g} .. {finite.max():.4g}" if finite.size else "no number"
    if missing := values.size - finite.size:
        text += f", {missing} NaN or infinite"
    shape = " x ".join(map(str, values.shape)) or "1"
    return Found(printable(name), place, shape, str(values.dtype), text, role)


def _role(names: Names | None, name: str) -> str:
    groups = {"coordinates": "coordinates", "features": "input", "fields": "output"}
    for key, role in {**groups, "globals": "input of the case"}.items():
        picks = getattr(names, key) if names is not None else None
        if any(pick.array == name for pick in (picks or {}).values()):
            return role
    return "not used"


def describe_geometry(contents: Contents) -> str:
    """Return a line about the mesh of a case."""
    mesh = contents.mesh
    if mesh is None:
        return "arrays without a mesh"
    kind = "surface of polygons" if isinstance(mesh, PolygonMesh) else f"mesh ({mesh.kind})"
    if mesh.n_cells == 0:
        return f"{len(mesh.points)} points without cells"
    low, high = np.min(mesh.points, axis=0), np.max(mesh.points, axis=0)
    size = " x ".join(f"{extent:.4g}" for extent in high - low)
    return f"{kind}: {mesh.n_cells} cells, {len(mesh.points)} points, size {size}"


@dataclass(frozen=True)
class Inspection:
    """What was found in a file or a folder.

    Parameters
    ----------
    root : Path
        Of the data.
    lines : tuple[str, ...]
        What the files are.
    found : tuple[Found, ...]
        What the first case holds.
    guesses : tuple[str, ...]
        What would be taken for what.
    config : Mapping[str, Any]
        A ``data`` config to start from; empty where no guess was possible.
    """

    root: Path
    lines: tuple[str, ...]
    found: tuple[Found, ...]
    guesses: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)

    def as_yaml(self) -> str:
        """Return the config as a file of the group ``data``."""
        return "defaults:\n  - own\n\n" + OmegaConf.to_yaml(OmegaConf.create(dict(self.config)))

    def overrides(self) -> list[str]:
        """Return the config as arguments of ``flarepp train``."""
        given = [f"data.{key}={as_override(value)}" for key, value in self.config.items()]
        # Experiments, that of a training without one too, measure losses as integrals.
        norm = ["training.norm=tokens"] if self.config.get("weights") == NO_WEIGHTS else []
        return ["data=own", *given, *norm]


def as_override(value: Any) -> str:
    """Return a value as Hydra reads it on a command line.

    Examples
    --------
    >>> print(as_override(["p", "p (Pa)"]))
    [p,"p (Pa)"]
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{as_override(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_override, value)) + "]"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    # Hydra reads backslashes as such, but before a quote and at the end.
    quoted = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + found[2].replace('"', '\\"'), text)
    return f'"{quoted}"'


def inspect_data(path: str | Path) -> Inspection:
    """Return what is in a file or a folder, and a config to start from.

    Parameters
    ----------
    path : str or Path
        A file of one of the known formats, or a folder of cases.
    """
    path = Path(path).expanduser()
    if path.is_file() or path.suffix.lower() in SUFFIXES:
        contents = open_file(path, Wanted())
        names, guesses = _guess(Names(), [contents])
        lines = (f"{printable(path)}: {describe_geometry(contents)}",)
        found = tuple(describe_contents(contents, names))
        return Inspection(path, lines, found, tuple(map(printable, guesses)))
    reader = OwnReader(path)
    first = reader.open_contents(0, Wanted())
    try:
        names, guesses = reader.names, reader.guesses
    except ValueError as error:
        names, guesses = None, [*reader.told, f"no guess: {error}"]
    lines = (
        f"{printable(path)}: first case {reader.case_ids[0]}: {describe_geometry(first)}",
        _describe_splits(path),
    )
    config = {}
    if names is not None:
        given = names.as_config() | {"root": str(path.resolve())}
        keys = ("root", "coordinates", "features", "fields", "globals", "association")
        config = {key: given[key] for key in keys if given[key] is not None}
        if not _has_measure(first, names):
            config["weights"] = NO_WEIGHTS
            guesses = [*guesses, "weights are none: what each point stands for is not known"]
    found = tuple(describe_contents(first, names))
    return Inspection(path, lines, found, tuple(map(printable, guesses)), config)


def _has_measure(contents: Contents, names: Names) -> bool:
    """Return whether the area or volume that each token stands for can be computed."""
    if contents.mesh is not None:
        return contents.mesh.n_cells > 0
    return MEASURE in make_table(contents, names).weights


def _guess(names: Names, cases: Sequence[Contents]) -> tuple[Names | None, list[str]]:
    try:
        return complete(names, cases)
    except ValueError as error:
        return None, [f"no guess: {error}"]


def _describe_splits(path: Path) -> str:
    counts = {}
    for split in SPLITS:
        try:
            counts[split] = len(OwnReader(path, split))
        except (FileNotFoundError, ValueError):
            continue
    return "cases: " + ", ".join(f"{count} {split}" for split, count in counts.items())

"""What is in files of data, what it would be taken for, and whether all cases fit together."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf

from ..meshes import ASSOCIATIONS, PolygonMesh
from ..meshes.measures import EFFECTIVE_MEASURE, MEASURE_NAMES
from ..progress import progress_bar
from .loaders import check_disjoint
from .readers import CaseReader, OwnReader
from .readers.array_files import Rowwise
from .readers.case_files import in_order
from .readers.case_tables import make_table
from .readers.contents import SUFFIXES, Contents, Wanted, is_connectivity, open_file
from .readers.names import MEASURE, NO_WEIGHTS, Names, complete
from .readers.splits import SPLITS
from .sources import DataSource, open_source
from .statistics import OTHER_UNITS, has_same_inputs
from .validation import printable

# Cases of a folder that are read without being asked for all.
_LOOKED_AT = 5
# Cases of the same units whose sizes are further apart tell nothing of larger, and smaller, ones.
_ALIKE, _ALIKE_SMALL = 10, 2
# Texts that stand for themselves on a command line of Hydra, which has words for other values.
_PLAIN = re.compile(r"(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/.][A-Za-z0-9_./-]*")

# Values that are looked at together.
_BLOCK = 2**22


@dataclass(frozen=True)
class Found:
    """An array, or a value of the whole case, and what it would be taken for."""

    name: str
    place: str
    shape: str
    kind: str
    values: str
    role: str


def describe_contents(contents: Contents, names: Names | None) -> list[Found]:
    """Return all that a case holds; `names` gives the roles, None where no guess was possible."""
    found, roles = [], _roles(names)
    if contents.mesh is not None:
        for place in ASSOCIATIONS:
            used = names is not None and names.association == place
            known, other = (roles, "not used") if used else (_roles(None), "-")
            for name, array in contents.mesh.data.get(place, {}).items():
                found.append(_found(name, f"{place} data", array, known.get(name, other)))
    for name, array in contents.arrays.items():
        role = "cells of figures" if is_connectivity(name, array) else roles.get(name, "not used")
        found.append(_found(name, "array", array, role))
    for name, value in contents.values.items():
        found.append(_found(name, "value of the case", value, roles.get(name, "not used")))
    for name, reason in contents.unreadable.items():
        found.append(Found(printable(name), "-", "-", "-", printable(reason), "not read"))
    return found


def _found(name: str, place: str, array: Rowwise, role: str) -> Found:
    low, high, missing = math.inf, -math.inf, 0
    for values in _blocks(array):
        values = values.astype(int) if values.dtype.kind == "b" else values
        finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        missing += values.size - finite.size
        if finite.size:
            low, high = min(low, finite.min()), max(high, finite.max())
    text = f"{low:.4g} .. {high:.4g}" if low <= high else "no number"
    if missing:
        text += f", {missing} NaN or infinite"
    shape = " x ".join(map(str, array.shape)) or "1"
    return Found(printable(name), place, shape, str(array.dtype), text, role)


def _blocks(array: Rowwise) -> Iterator[np.ndarray]:
    """Yield the values of an array, a bounded number at a time."""
    if not array.shape:
        yield np.asarray(array[...])
        return
    rows = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
    for start in range(0, array.shape[0], rows):
        yield np.asarray(array[slice(start, start + rows)])


def _roles(names: Names | None) -> dict[str, str]:
    """Return what arrays are taken for, by their names."""
    roles = dict.fromkeys(MEASURE_NAMES, "weights")
    groups = {"globals": "input of the case", "fields": "output", "features": "input"}
    for key, role in {**groups, "coordinates": "coordinates"}.items():
        picks = getattr(names, key) if names is not None else None
        roles |= {pick.array: role for pick in (picks or {}).values()}
    return roles


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
    """What was found in a file or a folder."""

    root: Path
    lines: tuple[str, ...]
    found: tuple[Found, ...]
    guesses: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    # How many cases were compared, and what is wrong with them.
    problems: tuple[str, ...] = ()

    def as_yaml(self) -> str:
        """Return the config as a file of the group ``data``."""
        text = OmegaConf.to_yaml(OmegaConf.create(dict(self.config)))
        if not text.replace("\n", "").isprintable():  # YAML shows more characters as they are
            text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
        return "defaults:\n  - own\n\n" + text

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
    """Return what is in a file or a folder, and a config to start from."""
    path = Path(path).expanduser()
    if path.is_file() or path.suffix.lower() in SUFFIXES:
        contents = open_file(path, Wanted())
        names, guesses = _guess(Names(), [contents])
        lines = (f"{printable(path)}: {describe_geometry(contents)}",)
        found = tuple(describe_contents(contents, names))
        return Inspection(path, lines, found, tuple(map(printable, guesses)))
    reader = OwnReader(path)
    first = reader.open_contents(0, Wanted())
    config, problems = {}, []
    try:
        names, guesses = reader.names, reader.guesses
    except ValueError as error:
        names, guesses, problems = None, reader.told, [f"problem: {error}"]
    readers = _open_splits(path, names)
    counts = ", ".join(f"{len(found)} {split}" for split, found in readers.items())
    lines = (
        f"{printable(path)}: first case {reader.case_ids[0]}: {describe_geometry(first)}",
        f"cases: {counts}",
    )
    if names is not None:
        problems = _look_at_some(path, readers)
        given = names.as_config() | {"root": str(path.resolve())}
        keys = ("root", "coordinates", "features", "fields", "globals", "association")
        config = {key: given[key] for key in keys if given[key] is not None}
        if not _has_measure(first, names):
            config["weights"] = NO_WEIGHTS
            guesses = [*guesses, "weights are none: what each point stands for is not known"]
    found = tuple(describe_contents(first, names))
    return Inspection(
        path, lines, found, tuple(map(printable, guesses)), config, tuple(map(printable, problems))
    )


def _open_splits(path: Path, names: Names | None) -> dict[str, OwnReader]:
    """Return the readers of the splits that there are, all with the same names."""
    given = {} if names is None else names.as_config()
    readers = {}
    for split in SPLITS:
        try:
            readers[split] = OwnReader(path, split, **given)
        except (FileNotFoundError, ValueError):
            continue
    return readers


def _look_at_some(path: Path, readers: Mapping[str, OwnReader]) -> list[str]:
    """Return what is wrong with the first case, the last and some between, and how many."""
    listed = {case: (r, i) for r in readers.values() for i, case in enumerate(r.case_ids)}
    ids = in_order(listed)
    places = np.linspace(0, len(ids) - 1, min(_LOOKED_AT, len(ids))).round().astype(int)
    chosen = [listed[ids[place]] for place in places]
    problems = [f"problem: {text}" for text in _compare(chosen)]
    if not problems and has_same_inputs(chosen):
        problems.append(
            f"problem: no input differs between these {len(chosen)} cases, so a model would "
            "predict the same for all: name what tells them apart in data.features or data.globals"
        )
    whole = f"; `flarepp inspect --check data=own data.root={path}` reads all"
    return [f"{len(chosen)} of {len(ids)} cases read{whole if len(ids) > len(chosen) else ''}",
            *problems]  # fmt: skip


def _has_measure(contents: Contents, names: Names) -> bool:
    """Return whether the area or volume that each token stands for can be computed."""
    if contents.mesh is not None:
        return contents.mesh.n_cells > 0 or EFFECTIVE_MEASURE in contents.mesh.data["point"]
    return MEASURE in make_table(contents, names).weights


def _guess(names: Names, cases: Sequence[Contents]) -> tuple[Names | None, list[str]]:
    try:
        return complete(names, cases)
    except ValueError as error:
        return None, [f"no guess: {error}"]


@dataclass
class ChannelSizes:
    """Sizes of one channel in all cases, to tell those that are out of scale."""

    sizes: dict[str, float] = field(default_factory=dict)

    def out_of_scale(self) -> Iterable[tuple[str, float, float]]:
        """Return case, size and the median of all, of cases whose size is far from it.

        Where the other cases differ much among themselves, or in sign, it is the quantity that
        varies, not its unit; near 0 it may do so more.
        """
        sizes = {case: abs(size) for case, size in self.sizes.items() if size != 0}
        if len(sizes) < 2 or len({size > 0 for size in self.sizes.values() if size != 0}) > 1:
            return
        median = float(np.median(list(sizes.values())))
        far = {c: s for c, s in sizes.items() if not 1 / OTHER_UNITS < s / median < OTHER_UNITS}
        others = [size for case, size in sizes.items() if case not in far] or [median]
        for case, size in far.items():
            if max(others) <= (_ALIKE if size > median else _ALIKE_SMALL) * min(others):
                yield case, size, median


def check_cases(cfg: Mapping[str, Any], *, progress: bool = True) -> tuple[int, list[str]]:
    """Read all cases of all splits once; return how many there are, and what is wrong with them."""
    cfg = {**dict(cfg), "n_points": None, "n_points_test": None, "num_workers": 0}
    source = open_source(cfg, trust=True)
    problems: list[str] = []
    try:
        train = source.reader("train")
        source = source.with_names(train)
    except (ValueError, OSError) as error:
        return 0, [str(error)]
    readers = {"train": train} | {
        split: reader
        for split in SPLITS[1:]
        if (reader := _reader_of(source, split, problems)) is not None
    }
    try:
        check_disjoint(readers)
    except ValueError as error:
        problems.append(str(error))
    listed = [(reader, index) for reader in readers.values() for index in range(len(reader))]
    problems += _compare(listed, progress=progress)
    return len(listed), list(dict.fromkeys(problems))


def _compare(cases: Sequence[tuple[CaseReader, int]], *, progress: bool = False) -> list[str]:
    """Read cases and return what is wrong with each, and which differ from most others."""
    problems: list[str] = []
    channels: dict[tuple[str, str], ChannelSizes] = {}
    files: dict[str, str] = {}
    kinds: dict[str, dict[str, Any]] = {}
    with progress_bar("check", len(cases), progress) as advance:
        for reader, index in cases:
            # Which case is the odd one is told when all were read.
            reader.forget_common()
            try:
                sample, metadata = reader[index]
            except (ValueError, OSError) as error:
                problems.append(str(error))
            else:
                case = metadata["case_id"]
                files[case] = _blamed(metadata)
                kinds[case] = _kind(sample, metadata)
                for key, name, size in _channel_sizes(sample, metadata):
                    channels.setdefault((key, name), ChannelSizes()).sizes[case] = size
            advance()
    for (key, name), channel in channels.items():
        known = {"coordinates": "size along", "globals": "value of"}
        what = known.get(key, f"largest value of {key}")
        for case, size, median in channel.out_of_scale():
            problems.append(
                f"{files[case]}: case {case} has {size:.4g} as the {what} {name}, the median of "
                f"all cases is {median:.4g}: {_factor(size / median)}. Is this case in "
                "different units?"
            )
    return [
        *problems, *_different_kinds(kinds, files), *_different_dimensions(channels, files)
    ]  # fmt: skip


def _blamed(metadata: Mapping[str, Any]) -> str:
    """Return the file of a case; of a set whose arrays are in several files, their folder."""
    source, files = str(metadata["source"]), metadata.get("files", ())
    own = len(files) < 2 or metadata["case_id"] in source
    return source if own else os.path.commonpath(files)


def _reader_of(source: DataSource, split: str, problems: list[str]) -> CaseReader | None:
    try:
        return source.find_reader(split)
    except (ValueError, OSError) as error:
        problems.append(str(error))
        return None


def _channel_sizes(
    sample: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Iterable[tuple[str, str, float]]:
    """Return the extent of each coordinate, each global, and the largest of other values."""
    named = {
        "coordinates": "xyz",
        "features": metadata["feature_names"],
        "fields": metadata["field_names"],
        "globals": metadata["global_names"],
    }
    for key, names in named.items():
        if key not in sample.keys() or sample[key].numel() == 0:
            continue
        values = sample[key].double().reshape(-1, sample[key].shape[-1])
        sizes = values.abs().amax(0)
        if key == "coordinates":
            sizes = values.amax(0) - values.amin(0)
        elif key == "globals":
            sizes = values[0]
        yield from ((key, name, size.item()) for name, size in zip(names, sizes, strict=False))


def _kind(sample: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same in all cases."""
    named = {key: tuple(metadata[f"{key[:-1]}_names"]) for key in ("fields", "features", "globals")}
    dimension = sample["coordinates"].shape[-1]
    return {"association": metadata["association"], "dimension": dimension, **named}


def _different_kinds(
    kinds: Mapping[str, Mapping[str, Any]], files: Mapping[str, str]
) -> Iterable[str]:
    """Return the cases that differ from most others in channels, dimension or association."""
    for what in next(iter(kinds.values()), {}):
        found = Counter(kind[what] for kind in kinds.values())
        usual, count = found.most_common(1)[0]
        for case, kind in kinds.items():
            if kind[what] != usual:
                yield (
                    f"{files[case]}: {what} is {_listed(kind[what])}, but {_listed(usual)} in "
                    f"{count} of {len(kinds)} cases; all cases of a set need the same"
                )


def _listed(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _factor(ratio: float) -> str:
    power = round(math.log10(ratio))
    return f"a factor of 10^{power}"


def _different_dimensions(
    channels: Mapping[tuple[str, str], ChannelSizes], files: Mapping[str, str]
) -> list[str]:
    """Return the cases that are flat where most others are not, or the other way round."""
    problems = []
    for (key, name), channel in channels.items():
        if key != "coordinates" or len(channel.sizes) < 2:
            continue
        flat = [case for case, size in channel.sizes.items() if size == 0]
        others = [case for case in channel.sizes if case not in flat]
        if flat and others:
            odd = flat if len(flat) <= len(others) else others
            state = "is flat" if odd is flat else "is not flat"
            problems += [
                f"{files[case]}: case {case} {state} along {name} (extent "
                f"{channel.sizes[case]:.4g}), unlike {len(channel.sizes) - len(odd)} others: "
                "meshes of different dimension"
                for case in odd
            ]
    return problems

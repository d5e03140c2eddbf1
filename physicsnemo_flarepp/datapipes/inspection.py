"""What is in files of data, what it would be taken for, and whether all cases fit together."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf

from ..meshes import ASSOCIATIONS, PolygonMesh
from ..meshes.measures import EFFECTIVE_MEASURE, MEASURE_NAMES
from ..progress import progress_bar
from .channels import zero_fields
from .loaders import check_disjoint
from .readers import CaseReader, OwnReader
from .readers.array_files import Rowwise
from .readers.case_files import in_order
from .readers.case_tables import make_table
from .readers.contents import SUFFIXES, Contents, Wanted, is_connectivity, open_file
from .readers.names import MEASURE, NAMES, NO_WEIGHTS, Names, complete
from .readers.splits import SPLITS
from .sources import open_source
from .statistics import OTHER_UNITS, has_same_inputs
from .validation import printable

# Cases of a folder that are read without being asked for all.
_LOOKED_AT = 5
# Where other cases differ by more than these factors, a larger, or smaller, one says nothing about
# units.
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


@dataclass(frozen=True)
class Inspection:
    """What was found in a file or a folder."""

    lines: Sequence[str]
    found: Sequence[Found]
    guesses: Sequence[str]
    config: Mapping[str, Any] = field(default_factory=dict)
    # How many cases were compared, and what is wrong with them.
    problems: Sequence[str] = ()

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
    """Return a value as Hydra reads it on a command line."""
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
        try:
            names, guesses = complete(Names(), [contents])
        except ValueError as error:
            names, guesses = None, [f"no guess: {error}"]
        lines = [f"{printable(path)}: {_describe_geometry(contents)}"]
        return Inspection(lines, _describe(contents, names), [printable(text) for text in guesses])
    reader = OwnReader(path)
    first = reader.open_contents(0, Wanted())
    config, problems = {}, []
    try:
        names, guesses = reader.names, reader.guesses
    except ValueError as error:
        names, guesses, problems = None, reader.told, [f"problem: {error}"]
    given = {} if names is None else names.as_config()
    readers = {}
    for split in SPLITS:
        try:
            readers[split] = OwnReader(path, split, **given)
        except (FileNotFoundError, ValueError):
            continue
    counts = ", ".join(f"{len(found)} {split}" for split, found in readers.items())
    about = f"first case {reader.case_ids[0]}: {_describe_geometry(first)}"
    if names is not None:
        problems = _look_at_some(path, readers)
        given["root"] = str(path.resolve())
        config = {key: given[key] for key in ("root", *NAMES) if given[key] is not None}
        if not _has_measure(first, names):
            config["weights"] = NO_WEIGHTS
            guesses = [*guesses, "weights are none: the area or volume of each point is not known"]
    return Inspection(
        [f"{printable(path)}: {about}", f"cases: {counts}"],
        _describe(first, names),
        [printable(text) for text in guesses],
        config,
        [printable(text) for text in problems],
    )


def _describe(contents: Contents, names: Names | None) -> list[Found]:
    """Return all that a case holds; `names` gives the roles, None where no guess was possible."""
    weights = dict.fromkeys(MEASURE_NAMES, "weights")
    roles, found = dict(weights), []
    groups = {"globals": "input of the case", "fields": "output", "features": "input"}
    for key, role in {**groups, "coordinates": "coordinates"}.items():
        picks = getattr(names, key, None) or {}
        roles |= {pick.array: role for pick in picks.values()}
    for place in ASSOCIATIONS if contents.mesh is not None else ():
        used = names is not None and names.association == place
        known, other = (roles, "not used") if used else (weights, "-")
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
    rows = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
    starts = range(0, array.shape[0], rows) if array.shape else ()
    for part in [slice(start, start + rows) for start in starts] if array.shape else [...]:
        values = np.asarray(array[part])
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


def _describe_geometry(contents: Contents) -> str:
    """Return a line about the mesh of a case."""
    mesh = contents.mesh
    if mesh is None:
        return "arrays without a mesh"
    kind = "surface of polygons" if isinstance(mesh, PolygonMesh) else f"mesh ({mesh.kind})"
    if mesh.n_cells == 0:
        return f"{len(mesh.points)} points without cells"
    size = " x ".join(f"{extent:.4g}" for extent in np.ptp(mesh.points, axis=0))
    return f"{kind}: {mesh.n_cells} cells, {len(mesh.points)} points, size {size}"


def _has_measure(contents: Contents, names: Names) -> bool:
    """Return whether the area or volume that each token stands for can be computed."""
    if contents.mesh is not None:
        return contents.mesh.n_cells > 0 or EFFECTIVE_MEASURE in contents.mesh.data["point"]
    return MEASURE in make_table(contents, names).weights


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
    count = f"{len(chosen)} of {len(ids)} cases read"
    if len(ids) > len(chosen):
        count += f"; `flarepp inspect --check data=own data.root={path}` reads all"
    return [count, *problems]


def check_cases(cfg: Mapping[str, Any], *, progress: bool = True) -> tuple[int, list[str]]:
    """Read all cases of all splits once; return how many there are, and what is wrong with them."""
    cfg = {**dict(cfg), "n_points": None, "n_points_test": None, "num_workers": 0}
    source = open_source(cfg, trust=True)
    try:
        readers = {"train": source.reader("train")}
        source = source.with_names(readers["train"])
    except (ValueError, OSError) as error:
        return 0, [str(error)]
    problems: list[str] = []
    for split in SPLITS[1:]:
        try:
            reader = source.find_reader(split)
        except (ValueError, OSError) as error:
            problems.append(str(error))
        else:
            readers |= {} if reader is None else {split: reader}
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
    # By channel, the size of it in each case.
    channels: dict[tuple[str, str], dict[str, float]] = {}
    files: dict[str, str] = {}
    kinds: dict[str, dict[str, Any]] = {}
    widths: dict[CaseReader, Mapping[str, int]] = {}
    with progress_bar("check", len(cases), progress) as advance:
        for reader, index in cases:
            # Which case is the odd one is known when all were read.
            reader.common.clear()
            try:
                sample, metadata = reader[index]
            except (ValueError, OSError) as error:
                problems.append(str(error))
            else:
                case = metadata["case_id"]
                files[case] = _blamed(metadata)
                if reader not in widths:
                    widths[reader] = reader.case(index).widths()["fields"]
                joint = " or set training.field_norms=joint" * (len(widths[reader]) > 1)
                problems += [
                    f"{files[case]}: {name} of case {case} is 0 everywhere, so its relative error "
                    f"is undefined: leave the case out{joint}"
                    for name in zero_fields(sample.get("fields"), widths[reader])
                ]
                named = {k: metadata[f"{k[:-1]}_names"] for k in ("fields", "features", "globals")}
                for key, name, size in _channel_sizes(sample, {"coordinates": "xyz", **named}):
                    channels.setdefault((key, name), {})[case] = size
                dimension = sample["coordinates"].shape[-1]
                kinds[case] = {"association": metadata["association"], "dimension": dimension}
                kinds[case] |= {key: tuple(names) for key, names in named.items()}
            advance()
    for (key, name), sizes in channels.items():
        known = {"coordinates": "size along", "globals": "value of"}
        what = known.get(key, f"largest value of {key}")
        problems += [
            f"{files[case]}: case {case} has {size:.4g} as the {what} {name}, the median of all "
            f"cases is {median:.4g}: a factor of 10^{round(math.log10(size / median))}. Is this "
            "case in different units?"
            for case, size, median in _out_of_scale(sizes)
        ]
    for what in next(iter(kinds.values()), {}):
        usual, count = Counter(kind[what] for kind in kinds.values()).most_common(1)[0]
        problems += [
            f"{files[case]}: {what} is {_listed(kind[what])}, but {_listed(usual)} in {count} of "
            f"{len(kinds)} cases; all cases of a set need the same"
            for case, kind in kinds.items()
            if kind[what] != usual
        ]
    for (key, name), sizes in channels.items():
        flat = [case for case, size in sizes.items() if size == 0]
        others = [case for case in sizes if case not in flat]
        if key == "coordinates" and flat and others:
            odd = flat if len(flat) <= len(others) else others
            problems += [
                f"{files[case]}: case {case} is {'' if odd is flat else 'not '}flat along {name} "
                f"(extent {sizes[case]:.4g}), unlike {len(sizes) - len(odd)} others: meshes of "
                "different dimension"
                for case in odd
            ]
    return problems


def _listed(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _blamed(metadata: Mapping[str, Any]) -> str:
    """Return the file of a case; of a set whose arrays are in several files, their folder."""
    source, files = str(metadata["source"]), metadata.get("files", ())
    own = len(files) < 2 or metadata["case_id"] in source
    return source if own else os.path.commonpath(files)


def _channel_sizes(
    sample: Mapping[str, Any], named: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, float]]:
    """Yield the extent of each coordinate, each global, and the largest of other values."""
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


def _out_of_scale(sizes: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield case, size and median of sizes far from the median, unless others vary much as well."""
    present = {case: abs(size) for case, size in sizes.items() if size != 0}
    if len(present) < 2 or len({size > 0 for size in sizes.values() if size != 0}) > 1:
        return
    median = float(np.median(list(present.values())))
    far = {c: s for c, s in present.items() if not 1 / OTHER_UNITS < s / median < OTHER_UNITS}
    others = [size for case, size in present.items() if case not in far] or [median]
    for case, size in far.items():
        if max(others) <= (_ALIKE if size > median else _ALIKE_SMALL) * min(others):
            yield case, size, median

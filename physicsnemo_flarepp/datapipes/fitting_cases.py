"""Whether all cases of a config fit together: read once, with what is wrong by file and case."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..progress import progress_bar
from .loaders import check_disjoint
from .readers import CaseReader
from .readers.splits import SPLITS
from .sources import DataSource, open_source
from .statistics import OTHER_UNITS


@dataclass
class Channel:
    """Sizes of one channel in all cases, to tell those that are out of scale."""

    sizes: dict[str, float] = field(default_factory=dict)

    def out_of_scale(self) -> Iterable[tuple[str, float, float]]:
        """Return case, size and the median of all, of cases whose size is far from it."""
        positive = {case: size for case, size in self.sizes.items() if size > 0}
        if len(positive) < 2:
            return
        median = float(np.median(list(positive.values())))
        for case, size in positive.items():
            if not 1 / OTHER_UNITS < size / median < OTHER_UNITS:
                yield case, size, median


def check_cases(cfg: Mapping[str, Any], *, progress: bool = True) -> tuple[int, list[str]]:
    """Read all cases of all splits once; return how many there are, and what is wrong with them.

    Parameters
    ----------
    cfg : Mapping
        See :class:`~.config.LoaderConfig`.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    """
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
    channels: dict[tuple[str, str], Channel] = {}
    files: dict[str, str] = {}
    kinds: dict[str, dict[str, Any]] = {}
    listed = [(reader, index) for reader in readers.values() for index in range(len(reader))]
    with progress_bar("check", len(listed), progress) as advance:
        for reader, index in listed:
            # Which case is the odd one is told when all were read.
            reader.forget_common()
            try:
                sample, metadata = reader[index]
            except (ValueError, OSError) as error:
                problems.append(str(error))
            else:
                case = metadata["case_id"]
                files[case] = str(metadata["source"])
                kinds[case] = _kind(sample, metadata)
                for key, name, size in _channel_sizes(sample, metadata):
                    channels.setdefault((key, name), Channel()).sizes[case] = size
            advance()
    for (key, name), channel in channels.items():
        what = "size along" if key == "coordinates" else f"largest value of {key}"
        for case, size, median in channel.out_of_scale():
            problems.append(
                f"{files[case]}: case {case} has {size:.4g} as the {what} {name}, the median of "
                f"all cases is {median:.4g}: {_factor(size / median)}. Is this case in different "
                "units?"
            )
    problems += [*_different_kinds(kinds, files), *_different_dimensions(channels, files)]
    return len(listed), list(dict.fromkeys(problems))


def _reader_of(source: DataSource, split: str, problems: list[str]) -> CaseReader | None:
    try:
        return source.find_reader(split)
    except (ValueError, OSError) as error:
        problems.append(str(error))
        return None


def _channel_sizes(
    sample: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Iterable[tuple[str, str, float]]:
    """Return the extent of each coordinate and the largest value of each other channel."""
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
        sizes = values.amax(0) - values.amin(0) if key == "coordinates" else values.abs().amax(0)
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
                    f"{files[case]}: {what} is {_plain(kind[what])}, but {_plain(usual)} in "
                    f"{count} of {len(kinds)} cases; all cases of a set need the same"
                )


def _plain(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _factor(ratio: float) -> str:
    power = round(math.log10(ratio))
    return f"a factor of 10^{power}"


def _different_dimensions(
    channels: Mapping[tuple[str, str], Channel], files: Mapping[str, str]
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

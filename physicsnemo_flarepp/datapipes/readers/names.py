"""Which arrays of a case are its coordinates, features, fields and globals, as a config says it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...meshes import ASSOCIATIONS
from ...meshes.measures import MEASURE_NAMES
from ..specs import TABLE_NAMES
from .base import MEASURE, NO_WEIGHTS, distinct_names
from .contents import Contents, is_connectivity

# Coordinates of arrays that form a grid and come with none: its indices, scaled to [0, 1].
GRID = "grid"
_PICK = re.compile(r"(?P<array>.+?)\[(?P<start>\d*)(?P<range>:)?(?P<stop>\d*)\]")


@dataclass(frozen=True)
class Pick:
    """An array, or some of its columns.

    Examples
    --------
    >>> Pick.parse("surface_fields[1:4]")
    Pick(array='surface_fields', columns=slice(1, 4, None))
    """

    array: str
    columns: slice | None = None

    @classmethod
    def parse(cls, text: str) -> "Pick":
        """Return what ``name``, ``name[2]`` or ``name[1:4]`` stands for."""
        found = _PICK.fullmatch(str(text))
        if found is None:
            return cls(str(text))
        start, stop = (int(found[key]) if found[key] else None for key in ("start", "stop"))
        if found["range"] is None:
            if start is None:
                raise ValueError(f"{text!r} picks no column; write name[0] or name[1:4]")
            return cls(found["array"], slice(start, start + 1))
        return cls(found["array"], slice(start, stop))

    def __str__(self) -> str:
        """Return the text that :meth:`parse` takes."""
        if self.columns is None:
            return self.array
        start, stop = self.columns.start, self.columns.stop
        if start is not None and stop == start + 1:
            return f"{self.array}[{start}]"
        return f"{self.array}[{'' if start is None else start}:{'' if stop is None else stop}]"

    def width(self, width: int) -> int:
        """Return how many of `width` columns are picked."""
        return len(range(width)[self.columns or slice(None)])


def parse_names(argument: str, given: Any) -> dict[str, Pick] | None:
    """Return {name: pick} of a name, a list of names, or {name: array with columns}; None of None.

    Examples
    --------
    >>> parse_names("fields", ["p", "f[0]"])
    {'p': Pick(array='p', columns=None), 'f_0': Pick(array='f', columns=slice(0, 1, None))}
    >>> parse_names("fields", {"shear": "surface_fields[1:4]"})
    {'shear': Pick(array='surface_fields', columns=slice(1, 4, None))}
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {str(name): Pick.parse(text) for name, text in given.items()}
    texts = [given] if isinstance(given, str) else [str(text) for text in given]
    named = [(re.sub(r"\W+", "_", t).strip("_") if _PICK.fullmatch(t) else t, t) for t in texts]
    distinct_names(argument, [name for name, _ in named])
    return {name: Pick.parse(text) for name, text in named}


def _as_config(picks: Mapping[str, Pick]) -> list[str] | dict[str, str]:
    """Return what :func:`parse_names` reads, a list where no array is renamed."""
    if all(name == str(pick) for name, pick in picks.items()):
        return list(picks)
    return {name: str(pick) for name, pick in picks.items()}


@dataclass(frozen=True)
class Names:
    """What the arrays of a case are taken for."""

    coordinates: Mapping[str, Pick] | None = None
    features: Mapping[str, Pick] | None = None
    fields: Mapping[str, Pick] | None = None
    globals: Mapping[str, Pick] | None = None
    association: str | None = None
    weights: str = NO_WEIGHTS
    grid: tuple[int, ...] | None = None

    @classmethod
    def parse(
        cls,
        *,
        coordinates: Any = None,
        features: Any = None,
        fields: Any = None,
        globals: Any = None,
        association: str | None = None,
        weights: str = NO_WEIGHTS,
        grid: Sequence[int] | None = None,
    ) -> "Names":
        """Return the names of a config; see :func:`parse_names`."""
        place = None if association in (None, "auto") else str(association).removesuffix("s")
        if place is not None and place not in ASSOCIATIONS:
            raise ValueError(
                f"data.association is {association!r}, expected 'cells', 'points' or 'auto'"
            )
        named = parse_names("fields", fields)
        if named is not None and not named:
            raise ValueError("data.fields is empty; name at least one array to predict")
        return cls(
            {} if coordinates == GRID else parse_names("coordinates", coordinates),
            parse_names("features", features),
            named,
            parse_names("globals", globals),
            place,
            weights,
            None if grid is None else tuple(grid),
        )

    def as_config(self) -> dict[str, Any]:
        """Return the values of a config that :meth:`parse` takes, None for what is not known."""
        coordinates = None
        if self.coordinates is not None:
            coordinates = _as_config(self.coordinates) or GRID
        return {
            "coordinates": coordinates,
            **{
                key: None if (picks := getattr(self, key)) is None else _as_config(picks)
                for key in ("features", "fields", "globals")
            },
            "association": self.association and f"{self.association}s",
        }

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to guess but coordinates, which a mesh has."""
        return None not in (self.features, self.fields, self.globals)

    def stored(self) -> set[str] | None:
        """Return the names of all arrays that are used, None if they are not known yet."""
        if not self.is_complete:
            return None
        groups = (self.coordinates or {}, self.features, self.fields, self.globals)
        names = {pick.array for picks in groups for pick in picks.values()}
        return names | ({self.weights} - {NO_WEIGHTS, MEASURE}) | set(MEASURE_NAMES)

    def unused(self, contents: Contents) -> dict[str, str]:
        """Return what a case holds and these names leave unused, with where it is."""
        used = self.stored() or set(MEASURE_NAMES)
        used |= {TABLE_NAMES[name][0] for name in used if name in TABLE_NAMES}
        used |= {name for name, array in contents.arrays.items() if is_connectivity(name, array)}
        return {name: place for name, place in contents.names().items() if name not in used}

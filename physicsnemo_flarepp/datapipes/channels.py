"""What the channels of a model mean: names and widths of fields, features and globals."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tensordict import TensorDict

from ..files import Fingerprint, replace_text
from ..meshes import ASSOCIATIONS
from .readers import CaseReader
from .readers.case_tables import channel_names, parameter_names
from .readers.names import NO_WEIGHTS

FILE_NAME = "channels.json"
# Layouts that store cell centres: their tokens are the cells of a mesh.
_CELL_CENTRE_LAYOUTS = ("presampled", "zarr")


def _transformed(key: str, widths: Mapping[str, int], sample: TensorDict) -> dict[str, int]:
    """Return the columns of a group after transforms; names are kept if the width is."""
    width = sample[key].shape[-1] if key in sample.keys() else 0
    if width == sum(widths.values()):
        return dict(widths)
    return {key: width} if width else {}


@dataclass(frozen=True)
class Channels:
    """Columns of a data set by name, with their widths, in the order of the channels.

    `coordinates` is the dimension of the points, `association` what a token is on a mesh (``point``
    or ``cell``), `grid` the shape of a structured grid of tokens. With `joint`, errors are measured
    in one norm over all fields (``training.field_norms``). `weights` is ``data.weights``.

    Examples
    --------
    >>> channels = Channels(3, {"p": 1, "shear": 3}, {}, {}, "cell")
    >>> channels.field_names, channels.columns("shear")
    (('p', 'shear_x', 'shear_y', 'shear_z'), slice(1, 4, None))
    """

    coordinates: int
    fields: Mapping[str, int]
    features: Mapping[str, int]
    globals: Mapping[str, int]
    association: str
    grid: tuple[int, ...] | None = None
    joint: bool = False
    weights: str = NO_WEIGHTS

    @classmethod
    def of_reader(cls, reader: CaseReader, *, joint: bool = False) -> "Channels":
        """Return the channels of the cases of `reader`; opens the first one."""
        table = reader.case(0)
        widths = table.widths()
        dimension = sum(widths["coordinates"].values())
        groups = {key: widths[key] for key in ("fields", "features", "globals")}
        if reader.transforms:
            sample = reader[0][0]
            dimension = sample["coordinates"].shape[-1]
            groups = {key: _transformed(key, named, sample) for key, named in groups.items()}
        centres = getattr(reader, "layout", None) in _CELL_CENTRE_LAYOUTS
        return cls(
            dimension,
            *groups.values(),
            "cell" if centres else table.association,
            None if reader.grid is None else tuple(reader.grid),
            joint,
            reader.options.weights,
        )

    @property
    def norms(self) -> dict[str, int]:
        """Number of channels of each error: one per field, or one over all fields."""
        if self.joint:
            return {" ".join(self.fields): sum(self.fields.values())}
        return dict(self.fields)

    @property
    def field_names(self) -> tuple[str, ...]:
        """One name per channel of the fields."""
        return tuple(channel_names(self.fields))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per channel of the features."""
        return tuple(channel_names(self.features))

    @property
    def global_names(self) -> tuple[str, ...]:
        """One name per channel of the globals."""
        return tuple(parameter_names(self.globals))

    def columns(self, field: str) -> slice:
        """Return which channels of the fields belong to `field`."""
        names = list(self.fields)
        if field not in names:
            raise ValueError(f"field {field!r} is not among the fields {names}; name one of them")
        start = sum(list(self.fields.values())[: names.index(field)])
        return slice(start, start + self.fields[field])

    def save(self, directory: str | Path) -> Fingerprint:
        """Write ``channels.json`` to a run directory."""
        return replace_text(Path(directory) / FILE_NAME, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path) -> "Channels":
        """Return the channels that :meth:`save` wrote to a run directory."""
        path = Path(directory) / FILE_NAME
        try:
            stored = json.loads(path.read_bytes())
            for name in ("fields", "features", "globals"):
                if not all(type(width) is int and width > 0 for width in stored[name].values()):
                    raise ValueError(f"the widths of {name} are {stored[name]}")
            grid = stored.pop("grid")
            channels = cls(**stored, grid=None if grid is None else tuple(grid))
            if not isinstance(channels.weights, str):
                raise ValueError(f"the weights are {channels.weights!r}")
            if type(channels.coordinates) is not int or channels.association not in ASSOCIATIONS:
                raise ValueError(
                    f"coordinates are {channels.coordinates!r} and the association is "
                    f"{channels.association!r}"
                )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path} cannot be used ({type(error).__name__}: {error}); restore it from a copy "
                "of the run, or train again"
            ) from error
        return channels

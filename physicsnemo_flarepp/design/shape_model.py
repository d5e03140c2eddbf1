"""A trained run as a function of the vertices of a surface, with exact derivatives."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..datapipes import Normalizer
from ..datapipes.channels import Channels
from ..datapipes.readers.base import MEASURE, NO_WEIGHTS
from ..datapipes.readers.case_tables import TO_BODY
from ..datapipes.readers.contents import MESH_FILES
from ..datapipes.readers.names import Pick
from ..evaluation import ForceSettings, Run, load_sums
from ..evaluation.bounds import Bounds, Promise, stored_bounds
from ..evaluation.file_predictions import open_for_run, surface_doubts
from ..evaluation.forces import force_surface
from ..evaluation.predictions import state_features
from ..inference import encode_state, predict
from ..inference.prediction import unwrap
from ..inference.streams import map_unnamed_file
from ..meshes import PolygonMesh
from ..meshes.geometry import SurfaceTensors, frontal_area, surface_tensors
from ..meshes.measures import clashing_edges, facing, open_edges
from ..meshes.polygons import select_polygons
from ..runs.samples import GlobalValues, input_sample
from ..training import streamed_gradients

# Cells whose geometry is differentiated at a time.
_CHUNK = 2**16
# Inputs computed here and by the readers may differ by rounding in single precision.
_SAME = 1e-5
# Cells below this share of the mean area have no normal to speak of.
_NO_AREA = 1e-9
# In the order of evaluation.load_sums.
FORCES = ("drag", "side", "lift")
# What a quantity knows of each token: outward area vector, area, whether it is in the region.
VECTORS, AREA, INSIDE = slice(0, 3), 3, 4


Box = tuple[float, float, float, float, float, float]


@dataclass
class Quantities:
    """An objective of ``streamed_gradients``; after a pass, `found` has every quantity by name."""

    channels: Channels
    normalizer: Normalizer
    settings: ForceSettings | None
    reference_area: float
    weights: Mapping[str, float]
    found: dict[str, float] = field(default_factory=dict)

    def sums(
        self, prediction: Float[Tensor, "B n O"], target: Float[Tensor, "B n 5"], rows: Sequence
    ) -> Float[Tensor, "B k"]:
        """Return forces over the dynamic pressure, integrals of the channels, and the area."""
        columns, settings = self.channels.columns, self.settings
        fields = self.normalizer.inverse(prediction).to(target.dtype)
        inside = target[..., AREA] * target[..., INSIDE]
        integrals = [(inside[..., None] * fields).sum(-2), inside.sum(-1, keepdim=True)]
        if settings is None:
            return torch.cat(integrals, -1)
        shear = None if settings.shear is None else fields[..., columns(settings.shear)]
        pressure = fields[..., columns(settings.pressure)][..., 0]
        parts = load_sums(target[..., VECTORS], target[..., AREA], pressure, shear, settings)
        return torch.cat([parts[0] if shear is None else parts[0] + parts[1], *integrals], -1)

    def value(self, sums: Float[Tensor, "B k"]) -> Float[Tensor, ""]:
        """Return the weighted sum."""
        values = self.named(sums)
        self.found = {name: value.item() for name, value in values.items()}
        return sum(weight * values[name] for name, weight in self.weights.items())

    def named(self, sums: Float[Tensor, "B k"]) -> dict[str, Tensor]:
        """Return every quantity by name."""
        names = self.channels.field_names
        averages = sums[0, -1 - len(names) : -1] / sums[0, -1]
        values = dict(zip(names, averages, strict=True))
        if self.settings is not None:
            values |= zip(FORCES, sums[0, :3] / self.reference_area, strict=True)
        return values


@dataclass(frozen=True)
class ShapeModel:
    """Quantities of a surface as a run predicts them, as a function of its vertices.

    Made by :func:`open_shape`. `sample` has the inputs of the given shape, of which stored features
    and globals are held; `outward` is -1 where cells face inward; `inside` marks the tokens that
    fields are averaged over.
    """

    run: Run
    mesh: PolygonMesh
    sample: Mapping[str, Tensor]
    settings: ForceSettings | None
    reference_area: float
    moving_area: bool
    outward: float
    inside: Float[Tensor, " N"]
    warnings: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    scratch: str | os.PathLike | None = None
    progress: bool = False

    @property
    def points(self) -> Float[Tensor, "P 3"]:
        """Vertices of the given shape."""
        return torch.as_tensor(np.asarray(self.mesh.points, dtype=np.float64))

    def in_double(self) -> "ShapeModel":
        """Return the same in double precision, which finite differences need."""
        run = replace(self.run, model=deepcopy(self.run.model).double())
        return replace(self, run=run, dtype=torch.float64)

    @cached_property
    def bounds(self) -> Bounds | str:
        """Bounds of the run, or why it has none."""
        return stored_bounds([self.run])

    @torch.no_grad()
    def promise(self, points: Float[Tensor, "P 3"], level: float | None = None) -> Promise:
        """Return what bounds promise of the shape with these vertices, as of a file."""
        if isinstance(self.bounds, str):
            return Promise.of(self.bounds, None, {}, level)
        arguments, _ = self._gathered(points)
        state = encode_state(self.run.model, **arguments, **self._streaming)
        raw = self.raw_sample(points, slice(0, len(self.inside)))[0]
        sample = self.run.transform(raw)
        moved = replace(self.mesh, points=points.numpy())
        doubt = surface_doubts(self.run, moved, self.run.channels.association, sample, 1.0)[1]
        doubt = doubt or self.run.parameter_warning(sample)
        return Promise.of(self.bounds, state_features(state), sample, level, doubt)

    def values(self, points: Float[Tensor, "P 3"]) -> dict[str, float]:
        """Return every quantity of the shape with these vertices."""
        arguments, target = self._gathered(points)
        fields = predict(self.run.model, **arguments, **self._streaming)
        quantities = self._quantities(points, {})
        found = quantities.named(quantities.sums(fields.to(target.device), target, ()))
        return {name: value.item() for name, value in found.items()}

    def gradient(
        self, points: Float[Tensor, "P 3"], weights: Mapping[str, float]
    ) -> tuple[dict[str, float], Float[Tensor, "P 3"]]:
        """Return every quantity, and the derivative of a weighted sum of them by each vertex.

        One forward and one reverse pass, in the memory of a chunk and of the result, beyond what
        waits in `scratch` (a folder) or on the host: hidden states, inputs and their gradients.
        """
        arguments, target = self._gathered(points)
        quantities = self._quantities(points, weights)
        wanted = [name for name in arguments if arguments[name].shape[1] == target.shape[1]]
        wanted.append("target")
        sizes = {name: arguments.get(name, target) for name in wanted}
        out = {name: self._room(value.shape, value.dtype) for name, value in sizes.items()}
        _, found = streamed_gradients(
            self.run.model,
            arguments["fx"],
            arguments.get("embedding"),
            quantities,
            token_weights=arguments["token_weights"],
            target=target,
            wanted=wanted,
            out=out,
            **self._streaming,
        )
        del arguments, target, sizes, out
        total = torch.zeros_like(points)
        for rows in self.parts():
            leaf = points.detach().requires_grad_()
            outputs, target = self._inputs(leaf, rows)
            outputs["target"] = target
            tensors = [outputs[name] for name in wanted]
            above = [found[name][:, rows].to(outputs[name].dtype) for name in wanted]
            total += torch.autograd.grad(tensors, leaf, above)[0]
        if self.moving_area:
            leaf = points.detach().requires_grad_()
            area = self._frontal_area(leaf)
            forces = sum(w * quantities.found[n] for n, w in weights.items() if n in FORCES)
            total -= torch.autograd.grad(area, leaf)[0] * (forces / area.item())
        return quantities.found, total

    def _quantities(self, points: Tensor, weights: Mapping[str, float]) -> Quantities:
        run = self.run
        area = self._frontal_area(points).item() if self.moving_area else self.reference_area
        normalizer = deepcopy(run.normalizer).to(run.device)
        return Quantities(run.channels, normalizer, self.settings, area, weights)

    def _frontal_area(self, points: Tensor) -> Tensor:
        return frontal_area(points, self.mesh, np.array(self.settings.drag_axis))

    def parts(self) -> Iterator[slice]:
        """Yield the rows of tokens whose inputs depend on no other token."""
        n = len(self.inside)
        alone = self.run.channels.association == "cell" and not self.run.data.get("transforms")
        size = _CHUNK if alone else n
        return (slice(start, min(start + size, n)) for start in range(0, n, size))

    @torch.no_grad()
    def _gathered(self, points: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the arguments of the model and what quantities know, of all tokens."""
        found: dict[str, Tensor] = {}
        shares_fx = "globals" in self.sample and not self.run.model.unified_pos
        for rows in self.parts():
            inputs, target = self._inputs(points, rows)
            for name, value in (*inputs.items(), ("target", target)):
                if name == "fx" and shares_fx:  # one row of globals for all tokens
                    found[name] = value
                    continue
                shape = (1, len(self.inside), *value.shape[2:])
                if name not in found:
                    found[name] = self._room(shape, value.dtype)
                found[name][:, rows] = value
        target = found.pop("target")
        return found, target

    @property
    def _streaming(self) -> dict[str, object]:
        return {"offload": self.scratch or "cpu", "progress": self.progress}

    def _room(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an array of the size of the mesh, in the scratch folder if there is one."""
        if self.scratch is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return map_unnamed_file(Path(self.scratch), math.prod(shape), dtype).view(tuple(shape))

    def _inputs(self, points: Tensor, rows: slice) -> tuple[dict[str, Tensor], Tensor]:
        """Return the arguments of the model for some tokens, and what quantities know of them."""
        raw, surface = self.raw_sample(points, rows)
        columns = (self.outward * surface.vectors, surface.areas[:, None], self.inside[rows, None])
        return self.run.inputs(self.run.transform(raw)), torch.cat(columns, -1)[None]

    def raw_sample(
        self, points: Float[Tensor, "P 3"], rows: slice
    ) -> tuple[dict[str, Tensor], SurfaceTensors]:
        """Return a sample in physical units as a reader makes it, and the geometry it is from."""
        mesh, channels, place = self.mesh, self.run.channels, self.run.channels.association
        polygons = (mesh.connectivity, mesh.offsets)
        if place == "cell":
            polygons = select_polygons(*polygons, rows)
        surface = surface_tensors(points, *polygons, place)
        known = {"normals": surface.normals, "areas": surface.areas[:, None]}
        named = self.run.names
        start, features = 0, []
        for name, width in channels.features.items():
            pick = Pick(name) if named is None else named.features[name]
            if pick.array in known:
                features.append(known[pick.array][:, pick.columns or slice(None)])
            else:
                features.append(self.sample["features"][rows, start : start + width])
            start += width
        axes = list("xyz")
        if named is not None and named.coordinates:
            axes = [pick.array for pick in named.coordinates.values()]
        sample = {"coordinates": surface.positions[:, ["xyz".index(axis) for axis in axes]]}
        sample["features"] = torch.cat([f.to(points.dtype) for f in features], -1)
        held = channels.weights != MEASURE
        sample["weights"] = self.sample["weights"][rows] if held else surface.areas
        if "globals" in self.sample:
            sample["globals"] = self.sample["globals"]
        return {name: value.to(self.dtype) for name, value in sample.items()}, surface


def open_shape(
    run: Run,
    path: str | Path,
    *,
    settings: ForceSettings | None = None,
    region: Box | None = None,
    moving_area: bool = False,
    global_values: GlobalValues | None = None,
    scale: float = 1.0,
    flip: bool = False,
    allow_open: bool = False,
    scratch: str | os.PathLike | None = None,
    progress: bool = True,
) -> ShapeModel:
    """Return a run as a function of the vertices of a surface file.

    Inputs are those of :func:`~physicsnemo_flarepp.evaluation.predict_file`, rebuilt from the
    vertices and compared with it.

    Parameters
    ----------
    run : Run
        Trained with normals and weights by area, on a model that streams.
    path : str or Path
        A closed surface whose cells face one side.
    settings : ForceSettings, optional
        Conventions of forces; without them there are averages of fields only.
    region : tuple of float, optional
        (x0, x1, y0, y1, z0, z1): fields are averaged over the tokens in this box. They are the same
        tokens when the shape moves.
    moving_area : bool, optional
        Let the frontal area of the changed shape be its reference area. By default the area of the
        given shape stays.
    global_values, scale, flip
        As in :func:`~physicsnemo_flarepp.evaluation.predict_file`.
    allow_open : bool, optional
        Take surfaces with openings; their forces depend on the reference pressure.
    scratch : path-like, optional
        Folder where hidden states, inputs and their gradients wait, instead of in memory.
    progress : bool, optional
        Show bars if stderr is a terminal.
    """
    path = Path(path)
    _check_run(run)
    if path.suffix.lower() not in MESH_FILES:
        raise ValueError(f"{path} must be a surface in one of {', '.join(MESH_FILES)}")
    contents = open_for_run(run, path, scale=scale, flip=flip)
    mesh, place = contents.mesh, run.channels.association
    if not isinstance(mesh, PolygonMesh):
        raise ValueError(f"{path} is not a surface; extract it with pyvista's extract_surface()")
    warnings = _check_surface(mesh, allow_open)
    sample = input_sample(run, contents, place, global_values)
    warnings += surface_doubts(run, mesh, place, run.transform(sample), scale)[0]
    warnings += [text] if (text := run.parameter_warning(sample)) else []
    if run.channels.globals:
        warnings.append(f"the global values {', '.join(run.channels.globals)} are held")
    centres, vectors = mesh.cell_geometry()
    side, area = facing(centres, vectors), 1.0
    if settings is not None:
        surface = force_surface(mesh, place, settings)
        area, warnings = surface.reference_area, [*warnings, *surface.warnings]
        side = side if settings.orientation == "auto" else settings.orientation
    elif moving_area:
        raise ValueError("moving_area is for force coefficients, but no forces are known")
    if side is None:
        raise ValueError(f"{mesh.source} encloses no volume, so its outside is unknown")
    positions = torch.as_tensor(centres if place == "cell" else np.asarray(mesh.points, float))
    inside = torch.ones(len(positions), dtype=torch.float64)
    if region is not None:
        low, high = torch.tensor(region, dtype=torch.float64).reshape(3, 2).T
        inside = ((positions >= low) & (positions <= high)).all(-1).double()
        if not inside.any():
            raise ValueError(
                f"--box {region} holds no {place} of {path}, which spans "
                f"{positions.amin(0).tolist()} to {positions.amax(0).tolist()}"
            )
    shape = ShapeModel(
        run, mesh, sample, settings, area, moving_area, 1.0 if side == "outward" else -1.0, inside,
        warnings=tuple(dict.fromkeys(warnings)), scratch=scratch, progress=progress
    )  # fmt: skip
    _check_inputs(shape)
    return shape


def _check_inputs(shape: ShapeModel) -> None:
    """Raise unless the inputs rebuilt from the vertices are those that predictions use."""
    with torch.no_grad():
        for rows in shape.parts():
            for name, value in shape.raw_sample(shape.points, rows)[0].items():
                stored = shape.sample[name] if name == "globals" else shape.sample[name][rows]
                reach = _SAME * max(float(stored.abs().max()), 1e-30)
                if stored.shape != value.shape or float((stored - value).abs().max()) > reach:
                    raise ValueError(
                        f"the {name} of {shape.mesh.source} are not those of its cells: the file "
                        "stores its own, such as normals. Remove them from the file"
                    )


def _check_run(run: Run) -> None:
    """Raise unless a run sees a shape through what is differentiated."""
    picks = {} if run.names is None else run.names.features or {}
    arrays = [picks.get(name, Pick(name)).array for name in run.channels.features]
    missing = [] if "normals" in arrays else ["normals (data.features=[normals])"]
    if run.channels.weights == NO_WEIGHTS:
        missing.append("weights of its tokens (data.weights=measure)")
    if missing:
        raise ValueError(
            f"run {run.name} has no {' and no '.join(missing)}, so its predictions depend on the "
            "mesh more than on the shape. Train a run with them"
        )
    if found := [name for name in arrays if name in TO_BODY]:
        raise ValueError(f"run {run.name} takes {found[0]}, which is not differentiated")
    if any(affine.shift.ndim != 1 for affine in run.normalizer.affine.values()):
        raise ValueError(
            f"run {run.name} has statistics or a baseline per row of one mesh; for shapes that "
            "change train with data.baseline=none and another normalisation"
        )
    unwrap(run.model)  # raises if it does not stream


def _check_surface(mesh: PolygonMesh, allow_open: bool) -> list[str]:
    """Return warnings about a surface, or raise where it has no derivative or no inside."""
    areas = np.linalg.norm(mesh.cell_geometry()[1], axis=1)
    if flat := int(np.count_nonzero(areas <= _NO_AREA * areas.mean())):
        raise ValueError(
            f"{mesh.source}: {flat} of {len(areas)} cells have no area, so no normal; remove them "
            "with pyvista's clean()"
        )
    if clashes := clashing_edges(mesh):
        raise ValueError(
            f"{mesh.source}: {clashes} edges have neighbours that face opposite sides, or more "
            "than two cells; orient them with pyvista's compute_normals(consistent_normals=True)"
        )
    if not (rims := open_edges(mesh)):
        return []
    text = (
        f"{mesh.source} is open: {rims} edges have a cell on one side only. Vertices that are "
        "stored once per cell are merged by pyvista's clean(), holes are closed by fill_holes()"
    )
    if not allow_open:
        raise ValueError(f"{text}; give --allow-open to take it as it is")
    return [text]


def check_quantity(name: str, run: Run, settings: ForceSettings | None) -> None:
    """Raise unless a name is a force that the run can give, or a channel of its fields."""
    channels = run.channels.field_names
    choices = (*(FORCES if settings is not None else ()), *channels)
    if name in choices:
        return
    if name in FORCES:
        raise ValueError(
            f"{name} needs the pressure, but the fields {', '.join(channels)} of run {run.name} "
            "follow no known convention; give --pressure-field and --speed, or name a field"
        )
    raise ValueError(f"run {run.name} cannot give {name!r}; choose one of {', '.join(choices)}")

"""Whether a surface is like those of training: size, shape, place, normals.

A model answers for any surface; outside of what it was trained on the answer means nothing. The
training set is told by the lowest and highest coordinates of all its cases and by the smallest and
largest extent of a case along each axis:

    {"coordinates": {"min": [...], "max": [...]}, "extent": {"min": [...], "max": [...]}}

and by where its surfaces face, ``orientation``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from ..datapipes.normalization import normalization_kinds
from ..meshes import PolygonMesh
from ..meshes.measures import facing
from ..meshes.polygons import polygon_geometry
from ..runs.trained_run import Run

TrainingRanges = Mapping[str, Mapping[str, "list[float] | np.ndarray"]]

# Beyond the training range by this share of its span a model extrapolates.
_OUTSIDE = 0.05
# Extents of training are of sampled tokens, which miss the outermost ones.
_TOLERANCE = 1.25
# Units beside metres. They differ by a factor of 2.5 or more, so that a size which is within 1.5 of
# one of them is that of no other.
_UNITS = {"millimetres": 0.001, "centimetres": 0.01, "inches": 0.0254}
_SAME_UNIT = 1.5


@dataclass(frozen=True)
class SizeComparison:
    """What a comparison with the training set found."""

    warning: str | None = None
    doubt: str | None = None


def training_ranges(run: Run) -> TrainingRanges | None:
    """Return the ranges of the training set of a run, None if nothing is known of them.

    A run that did not store it is judged by its normaliser. A unit box holds the range of
    coordinates; a case is taken to fill half of it or more. Of mean and deviation, the range is
    taken as 4 deviations to either side, and a case as between 2 and 8 deviations long.
    """
    if run.training_set is not None:
        return run.training_set
    kind = (normalization_kinds(run.config.data) or {}).get("coordinates")
    affine = run.normalizer.affine.get("coordinates")
    if affine is None or affine.shift.ndim != 1:
        return None
    shift, scale = affine.shift.double().numpy(), affine.scale.double().numpy()
    if kind == "unit_box":
        return _bounds(shift, shift + scale, 0.5 * scale, scale)
    if kind == "gaussian":
        return _bounds(shift - 4 * scale, shift + 4 * scale, 2 * scale, 8 * scale)
    return None


def _bounds(low, high, smallest, largest) -> TrainingRanges:
    return {
        "coordinates": {"min": low, "max": high},
        "extent": {"min": smallest, "max": largest},
    }


def compare_size(
    training: TrainingRanges, coordinates: np.ndarray, source: str | Path, *, scale: float = 1.0
) -> SizeComparison:
    """Compare a surface with the surfaces of training.

    Examples
    --------
    >>> training = {"coordinates": {"min": [0, 0, 0], "max": [4.8, 2, 1.5]},
    ...             "extent": {"min": [4, 1.8, 1.3], "max": [4.8, 2, 1.5]}}
    >>> corners = np.array([[0, 0, 0], [4500, 1900, 1400]])
    >>> compare_size(training, corners, "car.stl").warning
    'car.stl is not of the size of the training surfaces: x 4500 (training 4 to 4.8);
    y 1900 (training 1.8 to 2); z 1400 (training 1.3 to 1.5). The prediction is an extrapolation.
    It looks like millimetres: give --scale 0.001'
    >>> compare_size(training, corners / 1000, "car.stl").warning is None
    True
    """
    low, high = coordinates.min(axis=0).astype(float), coordinates.max(axis=0).astype(float)
    smallest, largest = (np.asarray(training["extent"][end], float) for end in ("min", "max"))
    extent = high - low
    off = ~_fits(extent, smallest, largest)
    if off.any():
        lengths = "; ".join(
            f"{axis} {extent[i]:.4g} (training {smallest[i]:.4g} to {largest[i]:.4g})"
            for i, axis in zip(range(len(off)), "xyz", strict=False)
            if off[i]
        )
        return SizeComparison(
            f"{source} is not of the size of the training surfaces: {lengths}. The prediction is "
            f"an extrapolation. {_advice(extent, smallest, largest, scale)}",
            "the surface is not of the size of those of training",
        )
    floor, ceiling = (np.asarray(training["coordinates"][end], float) for end in ("min", "max"))
    outside = np.maximum(floor - low, high - ceiling) / np.maximum(ceiling - floor, 1e-12)
    if (outside <= _OUTSIDE).all():
        return SizeComparison()
    ranges = "; ".join(
        f"{axis} {low[i]:.4g} to {high[i]:.4g} (training {floor[i]:.4g} to {ceiling[i]:.4g})"
        for i, axis in zip(range(len(outside)), "xyz", strict=False)
        if outside[i] > _OUTSIDE
    )
    return SizeComparison(
        f"{source} reaches outside the coordinates of training: {ranges}. The prediction is an "
        "extrapolation. Move it to where the training surfaces are",
        "the surface is not where those of training are",
    )


def _fits(extent: np.ndarray, smallest: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Return which extents are of training, (3,); flat surfaces are compared absolutely."""
    rounding = 1e-4 * largest.max()
    return (extent >= smallest / _TOLERANCE - rounding) & (
        extent <= largest * _TOLERANCE + rounding
    )


def _advice(extent: np.ndarray, smallest: np.ndarray, largest: np.ndarray, scale: float) -> str:
    """Return what makes the surface fit: another unit, exchanged axes, another size."""
    ratio = _factor_to(extent, np.sqrt(smallest * largest))
    units = {factor: f"It looks like {name}" for name, factor in _UNITS.items()}
    units |= {
        1 / factor: f"It looks like metres, and training like {name}"
        for name, factor in _UNITS.items()
    }
    unit = min(units, key=lambda factor: abs(np.log(factor / ratio)))
    factors = [unit, 1.0] if abs(np.log(unit / ratio)) < np.log(_SAME_UNIT) else [1.0]
    for factor in factors:
        rescale = "" if factor == 1 else f"{units[factor]}: give --scale {scale * factor:.6g}. "
        for order in permutations(range(len(extent))):
            if not _fits(extent[list(order)] * factor, smallest, largest).all():
                continue
            if order == tuple(sorted(order)):
                return rescale.removesuffix(". ")
            like = ", ".join("xyz"[order.index(axis)] for axis in range(len(order)))
            axes = ", ".join("xyz"[: len(order)])
            return f"{rescale}Its axes look exchanged: its {axes} are like {like} of training"
    size = f"{1 / ratio:.3g} times larger" if ratio < 1 else f"{ratio:.3g} times smaller"
    if _fits(extent * ratio, smallest, largest).all():
        return (
            f"It has the proportions of training and is about {size}; if only its scale is wrong, "
            f"give --scale {scale * ratio:.3g}"
        )
    guess = f" {units[unit]} (--scale {scale * unit:.6g})." if unit in factors else ""
    return f"It has other proportions too, and is about {size}.{guess}"


def _factor_to(extent: np.ndarray, middle: np.ndarray) -> float:
    """Return the factor that brings extents to those of training, over the axes that have one.

    All axes together tell it better than one of them.
    """
    usable = (extent > 0) & (middle > 1e-4 * middle.max())
    if not usable.any():
        return 1.0
    return float(np.exp(np.log(middle[usable] / extent[usable]).mean()))


def mesh_warnings(run: Run, mesh: PolygonMesh, association: str) -> list[str]:
    """Return what is odd about the cells and points of a mesh that a run is to predict on."""
    warnings = []
    centres, vectors = polygon_geometry(mesh.points, mesh.connectivity, mesh.offsets)
    flat = int(np.count_nonzero(~vectors.any(axis=1)))
    if flat:
        warnings.append(
            f"{mesh.source}: {flat} cells have no area; they are predicted like any other, with a "
            "normal of 0, and add nothing to forces"
        )
    if association == "point":
        loose = len(mesh.points) - len(np.unique(mesh.connectivity))
        if loose:
            warnings.append(
                f"{mesh.source}: {loose} points belong to no cell; they take part in the "
                "prediction like any other. Remove them, for example with pyvista's clean(), "
                "unless training had such points"
            )
    if "normals" in run.channels.features:
        warnings += _normals_warnings(run, mesh, facing(centres, vectors))
    return warnings


def _normals_warnings(run: Run, mesh: PolygonMesh, direction: str | None) -> list[str]:
    """Say that normals point the other way than in training, or that this is not known."""
    told = f"{mesh.source}: its cells face {direction or 'no definite way'}"
    if run.training_set is None or "orientation" not in run.training_set:
        return [
            f"{told}, and run {run.name}, which did not store where its training surfaces faced, "
            "takes normals as input. Patches that OpenFOAM writes face inward, CAD surfaces mostly "
            "outward: if the training surfaces faced the other way, give --flip"
        ]
    trained = run.training_set["orientation"]
    if trained not in ("outward", "inward") or direction == trained:
        return []
    advice = "orient them" if direction is None else "give --flip"
    return [
        f"{told}, but the surfaces of training face {trained}, and run {run.name} takes normals "
        f"as input; {advice}"
    ]

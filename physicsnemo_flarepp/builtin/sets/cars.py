"""Saloon-like cars in potential flow, in the layout of DrivAerML's raw files.

Each case is a body from :mod:`.car_body` in the flow of :mod:`..solvers.panel_method` over a
ground. Pressure follows from Bernoulli's equation; wall shear stress is estimated, as that of a
turbulent flat plate at the local speed. Drag is friction alone; the set ``cars_wake`` adds an
estimate of separation and wake (:mod:`..solvers.separation`), so that shapes have drag: Cd of 0.25
to 0.29.
"""

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..solvers.panel_method import Panels, solve_flow
from ..solvers.separation import base_pressure, separated_share
from . import BuiltinSet, Case
from .car_body import GROUND, CarShape, half_surface, sample_shape, whole_surface

if TYPE_CHECKING:
    import pyvista as pv

SPEED = 38.889
VISCOSITY = 1.507e-5
# Running length of the boundary layer at the foremost point: keeps the plate law finite there.
LEADING_LENGTH = 0.05
CELL_FIELDS = ("CpMeanTrim", "pMeanTrim", "wallShearStressMeanTrim")


def flat_plate_shear(velocity: np.ndarray, running_length: np.ndarray) -> np.ndarray:
    """Kinematic wall shear stress (N, 3) of a turbulent flat plate, along the velocity (N, 3).

    tau = c_f |u|^2 / 2 with the one-fifth power law c_f = 0.0592 (|u| s / nu)^(-1/5), where s is
    the distance from the start of the boundary layer; SI units.
    """
    speed = np.linalg.norm(velocity, axis=1)
    # One factor of the speed is the velocity itself, so the stagnation point needs no care.
    factor = 0.0296 * speed**0.8 * (VISCOSITY / running_length) ** 0.2
    return factor[:, None] * velocity


def force_coefficients(
    cp: np.ndarray, shear: np.ndarray, area_vectors: np.ndarray, reference_area: float
) -> np.ndarray:
    """Drag and lift coefficients integrated from the fields, shape (2,)."""
    areas = np.linalg.norm(area_vectors, axis=1)
    force = -cp @ area_vectors + areas @ shear / (SPEED**2 / 2)
    return force[[0, 2]] / reference_area


def solve_shape(shape: CarShape, wake: bool = False) -> Case:
    """Surface, fields per face, ``forces`` = (Cd, Cl) and ``reference`` = (frontal area, length).

    ``pMeanTrim`` and ``wallShearStressMeanTrim`` are in m^2/s^2; ``shape`` has the parameters in
    the order of :class:`CarShape`. With ``wake`` the flow separates (:mod:`..solvers.separation`).
    """
    half_points, half_faces = half_surface(shape)
    flow = solve_flow(Panels(half_points[half_faces]), symmetry_y=True, ground=GROUND)
    running = flow.panels.centroids[:, 0] - half_points[:, 0].min() + LEADING_LENGTH
    half_shear = flat_plate_shear(SPEED * flow.surface_velocity, running)
    half_cp = flow.pressure_coefficient
    if wake:
        share = separated_share(half_points, half_faces, flow)
        half_shear = (1 - share)[:, None] * half_shear
        friction = flow.panels.areas @ half_shear[:, 0] / (SPEED**2 / 2)
        behind = share @ np.maximum(flow.panels.area_vectors[:, 0], 0)
        half_cp = (1 - share) * half_cp + share * base_pressure(friction, behind)

    points, faces = whole_surface(half_points, half_faces)
    cp = np.tile(half_cp, 2)
    shear = np.concatenate([half_shear, half_shear * [1, -1, 1]])
    area_vectors = Panels(points[faces]).area_vectors
    frontal_area = np.maximum(-area_vectors[:, 0], 0).sum()
    return {
        "points": points.astype(np.float32),
        "faces": faces.astype(np.int32),
        "CpMeanTrim": cp.astype(np.float32),
        "pMeanTrim": (SPEED**2 / 2 * cp).astype(np.float32),
        "wallShearStressMeanTrim": shear.astype(np.float32),
        "forces": force_coefficients(cp, shear, area_vectors, frontal_area),
        "reference": np.array([frontal_area, np.ptp(points[:, 0])]),
        "shape": np.array(astuple(shape)),
    }


def solve_case(case_seed: int, wake: bool = False) -> Case:
    """One random car; see :func:`solve_shape`."""
    return solve_shape(sample_shape(np.random.default_rng(case_seed)), wake)


def write_row(path: Path, names: list[str], values: np.ndarray) -> None:
    """Write a header and one row of numbers."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([names, [f"{value:.8g}" for value in values]])


def write_body(folder: Path, number: int, case: Case) -> "pv.PolyData":
    """Write ``drivaer_<i>.stl`` and ``geo_ref_<i>.csv`` to a new folder; return the surface."""
    # Only the process that assembles the set needs VTK, which takes a second to import.
    import pyvista as pv

    folder.mkdir()
    surface = pv.PolyData.from_regular_faces(case["points"], case["faces"])
    surface.save(folder / f"drivaer_{number}.stl")
    reference = ["aRef", "lRef"] if "reference" in case else []
    names = [*reference, *(field.name for field in fields(CarShape))]
    values = np.concatenate([case.get("reference", []), case["shape"]])
    write_row(folder / f"geo_ref_{number}.csv", names, values)
    return surface


def write_run(folder: Path, number: int, case: Case) -> None:
    """Write the four files of one case as DrivAerML names them."""
    surface = write_body(folder, number, case)
    for name in CELL_FIELDS:
        surface.cell_data[name] = case[name]
    surface.save(folder / f"boundary_{number}.vtp")
    write_row(folder / f"force_mom_{number}.csv", ["Cd", "Cl"], case["forces"])


def write_runs(
    cases: Iterable[Case],
    out_dir: Path,
    n_train: int,
    n_test: int,
    n_val: int,
    *,
    write: Callable[[Path, int, Case], None],
) -> None:
    """Write one folder per case and the manifest of the splits."""
    runs = [f"run_{number}" for number in range(1, n_train + n_test + n_val + 1)]
    for number, case in enumerate(cases, start=1):
        write(out_dir / runs[number - 1], number, case)
    manifest = {"train": runs[:n_train], "test": runs[n_train : n_train + n_test]}
    if n_val:
        manifest["val"] = runs[n_train + n_test :]
    (out_dir / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


SET = BuiltinSet("cars", 3, 40, 8, solve_case, partial(write_runs, write=write_run))
WAKE = replace(SET, name="cars_wake", version=1, solve_case=partial(solve_case, wake=True))

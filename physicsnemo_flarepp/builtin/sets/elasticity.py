"""Built-in set *elasticity*: a hyperelastic unit cell with a void, in the Geo-FNO layout.

The void is drawn by the published law; the cell is clamped at its bottom and pulled at its top by a
dead load of 100 kPa, in plane stress. Every case has its own unstructured mesh of 972 nodes of
curved quadratic triangles; the stored scalar is the von Mises norm of the Cauchy stress in kPa.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ..solvers.hyperelastic import solve_cell, von_mises_stress
from ..solvers.triangulate import triangulate_cell
from . import BuiltinSet, Case, validation_apart

N_NODES = 972
TRACTION = 100.0  # kPa

_WAVES = 5


def random_radius(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """Radius of a random void as a function of the angle, between 0.2 and 0.4: the published law.

    The radius is 0.2 + 0.2 / (1 + exp(g)), where g has five waves around the void and no mean, its
    cosine and sine coefficients of wave k independent and normal with the standard deviation
    16 / (sqrt(pi) (k**2 + 9)), as in the 2,000 published voids.
    """
    wave = np.arange(1, _WAVES + 1)
    cosine, sine = rng.normal(0.0, 16.0 / (np.sqrt(np.pi) * (wave**2 + 9)), (2, _WAVES))

    def radius(angle: np.ndarray) -> np.ndarray:
        phase = np.multiply.outer(angle, wave)
        return 0.2 + 0.2 / (1 + np.exp(np.cos(phase) @ cosine + np.sin(phase) @ sine))

    return radius


def solve_case(case_seed: int) -> Case:
    """``nodes`` (972, 2) and ``stress`` (972,) in kPa of the cell with this seed."""
    rng = np.random.default_rng(case_seed)
    mesh = triangulate_cell(random_radius(rng), N_NODES, rng)
    return {"nodes": mesh.nodes, "stress": von_mises_stress(solve_cell(mesh, TRACTION))}


def assemble(cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int) -> None:
    """Write Random_UnitCell_XY_10.npy (972, 2, n) and Random_UnitCell_sigma_10.npy (972, n)."""
    solved = list(cases)
    for file, name in (("XY", "nodes"), ("sigma", "stress")):
        values = np.stack([case[name] for case in solved], axis=-1).astype(np.float32)
        np.save(out_dir / f"Random_UnitCell_{file}_10.npy", values)


SET = BuiltinSet("elasticity", 4, 1000, 200, solve_case, validation_apart(assemble))

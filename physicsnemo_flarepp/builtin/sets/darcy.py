"""Darcy flow through a medium of two permeabilities, after the FNO benchmark.

Solves -div(a grad u) = 1 on the unit square with u = 0 on the boundary. The coefficient a is 12
where a Gaussian field N(0, (-Laplace + 9)^-2) with zero Neumann conditions is positive, and 3
elsewhere. Vertex-centred finite volumes on 85 x 85 nodes, boundary included.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.io import savemat

from ..solvers import factorise
from . import BuiltinSet, Case, validation_apart

RESOLUTION = 85
# The published set draws its field on 421 x 421 points; with as many cosine modes the interfaces
# have the same fine structure here.
MODES = 421
HIGH, LOW = 12.0, 3.0


def sample_coefficient(rng: np.random.Generator) -> np.ndarray:
    """Two-valued coefficient (n, n) by random cosines of deviation 1 / (pi^2 |k|^2 + 9)."""
    frequency = np.arange(MODES)
    deviation = 1 / (np.pi**2 * (frequency[:, None] ** 2 + frequency**2) + 9)
    deviation[0, 0] = 0
    nodes = np.linspace(0, 1, RESOLUTION)
    basis = np.sqrt(2) * np.cos(np.pi * nodes[:, None] * frequency)
    basis[:, 0] = 1
    field = basis @ (deviation * rng.standard_normal((MODES, MODES))) @ basis.T
    return np.where(field >= 0, HIGH, LOW)


def solve_darcy(a: np.ndarray, source: np.ndarray | float = 1.0) -> np.ndarray:
    """Solution u (n, n) of -div(a grad u) = source on the unit square with u = 0 on its boundary.

    The harmonic mean of coefficients is exact for an interface half-way between two nodes.
    """
    n = a.shape[0]
    inner = n - 2
    # Conductances of the links that leave an inner node along each axis; the links to the
    # boundary count in the diagonal only, because u is 0 there.
    along_x = (2 * a[1:] * a[:-1] / (a[1:] + a[:-1]))[:, 1:-1]
    along_y = (2 * a[:, 1:] * a[:, :-1] / (a[:, 1:] + a[:, :-1]))[1:-1, :]
    diagonal = along_x[1:] + along_x[:-1] + along_y[:, 1:] + along_y[:, :-1]
    link_x = -along_x[1:-1].ravel()
    link_y = -np.pad(along_y[:, 1:-1], ((0, 0), (0, 1))).ravel()[:-1]
    matrix = sparse.diags_array(
        [diagonal.ravel(), link_x, link_x, link_y, link_y],
        offsets=[0, inner, -inner, 1, -1],
        format="csc",
    )
    right = np.broadcast_to(source, a.shape)[1:-1, 1:-1].ravel() / (n - 1) ** 2
    # The matrix is symmetric and positive definite: no pivoting, ordering of A + A^T.
    factors = factorise(matrix, "MMD_AT_PLUS_A", 0.0, symmetric=True)
    u = np.zeros_like(a)
    u[1:-1, 1:-1] = factors.solve(right).reshape(inner, inner)
    return u


def solve_case(case_seed: int) -> Case:
    """One coefficient ``coeff`` and its solution ``sol``, each (85, 85)."""
    coefficient = sample_coefficient(np.random.default_rng(case_seed))
    return {"coeff": coefficient, "sol": solve_darcy(coefficient)}


def write_matlab(path: Path, cases: list[Case]) -> None:
    """Write ``coeff`` and ``sol``, each (case, 85, 85), as a MATLAB v5 file."""
    savemat(path, {name: np.stack([case[name] for case in cases]) for name in ("coeff", "sol")})
    # The header starts with 116 bytes of free text, where scipy puts the time: equal data must
    # give equal files.
    with open(path, "r+b") as file:
        file.write(b"MATLAB 5.0 MAT-file, physicsnemo_flarepp built-in Darcy flow".ljust(116))


def assemble(cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int) -> None:
    """Write the two files of the published set, at 85 x 85 instead of 421 x 421."""
    cases = list(cases)
    name = f"piececonst_r{RESOLUTION}_N{{}}_smooth{{}}.mat".format
    write_matlab(out_dir / name(n_train, 1), cases[:n_train])
    if n_test:
        write_matlab(out_dir / name(n_test, 2), cases[n_train:])


SET = BuiltinSet("darcy", 3, 1000, 200, solve_case, validation_apart(assemble))

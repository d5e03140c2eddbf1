"""Files in the published layouts, written here value by value and without the package's code."""

import os
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv
import torch


def coded(*indices_and_sizes):
    """A number that names its position: digits in mixed radix, exact in float32 below 2**24."""
    value = 0
    for index, size in indices_and_sizes:
        value = value * size + index
    return value


@pytest.fixture(scope="session")
def code():
    return coded


@pytest.fixture(scope="session")
def grid_files(tmp_path_factory):
    """Write airfoil or pipe with `n` cases; Q[case, channel, i, j] and X, Y name their position."""

    def write(stem, grid, channels, n):
        root = tmp_path_factory.mktemp(stem)
        case, channel, i, j = np.indices((n, channels, *grid), sparse=True)
        q = ((case * channels + channel) * grid[0] + i) * grid[1] + j
        np.save(root / f"{stem}_Q.npy", q.astype(np.float64))
        case, i, j = np.indices((n, *grid), sparse=True)
        np.save(root / f"{stem}_X.npy", case * 1000.0 + i + 0.0 * j)
        np.save(root / f"{stem}_Y.npy", case * 1000.0 + j + 0.0 * i)
        return root

    return write


@pytest.fixture(scope="session")
def box_surface():
    """An Ahmed-like body: a triangulated box above ground with smooth point and cell data."""

    def make(seed=0, subdivisions=2):
        length, width, height = np.random.default_rng(seed).uniform(
            [0.9, 0.3, 0.2], [1.2, 0.4, 0.3]
        )
        bounds = (-length, 0, -width / 2, width / 2, 0.05, 0.05 + height)
        mesh = pv.Box(bounds).triangulate().subdivide(subdivisions)
        for data, suffix, at in (
            (mesh.point_data, "", mesh.points),
            (mesh.cell_data, "Trim", mesh.cell_centers().points),
        ):
            x, y, z = at.T
            data[f"pMean{suffix}"] = (np.cos(3 * x) - y + seed).astype(np.float32)
            shear = np.stack([1 + z, x * y, np.sin(x)], axis=1)
            data[f"wallShearStressMean{suffix}"] = (1e-3 * shear).astype(np.float32)
        return mesh

    return make


def ahmed_directory():
    """The real surfaces: where FLAREPP_AHMED says, else ../shared/data/ahmed of the repository."""
    default = Path(__file__).parents[3] / "shared" / "data" / "ahmed"
    return Path(os.environ.get("FLAREPP_AHMED", default))


def pytest_generate_tests(metafunc):
    if "ahmed_name" in metafunc.fixturenames:
        real = sorted(path.name for path in ahmed_directory().glob("boundary_*.vtp"))
        metafunc.parametrize("ahmed_name", [*real, "written_here.vtp"])


@pytest.fixture
def ahmed_file(ahmed_name, tmp_path, box_surface):
    if ahmed_name != "written_here.vtp":
        return ahmed_directory() / ahmed_name
    path = tmp_path / ahmed_name
    mesh = box_surface()
    mesh.cell_data.clear()
    mesh.save(path)
    return path


@pytest.fixture(scope="session")
def ragged_set(tmp_path_factory):
    """Presampled DrivAerML: 6 training and 3 test cases of 30 to 46 tokens, test values far off."""
    root = tmp_path_factory.mktemp("drivaerml")
    rng = np.random.default_rng(7)
    for split, runs in (("train", range(6)), ("test", range(6, 9))):
        (root / split).mkdir()
        for run in runs:
            n = 30 + 2 * run
            fields = rng.normal([-230, 1, 0, 0], [270, 1, 2, 3], size=(n, 4))
            np.savez(
                root / split / f"run_{run}.npz",
                surface_mesh_centers=rng.uniform(-1, 4, (n, 3)).astype(np.float32),
                surface_fields=(fields + 1e6 * (split == "test")).astype(np.float32),
            )
    return root


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: threads would only compete with the other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

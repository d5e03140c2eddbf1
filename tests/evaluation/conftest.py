import pytest
import torch

from physicsnemo_flarepp.evaluation import load_run
from tests.evaluation import making


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def surfaces(tmp_path_factory):
    return making.write_surfaces(tmp_path_factory.mktemp("surfaces") / "set")


@pytest.fixture(scope="session")
def surface_run(tmp_path_factory, surfaces):
    """Pressure and shear on cells from coordinates alone."""
    return making.write_run(
        tmp_path_factory.mktemp("runs") / "surfaces", making.surface_data(surfaces)
    )


@pytest.fixture(scope="session")
def featured_run(tmp_path_factory, surfaces):
    """The same with normals, areas and a global value as inputs."""
    data = making.surface_data(surfaces)
    data["reader"] |= {"features": ["normals", "areas"], "global_names": ["aRef"]}
    data["normalization"] |= {"globals": "gaussian", "features": "none"}
    return making.write_run(tmp_path_factory.mktemp("runs") / "featured", data)


@pytest.fixture(scope="session")
def darcy_run(tmp_path_factory):
    root = making.write_darcy(tmp_path_factory.mktemp("darcy") / "set")
    return making.write_run(tmp_path_factory.mktemp("runs") / "darcy", making.darcy_data(root))


@pytest.fixture
def loaded(surface_run):
    return load_run(surface_run, device="cpu")


@pytest.fixture(scope="session")
def other_run(tmp_path_factory, surfaces):
    """FLARE on the same surfaces."""
    directory = tmp_path_factory.mktemp("runs") / "surfaces-flare"
    return making.write_run(directory, making.surface_data(surfaces), {"mixer": "flare"})


@pytest.fixture
def both(surface_run, other_run):
    return [load_run(run, device="cpu") for run in (surface_run, other_run)]

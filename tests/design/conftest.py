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


def write(root, features=("normals", "areas"), weights="measure", **changes):
    """A run with random weights on ellipsoids."""
    data = making.surface_data(making.write_surfaces(root / "set"), weights=weights, **changes)
    data["reader"] |= {"features": list(features), "global_names": ["lRef"]}
    data["normalization"] |= {"features": "none", "globals": "none"}
    return making.write_run(root / "run", data)


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return write(tmp_path_factory.mktemp("design"))


@pytest.fixture(scope="session")
def run(directory):
    return load_run(directory, device="cpu")


@pytest.fixture(scope="session")
def body(tmp_path_factory):
    path = tmp_path_factory.mktemp("body") / "body.stl"
    making.body(0).save(path)
    return path

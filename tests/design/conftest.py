import json

import pytest
import torch

from physicsnemo_flarepp.evaluation import calibrate, load_run, store_bounds
from tests.evaluation import making


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write(root, features=("normals", "areas"), weights="measure", n_val=0, **changes):
    """A run with random weights on ellipsoids."""
    folder = making.write_surfaces(root / "set", 3 * max(1, n_val))
    names = json.loads((folder / "manifest.json").read_text())
    if n_val:
        names |= {"val": names["train"][-n_val:], "train": names["train"][:-n_val]}
        (folder / "manifest.json").write_text(json.dumps(names))
    data = making.surface_data(folder, weights=weights, **changes)
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
def calibrated(tmp_path_factory):
    run = load_run(write(tmp_path_factory.mktemp("calibrated"), n_val=20), device="cpu")
    store_bounds(calibrate(run, progress=False), run)
    return run


@pytest.fixture(scope="session")
def body(tmp_path_factory):
    path = tmp_path_factory.mktemp("body") / "body.stl"
    making.body(0).save(path)
    return path

"""A small data set in a published layout and a config that trains on it in a second."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

# The ranks import their module by name.
sys.path.insert(0, str(Path(__file__).parent))

N_TOKENS = 48


@pytest.fixture(scope="session")
def surface_set(tmp_path_factory):
    """Presampled DrivAerML: 10 + 2 + 3 cases whose fields follow from the points."""
    root = tmp_path_factory.mktemp("surfaces")
    rng, areas = np.random.default_rng(3), np.random.default_rng(4)
    for split, runs in (("train", range(10)), ("test", range(10, 13)), ("val", range(13, 15))):
        (root / split).mkdir()
        for run in runs:
            points = rng.uniform(-1, 1, (N_TOKENS, 3))
            pressure = 3 * points[:, :1] - points[:, 1:2] ** 2 - 5
            shear = np.sin(points) + 0.1 * points.mean(0)
            np.savez(
                root / split / f"run_{run}.npz",
                surface_mesh_centers=points.astype(np.float32),
                surface_fields=np.hstack([pressure, shear]).astype(np.float32),
                surface_areas=areas.lognormal(0, 2, N_TOKENS).astype(np.float32),
            )
    return root


@pytest.fixture
def make_config(surface_set, tmp_path):
    """A config for that set; keyword arguments are dotted keys with __ for the dots."""

    def make(**changes):
        cfg = OmegaConf.create(
            {
                "model": {
                    "_target_": "physicsnemo_flarepp.FlarePP",
                    "n_layers": 1,
                    "n_hidden": 16,
                    "n_head": 2,
                    "slice_num": 4,
                },
                "data": {
                    "benchmark": "drivaerml_40k",
                    "root": str(surface_set),
                    "reader": {"fields": ["pMeanTrim", "wallShearStressMeanTrim"]},
                    "n_train": None,
                    "n_test": None,
                    "batch_size": 2,
                    "num_workers": 0,
                },
                "training": {"epochs": 4, "ema_decay": 0.9, "log_every": 3},
                "run_dir": str(tmp_path / "run"),
            }
        )
        for name, value in changes.items():
            OmegaConf.update(cfg, name.replace("__", "."), value)
        return cfg

    return make


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: threads would only compete with the other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

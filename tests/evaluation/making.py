"""Small data sets and run directories, as the trainer leaves them but with random weights."""

import csv
import json

import numpy as np
import pyvista as pv
import torch
from omegaconf import OmegaConf
from scipy.io import savemat

from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.models.feeding import build_model
from physicsnemo_flarepp.runs import save_module
from tests.layouts import layout_of

MODEL = {
    "_target_": "physicsnemo_flarepp.MixerBackbone",
    "n_layers": 2,
    "n_hidden": 16,
    "n_head": 2,
    "slice_num": 4,
}
SURFACE_FIELDS = ["pMeanTrim", "wallShearStressMeanTrim"]


def body(seed):
    """A closed ellipsoid with smooth cell data, outward normals."""
    size = np.random.default_rng(seed).uniform([1.5, 0.7, 0.4], [2.0, 1.0, 0.6])
    mesh = pv.Icosphere(nsub=2).scale(size)
    x, y, z = mesh.cell_centers().points.T
    mesh.cell_data["pMeanTrim"] = (100 * np.cos(3 * x) - 50 * z).astype(np.float32)
    shear = np.stack([2 + z, x * y, np.sin(x)], axis=1)
    mesh.cell_data["wallShearStressMeanTrim"] = shear.astype(np.float32)
    return mesh


def write_surfaces(root, n_train=3, n_test=2, first=0):
    """Surfaces in the layout of DrivAerML."""
    runs = [f"run_{number}" for number in range(first, first + n_train + n_test)]
    for number, name in enumerate(runs, start=first):
        (root / name).mkdir(parents=True)
        body(number).save(root / name / f"boundary_{number}.vtp")
        with open(root / name / f"geo_ref_{number}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["aRef", "lRef"], [2.0 + number, 4.0]])
    manifest = {"train": runs[:n_train], "test": runs[n_train:]}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root


def surface_data(root, **changes):
    return {
        "root": str(root),
        "reader": {"_target_": "DrivAerMLReader", "fields": SURFACE_FIELDS},
        "normalization": {"coordinates": "unit_box", "fields": "gaussian"},
        "n_points": 64,
        "n_points_test": 64,
        **changes,
    }


def write_darcy(root, side=9, n_train=4, n_test=3):
    """A grid set with per-point statistics."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for smooth, n in ((1, n_train), (2, n_test)):
        name = f"piececonst_r{side}_N{n}_smooth{smooth}.mat"
        coeff = rng.choice([3.0, 12.0], (n, side, side))
        savemat(root / name, {"coeff": coeff, "sol": rng.normal(1.0, 1.0, (n, side, side))})
    return root


def darcy_data(root, n_train=4, n_test=3):
    return {
        "benchmark": "darcy",
        "root": str(root),
        "reader": {"stride": 1},
        "n_train": n_train,
        "n_test": n_test,
        "normalization": {"features": "per_point", "fields": "per_point"},
    }


def write_run(directory, data, model=None, channels=True):
    """A finished run; returns its directory."""
    directory.mkdir(parents=True)
    model = MODEL | (model or {})
    loaders = build_dataloaders({**data, "num_workers": 0})
    layout = layout_of(next(iter(loaders.train)), loaders.train.dataset.reader.grid)
    torch.manual_seed(0)
    built = build_model(model, layout)
    for parameter in built.parameters():
        parameter.data.mul_(3)  # outputs of order one instead of near the mean
    OmegaConf.save(OmegaConf.create({"model": model, "data": data}), directory / "config.yaml")
    loaders.normalizer.save(directory / "normalizer.safetensors")
    save_module(built, directory / "model.mdlus")
    if channels:
        Channels.of_reader(loaders.train.dataset.reader).save(directory)
    return directory

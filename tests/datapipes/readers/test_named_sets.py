"""Named sets, each in a few files in the layout of its owners, through the config it has here."""

import json

import numpy as np
import pytest
import pyvista as pv
import torch
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.datapipes.download import PUBLISHED_SPLITS, write_manifest
from physicsnemo_flarepp.datapipes.readers.splits import read_manifest
from tests.conf.composing import composed


def surface(seed):
    """Return a closed surface of quadrilaterals and triangles with values at its points."""
    mesh = pv.Sphere(theta_resolution=12, phi_resolution=10).scale((2 + 0.1 * seed, 1, 1))
    x, y, z = mesh.points.T
    values = (np.cos(x) + seed).astype(np.float32)
    vectors = np.stack([y, z, x * z], axis=1).astype(np.float32)
    return mesh, values, vectors


def write_ahmedml(root):
    for run in (1, 4, 24):
        mesh, values, vectors = surface(run)
        mesh["pMean"], mesh["wallShearStressMean"] = values, vectors
        (root / f"run_{run}").mkdir()
        mesh.save(root / f"run_{run}" / f"boundary_{run}.vtp")
        (root / f"run_{run}" / f"geo_parameters_{run}.csv").write_text("body-length\n1.0\n")
        (root / f"run_{run}" / f"force_mom_{run}.csv").write_text("cd, cl\n0.3, 0.1\n")
    return [values, vectors]


def write_windsorml(root):
    for run in (0, 7, 8):
        mesh, values, vectors = surface(run)
        grid = mesh.cast_to_unstructured_grid()
        grid.clear_data()
        grid["cpavg"] = values
        for axis, part in zip("xyz", vectors.T, strict=True):
            grid[f"cf{axis}avg"] = np.ascontiguousarray(part)
        (root / f"run_{run}").mkdir()
        grid.save(root / f"run_{run}" / f"boundary_{run}.vtu")
    return [values, vectors]


def write_shapenet_car(root):
    for case in range(5):
        mesh, values, _ = surface(case)
        grid = mesh.cast_to_unstructured_grid()
        grid.clear_data()
        grid["point_scalars"] = values
        folder = root / f"param{case % 2}" / f"1a0b{case}"
        folder.mkdir(parents=True)
        grid.save(folder / "quadpress_smpl.vtk")
        np.save(folder / "press.npy", values.astype(np.float64))
        (folder / "cd.txt").write_text("0.3")
    return None


def write_drivaernet(root):
    names = {}
    for number, split in ((1, "train"), (2, "train"), (3, "val"), (4, "test")):
        mesh, values, vectors = surface(number)
        name = f"E_S_WW_WM_{number:03d}"
        names.setdefault(split, []).append(name)
        mesh.clear_data()
        mesh["p"] = values
        shuffled = np.random.default_rng(number).permutation(mesh.n_points)
        place = np.argsort(shuffled)
        other = pv.PolyData(mesh.points[shuffled], faces=place_faces(mesh, place))
        other["wallShearStress"] = vectors[shuffled]
        for folder, contents in (("PressureVTK", mesh), ("WallShearStressVTK_Updated", other)):
            target = root / folder / "E_S_WW_WM"
            target.mkdir(parents=True, exist_ok=True)
            contents.save(target / f"{name}.vtk")
    lists = root / "train_val_test_splits"
    lists.mkdir()
    for split, ids in names.items():
        (lists / f"{split}_design_ids.txt").write_text("\n".join(ids))
    return [values, vectors]


def place_faces(mesh, place):
    faces = mesh.regular_faces
    return np.column_stack([np.full(len(faces), 3), place[faces]]).ravel()


WRITERS = {
    "ahmedml": (write_ahmedml, ["run_1"], ["run_24"], ["run_4"]),
    "windsorml": (write_windsorml, ["run_0"], ["run_8"], ["run_7"]),
    "shapenet_car": (write_shapenet_car, None, None, None),
    "drivaernet": (
        write_drivaernet,
        ["E_S_WW_WM_001", "E_S_WW_WM_002"],
        ["E_S_WW_WM_003"],
        ["E_S_WW_WM_004"],
    ),
}
CHANNELS = {
    "ahmedml": ["pMean", *(f"wallShearStressMean_{axis}" for axis in "xyz")],
    "windsorml": ["cpavg", "cfxavg", "cfyavg", "cfzavg"],
    "shapenet_car": ["press"],
    "drivaernet": ["p", *(f"wallShearStress_{axis}" for axis in "xyz")],
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_set_in_its_owners_layout_trains_with_its_config(name, tmp_path):
    write, *splits = WRITERS[name]
    last = write(tmp_path)
    if name in PUBLISHED_SPLITS:
        assert "1 train, 1 val, 1 test" in write_manifest(name, tmp_path)
    data = OmegaConf.to_container(composed(f"data={name}", "experiment=none").data, resolve=True)
    loaders = build_dataloaders(data | {"root": str(tmp_path), "n_points": 20, "num_workers": 0})
    if splits[0] is not None:
        readers = (loaders.train, loaders.val, loaders.test)
        assert [loader.dataset.reader.case_ids for loader in readers] == splits
    batch = next(iter(loaders.train))
    assert batch["fields"].shape == (1, 20, len(CHANNELS[name]))
    assert batch["features"].shape == (1, 20, 3)
    reader = loaders.test.dataset.reader
    sample, about = reader[0]
    assert about["field_names"] == CHANNELS[name] and about["association"] == "point"
    if name == "drivaernet":
        # Shear comes from a file with another order of points.
        expected = np.column_stack([part.reshape(len(part), -1) for part in last])
        assert np.array_equal(sample["fields"].numpy(), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WRITERS)
def test_a_named_set_goes_from_the_file_to_the_figure(name, tmp_path, monkeypatch):
    root, run = tmp_path / "set", tmp_path / "run"
    root.mkdir()
    WRITERS[name][0](root)
    if name in PUBLISHED_SPLITS:
        write_manifest(name, root)
    monkeypatch.chdir(tmp_path)
    tiny = "model.n_layers=1 model.n_hidden=16 model.n_head=2 model.slice_num=4".split()
    few = "training.epochs=4 training.schedule=cosine training.warmup_steps=1".split()
    few += "data.n_points=20 threads=1".split()
    data = [f"data={name}", "experiment=none", f"data.root={root}", f"run_dir={run}"]
    assert main(["train", *data, *tiny, *few]) == 0
    assert main(["evaluate", str(run)]) == 0
    assert main(["predict", str(run), "--cases", "0"]) == 0
    assert main(["plot", str(run)]) == 0
    assert list((run / "predictions").iterdir())
    assert list((run / "figures").glob("comparison_*.png"))


def test_files_that_hold_other_points_are_refused(tmp_path):
    write_drivaernet(tmp_path)
    path = next((tmp_path / "WallShearStressVTK_Updated").rglob("*001.vtk"))
    mesh = pv.read(path)
    mesh.points[3] += 0.01
    mesh.save(path)
    data = OmegaConf.to_container(composed("data=drivaernet", "experiment=none").data, resolve=True)
    with pytest.raises(ValueError, match="their points differ"):
        build_dataloaders(data | {"root": str(tmp_path), "num_workers": 0})


@pytest.mark.parametrize(
    ("name", "numbers", "sizes"),
    [
        ("drivaerml_raw", range(1, 501), (399, 34, 50)),
        ("ahmedml", range(1, 501), (400, 50, 50)),
        ("windsorml", range(355), (284, 35, 36)),
    ],
)
def test_published_splits_are_those_of_the_documented_draw(name, numbers, sizes):
    runs = PUBLISHED_SPLITS[name]
    assert tuple(len(runs[split]) for split in ("train", "val", "test")) == sizes
    # "torch.randperm with seed 42, shifted to the first number, without the unavailable runs"
    available = {run for listed in runs.values() for run in listed}
    generator = torch.Generator().manual_seed(42)
    drawn = (torch.randperm(len(numbers), generator=generator) + numbers[0]).tolist()
    drawn = [run for run in drawn if run in available]
    order = ("train", "test", "val") if name == "drivaerml_raw" else ("train", "val", "test")
    for split in order:
        part, drawn = drawn[: len(runs[split])], drawn[len(runs[split]) :]
        assert sorted(part) == runs[split]
    assert drawn == []


def test_a_manifest_is_written_for_the_runs_that_are_there(tmp_path):
    for run in (1, 2, 11):
        (tmp_path / f"run_{run}").mkdir()
        (tmp_path / f"run_{run}" / f"boundary_{run}.vtp").touch()
    assert "2 train, 1 test" in write_manifest("drivaerml_raw", tmp_path)
    assert read_manifest(tmp_path / "manifest.json") == {
        "train": ["run_1", "run_2"],
        "test": ["run_11"],
    }
    (tmp_path / "run_11" / "boundary_11.vtp").unlink()
    assert "none is for test: fetch some of 11, 12, 19" in write_manifest("drivaerml_raw", tmp_path)
    mine = {"train": ["run_2"], "test": ["run_1"]}
    (tmp_path / "manifest.json").write_text(json.dumps(mine))
    assert "left as it is" in write_manifest("drivaerml_raw", tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text()) == mine

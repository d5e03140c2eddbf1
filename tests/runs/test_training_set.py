"""What a run says and keeps of its training set: orientation, and inputs that tell nothing."""

import numpy as np
import pytest
import pyvista as pv
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.datapipes import OwnReader
from physicsnemo_flarepp.datapipes.statistics import has_same_inputs, surface_orientation
from physicsnemo_flarepp.evaluation import load_run, predict_file
from physicsnemo_flarepp.training import train
from tests.own_data.making import surface

SMALL = {
    "model": {"_target_": "physicsnemo_flarepp.FlarePP", "n_layers": 1, "n_hidden": 16},
    "training": {"epochs": 1},
}


def write_plates(folder, inputs):
    """Flat meshes that differ in nothing but a value of the case, if `inputs` says so."""
    folder.mkdir()
    for i in range(5):
        plate = pv.Plane(i_resolution=4, j_resolution=3).triangulate()
        plate.clear_data()
        plate.point_data["bending"] = (1 + i) * plate.points[:, 0] ** 2
        plate.field_data["load"] = [1.0 + i * inputs]
        plate.save(folder / f"plate_{i}.vtp")
    return folder


def all_cases(reader):
    return [(reader, index) for index in range(len(reader))]


def trained(folder, data):
    reader = {"_target_": "OwnReader"}
    cfg = {**SMALL, "data": {"root": str(folder), "reader": reader, "num_workers": 0, **data}}
    train({**cfg, "run_dir": str(folder.parent / "run")})
    DistributedManager.cleanup()
    return load_run(folder.parent / "run", device="cpu")


@pytest.mark.parametrize("turned", [(), (1,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("n_points", [None, 30])
def test_the_orientation_is_that_of_all_cases(turned, n_points, tmp_path):
    for i in range(5):
        mesh = surface(1 + i)
        (mesh.flip_faces() if i in turned else mesh).save(tmp_path / f"car_{i}.vtp")
    options = {"n_points": n_points}
    reader = OwnReader(tmp_path, cases=[f"car_{i}" for i in (0, 1, 2)], options=options)
    expected = {0: "outward", 1: None, 5: "inward"}[len(turned)]
    assert surface_orientation(reader) == expected


@pytest.mark.slow
def test_only_a_surface_that_faces_the_other_way_is_warned_of(tmp_path):
    (tmp_path / "cars").mkdir()
    for i in range(5):
        surface(1 + i / 10).flip_faces().save(tmp_path / "cars" / f"car_{i}.vtp")
    run = trained(tmp_path / "cars", {})
    assert run.training_set["orientation"] == "inward" and not run.training_set["same_inputs"]
    file = tmp_path / "cars" / "car_0.vtp"
    assert not predict_file(run, file).warnings
    (warning,) = predict_file(run, file, flip=True).warnings
    assert "face outward, but the training surfaces face inward" in warning


@pytest.mark.slow
def test_a_plane_is_trained_and_predicted_in_the_coordinates_that_vary(tmp_path, capsys):
    folder = write_plates(tmp_path / "plates", inputs=False)
    run = trained(folder, {})
    told = capsys.readouterr().out
    assert "WARNING NO INPUT DIFFERS between the 4 training cases" in told
    assert "z is constant" in told and "data.coordinates=[x,y]" in told
    assert "normals" not in run.channels.features


@pytest.mark.slow
def test_a_run_in_two_coordinates_predicts_meshes(tmp_path, capsys):
    folder = write_plates(tmp_path / "plates", inputs=True)
    run = trained(folder, {"coordinates": ["x", "y"]})
    assert "WARNING" not in capsys.readouterr().out and run.channels.coordinates == 2
    predicted = predict_file(run, folder / "plate_1.vtp")
    assert predicted.mesh.n_points == 20 and not predicted.warnings
    shifted = pv.read(folder / "plate_1.vtp").scale(1000)
    shifted.save(tmp_path / "millimetres.vtp")
    (warning,) = predict_file(run, tmp_path / "millimetres.vtp").warnings
    assert "--scale 0.001" in warning


def test_coordinates_of_a_mesh_can_be_chosen(tmp_path):
    folder = write_plates(tmp_path / "plates", inputs=True)
    reader = OwnReader(folder, coordinates=["y", "x"])
    plate = pv.read(folder / f"{reader.case_ids[0]}.vtp")
    np.testing.assert_array_equal(reader[0][0]["coordinates"], plate.points[:, [1, 0]])
    assert not has_same_inputs(all_cases(reader))
    with pytest.raises(ValueError, match="data.coordinates is .pos., expected some of x, y, z"):
        OwnReader(folder, coordinates="pos")[0]


@pytest.mark.parametrize("difference", [None, "features", "pos", "mu", "rows"])
def test_inputs_are_compared_to_the_last_row(difference, tmp_path):
    base = {"pos": np.random.default_rng(0).random((5000, 2)), "sdf": np.ones(5000), "mu": 1.0}
    for i in range(4):
        arrays = {name: np.array(values) for name, values in base.items()}
        if i == 2 and difference in ("features", "pos"):
            arrays["sdf" if difference == "features" else "pos"][-1] += 1
        if i == 2 and difference == "mu":
            arrays["mu"] = np.array(2.0)
        if i == 2 and difference == "rows":
            arrays = {n: a[:-1] if a.ndim else a for n, a in arrays.items()}
        u = np.full(len(arrays["pos"]), float(i))
        np.savez(tmp_path / f"case_{i}.npz", u=u, **arrays)
    named = {"coordinates": "pos", "features": ["sdf"], "globals": ["mu"], "fields": ["u"]}
    reader = OwnReader(tmp_path, cases=[f"case_{i}" for i in range(4)], **named)
    assert has_same_inputs(all_cases(reader)) == (difference is None)

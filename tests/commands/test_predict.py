"""The verb predict, and the example script that calls it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.parsers import parse_options
from physicsnemo_flarepp.evaluation import Run
from tests.commands.calling import verb
from tests.evaluation import making

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_predict_runs_as_a_script(car_run, tmp_path):
    making.body(11).save(tmp_path / "car.stl")
    script = ROOT / "examples" / "drivaerml" / "predict.py"
    done = subprocess.run(
        [sys.executable, str(script), str(car_run), "car.stl", "--device", "cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "car_predicted.vtp: 320 cells" in done.stdout
    assert "forces predicted: Cd " in done.stdout and "silhouette" in done.stdout
    assert "\r" not in done.stderr  # no progress bar where nobody watches
    written = pv.read(tmp_path / "car_predicted.vtp")
    assert written.cell_data["pMeanTrim_predicted"].shape == (320,)
    assert written.cell_data["wallShearStressMeanTrim_predicted"].shape == (320, 3)


def test_predict_compares_with_fields_in_the_file(car_run, tmp_path, capsys):
    making.body(12).save(tmp_path / "car.vtp")
    output = tmp_path / "out.vtp"
    arguments = [str(car_run), str(tmp_path / "car.vtp"), "--output", str(output)]
    verb("predict")([*arguments, "--shear-sign", "1", "--reference-area", "2"])
    text = capsys.readouterr().out
    truth, found = making.body(12), pv.read(output)
    error = np.linalg.norm(found["pMeanTrim_predicted"] - truth["pMeanTrim"])
    error *= 100 / np.linalg.norm(truth["pMeanTrim"])
    assert f"pMeanTrim {error:.3g} %" in text
    assert "forces in the file: Cd" in text
    assert "sign +1" in text and "reference area 2 (given)" in text


def test_predict_does_not_overwrite_its_input(car_run, tmp_path):
    path = tmp_path / "car.vtp"
    making.body(12).save(path)
    with pytest.raises(ValueError, match="car.vtp is the surface itself"):
        verb("predict")([str(car_run), str(path), "--output", str(path)])


def test_several_surfaces_go_to_a_directory(car_run, tmp_path, capsys):
    paths = [tmp_path / f"{name}.stl" for name in ("first", "second")]
    for number, path in enumerate(paths):
        making.body(number).save(path)
    written = verb("predict")([str(car_run), *map(str, paths), "--output", str(tmp_path / "new")])
    assert written == [tmp_path / "new" / f"{path.stem}_predicted.vtp" for path in paths]
    assert all(pv.read(path).cell_data["pMeanTrim_predicted"].shape == (320,) for path in written)
    assert capsys.readouterr().out.count("forces predicted") == 2


def test_predict_says_what_a_run_can_be_given(darcy_run, tmp_path):
    with pytest.raises(ValueError, match="nothing to predict.*--cases"):
        verb("predict")([str(darcy_run)])
    making.body(0).save(tmp_path / "car.stl")
    with pytest.raises(ValueError, match="not on surfaces; give points in a .npz"):
        verb("predict")([str(darcy_run), str(tmp_path / "car.stl")])


def test_a_surface_that_is_not_there_is_told_without_a_traceback(car_run, darcy_run, capsys):
    for run, name in ((car_run, "no/car.stl"), (darcy_run, "mine.npz")):
        with pytest.raises(SystemExit, match="2"):
            sys.exit(main(["predict", str(run), name]))
        told = capsys.readouterr().err
        assert f"{name} does not exist" in told and "Traceback" not in told


def test_grids_are_evaluated_and_predicted(darcy_run, tmp_path, capsys):
    (report,) = verb("evaluate")([str(darcy_run)])
    assert report.errors.fields == ("u",)
    arguments = [str(darcy_run), "--cases", "0", "darcy_test_0002", "--output", str(tmp_path)]
    files = verb("predict")(arguments)
    assert [path.name for path in files] == ["darcy_test_0000.vts", "darcy_test_0002.vts"]
    mesh = pv.read(files[1])
    error = np.linalg.norm(mesh["u_error"]) / np.linalg.norm(mesh["u"])
    assert error == pytest.approx(report.errors.values[2, 0], rel=1e-4)
    inputs = {"coordinates": mesh.points[:, :2], "features": mesh["a"][:, None]}
    np.savez(tmp_path / "mine.npz", **inputs)
    (again,) = verb("predict")([str(darcy_run), str(tmp_path / "mine.npz")])
    assert again == darcy_run / "predictions" / "mine_predicted.vts"
    np.testing.assert_allclose(
        pv.read(again)["u_predicted"], mesh["u_predicted"], rtol=1e-3, atol=1e-3
    )


def test_a_number_that_is_an_id_is_no_position(darcy_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "case_ids", property(lambda run: ["2", "0", "1"]))
    files = verb("predict")([str(darcy_run), "--cases", "1", "-1", "--output", str(tmp_path)])
    assert [path.name for path in files] == ["darcy_test_0002.vts"] * 2
    (file,) = verb("predict")([str(darcy_run), "--cases", "2", "--output", str(tmp_path)])
    assert file.name == "darcy_test_0000.vts"


def test_a_prediction_stands_without_forces(car_run, tmp_path, capsys):
    """Of a flat body the outside is not known; of unknown fields no convention."""
    flat = making.body(12)
    flat.points[:, 2] = 0
    flat.save(tmp_path / "flat.vtp")
    data = making.surface_data(making.write_surfaces(tmp_path / "set"))
    data["reader"]["fields"] = ["wallShearStressMeanTrim"]
    unknown = making.write_run(tmp_path / "shear", data)
    for run, reason in (
        (car_run, "flat.vtp encloses no volume"),
        (unknown, "follow no known convention"),
    ):
        output = tmp_path / f"{run.name}.vtp"
        verb("predict")([str(run), str(tmp_path / "flat.vtp"), "--output", str(output)])
        assert "wallShearStressMeanTrim_predicted" in pv.read(output).cell_data
        told = capsys.readouterr().out
        assert "relative L2 error against the fields in the file" in told
        assert "no forces" in told and reason in told


def test_values_of_the_case_may_be_given_one_by_one():
    arguments = ["run", "--global", "a=1", "--global", "b=2", "c=3", "--flip", "car.stl"]
    options = parse_options("predict", arguments)
    assert options.globals == ["a=1", "b=2", "c=3"] and options.files == [Path("car.stl")]
    assert parse_options("predict", ["run", "car.stl"]).globals == []

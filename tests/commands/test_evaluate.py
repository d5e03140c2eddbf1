"""The verb evaluate."""

import re
import shutil

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.engine import write_stamp
from physicsnemo_flarepp.commands import results
from tests.commands.calling import verb
from tests.evaluation import making


def test_evaluate_reports_errors_and_forces(car_run, capsys):
    reports = verb("evaluate")([str(car_run), "--device", "cpu"])
    text = capsys.readouterr().out
    assert "cars-flarepp-seed0: 2 test cases" in text and "R^2" in text
    assert reports[0].forces.true.shape == (2, 3)
    assert len((car_run / "evaluation.csv").read_text().splitlines()) == 3
    verb("evaluate")([str(car_run), "--no-forces"])
    assert "R^2" not in capsys.readouterr().out


def test_unknown_fields_leave_out_forces_unless_these_are_asked_for(tmp_path, capsys, monkeypatch):
    data = making.surface_data(making.write_surfaces(tmp_path / "set"))
    data["reader"]["fields"] = ["wallShearStressMeanTrim"]
    run = str(making.write_run(tmp_path / "shear", data))
    (report,) = verb("evaluate")([run])
    assert report.forces is None and report.errors.fields == ("wallShearStressMeanTrim",)
    assert "no forces of shear: the fields wallShearStressMeanTrim" in capsys.readouterr().out
    monkeypatch.setattr(results, "_OF_FORCES", re.compile("temperature"))
    verb("evaluate")([run])
    assert "forces" not in capsys.readouterr().out, "nobody expects forces of such fields"
    with pytest.raises(ValueError, match="give --pressure-field"):
        verb("evaluate")([run, "--speed", "1"])


def test_other_data_is_evaluated_on_its_own_test_cases(car_run, tmp_path, capsys):
    other = making.write_surfaces(tmp_path / "other", n_train=1, n_test=3, first=20)
    shutil.rmtree(other / "run_20")  # its only training case
    (report,) = verb("evaluate")([str(car_run), "--data-root", str(other)])
    assert report.errors.case_ids == ("run_21", "run_22", "run_23")
    assert report.forces.true.shape == (3, 3)
    assert "3 test cases" in capsys.readouterr().out


def test_a_folder_of_test_cases_alone_is_enough(car_run, tmp_path):
    other = making.write_surfaces(tmp_path / "other", n_train=1, n_test=2, first=20)
    (other / "manifest.json").unlink()
    (report,) = verb("evaluate")([str(car_run), "--data-root", str(other), "--no-forces"])
    assert report.errors.case_ids == ("run_20", "run_21", "run_22")


def test_stress_of_other_data_has_the_sign_of_its_set(car_run, tmp_path, capsys):
    other = making.write_surfaces(tmp_path / "other", n_train=1, n_test=2, first=20)
    (plain,) = verb("evaluate")([str(car_run), "--data-root", str(other)])
    write_stamp(other, {"name": "cars", "n_train": 1, "n_test": 2})
    (stamped,) = verb("evaluate")([str(car_run), "--data-root", str(other)])
    np.testing.assert_array_equal(stamped.forces.predicted, plain.forces.predicted)
    # Along the flow instead of OpenFOAM's sign, the drag of the same stress is positive.
    assert (stamped.forces.true[:, 0] > plain.forces.true[:, 0]).all()
    assert "the targets follow another convention than training" in capsys.readouterr().out

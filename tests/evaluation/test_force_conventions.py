"""Whose conventions the forces of predictions and of targets follow."""

import json
import shutil

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.engine import write_stamp
from physicsnemo_flarepp.evaluation import (
    describe_prediction,
    evaluate_run,
    force_settings,
    format_report,
    load_run,
    predict_file,
    target_settings,
)
from tests.evaluation import making


def test_the_sign_of_the_shear_is_the_data_sets(loaded, surfaces, tmp_path):
    assert force_settings(loaded).shear_sign == -1
    assert force_settings(loaded, {"shear_sign": 1}).shear_sign == 1
    builtin = load_run(loaded.directory, device="cpu")
    builtin.config.data.root, builtin.config.data.builtin = None, "cars"
    assert force_settings(builtin).shear_sign == 1
    assert "along the flow" in str(force_settings(builtin))
    stamped = load_run(loaded.directory, device="cpu")
    stamped.config.data.root = str(tmp_path)
    (tmp_path / "stamp.json").write_text(json.dumps({"name": "cars"}))
    assert force_settings(stamped).shear_sign == 1


@pytest.mark.parametrize(
    "fields, given, message",
    [
        ({"T": 1}, {}, "fields T of run surfaces.*--pressure-field, --speed"),
        ({"p": 1, "tau": 3}, {"pressure": "p", "shear": "tau"}, "give --shear-sign, --speed"),
        ({"pMeanTrim": 1}, {"shear": "tau"}, "shear is 'tau', expected a field of 3 channels"),
    ],
)
def test_unknown_fields_need_conventions(surface_run, fields, given, message):
    run = load_run(surface_run, device="cpu")
    run.__dict__["channels"] = run.channels.__class__(3, fields, {}, {}, "cell")
    with pytest.raises(ValueError, match=message):
        force_settings(run, given)


def test_pressure_alone_gives_pressure_forces(surface_run):
    run = load_run(surface_run, device="cpu")
    run.__dict__["channels"] = run.channels.__class__(3, {"pMeanTrim": 1}, {}, {}, "cell")
    settings = force_settings(run)
    assert settings.shear is None and "pressure forces only" in str(settings)


@pytest.fixture
def cars(tmp_path):
    """The bodies as a stamped built-in set, whose stress is along the flow."""
    root = making.write_surfaces(tmp_path / "cars", n_train=1, n_test=2)
    write_stamp(root, {"name": "cars", "n_train": 1, "n_test": 2})
    return root


def test_targets_follow_the_data_evaluated_and_predictions_that_of_training(surface_run, cars):
    run = load_run(surface_run, device="cpu", data_root=cars)
    predicted, true = force_settings(run), target_settings(run)
    assert (predicted.shear_sign, true.shear_sign) == (-1, 1)
    report = evaluate_run(run, predicted, true)
    same = evaluate_run(run, predicted)
    np.testing.assert_array_equal(report.forces.predicted, same.forces.predicted)
    # The shear of the bodies is 2 + z along x: its drag changes its sign, that of p does not.
    turned = evaluate_run(run, target_settings(run, {"shear_sign": 1}))
    np.testing.assert_array_equal(report.forces.true, turned.forces.true)
    assert (report.forces.true[:, 0] > same.forces.true[:, 0]).all()
    told = format_report(report)
    assert "targets follow another convention than training" in told and "sign +1" in told


def test_a_folder_without_a_stamp_follows_the_training(surface_run, cars):
    (cars / "stamp.json").unlink()
    run = load_run(surface_run, device="cpu", data_root=cars)
    assert target_settings(run) == force_settings(run)


def test_other_data_follows_its_manifest_or_the_names_of_its_fields(surface_run, tmp_path):
    """Not the convention of the cars that the run was trained on."""
    trained = {"publisher": "cars", "pressure": "pMeanTrim", "shear": "wallShearStressMeanTrim"}
    trained |= {"shear_sign": 1, "speed": 7.0, "density": 2.0}
    content = {"coordinates": {}, "extent": {}, "builtin": "cars", "files": {}, "forces": trained}
    copy = shutil.copytree(surface_run, tmp_path / "copy")
    (copy / "training_set.json").write_text(json.dumps(content))
    other = making.write_surfaces(tmp_path / "other", n_train=1, n_test=2, first=30)
    named = target_settings(load_run(copy, device="cpu", data_root=other))
    assert (named.shear_sign, named.speed) == (-1, 38.889), "DrivAerML's"
    manifest = json.loads((other / "manifest.json").read_text())
    manifest |= {"forces": {**trained, "shear_sign": -1, "speed": 3.0}}
    (other / "manifest.json").write_text(json.dumps({"splits": manifest, **manifest}))
    told = target_settings(load_run(copy, device="cpu", data_root=other))
    assert (told.shear_sign, told.speed, told.density) == (-1, 3.0, 2.0)


def test_own_data_follows_what_the_run_has_stored(surface_run, cars, tmp_path):
    """Also where the data, and its stamp, are gone."""
    stored = {"publisher": "x", "pressure": "pMeanTrim", "shear": "wallShearStressMeanTrim"}
    stored |= {"shear_sign": 1, "speed": 7.0, "density": 2.0}
    content = {"coordinates": {}, "extent": {}, "builtin": "cars", "files": {}, "forces": stored}
    copy = shutil.copytree(surface_run, tmp_path / "copy")
    (copy / "training_set.json").write_text(json.dumps(content))
    run = load_run(copy, device="cpu")
    assert target_settings(run) == force_settings(run)
    assert (force_settings(run).shear_sign, force_settings(run).speed) == (1, 7.0)


def test_fields_in_a_file_follow_the_stamp_of_its_set(loaded, cars):
    path = cars / "run_1" / "boundary_1.vtp"
    settings = force_settings(loaded), target_settings(loaded, surface=path)
    lines = describe_prediction(loaded, predict_file(loaded, path), *settings)
    true = next(line for line in lines if line.startswith("forces in the file"))
    assert float(true.split("shear ")[1].split(")")[0]) > 0
    assert any(line.startswith("in the file: forces from pMeanTrim") for line in lines)
    assert not any("opposite sign" in line for line in lines)


def test_friction_against_the_flow_is_told(loaded):
    """The bodies store their stress along the flow, but the convention is OpenFOAM's."""
    report = evaluate_run(loaded, force_settings(loaded))
    (note,) = (note for note in report.notes if "the opposite sign" in note)
    assert note.endswith("give --shear-sign 1")
    right = evaluate_run(loaded, force_settings(loaded, {"shear_sign": 1}))
    assert not any("opposite sign" in note for note in right.notes)
    assert force_settings(loaded).sign_doubt(0.0) is None

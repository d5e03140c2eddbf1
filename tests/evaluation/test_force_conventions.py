"""Whose conventions the forces of predictions and of targets follow."""

import json

import pytest

from physicsnemo_flarepp.evaluation import force_settings, load_run
from physicsnemo_flarepp.evaluation.force_conventions import describe_settings


def test_the_sign_of_the_shear_is_the_data_sets(loaded, surfaces, tmp_path):
    assert force_settings(loaded).shear_sign == -1
    assert force_settings(loaded, {"shear_sign": 1}).shear_sign == 1
    builtin = load_run(loaded.directory, device="cpu")
    builtin.config.data.root, builtin.config.data.builtin = None, "cars"
    assert force_settings(builtin).shear_sign == 1
    assert "along the flow" in describe_settings(force_settings(builtin))
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
    assert settings.shear is None and "pressure forces only" in describe_settings(settings)

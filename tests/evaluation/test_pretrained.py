"""The model that comes with the package, against the solver that taught it."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp import files
from physicsnemo_flarepp.builtin.sets.cars import solve_case
from physicsnemo_flarepp.evaluation import relative_l2
from physicsnemo_flarepp.evaluation.predictions import CaseErrors
from physicsnemo_flarepp.training import train
from tests.commands.calling import verb
from tests.evaluation import making

SCRIPT = Path(__file__).parents[2] / "examples" / "drivaerml" / "pretrained.py"


@pytest.mark.slow
def test_a_new_car_is_predicted_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    case = solve_case(987_654)  # of no set
    pv.PolyData.from_regular_faces(case["points"], case["faces"]).save("car.stl")
    (written,) = verb("predict")(["--pretrained", "cars", "car.stl"])
    found = pv.read(written).cell_data
    names = {"pMeanTrim": 1, "wallShearStressMeanTrim": 3}
    values = [np.column_stack([source[name + suffix] for name in names])
              for source, suffix in ((found, "_predicted"), (case, ""))]  # fmt: skip
    errors = CaseErrors.of_rows(["car"], [relative_l2(*values, names)])
    assert errors.mean < 0.02, errors
    printed = capsys.readouterr().out
    assert "MODEL_CARD.md" in printed and "forces predicted: Cd 0.03" in printed
    assert "warning" not in printed


def test_unknown_names_and_missing_runs_are_refused():
    with pytest.raises(ValueError, match="no pretrained 'boats'; choose one of cars"):
        verb("predict")(["--pretrained", "boats", "boat.stl"])
    with pytest.raises(ValueError, match="--pretrained cars"):
        verb("predict")([])


@pytest.mark.slow
def test_another_run_is_kept_by_a_script_and_found_by_its_name(
    tmp_path, monkeypatch, capsys, surfaces
):
    run = tmp_path / "spheres"
    data = making.surface_data(surfaces, batch_size=1, batch_size_test=1, num_workers=0)
    training = {"steps": 3, "log_every": 1}
    train(
        {
            "run_dir": str(run),
            "data": data,
            "training": training,
            "model": making.MODEL,
            "device": "cpu",
        }
    )
    (run / "command.txt").write_text("/usr/bin/flarepp train training.steps=2\n")
    folder = runpy.run_path(str(SCRIPT))["keep"](run, tmp_path / "pretrained")
    card = (folder / "MODEL_CARD.md").read_text()
    assert "`flarepp train training.steps=2`" in card and "| all fields |" in card
    assert "## Where it must not be trusted" in card
    monkeypatch.setattr(files, "PRETRAINED", tmp_path / "pretrained")
    with pytest.raises(SystemExit):
        verb("predict")(["--help"])
    assert f"run that comes with the package: {folder.name}" in capsys.readouterr().out
    surface = next(surfaces.rglob("*.vtp"))
    (written,) = verb("predict")(["--pretrained", folder.name, str(surface), "--output",
                                  str(tmp_path / "out.vtp")])  # fmt: skip
    assert "pMeanTrim_predicted" in pv.read(written).cell_data

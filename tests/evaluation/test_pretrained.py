"""The model that comes with the package, against the solver that taught it."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin.sets.cars import solve_case
from physicsnemo_flarepp.evaluation import relative_l2
from physicsnemo_flarepp.evaluation.predictions import CaseErrors
from tests.commands.calling import verb


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

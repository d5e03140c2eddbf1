"""Optimised shapes: exact gradients, limits, folding, resuming, and what the command writes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.design import (
    Problem,
    make_lattice,
    open_shape,
    optimize,
    predicted_change,
    write_outcome,
)
from physicsnemo_flarepp.design.optimization import HISTORY, best_row, violation
from physicsnemo_flarepp.evaluation import force_settings, predict_difference, predict_file
from physicsnemo_flarepp.meshes import polygon_mesh, to_pyvista
from tests.commands.calling import verb
from tests.design.test_shape_model import HELD


@pytest.fixture(scope="module")
def shape(run, body):
    return open_shape(run, body, settings=force_settings(run), **HELD)


@pytest.fixture
def problem(shape):
    lattice = make_lattice(shape.mesh.points, (3, 3, 2))
    limits = {"volume": (0.97, 1.03), "clearance": (-0.01, None)}
    return Problem(shape, lattice, {"lift": 1.0}, 0.1, limits)


def surface(problem, row):
    moved = np.asarray(problem.points(np.array(row["x"])))
    return to_pyvista(replace(problem.shape.mesh, points=moved))


def test_derivatives_are_those_of_differences(problem):
    limits = {**problem.limits, "length": (None, 1.01), "drag": (0.0, 9.0)}
    precise = replace(problem, shape=problem.shape.in_double(), limits=limits)
    n, draw = int(problem.lattice.free.sum()), np.random.default_rng(0)
    x, direction = draw.uniform(-0.5, 0.5, n), draw.normal(size=n)
    row = precise.evaluate(x)
    ends = [precise.evaluate(x + s * 1e-5 * direction) for s in (1, -1)]
    slope = (ends[0]["objective"] - ends[1]["objective"]) / 2e-5
    assert np.dot(row["gradient"], direction) == pytest.approx(slope, rel=1e-6)
    slopes = (np.array(ends[0]["room"]) - ends[1]["room"]) / 2e-5
    assert len(slopes) == 2 + 1 + 1 + 2 + 12
    np.testing.assert_allclose(np.array(row["room_gradient"]) @ direction, slopes, rtol=1e-5)


def test_the_objective_falls_within_the_limits(problem, tmp_path):
    outcome = optimize(problem, tmp_path, evaluations=12)
    assert outcome.best["objective"] < outcome.start["objective"] - 1e-4
    assert violation(outcome.best) <= 1e-4 and not outcome.interrupted
    before, after = surface(problem, outcome.start), surface(problem, outcome.best)
    assert 0.97 - 1e-3 < after.volume / before.volume < 1.03 + 1e-3
    assert after.bounds[4] - before.bounds[4] > -0.01 - 1e-3
    assert np.abs(after.points - before.points).max() <= 0.1 + 1e-6
    assert outcome.best["distance"] <= max(0.05, outcome.start["distance"]) + 1e-4
    moved = problem.shape.values(problem.points(np.array(outcome.best["x"])))
    assert moved["lift"] == pytest.approx(outcome.best["values"]["lift"], rel=1e-5)


def test_a_force_is_kept_above_a_value_while_another_is_maximised(problem, tmp_path):
    least = problem.shape.values(problem.shape.points)["drag"] - 1e-3
    kept = replace(problem, weights={"pMeanTrim": -1.0}, limits={"drag": (least, None)})
    outcome = optimize(kept, tmp_path, evaluations=8)
    values = [row["values"]["pMeanTrim"] for row in (outcome.start, outcome.best)]
    assert values[1] > values[0] and outcome.best["values"]["drag"] >= least - 1e-4


def test_the_trust_region_holds_back(problem, tmp_path):
    free = replace(problem, limits={}, displacement=0.5, trust=None)
    held = replace(free, trust=0.0)
    far, near = (optimize(p, tmp_path / str(p.trust), evaluations=8).best for p in (free, held))
    start = max(0.0, held.evaluate(np.array(far["x"]) * 0)["distance"])
    assert near["distance"] <= start + 1e-3 < far["distance"]


@pytest.fixture
def gated(calibrated, body):
    shape = open_shape(calibrated, body, settings=force_settings(calibrated), **HELD)
    lattice = make_lattice(shape.mesh.points, (3, 3, 2))
    return Problem(shape, lattice, {"lift": 1.0}, 0.4, trust=10.0)


def test_shapes_stay_as_near_to_training_as_held_out_cases(gated, tmp_path):
    far = optimize(replace(gated, gate=False), tmp_path / "far", evaluations=10)
    near = optimize(gated, tmp_path / "near", evaluations=10)
    assert gated.farthest == 1 and near.best["latent_distance"] <= 1 < far.best["latent_distance"]
    refused = [row for row in near.rows if "objective" not in row]
    assert refused and all(row["latent_distance"] > 1 for row in refused)
    assert all(row["latent_distance"] <= 1 for row in near.rows if "objective" in row)
    path = write_outcome(gated, near, tmp_path)[0][0]
    found = predict_file(gated.shape.run, path, **HELD)
    away = found.distance / gated.shape.bounds.distances.max()
    assert away == pytest.approx(near.best["latent_distance"], rel=1e-3)
    assert replace(gated, trust=None).farthest is None
    assert optimize(gated, tmp_path / "near", evaluations=10).rows == near.rows
    longer = optimize(gated, tmp_path / "near", evaluations=12)
    assert longer.rows == optimize(gated, tmp_path / "whole", evaluations=12).rows


def test_a_shape_that_is_far_itself_may_go_as_far(gated, calibrated, body, tmp_path):
    path = tmp_path / "long.stl"
    pv.read(body).scale([1.3, 1.0, 1.0]).save(path)
    shape = open_shape(calibrated, path, settings=force_settings(calibrated), **HELD)
    problem = replace(gated, shape=shape, lattice=make_lattice(shape.mesh.points, (3, 3, 2)))
    outcome = optimize(problem, tmp_path, evaluations=6)
    assert problem.farthest == outcome.start["latent_distance"] > 1
    assert outcome.best["latent_distance"] <= problem.farthest
    assert "given shape: the surface is not where" in predicted_change(problem, outcome).no_bounds


def test_the_change_has_the_bound_of_the_difference_of_both_files(gated, body, tmp_path):
    near = optimize(replace(gated, displacement=0.02), tmp_path, evaluations=4)
    problem = replace(gated, displacement=0.02)
    found = predicted_change(problem, near)
    path = write_outcome(problem, near, tmp_path)[0][0]
    told = predict_difference(
        gated.shape.run, body, path, gated.shape.settings, global_values=HELD["global_values"]
    )
    assert found.no_bounds is told.no_bounds is None and found.level == told.level
    assert found.after["Cl"] != found.before["Cl"] and set(found.bounds) == {"Cd", "Cs", "Cl"}
    for name in ("before", "after", "bounds"):
        assert getattr(found, name) == pytest.approx(getattr(told, name), rel=1e-4, abs=1e-6)


def test_a_stopped_optimisation_resumes_as_if_it_had_not(problem, tmp_path):
    whole = optimize(problem, tmp_path / "whole", evaluations=6)

    def stop(row, number):
        if number == 3:
            raise KeyboardInterrupt

    part = optimize(problem, tmp_path / "parts", evaluations=6, report=stop)
    assert part.interrupted and part.rows == whole.rows[:3]
    history = tmp_path / "parts" / HISTORY
    with history.open("a") as file:
        file.write('{"x": [0.1, ')  # cut by a kill
    told = []
    resumed = optimize(
        problem, tmp_path / "parts", evaluations=6, report=lambda r, i: told.append(i)
    )
    assert resumed.rows == whole.rows and told == [4, 5, 6]
    assert [json.loads(line) for line in history.read_text().splitlines()[1:]] == whole.rows
    with pytest.raises(ValueError, match=r"another problem \(displacement differ\)"):
        optimize(replace(problem, displacement=0.2), tmp_path / "parts")


def test_a_folding_step_is_shortened(problem, tmp_path, monkeypatch):
    monkeypatch.setattr("physicsnemo_flarepp.design.optimization._FIRST_STEP", 50.0)
    wild = replace(problem, displacement=4.0, trust=None, limits={})
    outcome = optimize(wild, tmp_path, evaluations=10)
    folded = [row for row in outcome.rows if "objective" not in row]
    assert folded and all(row["stretch"] < 0.05 for row in folded)
    assert outcome.best["stretch"] >= 0.05
    reach, rows = 1.0, outcome.rows
    for number, row in enumerate(rows[:-1]):
        if "objective" not in row:
            reach /= 2
            middle = np.array(best_row(rows[:number])["x"])
            assert np.abs(rows[number + 1]["x"] - middle).max() <= reach + 1e-12
    assert reach < 1


def test_wrong_problems_are_told(problem):
    with pytest.raises(ValueError, match="cannot give 'weight'"):
        replace(problem, weights={"weight": 1.0})
    with pytest.raises(ValueError, match="name a quantity to minimise"):
        replace(problem, weights={})


@pytest.mark.slow
def test_the_command_writes_shape_history_and_pictures(directory, body, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = [str(directory), str(body), "--global", "lRef=4", "--views", "side"]
    arguments += ["--minimize", "drag", "--maximize", "lift=0.5", "--limit", "volume=0.95,"]
    arguments += ["--lattice", "3,2,2", "--evaluations", "4", "--output", str(output)]
    written = verb("optimize")(arguments)
    names = ["body_optimized.vtp", "body_optimized.stl", "history.csv", "history.png"]
    assert [path.name for path in written] == [*names, "before_after.png"]
    told = capsys.readouterr().out
    assert "shape 4: objective" in told and "confirm the change with the solver" in told
    assert "by ranges of the inputs only: run run was not calibrated" in told
    assert "no bounds: run run was not calibrated" in told and "Cd " in told
    stl, vtp = pv.read(written[1]), pv.read(written[0])
    assert stl.volume == pytest.approx(vtp.volume, rel=1e-4)
    start = polygon_mesh(pv.read(body), body).points
    np.testing.assert_allclose(vtp.points - vtp["displacement"], start, atol=1e-5)
    assert len((output / "history.csv").read_text().splitlines()) == 5
    assert main(["optimize", str(directory), str(body), "--global", "lRef=4"]) == 2
    assert "give --minimize drag" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_tells_distance_and_bound(calibrated, body, tmp_path, capsys):
    arguments = [str(calibrated.directory), str(body), "--global", "lRef=4", "--views", "side"]
    arguments += ["--minimize", "lift", "--lattice", "3,2,2", "--evaluations", "5"]
    arguments += ["--displacement", "0.4", "--outside", "10", "--output", str(tmp_path)]
    verb("optimize")(arguments)
    told = capsys.readouterr().out
    assert "no farther from training than the farthest held-out case" in told
    assert "too far from training" in told and "the level of a bound does not hold for it" in told
    assert " ± " in told and "not chosen by their prediction" in told and "settled" not in told
    header, *rows = (tmp_path / "history.csv").read_text().splitlines()
    column = header.split(",").index("latent_distance")
    assert all(float(row.split(",")[column]) > 0 for row in rows)

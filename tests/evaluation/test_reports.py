"""Reports against the same numbers computed by hand, and conventions of forces."""

import csv
import json

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.evaluation import (
    evaluate_run,
    force_settings,
    format_report,
    load_run,
    predict_case,
    report_runs,
    write_report,
)
from physicsnemo_flarepp.evaluation.conventions import describe_settings, force_surface
from physicsnemo_flarepp.meshes.writing import polygon_mesh
from tests.evaluation import making


def test_errors_and_the_training_mean_are_those_of_the_formulas(loaded, surfaces):
    report = evaluate_run(loaded)
    assert report.forces is None and report.errors.case_ids == ("run_3", "run_4")
    train = [making.body(number)["pMeanTrim"] for number in range(3)]
    mean = np.concatenate(train).mean()  # 64 of 320 cells are drawn; the statistics see all
    stored = float(loaded.normalizer.affine["fields"].shift[0])
    for row, number in enumerate((3, 4)):
        target = making.body(number)["pMeanTrim"]
        expected = np.linalg.norm(target - stored) / np.linalg.norm(target)
        assert report.mean_errors.values[row, 0] == pytest.approx(expected, rel=1e-4)
    assert abs(stored - mean) < 0.2 * np.concatenate(train).std()
    assert report.errors.values[1, 0] == predict_case(loaded, 1).errors["pMeanTrim"]


def test_forces_are_integrated_from_both_fields(loaded):
    report = evaluate_run(loaded, force_settings(loaded))
    for row, number in enumerate((3, 4)):
        body = making.body(number)
        sizes = body.compute_cell_sizes(length=False, volume=False)["Area"]
        normals = body.compute_normals(
            point_normals=False, auto_orient_normals=True, consistent_normals=True
        )["Normals"]
        case = predict_case(loaded, row)
        for found, fields in (
            (report.forces.predicted[row], case.prediction),
            (report.forces.true[row], case.target),
        ):
            force = -(fields[:, :1] * normals + fields[:, 1:]) * sizes[:, None]
            expected = force.sum(0) / (0.5 * 38.889**2 * (2.0 + number))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(report.forces.reference_areas, [5.0, 6.0])
    column = report.forces.true[:, 0]
    score = (
        1
        - ((report.forces.predicted[:, 0] - column) ** 2).sum()
        / ((column - column.mean()) ** 2).sum()
    )
    assert report.forces.r_squared("Cd") == pytest.approx(score)


def test_the_text_has_every_field_its_worst_case_and_the_conventions(loaded):
    report = evaluate_run(loaded, force_settings(loaded))
    lines = format_report(report).splitlines()
    worst = report.errors.case_ids[int(np.argmax(report.errors.values[:, 0]))]
    pressure = next(line.split() for line in lines if line.startswith("pMeanTrim"))
    mean, median, largest, case, baseline = pressure[1:]
    values = 100 * report.errors.values[:, 0]
    assert float(mean) == pytest.approx(values.mean(), rel=5e-3)
    assert float(median) == pytest.approx(np.median(values), rel=5e-3)
    assert (float(largest), case) == (pytest.approx(values.max(), rel=5e-3), worst)
    assert float(baseline) == pytest.approx(100 * report.mean_errors.values[:, 0].mean(), rel=5e-3)
    assert any(line.startswith("all fields") for line in lines)
    drag = next(line.split() for line in lines if line.startswith("Cd"))
    assert float(drag[1]) == pytest.approx(report.forces.r_squared("Cd"), rel=1e-3)
    assert any("with sign -1 (OpenFOAM's, against the flow); speed 38.889" in x for x in lines)
    assert "note: reference area: aRef of geo_ref" in lines


def test_the_table_has_one_line_per_case(loaded, tmp_path):
    report = evaluate_run(loaded, force_settings(loaded))
    write_report(report, tmp_path / "cases.csv")
    with open(tmp_path / "cases.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["run_3", "run_4"]
    for i, row in enumerate(rows):
        assert float(row["wallShearStressMeanTrim"]) == report.errors.values[i, 1]
        assert float(row["Cl_predicted"]) == report.forces.predicted[i, 2]
        assert float(row["Cl_true"]) == report.forces.true[i, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["cases.csv"]


def test_grids_are_reported_without_forces(darcy_run, capsys):
    run = load_run(darcy_run, device="cpu")
    (report,) = report_runs([run])
    stored = run.normalizer.affine["fields"].shift[:, 0].numpy()
    targets = [predict_case(run, i).target[:, 0] for i in range(3)]
    expected = [np.linalg.norm(t - stored) / np.linalg.norm(t) for t in targets]
    np.testing.assert_allclose(report.mean_errors.values[:, 0], expected, rtol=1e-5)
    text = capsys.readouterr().out
    assert "darcy: 3 test cases" in text and "R^2" not in text
    assert (darcy_run / "evaluation.csv").read_text().splitlines()[0] == "case,u"


def test_several_runs_are_compared(loaded, featured_run, capsys):
    reports = report_runs([loaded, load_run(featured_run, device="cpu")], force_settings)
    table = capsys.readouterr().out.strip().splitlines()[-3:]
    assert table[0].split()[0] == "run" and "R^2 of Cd" in table[0]
    for line, report in zip(table[1:], reports, strict=True):
        name, error, *_ = line.split()
        assert name == report.name
        assert float(error) == pytest.approx(100 * report.errors.mean, rel=5e-3)


def test_points_without_a_surface_have_no_forces(tmp_path):
    rng = np.random.default_rng(0)
    for split, number in (("train", 1), ("test", 2)):
        (tmp_path / "set" / split).mkdir(parents=True)
        np.savez(
            tmp_path / "set" / split / f"run_{number}.npz",
            surface_mesh_centers=rng.random((50, 3), np.float32),
            surface_fields=rng.random((50, 4), np.float32),
        )
    run = load_run(
        making.write_run(tmp_path / "run", making.surface_data(tmp_path / "set")), device="cpu"
    )
    report = evaluate_run(run, force_settings(run))
    assert report.forces is None
    assert report.notes == ("the cases are points without a surface: no forces",)
    assert run.channels.association == "cell"  # on a mesh its tokens are cell centres


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


def test_without_a_table_the_reference_is_the_silhouette(loaded, tmp_path):
    ball = polygon_mesh(pv.Icosphere(nsub=5), tmp_path / "ball.stl")
    surface = force_surface(ball, "cell", force_settings(loaded))
    assert surface.reference_area == pytest.approx(np.pi, rel=1e-3)
    assert "silhouette" in surface.area_source
    given = force_surface(ball, "cell", force_settings(loaded, {"reference_area": 3.0}))
    assert given.reference_area == 3.0

"""Reports against the same numbers computed by hand, and conventions of forces."""

import csv
import os
from dataclasses import replace

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
from physicsnemo_flarepp.evaluation.reports import comparison_rows
from physicsnemo_flarepp.texts import format_table
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
    mean, median, largest, case, baseline, integral = pressure[1:]
    values = 100 * report.errors.values[:, 0]
    assert float(mean) == pytest.approx(values.mean(), rel=5e-3)
    assert float(median) == pytest.approx(np.median(values), rel=5e-3)
    assert (float(largest), case) == (pytest.approx(values.max(), rel=5e-3), worst)
    assert float(baseline) == pytest.approx(100 * report.mean_errors.values[:, 0].mean(), rel=5e-3)
    integrals = 100 * report.integral_errors.values[:, 0]
    assert float(integral) == pytest.approx(integrals.mean(), rel=5e-3)
    assert any(line.startswith("all fields") for line in lines)
    drag = next(line.split() for line in lines if line.startswith("Cd"))
    assert float(drag[1]) == pytest.approx(report.forces.r_squared("Cd"), rel=1e-3)
    assert any("with sign -1 (OpenFOAM's, against the flow); speed 38.889" in x for x in lines)
    assert "note: reference area: aRef of geo_ref_*.csv" in lines


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
    assert (darcy_run / "evaluation.csv").read_text().splitlines()[0] == "case,u,u_integral"


def test_several_runs_are_compared(loaded, featured_run, capsys):
    reports = report_runs(
        [loaded, load_run(featured_run, device="cpu")], lambda run: (force_settings(run), None)
    )
    table = capsys.readouterr().out.strip().splitlines()[-3:]
    assert table[0].split()[0] == "run" and "R^2 of Cd" in table[0]
    for line, report in zip(table[1:], reports, strict=True):
        name, count, split, error, *_ = line.split()
        assert (name, count, split) == (report.name, str(len(report.errors.case_ids)), "test")
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
    (note,) = report.notes
    assert note.startswith("no forces: case 'run_2' has points without a surface")
    assert run.channels.association == "cell"  # on a mesh its tokens are cell centres


def test_errors_stand_where_forces_cannot_be_had(surface_run, tmp_path):
    """A flat body has no inside; a damaged table no reference area."""
    for name in ("flat", "table"):
        root = making.write_surfaces(tmp_path / name)
        if name == "flat":
            file = root / "run_4" / "boundary_4.vtp"
            mesh = pv.read(file)
            mesh.points[:, 2] = 0
            mesh.save(file)
        else:
            (root / "run_4" / "geo_ref_4.csv").write_text("aRef,lRef\n2.0\n")
        run = load_run(surface_run, device="cpu", data_root=root)
        report = evaluate_run(run, force_settings(run))
        assert report.errors.values.shape == (2, 2) and np.isfinite(report.errors.values).all()
        assert report.forces is None
        (note,) = report.notes
        assert note.startswith("no forces: ") and f"run_4{os.sep}" in note
        assert format_report(report).endswith(note)


@pytest.mark.parametrize(
    "normalization, has_mean",
    [
        ({"fields": "gaussian"}, True),
        ({"fields": "unit_box"}, False),
        ({"fields": "none"}, False),
        ("none", False),
        ({"load": "normalizer.safetensors"}, False),
    ],
    ids=["gaussian", "unit_box", "no fields", "none", "loaded"],
)
def test_only_a_fitted_mean_is_called_the_training_mean(
    surfaces, surface_run, tmp_path, normalization, has_mean
):
    if "load" in normalization:
        normalization = {"load": str(surface_run / normalization["load"])}
    data = making.surface_data(surfaces, normalization=normalization)
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    report = evaluate_run(run)
    assert (report.mean_errors is not None) == has_mean
    assert ("training mean" in format_report(report)) == has_mean
    assert ("training mean" in format_table(comparison_rows([report, report]))) == has_mean
    both = format_table(comparison_rows([report, replace(report, split="val")])).splitlines()
    count = len(report.errors.case_ids)
    assert f" {count} test " in both[1] and f" {count} validation " in both[2]
    if has_mean:
        meshes = [pv.read(surfaces / f"run_{i}" / f"boundary_{i}.vtp") for i in range(3)]
        # Of the tokens drawn in training, which are some of each case.
        mean = np.mean([mesh["pMeanTrim"].mean() for mesh in meshes])
        true = predict_case(run, 0).target[:, 0]
        expected = np.linalg.norm(mean - true) / np.linalg.norm(true)
        assert report.mean_errors.values[0, 0] == pytest.approx(expected, rel=0.1)

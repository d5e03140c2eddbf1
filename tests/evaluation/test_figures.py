import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.evaluation import (
    chosen_case,
    draw_comparison,
    draw_gallery,
    draw_parity,
    draw_run,
    evaluate_run,
    figures,
    force_settings,
    load_run,
    predict_case,
)
from physicsnemo_flarepp.runs import trained_run
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.visualization import RenderingUnavailable, Theme
from tests.evaluation import making

pytestmark = pytest.mark.slow

SMALL = Theme(dpi=50, panel_width=1.2)


def refuse(*_, **__):
    raise AssertionError("cases were predicted")


def test_both_models_are_shown_on_the_first_ones_median_case(both, tmp_path):
    table = evaluate_run(both[0], progress=False).errors
    expected = table.ranked()[(len(table.case_ids) - 1) // 2]
    pressure, shear = draw_comparison(both, directory=tmp_path, formats=("png", "svg"), theme=SMALL)
    svg = shear.paths[1].read_text()
    cases = [predict_case(run, expected) for run in both]
    true = cases[0].target[:, 0].astype(float)
    names = [run.name for run in both]
    for name, case in zip(names, cases, strict=True):
        assert pressure.relative_l2[name] == pytest.approx(case.errors["pMeanTrim"], rel=1e-5)
        # Magnitudes are shown: their error, and that of the vectors, as in tables.
        predicted, vectors = case.prediction[:, 1:4], case.target[:, 1:4]
        true_length = np.sqrt((vectors**2).sum(1))
        error = np.linalg.norm(np.sqrt((predicted**2).sum(1)) - true_length)
        error /= np.linalg.norm(true_length)
        assert shear.relative_l2[name] == pytest.approx(error, rel=1e-4)
        whole = np.sqrt(((predicted - vectors) ** 2).sum() / (vectors**2).sum())
        assert case.errors["wallShearStressMeanTrim"] == pytest.approx(whole, rel=1e-4)
        assert whole != pytest.approx(error, rel=1e-2)
        assert f"magnitude {error:.2%}, vector {whole:.2%}" in svg
    worst = max(np.percentile(np.abs(c.prediction[:, 0] - true), 99.5) for c in cases)
    assert pressure.error_limits == pytest.approx((-worst, worst), rel=1e-5)
    assert pressure.cameras == ("three-quarter", "side", "top", "rear")
    assert pressure.paths[0] == tmp_path / "comparison_median_pMeanTrim.png"
    exported = pv.read(tmp_path / f"case_{expected}.vtp")
    assert exported.n_cells == len(true)
    np.testing.assert_allclose(exported.cell_data["pMeanTrim"].ravel(), true, rtol=1e-6)
    shear_error = exported.cell_data[f"wallShearStressMeanTrim_error_{names[1]}"]
    np.testing.assert_allclose(
        shear_error, (cases[1].prediction - cases[1].target)[:, 1:4], atol=1e-6
    )


def test_case_may_be_named_and_fields_chosen(both, tmp_path):
    ids = both[0].case_ids
    (drawn,) = draw_comparison(
        both[:1],
        ids[-1],
        tmp_path,
        fields=["wallShearStressMeanTrim_x"],
        labels=["FLARE++"],
        cameras=["side"],
        formats=("png", "pdf"),
        theme=SMALL,
    )
    case = predict_case(both[0], ids[-1])
    column = case.prediction[:, 1].astype(float), case.target[:, 1].astype(float)
    error = np.linalg.norm(column[0] - column[1]) / np.linalg.norm(column[1])
    assert drawn.relative_l2 == pytest.approx({"FLARE++": error}, rel=1e-5)
    assert [path.suffix for path in drawn.paths] == [".png", ".pdf"]
    with pytest.raises(ValueError, match="run surfaces has no test case 'run_99'.*run_3"):
        draw_comparison(both[:1], "run_99", tmp_path)
    with pytest.raises(ValueError, match="field 'q' is not known; choose among"):
        draw_comparison(both[:1], ids[0], tmp_path, fields=["q"])


def test_runs_on_other_data_are_refused(both, darcy_run, tmp_path, tmp_path_factory):
    ids = both[0].case_ids
    root = making.write_surfaces(tmp_path_factory.mktemp("others") / "set", first=0)
    for index, name in enumerate(sorted(path.name for path in root.glob("run_*"))):
        file = next((root / name).glob("*.vtp"))
        pv.read(file).scale((1.0, 1.0, 1.1 + index)).save(file)
    changed = making.write_run(tmp_path / "changed", making.surface_data(root))
    runs = [both[0], load_run(changed, device="cpu")]
    with pytest.raises(ValueError, match="its coordinates between runs 'surfaces' and 'changed'"):
        draw_comparison(runs, ids[0], tmp_path)
    with pytest.raises(ValueError, match="run darcy has no test case"):
        draw_comparison([both[0], load_run(darcy_run, device="cpu")], ids[0], tmp_path)
    with pytest.raises(ValueError, match="give each run once"):
        draw_comparison([both[0], both[0]], ids[0], tmp_path)


def test_planar_sets_have_one_view(darcy_run, tmp_path):
    run = load_run(darcy_run, device="cpu")
    (drawn,) = draw_comparison([run], "worst", tmp_path, theme=SMALL)
    assert drawn.cameras == ("plan",)
    table = evaluate_run(run, progress=False).errors
    assert drawn.relative_l2[run.name] == pytest.approx(table.per_case.max(), rel=1e-5)
    assert len(list(tmp_path.glob("case_*.vts"))) == 1


def test_gallery_takes_the_input_from_the_features_and_predicts_nothing(
    both, darcy_run, tmp_path, monkeypatch
):
    darcy = load_run(darcy_run, device="cpu")
    coefficient = predict_case(darcy, 0).features[:, 0]
    monkeypatch.setattr(trained_run, "predict", refuse)
    look = {"formats": ("svg",), "theme": SMALL}
    drawn = draw_gallery([darcy, both[0]], tmp_path, labels=["Darcy", "Bodies"], **look)
    for run in (darcy, both[0]):
        shown = run.case_ids[0]
        assert f">case {shown}<" in drawn.paths[0].read_text()
    expected = np.percentile(coefficient, (0.5, 99.5))
    assert drawn.limits["Darcy", "input"] == pytest.approx(tuple(expected), rel=1e-5)
    assert drawn.limits["Bodies", "input"] is None


def test_parity_of_reports(both, tmp_path):
    settings = force_settings(both[0], {"shear_sign": 1, "speed": 10.0})
    reports = [evaluate_run(run, settings, progress=False) for run in both]
    drawn = draw_parity(reports, tmp_path, theme=SMALL)
    for report in reports:
        scores = drawn.r_squared[report.name]
        assert scores["drag coefficient"] == pytest.approx(report.forces.r_squared("Cd"))
        assert scores["lift coefficient"] == pytest.approx(report.forces.r_squared("Cl"))
    named = draw_parity(reports, tmp_path, labels=["one", "two"], theme=SMALL)
    assert list(named.r_squared) == ["one", "two"]
    with pytest.raises(ValueError, match=r"2 reports have the names \['surfaces', 'surfaces'\]"):
        draw_parity([reports[0], reports[0]], tmp_path)
    without = evaluate_run(both[0], progress=False)
    with pytest.raises(ValueError, match="the report of run 'surfaces' has no forces"):
        draw_parity([without], tmp_path)


@pytest.fixture
def finished(darcy_run, tmp_path):
    """A run directory with metrics, as training leaves it."""
    directory = tmp_path / "run"
    shutil.copytree(darcy_run, directory)
    lines = [
        {"kind": "step", "step": 1, "epoch": 0, "loss": 0.9},
        {"kind": "evaluation", "step": 1, "epoch": 0, "error": 0.8, "mean_predictor_error": 0.9},
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def test_finished_run_gets_curves_and_its_median_case(finished):
    written = draw_run(finished)
    names = {path.name for path in written}
    assert names == {"training.png", "comparison_median_u.png"}
    assert all(path.parent == finished / "figures" and path.stat().st_size for path in written)
    assert len(list((finished / "figures").glob("case_*.vts"))) == 1


def test_errors_left_by_training_choose_the_case(finished, monkeypatch):
    ids = load_run(finished, device="cpu").case_ids
    rows = "".join(f"{name},{error}\n" for name, error in zip(ids, (0.3, 0.2, 0.1), strict=True))
    (finished / "errors.csv").write_text("case,u\n" + rows)

    monkeypatch.setattr(figures, "evaluate_run", refuse)
    draw_run(finished)
    (exported,) = (finished / "figures").glob("case_*.vts")
    assert exported.stem == f"case_{ids[1]}"


def test_run_without_opengl_still_gets_its_curves(finished, monkeypatch, capsys):
    def refuse():
        raise RenderingUnavailable("install libegl1")

    monkeypatch.setattr(figures, "require_rendering", refuse)
    assert [path.name for path in draw_run(finished)] == ["training.png"]
    assert "no figures of fields: install libegl1" in capsys.readouterr().out


def test_figure_that_fails_does_not_fail_the_training(finished, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(figures, "draw_comparison", refuse)
    assert [path.name for path in draw_run(finished)] == ["training.png"]
    told = capsys.readouterr().out
    assert f"figures of {finished} failed: no space left; draw again with flarepp plot" in told


def test_planar_surface_in_space_has_one_view(tmp_path):
    """The cameras of its set are a default; those that a caller names are not."""
    root = making.write_surfaces(tmp_path / "set", n_train=2, n_test=1)
    for file in root.glob("run_*/*.vtp"):
        plane = pv.Plane(i_resolution=6, j_resolution=5)
        x, y, _ = plane.cell_centers().points.T
        plane.cell_data["pMeanTrim"] = x + y**2
        plane.cell_data["wallShearStressMeanTrim"] = np.stack([x, y, x * y + 1], axis=1)
        plane.save(file)
    directory = making.write_run(tmp_path / "run", making.surface_data(root, n_points=16))
    run = load_run(directory, device="cpu")
    options = {"fields": ["pMeanTrim"], "theme": SMALL}
    (drawn,) = draw_comparison([run], "run_2", tmp_path, **options)
    assert drawn.cameras == ("plan",)
    with pytest.raises(ValueError, match="the mesh is planar"):
        draw_comparison([run], "run_2", tmp_path, cameras=["side"], **options)


def test_fields_of_a_joint_norm_have_errors_of_their_own(both):
    case = predict_case(both[0], 0)
    joint = replace(case, channels=replace(case.channels, joint=True))
    assert len(joint.errors) == 1
    for field, error in case.errors.items():
        assert joint.error(field) == pytest.approx(error, rel=1e-6)


def test_unknown_case_is_refused_before_any_is_predicted(both, monkeypatch):
    monkeypatch.setattr(figures, "evaluate_run", refuse)
    with pytest.raises(ValueError, match="no test case 'medain'"):
        chosen_case(both[0], "medain")


def test_a_figure_names_the_error_of_the_table_and_its_norm(tmp_path):
    """A run that was trained on integrals, on a cloud with points of very different areas."""
    rng = np.random.default_rng(0)
    (tmp_path / "clouds").mkdir()
    for i in range(5):
        points = rng.random((60, 2)) ** 3
        arrays = {"pos": points, "u": points[:, 0] + 0.1, "mu": float(i)}
        np.savez(tmp_path / "clouds" / f"case_{i}.npz", **arrays)
    model = {"_target_": "physicsnemo_flarepp.FlarePP", "n_layers": 1, "n_hidden": 16}
    data = {"root": str(tmp_path / "clouds"), "reader": {"_target_": "OwnReader"}}
    data |= {"weights": "measure", "num_workers": 0}
    training = {"epochs": 1, "norm": "measure"}
    cfg = {"model": model, "data": data, "training": training, "run_dir": str(tmp_path / "run")}
    table = train(cfg).errors
    DistributedManager.cleanup()
    run = load_run(tmp_path / "run", device="cpu")
    case = predict_case(run, 0)
    (drawn,) = draw_comparison([run], case.case_id, tmp_path, formats=["svg"], theme=SMALL)
    (error,) = drawn.relative_l2.values()
    assert error == pytest.approx(table[0].item(), rel=1e-3)
    assert abs(error - case.error("u")) > 1e-3
    assert "rel. L2: integrals" in re.sub("<[^>]+>", "", drawn.paths[0].read_text())

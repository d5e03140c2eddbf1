"""The verb plot: which files they write, whose numbers are in them, what they refuse."""

import argparse
import importlib.util
import json
import shutil

import numpy as np
import pytest
import pyvista as pv
from PIL import Image

from physicsnemo_flarepp.commands import parsers, results
from physicsnemo_flarepp.commands.parsers import parse_options
from physicsnemo_flarepp.commands.results import chosen_cameras
from physicsnemo_flarepp.evaluation import evaluate_run, figure_sets, load_run, predict_case
from physicsnemo_flarepp.visualization import DARK, MissingExtra, RenderingUnavailable
from physicsnemo_flarepp.visualization.views import CAR_CAMERAS
from tests.commands.calling import verb
from tests.evaluation import making

pytestmark = pytest.mark.slow

SMALL = ("--dpi", "40", "--device", "cpu")

draw = verb("plot")


def trained(directory, data, model=None):
    """A run directory with metrics."""
    making.write_run(directory, data, model)
    lines = [
        {"kind": "step", "step": 1, "epoch": 0, "loss": 0.9},
        {"kind": "evaluation", "step": 1, "epoch": 0, "error": 0.8},
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


@pytest.fixture(scope="module")
def car_runs(tmp_path_factory):
    """FLARE++, FLARE and attention on the same bodies."""
    root = tmp_path_factory.mktemp("cars")
    data = making.surface_data(making.write_surfaces(root / "set"))
    mixers = ("flarepp", "flare", "attention")
    latents = {"attention": None}
    return [
        trained(root / f"cars-{mixer}", data, {"mixer": mixer, "slice_num": latents.get(mixer, 4)})
        for mixer in mixers
    ]


@pytest.fixture(scope="module")
def darcy_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("darcy")
    return trained(root / "darcy", making.darcy_data(making.write_darcy(root / "set")))


@pytest.mark.slow
def test_usual_figures_of_cars_go_to_the_first_run(car_runs, monkeypatch):
    evaluated = []

    def counted(run, *settings, baselines):
        evaluated.append(run.name)
        return evaluate_run(run, *settings, baselines=baselines)

    monkeypatch.setattr(figure_sets, "evaluate_run", counted)
    flarepp, flare, _ = map(str, car_runs)
    written = draw([flarepp, flare, *SMALL, "--fields", "pMeanTrim"])
    # Once for the choice of the case and for the parity.
    assert evaluated == ["cars-flarepp", "cars-flare"]
    assert [path.name for path in written] == [
        "training.png",
        "comparison_median_pMeanTrim.png",
        "parity.png",
        "routing.png",
        "queries.png",
        "routing_cars-flare.png",
        "queries_cars-flare.png",
        "spectrum.png",
    ]
    assert {path.parent for path in written} == {car_runs[0] / "figures"}
    assert all(Image.open(path).width > 100 for path in written)
    run = load_run(flarepp, device="cpu")
    table = evaluate_run(run, progress=False).errors
    shown = table.case_ids[int(np.argsort(table.per_case)[(len(table.case_ids) - 1) // 2])]
    (exported,) = (car_runs[0] / "figures").glob("case_*.vtp")
    assert exported.stem == f"case_{shown}"
    case = predict_case(run, shown)
    np.testing.assert_allclose(
        pv.read(exported).cell_data["pMeanTrim_predicted_cars-flarepp"],
        case.prediction[:, 0],
        rtol=1e-5,
    )


def test_labels_case_fields_formats_and_theme_work_together(car_runs, tmp_path):
    written = draw(
        [*map(str, car_runs[:2]), *SMALL, "--dark", "--output", str(tmp_path)]
        + ["--figures", "comparison", "--case", "run_4", "--fields", "wallShearStressMeanTrim_z"]
        + ["--labels", "FLARE++", "FLARE", "--formats", "png", "svg"]
    )
    stem = "comparison_run_4_wallShearStressMeanTrim_z"
    assert [path.name for path in written] == [f"{stem}.png", f"{stem}.svg"]
    picture = np.asarray(Image.open(written[0]))
    assert "#{:02x}{:02x}{:02x}".format(*picture[0, 0]) == DARK.background
    words = written[1].read_text()
    assert "FLARE++ error, rel. L2" in words and "case run_4" in words and "cars-fl" not in words
    # All fields are exported, whichever are drawn.
    arrays = set(pv.read(tmp_path / "case_run_4.vtp").cell_data)
    for field in making.SURFACE_FIELDS:
        assert {field, f"{field}_predicted_FLARE", f"{field}_error_FLARE++"} <= arrays


@pytest.mark.slow
def test_models_without_routes_are_named_and_left_out(car_runs, tmp_path, capsys):
    flarepp, _, attention = map(str, car_runs)
    options = [*SMALL, "--output", str(tmp_path), "--figures", "routing", "spectrum"]
    options += ["--case", "run_3", "--formats", "svg"]
    assert draw([attention, *options]) == []
    written = draw([attention, flarepp, *options])
    assert [path.name for path in written] == ["routing.svg", "queries.svg", "spectrum.svg"]
    assert "no spectrum of cars-attention" in capsys.readouterr().out
    assert "cars-flarepp, M = 4" in written[2].read_text()
    assert "from run_3 to run_4" in written[1].read_text()  # the first other case


def test_second_case_of_the_queries_may_be_named(darcy_run, tmp_path):
    options = [str(darcy_run), *SMALL, "--output", str(tmp_path), "--formats", "svg"]
    options += ["--figures", "routing", "--case", "darcy_test_0001"]
    _, queries = draw([*options, "--other-case", "darcy_test_0002"])
    assert "from darcy_test_0001 to darcy_test_0002" in queries.read_text()
    with pytest.raises(ValueError, match="run darcy has no test case 'nine'"):
        draw([*options, "--other-case", "nine"])


def test_gallery_takes_runs_of_several_sets(car_runs, darcy_run, tmp_path):
    (written,) = draw(
        [str(darcy_run), str(car_runs[0]), *SMALL, "--output", str(tmp_path)]
        + ["--figures", "gallery", "--labels", "Darcy", "Bodies", "--formats", "svg"]
    )
    words = written.read_text()
    assert all(word in words for word in ("Darcy", "Bodies", "permeability a", "geometry"))


def test_bad_options_are_named(car_runs, darcy_run, tmp_path, capsys):
    options = [*SMALL, "--output", str(tmp_path), "--figures", "comparison"]
    with pytest.raises(ValueError, match="run darcy has no test case 'darcy_9'.*_0002"):
        draw([str(darcy_run), *options, "--case", "darcy_9"])
    with pytest.raises(ValueError, match="2 runs have the names .*'one'"):
        draw([str(darcy_run), str(car_runs[0]), *options, "--labels", "one"])
    with pytest.raises(ValueError, match="run cars-flarepp has no test case 'darcy_test_0000'"):
        draw([str(darcy_run), str(car_runs[0]), *options, "--case", "darcy_test_0000"])
    with pytest.raises(SystemExit):
        draw([str(darcy_run), "--figures", "portrait"])
    told = capsys.readouterr().err
    assert all(name in told for name in parsers.FIGURE_NAMES)
    assert not list(tmp_path.iterdir())


def test_forces_are_left_out_where_there_is_no_surface(
    car_runs, darcy_run, tmp_path, capsys, monkeypatch
):
    """By default; who asks for them is told why not."""
    output = ["--output", str(tmp_path)]
    monkeypatch.setattr(results, "usual_figures", lambda runs, forces: ["parity"])
    runs = [str(darcy_run), str(car_runs[0])]
    options = ["--labels", "D", "C", "--formats", "svg"]
    _, written = draw([*runs, *SMALL, *output, *options])
    assert "no parity of D: the fields u of run darcy follow no known convention" in (
        capsys.readouterr().out
    )
    assert "C, R²" in written.read_text()
    options = [str(darcy_run), *SMALL, *output, "--figures", "parity", "--speed", "1"]
    options += ["--pressure-field", "u", "--shear-sign", "1"]
    with pytest.raises(ValueError, match="has points without a surface"):
        draw(options)


def test_errors_of_training_choose_the_case_of_all_figures(darcy_run, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    shutil.copytree(darcy_run, directory)
    ids = load_run(directory, device="cpu").case_ids
    rows = "".join(f"{name},{error}\n" for name, error in zip(ids, (3, 1, 2), strict=True))
    (directory / "errors.csv").write_text("case,u\n" + rows)
    calls = []

    def counted(run, **_):
        calls.append(run.name)
        return evaluate_run(run, progress=False)

    monkeypatch.setattr(figure_sets, "evaluate_run", counted)
    options = [str(directory), *SMALL, "--output", str(tmp_path), "--formats", "svg"]
    written = draw([*options, "--figures", "comparison"])
    assert f"case {ids[2]}, median error of run" in written[0].read_text() and not calls
    rows = rows.replace(ids[0], "another_case")  # errors of other data choose nothing
    (directory / "errors.csv").write_text("case,u\n" + rows)
    draw([*options, "--figures", "spectrum"])
    assert calls == ["run"]


def test_without_opengl_the_rest_is_drawn(darcy_run, tmp_path, monkeypatch, capsys):
    def refuse():
        raise RenderingUnavailable("install libegl1")

    monkeypatch.setattr(figure_sets, "require_rendering", refuse)
    with pytest.raises(SystemExit, match="not drawn: comparison, routing"):
        draw([str(darcy_run), *SMALL, "--output", str(tmp_path)])
    names = {path.name for path in tmp_path.iterdir() if path.suffix == ".png"}
    assert names == {"training.png", "queries.png", "spectrum.png"}
    assert len(list(tmp_path.glob("case_*.vts"))) == 1
    assert capsys.readouterr().out.count("install libegl1") == 1


def test_curves_need_no_model_and_pages_need_their_extra_first(tmp_path, monkeypatch):
    line = {"kind": "step", "step": 1, "epoch": 0, "loss": 0.9}
    runs = [tmp_path / "first" / "flare", tmp_path / "second" / "flare"]
    for run in runs:
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    options = [*map(str, runs), "--figures", "training", "--formats", "svg"]
    (written,) = draw(options)
    words = written.read_text()
    assert ">first/flare<" in words and ">second/flare<" in words
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="trame-pyvista"):
        results.plot(argparse.Namespace(html=True))


def test_second_case_of_the_queries_must_be_another(darcy_run, tmp_path):
    options = [str(darcy_run), *SMALL, "--output", str(tmp_path), "--figures", "routing"]
    options += ["--case", "darcy_test_0001", "--other-case", "darcy_test_0001"]
    with pytest.raises(ValueError, match="--other-case darcy_test_0001 is the case that is shown"):
        draw(options)
    with pytest.raises(ValueError, match="dpi is 0"):
        draw([str(darcy_run), "--dpi", "0"])
    assert not list(tmp_path.iterdir())


def test_forces_are_usual_on_surfaces_only(car_runs, darcy_run):
    cars, darcy = (load_run(path, device="cpu") for path in (car_runs[0], darcy_run))
    assert "parity" in results.usual_figures([darcy, cars], True)
    assert results.usual_figures([darcy], True) == ["comparison", "routing", "spectrum"]
    assert "parity" not in results.usual_figures([cars], False)


def test_the_training_curve_needs_no_data(darcy_run, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(darcy_run, directory)
    config = directory / "config.yaml"
    config.write_text(config.read_text().replace(str(darcy_run.parent), str(tmp_path / "gone")))
    with pytest.raises((ValueError, FileNotFoundError), match="gone"):
        draw([str(directory), *SMALL])
    assert [path.name for path in (directory / "figures").iterdir()] == ["training.png"]


@pytest.mark.parametrize(
    "given, name, direction, up",
    [
        (["--up", "y", "--views", "rear,side"], "side", (0, 0, 1), (0, 1, 0)),
        (["--up", "x"], "rear", (0, 1, 0), (1, 0, 0)),
        (["--drag-axis", "0", "-1", "0"], "rear", (0, -1, 0), (0, 0, 1)),
        (["--lift-axis", "0", "1", "0"], "top", (0, 1, 0), None),
    ],
)
def test_views_follow_the_axes_that_are_given(given, name, direction, up):
    options = parse_options("plot", ["run", *given])
    cameras = {c.name: c for c in chosen_cameras(options, CAR_CAMERAS)}
    assert cameras[name].direction == direction and up in (None, cameras[name].up)
    assert list(cameras) == (options.views or ["three-quarter", "side", "top", "rear"])
    assert chosen_cameras(parse_options("plot", ["run"]), CAR_CAMERAS) is None

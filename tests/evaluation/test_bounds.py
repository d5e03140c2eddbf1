"""Bounds of errors: the quantile, what is stored, who gets one and who is refused."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.evaluation import (
    calibrate,
    conformal_quantile,
    force_settings,
    load_run,
    predict_case,
    predict_difference,
    predict_file,
    store_bounds,
    stored_bounds,
)
from physicsnemo_flarepp.evaluation.bounds import (
    ERROR,
    LEVELS,
    Bounds,
    NoGround,
    area_quantile,
    difficulty,
    highest_level,
)
from physicsnemo_flarepp.evaluation.calibration import evaluate_state
from physicsnemo_flarepp.evaluation.file_predictions import describe_prediction
from physicsnemo_flarepp.report import write_page
from physicsnemo_flarepp.runs.checkpoints import Manifest
from tests.commands.calling import verb
from tests.evaluation import making

TRAIN, VAL, TEST = 12, 9, 2


@pytest.mark.parametrize("n", [4, 9, 19, 30])
@pytest.mark.parametrize("level", LEVELS)
def test_the_quantile_covers_as_often_as_it_says(n, level):
    # Each of n + 1 exchangeable scores is the new one once: the share of hits is known exactly.
    scores = np.random.default_rng(n).permutation(n + 1).astype(float)
    hits = [scores[i] <= conformal_quantile(np.delete(scores, i), level) for i in range(n + 1)]
    assert level <= np.mean(hits) <= max(level + 1 / (n + 1), 1.0 if level > n / (n + 1) else 0)
    assert (level <= highest_level(np.ones(n))) == np.isfinite(
        conformal_quantile(scores[:n], level)
    )


def test_weighted_quantiles_are_those_of_repeated_cases():
    scores, weights = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([2, 3, 1, 1, 2])
    for level in np.linspace(0.05, 0.95, 19):
        needed = level * (weights.sum() + weights.max())
        brute = min(
            (s for s in scores if weights[scores <= s].sum() >= needed - 1e-9), default=np.inf
        )
        assert conformal_quantile(scores, level, weights) == brute


def test_weighted_quantiles_cover_under_a_known_shift():
    # Two kinds of cases; the new one is of the second kind thrice as often as the held-out ones.
    rng, hits = np.random.default_rng(0), []
    for _ in range(2000):
        kinds = rng.random(30) < 0.25
        scores = rng.random(30) + kinds
        new = rng.random() + (rng.random() < 0.75)
        bound = conformal_quantile(scores, 0.8, np.where(kinds, 3.0, 1 / 3))
        hits.append(new <= bound)
    assert np.mean(hits) > 0.8 - 0.03


def test_area_quantile_is_that_of_repeated_cells():
    values, areas = np.array([5.0, 1.0, 3.0]), np.array([1, 4, 2])
    repeated = np.sort(np.repeat(values, areas))
    for share in (0.3, 0.5, 0.6, 0.9):
        assert area_quantile(values, share, areas) == repeated[int(np.ceil(share * 7)) - 1]


def test_difficulty_is_that_of_the_shape_not_of_the_mesh():
    found = []
    for level in (3, 4):
        points = np.asarray(pv.Icosphere(nsub=level).points, float)
        hard = difficulty(points, np.exp(3 * points[:, :1]))
        slices = [np.abs(points[:, 0] - x) < 0.15 for x in (-0.5, 0.0, 0.5)]
        found.append([hard[part].mean() for part in slices])
    np.testing.assert_allclose(*found, rtol=0.05)
    assert found[0][2] > 1.5 * found[0][0]  # steeper in front
    assert np.all(difficulty(points, np.ones((len(points), 1))) == 1)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A run on weighted surfaces with validation cases, under a manifest."""
    root = making.write_surfaces(tmp_path_factory.mktemp("bounded") / "set", TRAIN + VAL, TEST)
    names = json.loads((root / "manifest.json").read_text())
    split = {"train": names["train"][:TRAIN], "val": names["train"][TRAIN:], "test": names["test"]}
    (root / "manifest.json").write_text(json.dumps(split))
    data = making.surface_data(root, weights="measure")
    directory = making.write_run(root.parent / "run", data)
    return load_run(directory, device="cpu")


@pytest.fixture(scope="module")
def bounds(bounded):
    found = calibrate(bounded, progress=False)
    store_bounds(found, bounded)
    return found


def test_scores_are_the_errors_of_the_validation_cases(bounded, bounds):
    assert len(bounds.case_ids) == VAL and bounds.levels == (0.8, 0.9)
    reader = bounded.cases("val")
    sample, _ = reader[3]
    off = bounded.predict_sample(sample) - sample["fields"].numpy()
    areas = making.body(TRAIN + 3).compute_cell_sizes()["Area"]
    squares = [(areas * v[:, 0] ** 2).sum() for v in (off, sample["fields"].numpy())]
    assert bounds.scores[ERROR]["pMeanTrim"][3] == pytest.approx(
        np.sqrt(squares[0] / squares[1]), rel=1e-5
    )
    ratios = bounds.scores[ERROR]["pMeanTrim"] / bounds.distances
    far = 1.1 * bounds.distances.max()
    assert bounds.error("pMeanTrim", 0.9, far) == pytest.approx(far * max(ratios))  # the 9th of 9
    near = bounds.error("pMeanTrim", 0.9, 0.0)
    assert near == pytest.approx(bounds.distances.min() * max(ratios))


def test_bounds_return_from_the_disk(bounded, bounds, tmp_path):
    found = stored_bounds([bounded])
    assert isinstance(found, Bounds) and found.case_ids == bounds.case_ids
    for kind, level in product(bounds.scores, found.levels):
        for name, values in bounds.scores[kind].items():
            np.testing.assert_array_equal(found.scores[kind][name], values)
        ends = (0.1, 0.2)
        assert found.difference("Cd", level, ends) == bounds.difference("Cd", level, ends)
    (tmp_path / "cut").write_bytes((bounded.directory / "bounds.safetensors").read_bytes()[:99])
    with pytest.raises(ValueError, match="cut"):
        Bounds.load(tmp_path / "cut")


def test_bounds_are_under_the_manifest_of_the_run(bounded, bounds, tmp_path):
    manifest = Manifest(tmp_path / "run_manifest.json", facts={"written": [], "saved": True})
    manifest.write()
    store_bounds(bounds, replace(bounded, directory=tmp_path))
    known = Manifest.read(manifest.path, {"written": list, "saved": bool})
    known.verify(["bounds.safetensors"])
    assert known.facts["written"] == ["bounds.safetensors"]
    manifest.write()  # one that does not vouch for the file
    assert "not calibrated" in stored_bounds([replace(bounded, directory=tmp_path)])


def test_a_prediction_says_its_bounds(bounded, bounds, tmp_path):
    making.body(TRAIN + 3).save(tmp_path / "car.vtp")
    found = predict_file(bounded, tmp_path / "car.vtp", progress=False)
    assert found.no_bounds is None and found.level == 0.9
    lines = "\n".join(describe_prediction(bounded, found, force_settings(bounded)))
    percent = 100 * bounds.error("pMeanTrim", 0.9, found.distance)
    assert f"pMeanTrim: error below {percent:.3g} % for 9 of 10 cases" in lines
    assert f"± {bounds.coefficient('Cd', 0.9, found.distance):.2g}" in lines and "(90 %)" in lines
    # This is a held-out case, and all of them are inside at 90 % of 9: so is 90 % of its area.
    mesh = found.mesh
    off = np.abs(mesh["pMeanTrim_predicted"] - mesh["pMeanTrim"])
    areas = mesh.compute_cell_sizes()["Area"]
    assert areas[off <= mesh["pMeanTrim_band"] * (1 + 1e-6)].sum() >= 0.9 * areas.sum()


def test_no_bounds_of_coefficients_in_other_conventions(bounded, bounds, tmp_path):
    making.body(TRAIN).save(tmp_path / "car.vtp")
    found = predict_file(bounded, tmp_path / "car.vtp", progress=False)
    settings = force_settings(bounded, {"reference_area": 2.0})
    assert any("other conventions" in t for t in describe_prediction(bounded, found, settings))


def test_a_level_that_so_few_cases_cannot_promise_is_refused(bounded, bounds, tmp_path):
    making.body(TRAIN).save(tmp_path / "car.vtp")
    with pytest.raises(ValueError, match="level is 0.95; 9 held-out cases allow 0.8, 0.9"):
        predict_file(bounded, tmp_path / "car.vtp", level=0.95, progress=False)


def test_a_shape_unlike_training_gets_no_bound(bounded, bounds, tmp_path):
    making.body(TRAIN + 1).scale(1000).save(tmp_path / "large.vtp")
    found = predict_file(bounded, tmp_path / "large.vtp", progress=False)
    assert found.bounds is None and "size" in found.no_bounds
    assert "pMeanTrim_band" not in found.mesh.cell_data
    # The latent state tells by itself, too.
    assert "latent state" in bounds.doubt(found.distance, bounds.grains[0])


@pytest.mark.parametrize("part", ["all", "front"])
def test_another_mesh_of_a_known_shape_gets_no_bound(bounded, bounds, tmp_path, part):
    mesh = making.body(TRAIN + 1)
    mesh.clear_data()
    front = mesh.cell_centers().points[:, 0] < (np.inf if part == "all" else 0)
    parts = [
        mesh.extract_cells(p).extract_surface(algorithm=None) for p in (~front, front) if p.any()
    ]
    parts[-1] = parts[-1].subdivide(1, "linear")
    pv.merge(parts).save(tmp_path / "fine.vtp")
    found = predict_file(bounded, tmp_path / "fine.vtp", progress=False)
    assert "mesh is not like" in found.no_bounds
    assert bounds.doubt(found.distance, bounds.grains[1]) is None  # the shape is


def test_the_difference_of_two_meshes_of_a_shape_is_small(bounded, bounds, tmp_path):
    mesh = making.body(TRAIN + 1)
    mesh.clear_data()
    mesh.save(tmp_path / "a.vtp")
    mesh.subdivide(1, "linear").save(tmp_path / "b.vtp")
    making.body(TRAIN + 2).save(tmp_path / "c.vtp")
    settings = force_settings(bounded, {})
    same = predict_difference(bounded, tmp_path / "a.vtp", tmp_path / "b.vtp", settings, level=0.8)
    other = predict_difference(bounded, tmp_path / "a.vtp", tmp_path / "c.vtp", settings, level=0.8)
    exact = predict_difference(bounded, tmp_path / "a.vtp", tmp_path / "a.vtp", settings, level=0.8)
    assert same.common == pytest.approx(1) and other.common < 0.9
    change, _, size = exact.fields["pMeanTrim"]
    assert change < 1e-5 * size and exact.after == exact.before
    assert same.fields["pMeanTrim"][0] < 0.1 * same.fields["pMeanTrim"][2]
    assert np.isnan(other.mesh["pMeanTrim_change"]).any()
    assert "mesh" in same.no_bounds and not same.bounds
    errors, far = bounds.scores["coefficient"]["Cd"], bounds.distances
    pairs = [abs(errors[i] - errors[i + 4]) / (far[i] + far[i + 4]) for i in range(4)]
    ends = far[1] + far[2]
    assert other.bounds["Cd"] == pytest.approx(max(pairs) * ends)  # of four pairs at 80 %


# Other meshes ------------------------------------------------------------------------------


def test_bounds_over_meshes_cover_each_kind_of_mesh():
    # Each of 10 cases is the new one once, on each of its meshes: the share of hits is known.
    rng, n = np.random.default_rng(0), 10
    errors = rng.random((n, 5)) + np.array([0, 2, 1, 1, 3])  # worse on other meshes
    grains = np.array([[0, 0], [-1, 0], [-0.5, 1], [-0.5, 1], [1, 2]]) + np.zeros((n, 1, 2))
    hits = np.zeros((n, 5), bool)
    for new in range(n):
        known = Bounds(
            case_ids=tuple("abcdefghi"),
            weights=np.ones(n - 1),
            scores={ERROR: {"p": np.delete(errors, new, 0).ravel()}},
            references=np.eye(3),
            distances=np.ones(5 * (n - 1)),
            grains=np.delete(grains, new, 0).reshape(-1, 2),
            fingerprints=(),
        )
        for kind, grain in enumerate(grains[new]):
            part = known.on_meshes_like(grain)
            assert part.n_meshes == (1, 2, 4, 4, 5)[kind] and part.doubt(1.0, grain) is None
            hits[new, kind] = errors[new, kind] <= part.error("p", 0.9, 1.0)
        assert known.on_meshes_like(np.array([-0.5, 0.0])).n_meshes == 2  # in between
        for strange in ([-2.0, 0.0], [0.5, 0.0], [0.5, 1.5]):  # finer, coarser, almost thinned
            part = known.on_meshes_like(np.array(strange))
            assert "mesh is not like" in part.doubt(1.0, np.array(strange))
    assert (hits.mean(axis=0) >= 0.9).all()
    assert hits[:, 0].mean() < 1  # on the original meshes the bounds stay narrow


def test_changes_are_bounded_for_the_worst_pair_of_meshes(bounds):
    plain = bounds.scores["coefficient"]["Cd"]
    rows = np.stack([plain, plain + 1], axis=1).ravel()
    scores = bounds.scores | {"coefficient": {"Cd": rows}}
    far = np.ones(2 * VAL)
    both = replace(bounds, scores=scores, distances=far, grains=np.repeat(bounds.grains, 2, 0))
    worst = max(abs(plain[i] - plain[i + 4]) + 1 for i in range(4))
    assert both.difference("Cd", 0.8, (1.0, 1.0)) == pytest.approx(worst)


@pytest.fixture(scope="module")
def on_meshes(bounded, bounds, tmp_path_factory):
    """The run with bounds over meshes, and these."""
    directory = tmp_path_factory.mktemp("meshes")
    (directory / "channels.json").write_bytes((bounded.directory / "channels.json").read_bytes())
    run = replace(bounded, directory=directory)
    store_bounds(calibrate(run, meshes=True, progress=False), run)
    return run, stored_bounds([run])


def test_a_calibration_over_meshes_contains_the_plain_one(bounds, on_meshes):
    own, *wider = on_meshes[1].steps()
    assert len(wider) == 3 and own.levels == bounds.levels
    for kind, name in ((ERROR, "pMeanTrim"), ("coefficient", "Cd"), ("band", "pMeanTrim")):
        np.testing.assert_allclose(own.scores[kind][name], bounds.scores[kind][name], rtol=1e-5)
    for name in bounds.scores[ERROR]:
        limits = [part.error(name, 0.9, 1.0) for part in (own, *wider)]
        assert limits == sorted(limits) and limits[-1] > limits[0]


def test_other_meshes_of_a_known_shape_get_the_bounds_over_meshes(bounded, on_meshes, tmp_path):
    run, known = on_meshes
    mesh = making.body(TRAIN + 3)
    areas = mesh.compute_cell_sizes()["Area"]
    truth = np.asarray(mesh["pMeanTrim"], float)
    sample, _ = bounded.cases("val")[3]
    mesh.clear_data()
    x = mesh.cell_centers().points[:, 0]
    parts = [mesh.extract_cells(p).extract_surface(algorithm=None) for p in (x < 0, x >= 0)]
    given = {1: mesh, 2: mesh.subdivide(1, "linear"), 5: mesh.decimate(0.5)}
    given[4] = pv.merge([parts[0], parts[1].subdivide(1, "linear")])
    for count, other in given.items():
        other.save(tmp_path / "car.vtp")
        found = predict_file(run, tmp_path / "car.vtp", progress=False)
        assert found.no_bounds is None and found.bounds.n_meshes == count
        # A held-out case, and all of them are within the bounds at 90 % of 9.
        moved = evaluate_state(run, sample, found.state)[:, 0]
        off = np.sqrt((areas * (moved - truth) ** 2).sum() / (areas * truth**2).sum())
        assert off <= found.bounds.error("pMeanTrim", 0.9, found.distance) * (1 + 1e-5)
        text = "\n".join(describe_prediction(run, found, force_settings(run)))
        assert ("worst over" in text) == (count > 1) and "(90 %)" in text
    mesh.subdivide(2, "linear").save(tmp_path / "car.vtp")
    assert "mesh is not like" in predict_file(run, tmp_path / "car.vtp", progress=False).no_bounds
    fine = list(known.steps())[2]
    coarse_in_part = fine.grains.max(axis=0) + [0, 0, 0.5]
    assert "large ones have" in fine.doubt(0.0, coarse_in_part)


def test_a_change_between_meshes_has_the_bound_of_the_more_unusual_one(on_meshes, tmp_path):
    run, known = on_meshes
    first, second = (making.body(TRAIN + number) for number in (1, 2))
    first.save(tmp_path / "a.vtp")
    second.subdivide(1, "linear").save(tmp_path / "b.vtp")
    settings, files = force_settings(run, {}), [tmp_path / "a.vtp", tmp_path / "b.vtp"]
    ends = tuple(predict_file(run, path, progress=False).distance for path in files)
    finer = list(known.steps())[1]
    for pair in (files, files[::-1]):
        found = predict_difference(run, *pair, settings, level=0.8)
        assert found.bounds["Cl"] == pytest.approx(finer.difference("Cl", 0.8, ends))


def test_only_weighted_surfaces_are_calibrated_over_meshes(bounded, tmp_path):
    data = making.surface_data(bounded.config.data.root)
    plain = load_run(making.write_run(tmp_path / "plain", data), device="cpu")
    with pytest.raises(NoGround, match="cannot be calibrated over meshes"):
        calibrate(plain, meshes=True, progress=False)


def test_calibrate_and_delta_are_verbs(bounded, bounds, tmp_path, capsys):
    assert verb("calibrate")([str(bounded.directory)]).levels == (0.8, 0.9)
    assert "relative error of pMeanTrim, %" in capsys.readouterr().out
    assert verb("calibrate")([str(bounded.directory), "--meshes"]).n_meshes == 5
    assert "error of Cd (half of the triangles removed)" in capsys.readouterr().out
    store_bounds(bounds, bounded)
    for number in (1, 2):
        making.body(TRAIN + number).save(tmp_path / f"{number}.vtp")
    arguments = [str(bounded.directory), *(str(tmp_path / f"{i}.vtp") for i in (1, 2))]
    verb("delta")([*arguments, "--level", "0.8", "--output", str(tmp_path / "d.vtp")])
    assert "settled" in capsys.readouterr().out
    verb("delta")([*arguments, "--output", str(tmp_path / "d.vtp")])  # 90 % needs nine pairs
    assert "no bounds of the forces at 90 %: too few pairs" in capsys.readouterr().out
    assert "pMeanTrim_change" in pv.read(tmp_path / "d.vtp").cell_data


def test_an_ensemble_predicts_its_mean_with_bounds_of_its_own(bounded, tmp_path_factory, tmp_path):
    directory = tmp_path_factory.mktemp("member") / "run"
    data = making.surface_data(bounded.config.data.root, weights="measure")
    other = load_run(making.write_run(directory, data, {"slice_num": 8}), device="cpu")
    (tmp_path / "channels.json").write_bytes((bounded.directory / "channels.json").read_bytes())
    runs = [replace(bounded, directory=tmp_path), other]
    store_bounds(calibrate(runs, progress=False), runs[0])
    making.body(TRAIN).save(tmp_path / "car.vtp")
    found = predict_file(runs, tmp_path / "car.vtp", progress=False)
    each = [predict_file(r, tmp_path / "car.vtp", progress=False).values for r in (bounded, other)]
    np.testing.assert_allclose(found.values, np.mean(each, axis=0), rtol=1e-5)
    spread = np.abs(each[0] - each[1])[:, 0] / np.sqrt(2)
    np.testing.assert_allclose(found.mesh["pMeanTrim_spread"], spread, rtol=1e-3, atol=1e-4)
    assert len(found.bounds.fingerprints) == 2
    assert "other models" in stored_bounds(runs[::-1]) or "not calibrated" in stored_bounds(
        runs[::-1]
    )


# Bad input ---------------------------------------------------------------------------------


def test_too_few_cases_are_named(loaded):
    with pytest.raises(NoGround, match="has 0 held-out cases; 4 are needed"):
        calibrate(loaded)


def test_cases_of_training_are_refused(bounded, tmp_path):
    root = making.write_surfaces(tmp_path / "copies", 0, 5, first=0)
    renamed = {"test": json.loads((root / "manifest.json").read_text())["test"]}
    (root / "manifest.json").write_text(json.dumps(renamed))
    copies = load_run(bounded.directory, device="cpu", data_root=root)
    with pytest.raises(NoGround, match="have the inputs of training cases"):
        calibrate(replace(copies, moved=False), progress=False)


def test_cases_of_another_set_are_refused(bounded, tmp_path):
    root = making.write_surfaces(tmp_path / "spheres", 0, 5, first=60)
    for path in root.rglob("*.vtp"):
        mesh = pv.read(path)
        mesh.points = mesh.points[:, [2, 0, 1]] * 3
        mesh.save(path)
    with pytest.raises(NoGround, match="another data set"):
        calibrate(load_run(bounded.directory, device="cpu", data_root=root), progress=False)


def test_fields_that_are_not_finite_are_named(bounded, tmp_path):
    root = making.write_surfaces(tmp_path / "broken", 0, 5, first=60)
    path = sorted(root.rglob("*.vtp"))[2]
    mesh = pv.read(path)
    mesh.cell_data["pMeanTrim"][7] = np.nan
    mesh.save(path)
    with pytest.raises(ValueError, match="pMeanTrim"):
        calibrate(load_run(bounded.directory, device="cpu", data_root=root), progress=False)


def test_weights_must_fit_the_cases(bounded, bounds):
    with pytest.raises(NoGround, match="have no weight"):
        calibrate(bounded, weights={"run_0": 1.0})
    heavy = dict.fromkeys(bounds.case_ids, 1.0) | {bounds.case_ids[0]: 100.0}
    with pytest.raises(NoGround, match="at most a fourth"):
        calibrate(bounded, weights=heavy)


def test_a_test_case_is_compared_with_training(bounded, bounds):
    assert predict_case(bounded, 0).pooled_state.shape == bounds.references[0].shape


@pytest.mark.slow
def test_the_page_of_a_run_has_bands_or_says_why_not(bounded, bounds, tmp_path):
    page = write_page([bounded.directory], lambda _: bounded, tmp_path / "page.html")
    text = page.read_text()
    assert ("band, 90 %" in text) != ("no bounds: it is not like" in text)  # of the median case

"""Simple predictors against scikit-like formulas, and networks that stand on them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from physicsnemo.models.flare import FLARE
from physicsnemo.models.geotransolver import GeoTransolver
from physicsnemo.models.transolver import Transolver

from physicsnemo_flarepp import GNOT, LNO, FlarePP, PerceiverIO, SetTransformer
from physicsnemo_flarepp.datapipes import Normalizer, build_dataloaders, from_arrays
from physicsnemo_flarepp.datapipes.normalization import BASELINES, fit_baseline
from physicsnemo_flarepp.evaluation import evaluate_run, format_report, load_run
from physicsnemo_flarepp.models.layers import start_at_zero
from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.baselines import SIZED, baseline_errors, verdict

SMALL = {"_target_": "physicsnemo_flarepp.FlarePP", "n_layers": 1, "n_hidden": 16, "n_head": 2,
         "slice_num": 4}  # fmt: skip
CASES = 24


def parametric(n_points=40, bend=0.05, own_points=False):
    """Fields that are nearly linear in two parameters, at the same or at other points."""
    rng = np.random.default_rng(0)
    points = rng.random((CASES, n_points, 2)) if own_points else rng.random((n_points, 2))
    mu = rng.uniform(1, 2, (CASES, 2))
    x, y = points[..., 0], points[..., 1]
    fields = 5 + mu[:, :1] * x + mu[:, 1:] * y**2 + bend * np.sin(6 * mu[:, :1] * x)
    return from_arrays(points, {"u": fields}, globals={"mu": mu}), points, mu, fields


def split(data):
    loaders = build_dataloaders({"num_workers": 0}, data=data)
    readers = [loader.dataset.reader for loader in (loaders.train, loaders.test)]
    rows = [[data.case_ids.index(case) for case in reader.case_ids] for reader in readers]
    return loaders, readers, rows


def relative(prediction, target):
    return np.linalg.norm(prediction - target, axis=1) / np.linalg.norm(target, axis=1)


def least_relative(mu, fields, given):
    """Ridge regression of the relative error; the hat matrix tells how strong."""
    root = 1 / np.linalg.norm(fields, axis=1)
    middle = np.average(mu, axis=0, weights=root**2)
    rows = root[:, None] * np.hstack([np.ones((len(mu), 1)), mu - middle])
    spread = (root**2) @ (mu - middle) ** 2
    tried = {}
    for ridge in 10.0 ** np.arange(-3, 4):
        inverse = np.linalg.inv(rows.T @ rows + np.diag([0, *(ridge * spread)])) @ rows.T
        hat = rows @ inverse
        scaled = root[:, None] * fields
        score = ((scaled - hat @ scaled) ** 2).sum() / (len(mu) - np.trace(hat)) ** 2
        tried[score] = inverse @ scaled
    return np.hstack([np.ones((len(given), 1)), given - middle]) @ tried[min(tried)]


def test_linear_regression_of_fields_of_all_sizes_is_no_worse_than_the_mean_field():
    """Loads near 0 and of either sign, shapes that matter: absolute errors give twice this."""
    rng = np.random.default_rng(0)
    points, mu = rng.random((40, 2)), rng.uniform(-1, 1, (60, 3))
    stiff = np.exp(2 * mu[:, 1:2])
    fields = stiff * (mu[:, :1] * points[:, 0] + 0.3 * mu[:, 2:] * points[:, 1] ** 2)
    data = from_arrays(points, {"u": fields}, globals={"mu": mu})
    loaders, readers, _ = split(data)
    errors = baseline_errors(*readers, loaders.normalizer, (1,))
    constant, field, linear, *_ = (float(found.mean()) for found in errors.values())
    assert linear < 0.8 * min(constant, field)


def test_errors_of_simple_predictors_are_those_of_the_formulas():
    data, _, mu, fields = parametric()
    loaders, readers, (known, tested) = split(data)
    errors = baseline_errors(*readers, loaders.normalizer, (1,))
    assert list(errors) == ["constant", "mean field", "linear regression on the parameters"]
    truth = fields[tested]
    fitted = least_relative(mu[known], fields[known], mu[tested])
    expected = [fields[known].mean(), fields[known].mean(0), fitted]
    for found, prediction in zip(errors.values(), expected, strict=True):
        np.testing.assert_allclose(found[:, 0], relative(prediction, truth), rtol=2e-4)


def test_cases_on_other_points_are_compared_with_the_nearest_case():
    data, points, mu, fields = parametric(own_points=True)
    loaders, readers, (known, tested) = split(data)
    errors = baseline_errors(*readers, loaders.normalizer, (1,))
    assert list(errors) == ["constant", "nearest training case by parameters"]
    spread = mu[known].std(0)
    for row, case in enumerate(tested):
        near = known[np.argmin((((mu[known] - mu[case]) / spread) ** 2).sum(1))]
        distance = ((points[case][:, None] - points[near][None]) ** 2).sum(-1)
        expected = relative(fields[near][distance.argmin(1)][None], fields[case][None])
        assert errors["nearest training case by parameters"][row, 0] == pytest.approx(
            expected[0], rel=1e-4
        )


@pytest.mark.parametrize("kind", ["mean_field", "linear"])
@pytest.mark.parametrize("stream", [None, 16])
def test_an_output_of_zero_is_the_baseline_everywhere(kind, stream, tmp_path):
    """In steps, plain and streamed, in evaluation, and from the files of the run."""
    data, points, mu, fields = parametric()
    cfg = {
        "model": SMALL,
        "data": {"baseline": kind, "num_workers": 0, "n_points": 30},
        "training": {"epochs": 2, "stream": stream, "learning_rate": 1e-12, "weight_decay": 0.0},
        "run_dir": str(tmp_path / "run"),
    }
    result = train(cfg, data=data)
    run = load_run(tmp_path / "run", data=data, device="cpu")
    with torch.no_grad():
        for weights in run.model.parameters():
            weights.zero_()
    known = [data.case_ids.index(case) for case in run.training_cases().case_ids]
    if kind == "mean_field":
        *_, sizes = fitted_sizes(mu, fields, known)
        expected = sizes * (fields / sizes)[known].mean(0)
    else:
        spread = mu[known] - mu[known].mean(0)
        inputs = np.hstack([np.ones((len(known), 1)), spread])
        slopes = np.linalg.lstsq(inputs, fields[known], rcond=None)[0]
        expected = np.hstack([np.ones((CASES, 1)), mu - mu[known].mean(0)]) @ slopes
    for index in range(len(run.case_ids)):
        sample = run.test_set[index][0]
        case = data.case_ids.index(run.case_ids[index])
        np.testing.assert_allclose(run.predict(sample)[:, 0], expected[case], rtol=2e-3)
        part = {**sample, **{key: sample[key][5:9] for key in ("coordinates", "tokens", "weights")}}
        np.testing.assert_allclose(run.predict(part)[:, 0], expected[case][5:9], rtol=2e-3)
    whole = {key: value for key, value in sample.items() if key != "tokens"}
    for moved in (sample["coordinates"].flip(0), 100 * sample["coordinates"]):
        with pytest.raises(ValueError, match="row 0 is not where .* data.baseline=none"):
            run.predict({**whole, "coordinates": moved})
    # Training itself saw the sum, and began with a residual of zero.
    simple = result.baselines[BASELINES[kind]]
    if kind == "linear":
        assert result.error == pytest.approx(simple, rel=1e-5)
    else:  # it knows sizes
        assert result.error < 0.9 * simple


@pytest.mark.parametrize(
    "cls", [FlarePP, GNOT, LNO, PerceiverIO, SetTransformer, FLARE, Transolver, GeoTransolver]
)
def test_every_model_can_start_at_zero_and_learns_from_there(cls):
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2}
    inputs = {"fx": torch.randn(1, 9, 3), "embedding": torch.randn(1, 9, 4)}
    if cls is GeoTransolver:
        model = cls(3, 2, **sizes, geometry_dim=4, use_te=False)
        inputs = {"local_embedding": inputs["fx"], "geometry": inputs["embedding"]}
    else:
        options = {"use_te": False} if cls is Transolver else {}
        model = cls(functional_dim=3, out_dim=2, embedding_dim=4, **sizes, **options)
    start_at_zero(model, 2)
    y = model(**inputs)
    assert y.shape[-1] == 2 and not y.any()
    (y - 1).square().sum().backward()
    assert sum(p.grad is not None and bool(p.grad.any()) for p in model.parameters()) == 2


def test_a_network_on_a_linear_baseline_beats_it(tmp_path, capsys):
    data, *_ = parametric(bend=0.3)
    cfg = {
        "model": SMALL,
        "data": {"baseline": "linear", "num_workers": 0, "weights": "none"},
        "training": {"epochs": 60, "learning_rate": 1e-2, "ema_decay": 0.9, "evaluate_every": 60},
        "run_dir": str(tmp_path / "run"),
    }
    result = train(cfg, data=data)
    linear = result.baselines["linear regression on the parameters"]
    assert result.error < linear
    report = evaluate_run(load_run(tmp_path / "run", data=data, device="cpu"), progress=False)
    assert report.errors.mean == pytest.approx(result.error, rel=1e-4)
    assert report.baselines == pytest.approx(dict(result.baselines), rel=1e-4)
    assert report.verdict is None and "LOSES" not in (tmp_path / "run" / "table.md").read_text()


def test_a_model_that_loses_is_told_so_first(tmp_path):
    data, *_ = parametric()
    cfg = {"model": SMALL, "data": {"weights": "none"}, "training": {"epochs": 1},
           "run_dir": str(tmp_path / "run")}  # fmt: skip
    result = train(cfg, data=data)
    first = (tmp_path / "run" / "table.md").read_text().splitlines()[0]
    assert first.startswith("The model LOSES to the linear regression on the parameters, ")
    assert first.endswith("train longer, or try data.baseline=linear (for this mesh only).")
    report = evaluate_run(load_run(result.directory, data=data, device="cpu"), progress=False)
    lines = format_report(report).splitlines()
    assert lines[0] == first
    assert any(line.startswith("For comparison, in percent: constant ") for line in lines)


def test_advice_fits_what_the_run_already_does():
    assert "data.baseline" not in verdict(0.2, {"mean field": 0.1}, "mean_field")
    assert "flarepp inspect" in verdict(0.2, {"constant": 0.1}, "none")


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("linear", {"own_points": True}, "the rows of the cases are at different places"),
        ("lasso", {}, "data.baseline is 'lasso'; choose none, mean_field or linear"),
    ],
)
def test_a_baseline_that_cannot_be_fitted_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        build_dataloaders({"num_workers": 0, "baseline": kind}, data=parametric(**options)[0])


def test_a_slope_survives_the_file(tmp_path):
    data, *_ = parametric()
    normalizer = build_dataloaders({"num_workers": 0, "baseline": "linear"}, data=data).normalizer
    normalizer.save(tmp_path / "statistics.safetensors")
    loaded = Normalizer.load(tmp_path / "statistics.safetensors").affine["fields"]
    assert torch.equal(loaded.slope, normalizer.affine["fields"].slope)
    assert torch.equal(loaded.gain, normalizer.affine["fields"].gain)


def fitted_sizes(mu, fields, rows):
    """Norms as an exponential of parameters and their squares, by ridge regression of some rows."""
    given = (mu - mu[rows].mean(0)) / mu[rows].std(0, ddof=1)
    inputs = np.hstack([np.ones((len(mu), 1)), given, given**2])
    logs, known = np.log(np.linalg.norm(fields, axis=1)), inputs[rows]
    tried = {}
    for ridge in 10.0 ** np.arange(-3, 4):
        penalty = np.diag(ridge * len(rows) * known.var(0))
        inverse = np.linalg.inv(known.T @ known + penalty) @ known.T
        missed = logs[rows] - known @ inverse @ logs[rows]
        score = (missed**2).sum() / (len(rows) - np.trace(known @ inverse)) ** 2
        tried[score] = inverse @ logs[rows]
    bounded = (inputs @ tried[min(tried)]).clip(logs[rows].min(), logs[rows].max())
    return given, logs, np.exp(bounded)[:, None]


def of_all_sizes():
    """Fields as large as an exponential of one parameter, and bent by another."""
    rng = np.random.default_rng(1)
    points, mu = rng.random((30, 2)), rng.uniform(-1, 1, (60, 3))
    shape = mu[:, :1] * np.sin(3 * points[:, 0]) + (2 + mu[:, 2:]) * points[:, 1] ** 2
    fields = np.exp(3 * mu[:, 1:2]) * (shape + 0.5 * mu[:, :1] ** 2 * np.cos(4 * points[:, 1]))
    return from_arrays(points, {"u": fields}, globals={"mu": mu}), mu, fields


@pytest.mark.parametrize("steps", [3, 15])
def test_a_short_run_is_below_the_regression_it_begins_with_whatever_the_sizes(steps, tmp_path):
    """With one scale for all cases small fields got what was learned from large ones."""
    data, *_ = of_all_sizes()
    cfg = {
        "model": SMALL,
        "data": {"baseline": "linear", "num_workers": 0, "weights": "none"},
        "training": {"steps": steps, "learning_rate": 1e-2, "ema_decay": 0.9},
        "run_dir": str(tmp_path / "run"),
    }
    result = train(cfg, data=data)
    linear = BASELINES["linear"]
    assert result.error <= 1.01 * result.baselines[SIZED] < 0.5 * result.baselines[linear]
    loaders = build_dataloaders({"num_workers": 0}, data=data)
    readers = [loader.dataset.reader for loader in (loaders.train, loaders.val)]
    validation = baseline_errors(*readers, loaders.normalizer, (1,))[linear].mean()
    *_, last = (row for row in read_metrics(tmp_path / "run") if row["kind"] == "evaluation")
    assert last["split"] == "val" and last["error"] < validation


@pytest.mark.parametrize("kind", ["mean_field", "linear"])
def test_fields_over_their_sizes_are_fitted_as_the_formulas_say(kind):
    data, mu, fields = of_all_sizes()
    loaders, (known, _), (rows, tested) = split(data)
    affine = fit_baseline(known, loaders.normalizer, kind)["fields"]
    assert (affine.gain[0] == 1).all()
    given, logs, sizes = fitted_sizes(mu, fields, rows)
    if kind == "linear":
        expected = least_relative(mu[rows], (fields / sizes)[rows], mu)
    else:
        expected = (fields / sizes)[rows].mean(0)
    found = Normalizer({"fields": affine}).inverse(
        torch.zeros(len(mu), 30, 1), given=torch.from_numpy(given).float()
    )
    np.testing.assert_allclose(found[..., 0], sizes * expected, rtol=2e-3, atol=1e-3)
    # far outside, sizes stay within those that were seen
    _, scale = affine.rows(None, torch.zeros(1, 30, 1), torch.full((1, 3), 50.0))
    found = np.log((scale / affine.scale)[0, 0, 0].item())
    assert found == pytest.approx(logs[rows].min(), rel=1e-4)


def test_a_baseline_without_its_parameters_is_refused(tmp_path):
    data, *_ = of_all_sizes()
    normalizer = build_dataloaders({"num_workers": 0, "baseline": "mean_field"}, data=data)[2]
    with pytest.raises(ValueError, match="a baseline of 3 parameters met 0 globals"):
        normalizer.inverse(torch.zeros(30, 1))
    for cut in (slice(None, -1), slice(None, 3)):
        damaged = Normalizer(dict(normalizer.affine))
        damaged.affine["fields"] = replace(
            normalizer.affine["fields"],
            gain=normalizer.affine["fields"].gain[cut],
        )
        damaged.save(tmp_path / "statistics.safetensors")
        with pytest.raises(ValueError, match="expected shift and scale of"):
            Normalizer.load(tmp_path / "statistics.safetensors")

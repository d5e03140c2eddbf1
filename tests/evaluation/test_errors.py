"""Errors of cases, and which case they choose."""

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.evaluation import CaseErrors, evaluate_run, predict_case
from physicsnemo_flarepp.evaluation import relative_l2 as field_errors
from physicsnemo_flarepp.ops.errors import relative_l2

IDS = ("run_3", "run_1", "run_7", "run_5", "run_9")
ERRORS = np.array([0.5, 0.1, 0.9, 0.3, 0.7])


def table(errors, ids=IDS):
    return CaseErrors(tuple(ids), ("p",), np.asarray(errors)[:, None])


def test_each_field_has_its_norm():
    prediction, target = np.random.default_rng(0).normal(size=(2, 7, 4)).astype(np.float32)
    found = field_errors(prediction, target, {"p": 1, "u": 3})
    for name, columns in (("p", slice(0, 1)), ("u", slice(1, 4))):
        off = (prediction - target)[:, columns].astype(float)
        expected = np.sqrt((off**2).sum() / (target[:, columns].astype(float) ** 2).sum())
        assert found[name] == pytest.approx(expected, rel=1e-6)


def test_a_target_of_zeros_is_met_exactly_or_missed_infinitely():
    zeros = np.zeros((3, 2))
    assert field_errors(zeros + [0, 1], zeros, {"a": 1, "b": 1}) == {"a": 0.0, "b": np.inf}


def test_errors_are_relative_l2_of_each_field(loaded):
    errors = evaluate_run(loaded).errors
    assert errors.case_ids == ("run_3", "run_4")
    assert errors.fields == ("pMeanTrim", "wallShearStressMeanTrim")
    for row, case_id in enumerate(errors.case_ids):
        case = predict_case(loaded, case_id)
        prediction, target = (torch.tensor(a)[None] for a in (case.prediction, case.target))
        parts = [(slice(0, 1), 0), (slice(1, 4), 1)]
        for channels, column in parts:
            expected = relative_l2(prediction[..., channels], target[..., channels])
            assert errors.values[row, column] == pytest.approx(float(expected), rel=1e-5)
    assert errors.mean == pytest.approx(errors.values.sum() / 4)
    assert errors.ranked()[0] == errors.case_ids[int(np.argmin(errors.values.sum(1)))]


@pytest.mark.parametrize(
    ("choice", "expected"), [("median", "run_3"), ("worst", "run_7"), ("best", "run_1")]
)
def test_case_is_chosen_by_error(choice, expected):
    assert table(ERRORS).choose(choice) == expected


def test_median_of_an_even_number_is_a_case_not_a_mean():
    assert table(ERRORS[:4], IDS[:4]).choose("median") == "run_5"  # 0.1 0.3 | 0.5 0.9


def test_ties_give_the_first_case():
    assert table(np.ones(5)).choose("best") == IDS[0]


def test_median_lies_between_best_and_worst():
    errors = np.random.default_rng(0).random(101)
    ids = [str(i) for i in range(101)]
    assert errors[int(table(errors, ids).choose("median"))] == np.median(errors)


def test_undefined_errors_choose_nothing():
    with pytest.raises(ValueError, match="case 'run_7' is NaN"):
        table(np.where(ERRORS == 0.9, np.nan, ERRORS)).choose("worst")


def test_infinite_errors_are_the_worst():
    infinite = table(np.where(ERRORS == 0.9, np.inf, ERRORS))
    assert (infinite.choose("worst"), infinite.choose("median")) == ("run_7", "run_3")

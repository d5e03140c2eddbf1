import numpy as np
import pytest

from physicsnemo_flarepp.visualization import choose_case

IDS = ["run_3", "run_1", "run_7", "run_5", "run_9"]
ERRORS = np.array([0.5, 0.1, 0.9, 0.3, 0.7])


@pytest.mark.parametrize(
    ("case", "expected"),
    [("median", "run_3"), ("worst", "run_7"), ("best", "run_1"), ("run_9", "run_9")],
)
def test_case_is_chosen_by_error_or_id(case, expected):
    assert IDS[choose_case(case, IDS, ERRORS)] == expected


def test_median_of_an_even_number_is_a_case_not_a_mean():
    assert choose_case("median", IDS[:4], ERRORS[:4]) == 3  # 0.1 0.3 | 0.5 0.9


def test_ties_give_the_first_case():
    assert choose_case("best", IDS, np.ones(5)) == 0


def test_median_lies_between_best_and_worst():
    errors = np.random.default_rng(0).random(101)
    ids = [str(i) for i in range(101)]
    assert errors[choose_case("median", ids, errors)] == np.median(errors)


def test_unknown_id_lists_the_ids():
    with pytest.raises(ValueError, match="case 'run_2' is not known.*run_3, run_1, run_7"):
        choose_case("run_2", IDS, ERRORS)


def test_errors_must_fit_the_cases():
    with pytest.raises(ValueError, match=r"errors has shape \(4,\), expected \(5,\)"):
        choose_case("median", IDS, ERRORS[:4])
    with pytest.raises(ValueError, match="case 'run_7' is NaN"):
        choose_case("worst", IDS, np.where(ERRORS == 0.9, np.nan, ERRORS))


def test_infinite_errors_are_the_worst():
    errors = np.where(ERRORS == 0.9, np.inf, ERRORS)
    assert IDS[choose_case("worst", IDS, errors)] == "run_7"
    assert IDS[choose_case("median", IDS, errors)] == "run_3"

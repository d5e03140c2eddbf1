"""Small rules: how arrays, channels, cases and values are named."""

from pathlib import Path

import pytest

from physicsnemo_flarepp.datapipes.inspection import as_override
from physicsnemo_flarepp.datapipes.readers.benchmarks import _case_id
from physicsnemo_flarepp.datapipes.readers.case_files import (
    _pattern_expression,
    in_order,
)
from physicsnemo_flarepp.datapipes.readers.case_tables import channel_names, parameter_names
from physicsnemo_flarepp.datapipes.readers.contents import array_name
from physicsnemo_flarepp.datapipes.readers.names import Pick, parse_names
from physicsnemo_flarepp.datapipes.readers.splits import SplitFraction, positional_split
from physicsnemo_flarepp.datapipes.specs import benchmark, force_convention


@pytest.mark.parametrize(
    ("path", "case"),
    [
        ("run_7/boundary_7.vtp", "run_7"),
        ("train/run_7.npz", "run_7"),
        ("boundary_1_mapped.vtp", "boundary_1_mapped"),
    ],
)
def test_a_case_of_drivaerml_has_the_name_of_its_run_or_its_file(path, case):
    assert _case_id(Path("data"), Path("data") / path) == case


def test_the_case_of_a_pattern_is_the_same_at_all_its_places():
    expression = _pattern_expression("run_{case}/boundary_{case}.vtp")
    assert expression.fullmatch("run_7/boundary_7.vtp")["case"] == "7"
    assert expression.fullmatch("run_7/boundary_8.vtp") is None


def test_the_array_of_a_npy_file_is_named_without_its_case():
    path = Path("fields/run_7_pressure.npy")
    assert array_name(path, "run_7") == "pressure"


def test_cases_are_ordered_by_their_numbers():
    assert in_order(["run_10", "run_9"]) == ["run_9", "run_10"]


def test_names_of_channels_tell_vectors_from_other_values():
    vectors = ["shear_x", "shear_y", "shear_z", "y_0", "y_1", "y_2", "y_3"]
    assert channel_names({"p": 1, "shear": 3, "y": 4}) == ["p", *vectors]
    assert parameter_names({"speed": 1, "mu": 2}) == ["speed", "mu_1", "mu_2"]


def test_picks_of_columns_have_names_of_their_own():
    assert Pick.parse("surface_fields[1:4]") == Pick("surface_fields", slice(1, 4))
    assert parse_names("fields", ["p", "f[0]"]) == {"p": Pick("p"), "f_0": Pick("f", slice(0, 1))}


def test_overrides_are_quoted_where_hydra_needs_it():
    assert as_override(["p", "p (Pa)"]) == '[p,"p (Pa)"]'


def test_the_built_in_cars_have_their_own_sign_of_shear():
    signs = [force_convention(["pMeanTrim"], name).shear_sign for name in (None, "cars")]
    assert signs == [-1, 1]


@pytest.mark.parametrize(
    ("name", "n_cases", "counts", "test", "val"),
    [
        ("pipe", 2310, {}, slice(1000, 1200), slice(1200, 1400)),
        ("elasticity", 2000, {}, slice(1800, 2000), slice(1000, 1200)),
        ("elasticity", 30, {"n_train": 0}, slice(0, 30), None),
    ],
)
def test_published_positions_of_test_and_validation_cases(name, n_cases, counts, test, val):
    assert positional_split(benchmark(name), "test", n_cases, **counts) == test
    if val is not None:
        assert positional_split(benchmark(name), "val", n_cases, **counts) == val


def test_fractions_are_rounded_numbers_of_cases():
    ids, parts = [f"run_{i}" for i in range(10)], {"train": 0.7, "val": 0.1, "test": 0.2}
    assert [len(SplitFraction(split, parts, 0).choose(ids)) for split in parts] == [7, 1, 2]

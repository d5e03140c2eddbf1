"""The values of a whole case beside its surface."""

import pytest

from physicsnemo_flarepp.datapipes.readers.case_files import (
    read_parameters,
    read_reference_values,
    reference_values_beside,
)


def test_reference_values_are_the_row_below_the_header(tmp_path):
    path = tmp_path / "geo_ref_1.csv"
    path.write_text("# aRef, lRef \n2.5,4\n")
    assert read_reference_values(path) == {"lRef": 4.0, "aRef": 2.5}
    path.write_text("# aRef, lRef ,note\n2.5,4,text\n")
    with pytest.raises(ValueError, match="geo_ref_1.csv: note is 'text', expected a number"):
        read_reference_values(path)


@pytest.mark.parametrize("content", ["", "aRef,lRef\n", "aRef,lRef\n1.0\n"])
def test_a_table_that_is_cut_is_an_error(tmp_path, content):
    path = tmp_path / "geo_ref_1.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match="geo_ref_1.csv(: line 2 has 1 entries| has no rows)"):
        reference_values_beside(tmp_path / "boundary_1.vtp")


def test_no_table_or_two_give_no_values(tmp_path):
    assert reference_values_beside(tmp_path / "boundary_1.vtp") == {}
    for number in (1, 2):
        (tmp_path / f"geo_ref_{number}.csv").write_text("aRef\n1\n")
    assert reference_values_beside(tmp_path / "boundary_1.vtp") == {}


def test_a_file_per_case_is_found_by_its_id_or_beside_the_case(tmp_path):
    for case, value in (("run_1", 1.5), ("run_2", 2.5)):
        (tmp_path / case).mkdir()
        (tmp_path / case / f"geo_ref_{case[-1]}.csv").write_text(f"aRef\n{value}\n")
    for pattern in ("{case}/geo_ref_*.csv", "geo_ref_*.csv"):
        found = read_parameters(tmp_path, pattern, ["run_1", "run_2"], by_position=False)
        assert found.of_case("run_2", tmp_path / "run_2", required=True) == {"aRef": 2.5}
        (tmp_path / "run_3").mkdir(exist_ok=True)
        assert found.of_case("run_3", tmp_path / "run_3", required=False) == {}
        with pytest.raises(KeyError, match="matches 0 files for case run_3.*constants"):
            found.of_case("run_3", tmp_path / "run_3", required=True)

"""The values of a whole case beside its surface."""

import pytest

from physicsnemo_flarepp.datapipes.readers.parameters import (
    read_reference_values,
    reference_values_beside,
)


def test_reference_values_are_the_row_below_the_header(tmp_path):
    path = tmp_path / "geo_ref_1.csv"
    path.write_text("# aRef, lRef ,note\n2.5,4,text\n")
    assert read_reference_values(path, ["lRef", "aRef"]) == {"lRef": 4.0, "aRef": 2.5}
    with pytest.raises(KeyError, match="no column 'nu'; present: aRef, lRef, note"):
        read_reference_values(path, ["nu"])
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

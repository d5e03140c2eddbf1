import numpy as np
import pytest

from physicsnemo_flarepp.datapipes.validation import check_fits, check_shape, printable


@pytest.mark.parametrize("shape", [(3, 5, 5), (5, 5, 5), (0, 1, 1)])
def test_a_repeated_name_stands_for_one_length(shape):
    check_shape("a.mat", "coeff", shape, ("case", "side", "side"))
    with pytest.raises(ValueError, match=r"expected \(case, side, side\)"):
        check_shape("a.mat", "coeff", (*shape[:2], shape[2] + 1), ("case", "side", "side"))


def test_names_from_files_cannot_move_the_cursor():
    assert printable("Größe p") == "Größe p"
    assert printable("p\x1b[2J\n") == r"p\x1b[2J\n"


def test_an_array_that_does_not_fit_is_refused_before_it_is_read():
    check_fits("a.npz", "p", (1000, 3), np.dtype("f4"))
    with pytest.raises(MemoryError, match=r"a.npz: p has the shape .* needs 1.38e\+10 GB"):
        check_fits("a.npz", "p", (2**60, 3), np.dtype("f4"))

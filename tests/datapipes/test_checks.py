import pytest

from physicsnemo_flarepp.datapipes.checks import check_shape


@pytest.mark.parametrize("shape", [(3, 5, 5), (5, 5, 5), (0, 1, 1)])
def test_a_repeated_name_stands_for_one_length(shape):
    check_shape("a.mat", "coeff", shape, ("case", "side", "side"))
    with pytest.raises(ValueError, match=r"expected \(case, side, side\)"):
        check_shape("a.mat", "coeff", (*shape[:2], shape[2] + 1), ("case", "side", "side"))

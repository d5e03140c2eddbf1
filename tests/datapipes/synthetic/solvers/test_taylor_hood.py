"""Resampling between the grids of elements."""

import numpy as np

from physicsnemo_flarepp.datapipes.synthetic.solvers.taylor_hood import resample


def test_resampling_reproduces_polynomials_of_the_element_degree():
    x, y = np.meshgrid(np.linspace(0, 2, 7), np.linspace(0, 1, 4), indexing="ij")
    fine_x, fine_y = np.meshgrid(np.linspace(0, 2, 11), np.linspace(0, 1, 5), indexing="ij")
    fine = resample(x**3 - x * y**2, (2, 1), 3, (11, 5))
    np.testing.assert_allclose(fine, fine_x**3 - fine_x * fine_y**2, atol=1e-12)

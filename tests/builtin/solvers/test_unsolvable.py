"""Every solver says in one way that a problem has no solution."""

import pytest
from scipy.sparse import csc_array, eye_array

from physicsnemo_flarepp.builtin.solvers import Unsolvable, factorise
from physicsnemo_flarepp.builtin.solvers.navier_stokes import FlowNotConverged


def test_flows_that_are_not_found_are_unsolvable():
    assert issubclass(FlowNotConverged, Unsolvable)


def test_a_singular_matrix_is_unsolvable_and_a_regular_one_solved():
    with pytest.raises(Unsolvable, match="matrix of 3 unknowns is singular"):
        factorise(csc_array((3, 3)), "COLAMD", 1.0)
    twice = factorise(csc_array(2.0 * eye_array(3)), "COLAMD", 1.0)
    assert twice.solve(csc_array([[2.0, 4.0, 6.0]]).toarray()[0]).tolist() == [1.0, 2.0, 3.0]

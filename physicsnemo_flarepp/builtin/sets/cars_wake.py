"""The cars of the set ``cars`` with an estimate of separation and wake, so that shapes have drag.

Fields and files are those of :mod:`.cars`, but for separated flow, which has one base pressure and
no friction (:mod:`..solvers.separation`). Cd is about 0.25 to 0.29 over the random shapes.
"""

from functools import partial

import numpy as np

from .base import BuiltinSet, Case
from .car_body import sample_shape
from .cars import solve_shape, write_run, write_runs


def solve_case(case_seed: int) -> Case:
    """One random car; see :func:`.cars.solve_shape`."""
    return solve_shape(sample_shape(np.random.default_rng(case_seed)), wake=True)


SET = BuiltinSet("cars_wake", 1, 40, 8, solve_case, partial(write_runs, write=write_run))

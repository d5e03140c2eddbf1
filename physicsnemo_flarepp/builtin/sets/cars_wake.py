"""The cars of the set ``cars`` with an estimate of separation and wake, so that shapes have drag.

Fields and files are those of :mod:`.cars`, but for separated flow, which has one base pressure and
no friction (:mod:`..solvers.separation`). Cd is about 0.25 to 0.29 over the random shapes.
"""

from dataclasses import replace
from functools import partial

from . import cars

SET = replace(cars.SET, name="cars_wake", version=1, solve_case=partial(cars.solve_case, wake=True))

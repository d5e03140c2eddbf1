"""What a built-in set is, the list of them, and the random seed of each case."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

Case = dict[str, np.ndarray]

# A worker process imports the one module it needs, so the list holds names, not modules.
MODULES = {
    name: f"physicsnemo_flarepp.datapipes.synthetic.{name}"
    for name in ("cars", "darcy", "elasticity", "pipe", "airfoil")
}


@dataclass(frozen=True)
class SyntheticSet:
    """One built-in set: how a case is solved and how the cases become the published files.

    Parameters
    ----------
    name : str
        Name of the set, as in ``generate(name)``.
    version : int
        Raised whenever the files for a given seed change; part of the directory name, so that
        files of an older solver are never mistaken for those of a newer one.
    n_train, n_test : int
        Default numbers of training and test cases.
    solve_case : Callable[[int], dict[str, numpy.ndarray]]
        From a case seed to the named arrays of the solved case. A function of the seed alone.
    assemble : Callable[[Iterable[dict], Path, int, int], None]
        ``assemble(cases, out_dir, n_train, n_test)`` writes the files of the set into
        ``out_dir``. ``cases`` gives ``n_train + n_test`` cases in order, training cases first,
        read from disk one at a time.
    """

    name: str
    version: int
    n_train: int
    n_test: int
    solve_case: Callable[[int], Case]
    assemble: Callable[[Iterable[Case], Path, int, int], None]


def load_set(name: str) -> SyntheticSet:
    """Import the module of a built-in set and give its definition.

    Examples
    --------
    >>> load_set("boats")
    Traceback (most recent call last):
        ...
    ValueError: name='boats' is no built-in set; choose one of airfoil, cars, darcy, ...
    """
    if name not in MODULES:
        known = ", ".join(sorted(MODULES))
        raise ValueError(f"name={name!r} is no built-in set; choose one of {known}")
    return import_module(MODULES[name]).SET


def case_seed(seed: int, index: int) -> int:
    """Seed of one case, independent of how many cases there are and of who solves them.

    Examples
    --------
    >>> case_seed(0, 1) == case_seed(0, 1), case_seed(0, 1) == case_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])

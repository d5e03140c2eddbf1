"""What a built-in set is, the list of them, and the random seed of each case."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

Case = dict[str, np.ndarray]

# A worker process imports the one module it needs, so the list holds names, not modules.
MODULES = {
    name: f"physicsnemo_flarepp.datapipes.synthetic.sets.{name}"
    for name in ("cars", "car_volumes", "darcy", "elasticity", "pipe", "airfoil")
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
        From a case seed to the named arrays of the solved case. A function of the seed alone. It
        raises :class:`..solvers.Unsolvable` where this seed gives a problem without a solution;
        the case is then drawn again.
    assemble : Callable[[Iterable[dict], Path, int, int, int], None]
        ``assemble(cases, out_dir, n_train, n_test, n_val)`` writes the files of the set into
        ``out_dir``. ``cases`` gives the cases in order, those for training first and those for
        validation last, read from disk one at a time.
    """

    name: str
    version: int
    n_train: int
    n_test: int
    solve_case: Callable[[int], Case]
    assemble: Callable[[Iterable[Case], Path, int, int, int], None]


def validation_apart(
    assemble: Callable[[Iterable[Case], Path, int, int], None],
) -> Callable[[Iterable[Case], Path, int, int, int], None]:
    """Return what also writes validation cases: in the same layout to the folder ``val``.

    So the published files hold what they hold without validation cases.

    Parameters
    ----------
    assemble : Callable
        ``assemble(cases, out_dir, n_train, n_test)`` writes the published files; `n_test` may be 0.
    """

    def assemble_all(
        cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, n_val: int
    ) -> None:
        cases = iter(cases)
        assemble(islice(cases, n_train + n_test), out_dir, n_train, n_test)
        if n_val:
            (out_dir / "val").mkdir()
            assemble(cases, out_dir / "val", n_val, 0)

    return assemble_all


def load_set(name: str) -> SyntheticSet:
    """Return the definition of a built-in set.

    Examples
    --------
    >>> load_set("boats")
    Traceback (most recent call last):
        ...
    ValueError: name='boats' is no built-in set; choose one of airfoil, car_volumes, ...
    """
    if name not in MODULES:
        known = ", ".join(sorted(MODULES))
        raise ValueError(f"name={name!r} is no built-in set; choose one of {known}")
    return import_module(MODULES[name]).SET


class CaseId(NamedTuple):
    """One case of a set: its split and its place in it.

    Examples
    --------
    >>> str(CaseId("test", 3))
    'test 3'
    """

    split: str
    index: int

    def __str__(self) -> str:
        return f"{self.split} {self.index}"


def case_ids(n_train: int, n_test: int, n_val: int = 0) -> list[CaseId]:
    """Return the cases of a set, those for training first and those for validation last."""
    counts = {"train": n_train, "test": n_test, "val": n_val}
    return [CaseId(split, index) for split, n in counts.items() for index in range(n)]


def case_seed(seed: int, case: CaseId, draw: int = 0) -> int:
    """Return the seed of one case, whatever the number of cases and whoever solves them.

    Each split draws from a stream of its own, so that more cases of one do not change another.

    Parameters
    ----------
    seed : int
        Seed of the set.
    case : CaseId
        The case.
    draw : int
        How often the case was drawn before and found unsolvable.

    Examples
    --------
    >>> first, second = CaseId("train", 0), CaseId("train", 1)
    >>> case_seed(0, second) == case_seed(0, second), case_seed(0, second) == case_seed(1, first)
    (True, False)
    >>> case_seed(0, first) == case_seed(0, CaseId("test", 0))
    False
    >>> case_seed(0, second, draw=1) == case_seed(0, second)
    False
    """
    # First draws have the keys (), (1,) and (2,), which later draws must not meet.
    number = {"train": 0, "test": 1, "val": 2}[case.split]
    stream = (number, draw) if draw else (number,) if number else ()
    sequence = np.random.SeedSequence([seed, case.index], spawn_key=stream)
    return int(sequence.generate_state(1, np.uint64)[0])

"""The built-in sets: what each is, draws and writes, their list, and the seed of each case."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import numpy as np

Case = dict[str, np.ndarray]

# A worker process imports the one module it needs, so the list holds names, not modules.
MODULES = {
    name: f"{__package__}.{name}:SET"
    for name in "cars car_volumes darcy elasticity pipe airfoil listops pathfinder".split()
} | {
    "cars_wake": f"{__package__}.cars:WAKE",
    "listops_short": f"{__package__}.listops:SHORT",
    "pathfinder_small": f"{__package__}.pathfinder:SMALL",
}


@dataclass(frozen=True)
class BuiltinSet:
    """One built-in set: how a case is solved and how the cases become the published files.

    ``version``, a part of the directory name, is raised whenever the files for a given seed change.
    ``solve_case(seed)`` raises :class:`..solvers.Unsolvable` for a problem without a solution, and
    the case is drawn again. ``assemble(cases, out_dir, n_train, n_test, n_val)`` writes the files;
    cases are read from disk one at a time, training first and validation last.
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
    """Return an ``assemble`` that writes validation cases alike, to the folder ``val``."""

    def assemble_all(
        cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, n_val: int
    ) -> None:
        cases = iter(cases)
        assemble(islice(cases, n_train + n_test), out_dir, n_train, n_test)
        if n_val:
            (out_dir / "val").mkdir()
            assemble(cases, out_dir / "val", n_val, 0)

    return assemble_all


def load_set(name: str) -> BuiltinSet:
    """Return the definition of a built-in set."""
    if name not in MODULES:
        known = ", ".join(sorted(MODULES))
        raise ValueError(f"name={name!r} is not a built-in set; choose one of {known}")
    return resolve_name(MODULES[name])


class CaseId(NamedTuple):
    """One case of a set: its split and its place in it."""

    split: str
    index: int

    def __str__(self) -> str:
        return f"{self.split} {self.index}"


def case_ids(n_train: int, n_test: int, n_val: int = 0) -> list[CaseId]:
    """Return the cases of a set, those for training first and those for validation last."""
    counts = {"train": n_train, "test": n_test, "val": n_val}
    return [CaseId(split, index) for split, n in counts.items() for index in range(n)]


def case_seed(seed: int, case: CaseId, draw: int = 0) -> int:
    """Return the seed of a case, by split; ``draw`` counts how often it was unsolvable before."""
    # First draws have the keys (), (1,) and (2,), which later draws must not meet.
    number = {"train": 0, "test": 1, "val": 2}[case.split]
    stream = (number, draw) if draw else (number,) if number else ()
    sequence = np.random.SeedSequence([seed, case.index], spawn_key=stream)
    return int(sequence.generate_state(1, np.uint64)[0])


def write_grid_files(
    cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, *, stem: str
) -> None:
    """Write ``points`` (I, J, 2) as X and Y (n, I, J), ``flow`` as Q (n, C, I, J), in float32."""
    files = {}
    for index, case in enumerate(cases):
        x, y = np.moveaxis(case["points"], -1, 0)
        for name, values in (("X", x), ("Y", y), ("Q", case["flow"])):
            if index == 0:
                files[name] = np.empty((n_train + n_test, *values.shape), np.float32)
            files[name][index] = values
    for name, values in files.items():
        np.save(out_dir / f"{stem}_{name}.npy", values)

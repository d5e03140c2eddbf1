"""Solve the cases of a set in fresh processes, each case into a file of its own.

A case file is there whole or not at all, so cases survive whatever ends a process.
"""

import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from zlib import error as ZlibError

import numpy as np

from ..files import replace_file
from .sets import BuiltinSet, Case, CaseId, case_seed
from .solvers import Unsolvable

DRAWS = 10
# One BLAS thread, and no modules from the working directory, which may be that of somebody's run.
_ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH"), "1"
)
_SPAWN = multiprocessing.get_context("spawn")


def case_file(folder: Path, case_id: CaseId) -> Path:
    """Return the path of the file that holds a case."""
    return folder / f"{case_id.split}_{case_id.index:06d}.npz"


def read_case(folder: Path, case_id: CaseId) -> tuple[Case, int]:
    """Return a solved case and its draw; the checksums inside the file are verified on the way."""
    with np.load(case_file(folder, case_id), allow_pickle=False) as file:
        case = dict(file)
    return case, int(case.pop("draw"))


def unsolved_cases(folder: Path, cases: Iterable[CaseId]) -> list[CaseId]:
    """Return the cases that have no file; damaged files are deleted first."""
    missing = []
    for case_id in cases:
        try:
            read_case(folder, case_id)
        except FileNotFoundError:
            missing.append(case_id)
        except (zipfile.BadZipFile, ZlibError, EOFError, ValueError, KeyError):
            case_file(folder, case_id).unlink()
            missing.append(case_id)
    return missing


def solve_to_file(data_set: BuiltinSet, seed: int, folder: Path, case_id: CaseId) -> None:
    """Write the file of one case, from the first of its draws that has a solution."""
    report = "this is an error in the solver, please report it with the seed"
    for draw in range(DRAWS):
        try:
            case = data_set.solve_case(case_seed(seed, case_id, draw))
            break
        except Unsolvable as error:
            last = error
    else:
        told = f"none of {DRAWS} draws of case {case_id} is solvable; {report}"
        raise RuntimeError(told) from last
    for name, array in case.items():
        if not np.all(np.isfinite(array)):
            raise RuntimeError(f"{name!r} of case {case_id} has non-finite values; {report}")
    buffer = io.BytesIO()
    np.savez(buffer, **case, draw=draw)
    replace_file(case_file(folder, case_id), lambda sink: sink.write(buffer.getbuffer()))


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _solve_share(
    report: Connection, module: str, seed: int, folder: Path, cases: list[CaseId]
) -> None:
    """Solve cases one after the other and report each: the work of one process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Standard output belongs to the caller's answer: what libraries print goes to standard error.
    os.dup2(2, 1)
    data_set = import_module(module).SET
    for case_id in cases:
        problem = None
        try:
            solve_to_file(data_set, seed, folder, case_id)
        except Exception:
            problem = traceback.format_exc()
        try:
            report.send((case_id, problem))
        except BrokenPipeError:  # the parent was stopped and nobody is left to be told
            return


@contextmanager
def _fresh_interpreters() -> Iterator[None]:
    """Start processes with one BLAS thread, deaf to Ctrl-C, without the caller's script.

    Threads would make results depend on the number of cores. Ctrl-C reaches the whole process
    group, but it is the parent that ends its processes. And a spawned process would run a
    script that lacks the ``__main__`` guard a second time.
    """
    main, environment = sys.modules["__main__"], dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    # Python's own helper process; starting it would unblock the signal again.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        for name in _ENVIRONMENT:
            os.environ.pop(name)
            if name in environment:
                os.environ[name] = environment[name]
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def solve_cases(
    module: str, seed: int, folder: Path, cases: list[CaseId], workers: int
) -> Iterator[CaseId]:
    """Solve cases of the set in ``module`` and yield each once its file in ``folder`` is written.

    Process k of ``workers`` takes the cases k, k + workers, ...; closing the iterator ends them.
    """
    processes = {}
    try:
        with _fresh_interpreters():
            for first in range(min(workers, len(cases))):
                reports, report = _SPAWN.Pipe(duplex=False)
                share = (report, module, seed, folder, cases[first::workers])
                processes[reports] = _SPAWN.Process(target=_solve_share, args=share, daemon=True)
                processes[reports].start()
                report.close()
        while processes:
            for reports in wait(processes):
                try:
                    case_id, problem = reports.recv()
                except EOFError:
                    process = processes.pop(reports)
                    process.join()
                    if process.exitcode != 0:
                        raise RuntimeError(
                            f"a solver process ended with status {process.exitcode}; its last "
                            "output is above. Finished cases are kept: start again to resume"
                        ) from None
                    continue
                if problem is not None:
                    raise RuntimeError(f"case {case_id} could not be solved:\n{problem}")
                yield case_id
    finally:
        for process in processes.values():
            if process.pid is not None:
                process.terminate()
                process.join()

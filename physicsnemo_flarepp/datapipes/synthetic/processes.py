"""A pool of solver processes that share out the cases of a set.

Plain subprocesses instead of :mod:`multiprocessing`: a fresh interpreter can be told to use one
BLAS thread, which makes the result independent of the number of workers; it inherits no thread or
CUDA state from a caller that already runs torch; and it does not import the caller's script again.
"""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from .sets import CaseId

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def available_cores() -> int:
    """Number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_worker(module: str, seed: int, parts: Path) -> subprocess.Popen:
    """Start one solver process with a single BLAS thread and the caller's import path."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.worker", module, str(seed), str(parts)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def stop_worker(worker: subprocess.Popen) -> None:
    """End a solver process, whether idle or in the middle of a case."""
    worker.terminate()
    worker.communicate()


def read_answer(worker: subprocess.Popen) -> CaseId:
    """Take the case a worker has finished, or raise what stopped it."""
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(
            f"a solver process ended with status {worker.wait()} before it answered; "
            "its last output is above. Finished cases are kept: start again to go on"
        )
    answer = json.loads(line)
    if "error" in answer:
        raise RuntimeError(f"case {answer['case']} could not be solved:\n{answer['error']}")
    return CaseId.parse(answer["case"])


def solve_cases(
    module: str, seed: int, parts: Path, cases: Iterable[CaseId], workers: int
) -> Iterator[CaseId]:
    """Solve cases in ``workers`` processes and yield each once its part file is written.

    Parameters
    ----------
    module : str
        Importable name of the module that defines the set.
    seed : int
        Seed of the set.
    parts : Path
        Folder for the part files.
    cases : Iterable[CaseId]
        The cases, handed out in this order to whichever worker is free.
    workers : int
        Number of processes.
    """
    waiting = iter(cases)
    with ExitStack() as stack, selectors.DefaultSelector() as busy:

        def hand_out(worker: subprocess.Popen) -> bool:
            case = next(waiting, None)
            if case is not None:
                # A worker that has died is reported where its answer is read.
                with suppress(BrokenPipeError):
                    print(case, file=worker.stdin, flush=True)
            return case is not None

        for _ in range(workers):
            worker = start_worker(module, seed, parts)
            stack.callback(stop_worker, worker)
            if hand_out(worker):
                busy.register(worker.stdout, selectors.EVENT_READ, worker)
        while busy.get_map():
            for key, _ in busy.select():
                worker = key.data
                yield read_answer(worker)
                if not hand_out(worker):
                    busy.unregister(worker.stdout)

"""Make a built-in data set, or find it finished in the cache.

The cases of a set are solved in fresh processes, each into a file of its own that is there whole or
not at all, so cases survive whatever ends a process. The stamp of a finished set says what it is,
and has the size and SHA-256 of each of its files.
"""

import io
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from zlib import error as ZlibError

import numpy as np
import psutil

from .. import __version__
from ..files import (
    Fingerprint,
    check_inside,
    checked_json,
    exclusive,
    fingerprint,
    read_checked_json,
    replace_file,
    replace_text,
    verify_file,
)
from ..progress import progress_bar
from .sets import MODULES, BuiltinSet, Case, CaseId, case_ids, case_seed, load_set
from .solvers import Unsolvable

CACHE_VARIABLE = "PHYSICSNEMO_FLAREPP_CACHE"
STAMP = "stamp.json"
DRAWS = 10
# One BLAS thread, and no modules from the working directory, which may be that of somebody's run.
_ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH"), "1"
)
_SPAWN = multiprocessing.get_context("spawn")


def cache_root(root: str | Path | None = None) -> Path:
    """Return where built-in sets are: ``root``, the environment variable, or the user's cache."""
    chosen = root or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache/physicsnemo_flarepp"
    return Path(chosen).expanduser().absolute()


@cache
def _verify_once(path: Path, written: Fingerprint, size: int, modified: int) -> None:
    """Read a file once per process, as long as nobody touches it; errors are not remembered."""
    verify_file(path, written)


def write_stamp(folder: Path, content: dict) -> None:
    """Mark ``folder`` as finished; what is in it now is what :func:`read_stamp` expects."""
    files = {
        path.relative_to(folder).as_posix(): fingerprint(path)._asdict()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / STAMP
    }
    replace_text(folder / STAMP, checked_json(content | {"files": files}))


def read_stamp(folder: Path, expected: dict | None = None) -> dict | None:
    """Return the stamp of a set whose files are all whole, None without one; else raise."""
    stamp = folder / STAMP
    if not stamp.exists():
        return None
    remedy = f"delete {folder} and the set is made again when used, or by `python -m {__package__}`"
    try:
        content = read_checked_json(stamp)
        files = {name: Fingerprint(**written) for name, written in content["files"].items()}
        check_inside(files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{stamp} is damaged or of an earlier version ({error!r}); {remedy}"
        ) from error
    for name, value in (expected or {}).items():
        if content.get(name) != value:
            raise ValueError(
                f"{stamp} belongs to another set: {name} is {content.get(name)!r}, "
                f"expected {value!r}; {remedy}"
            )
    for name, written in files.items():
        path = folder / name
        try:
            found = path.stat()
            _verify_once(path, written, found.st_size, found.st_mtime_ns)
        except (OSError, ValueError) as error:
            raise ValueError(f"{error}; {remedy}") from error
    return content


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
    data_set = resolve_name(module)
    for case_id in cases:
        problem = None
        try:
            solve_to_file(data_set, seed, folder, case_id)
        except Exception:
            problem = traceback.format_exc()
        try:
            report.send((case_id, problem))
        except BrokenPipeError:  # the parent was stopped
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
) -> Iterator[CaseId | None]:
    """Yield None once processes solve the cases, then each with its file; closing ends them."""
    processes = {}
    try:
        with _fresh_interpreters():
            for first in range(min(workers, len(cases))):
                reports, report = _SPAWN.Pipe(duplex=False)
                share = (report, module, seed, folder, cases[first::workers])
                processes[reports] = _SPAWN.Process(target=_solve_share, args=share, daemon=True)
                processes[reports].start()
                report.close()
        yield None
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


def _check_count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an integer")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return value


def _say(message: str, progress: bool) -> None:
    if progress:
        print(message, file=sys.stderr, flush=True)


def _finish(data_set: BuiltinSet, solved: Path, final: Path, identity: dict) -> list[str]:
    """Turn the case files into the files of the set, the stamp last; return the redrawn cases."""
    counts = [identity[name] for name in ("n_train", "n_test", "n_val")]
    unfinished = final.with_name(f"{final.name}.partial")
    for left_over in (unfinished, final):
        if left_over.exists():
            shutil.rmtree(left_over)
    unfinished.mkdir()
    redrawn = []

    def cases() -> Iterator[Case]:
        for case_id in case_ids(*counts):
            case, draw = read_case(solved, case_id)
            if draw > 0:
                redrawn.append(f"{case_id}, draw {draw}")
            yield case

    data_set.assemble(cases(), unfinished, *counts)
    unfinished.rename(final)
    write_stamp(final, identity | {"package_version": __version__, "redrawn": redrawn})
    shutil.rmtree(solved)
    return redrawn


def generate(
    name: str,
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    n_val: int | None = 0,
    seed: int = 0,
    root: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Path:
    """Return the directory of a built-in data set, made now if it is not in the cache yet.

    The files are a function of the name, the counts and the seed, whatever the number of workers.
    A larger set starts with the cases of a smaller one, in every split. A random case whose
    equations have no solution is drawn again; the stamp lists such cases. An interrupted generation
    resumes from its finished cases. A finished set with a lost or changed file is an error.

    Parameters
    ----------
    name : str
        One of ``cars``, ``cars_wake``, ``car_volumes``, ``darcy``, ``elasticity``, ``pipe``,
        ``airfoil``.
    n_train, n_test, n_val : int, optional
        Numbers of cases; None makes the set's own, and as many for validation as for testing.
    seed : int
        Seed of the set, 0 or more.
    root : str or Path, optional
        Where sets are kept; else ``$PHYSICSNEMO_FLAREPP_CACHE``, else
        ``~/.cache/physicsnemo_flarepp``.
    workers : int, optional
        Number of solver processes; all available cores by default.
    progress : bool
        Show a progress bar on a terminal and one line elsewhere.

    Returns
    -------
    Path
        ``<root>/<name>-v<version>-s<seed>-<n_train>+<n_test>``, and ``+<n_val>`` if there are any,
        with the published files of the set and ``stamp.json``, which has their checksums.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = generate("darcy", n_train=2, n_test=1, root=root, progress=False)
    ...     sorted(file.name for file in path.iterdir())
    ['piececonst_r85_N1_smooth2.mat', 'piececonst_r85_N2_smooth1.mat', 'stamp.json']
    """
    wanted = (name, n_train, n_test, n_val, seed)
    steps = _make(*wanted, root, workers, progress)
    begun = _begun.get([])
    while begun:
        began, first, making = begun.pop()
        if (root, workers, began) == (None, None, wanted):
            steps = itertools.chain([first], making)
        else:
            making.close()  # it may hold the lock
    *_, path = steps
    return path


# What `begin` has started: its arguments, what came first, and what is still to come.
_begun: ContextVar[list[tuple]] = ContextVar("begun")


@contextmanager
def begin(
    name: str, n_train: int | None, n_test: int | None, n_val: int | None, seed: int
) -> Iterator[None]:
    """Solve the cases of a set from now on; :func:`generate`, called inside, waits for them."""
    wanted = (name, n_train, n_test, n_val, seed)
    with closing(_make(*wanted, None, None, True)) as making:
        token = _begun.set([(wanted, next(making), making)])
        try:
            yield
        finally:
            _begun.reset(token)


def _make(
    name: str,
    n_train: int | None,
    n_test: int | None,
    n_val: int | None,
    seed: int,
    root: str | Path | None,
    workers: int | None,
    progress: bool,
) -> Iterator[Path | None]:
    """Yield None once the cases are being solved, then the directory of the finished set."""
    data_set = load_set(name)
    n_train = _check_count("n_train", data_set.n_train if n_train is None else n_train, 1)
    n_test = _check_count("n_test", data_set.n_test if n_test is None else n_test, 1)
    n_val = _check_count("n_val", n_test if n_val is None else n_val, 0)
    _check_count("seed", seed, 0)
    # The cores this process may use, where the system can tell (macOS cannot).
    cores = psutil.cpu_count() if psutil.MACOS else len(psutil.Process().cpu_affinity())
    workers = _check_count("workers", cores if workers is None else workers, 1)

    base = cache_root(root)
    base.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-v{data_set.version}-s{seed}"
    final = base / (f"{stem}-{n_train}+{n_test}" + (f"+{n_val}" if n_val else ""))
    # Cases do not depend on the counts, so sets that differ only in size share their case files.
    solved = base / f"{stem}.cases"
    identity = {"name": data_set.name, "version": data_set.version, "seed": seed}
    identity |= {"n_train": n_train, "n_test": n_test, "n_val": n_val}
    if read_stamp(final, identity):
        yield final
        return
    waiting = f"{name}: another process is making {stem} in {base}; waiting for it"
    with exclusive(base / f"{stem}.lock", lambda: _say(waiting, progress)):
        if read_stamp(final, identity):
            yield final
            return
        start = time.perf_counter()
        solved.mkdir(exist_ok=True)
        missing = unsolved_cases(solved, case_ids(n_train, n_test, n_val))
        with closing(solve_cases(MODULES[name], seed, solved, missing, workers)) as finished:
            yield next(finished)
            with progress_bar(f"{name}: solving", len(missing), progress) as advance:
                for _ in finished:
                    advance()
        redrawn = _finish(data_set, solved, final, identity)
        seconds = time.perf_counter() - start
        _say(f"{name}: {len(missing)} cases solved in {seconds:.0f} s, set in {final}", progress)
        if cases := "; ".join(redrawn):
            _say(f"{name}: drawn again because they had no solution: {cases}", progress)
    yield final

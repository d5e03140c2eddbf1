"""Make a built-in data set, or find it finished in the cache.

The stamp of a finished set says what it is, and has the size and SHA-256 of each of its files.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import psutil

from .. import __version__
from ..files import (
    Fingerprint,
    check_inside,
    checked_json,
    exclusive,
    fingerprint,
    read_checked_json,
    replace_text,
    verify_file,
)
from ..progress import progress_bar
from .sets import MODULES, BuiltinSet, Case, case_ids, load_set
from .workers import read_case, solve_cases, unsolved_cases

CACHE_VARIABLE = "PHYSICSNEMO_FLAREPP_CACHE"
STAMP = "stamp.json"


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
    """Return the stamp of a set after checking it and every file of the set; None without one.

    A stamp that is damaged or does not say what is ``expected``, and a lost or changed file, are
    ValueErrors that tell how to have the set made again.
    """
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

    The files are a function of the name, the counts and the seed; the number of workers does not
    change them. Training, test and validation cases are the beginnings of fixed sequences: a larger
    set starts with the cases of a smaller one, in every split. A random case whose equations have
    no solution is drawn again, from a seed derived from its own; the stamp lists such cases. An
    interrupted generation resumes from its finished cases when called again. A finished set with a
    lost or changed file is an error. Two processes that ask for the same set at once make it once.

    Parameters
    ----------
    name : str
        One of ``cars``, ``cars_wake``, ``car_volumes``, ``darcy``, ``elasticity``, ``pipe``,
        ``airfoil``.
    n_train, n_test : int, optional
        Numbers of training and test cases; the defaults belong to the set.
    n_val : int or None
        Number of validation cases; None makes as many as test cases.
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
        return final
    waiting = f"{name}: another process is making {stem} in {base}; waiting for it"
    with exclusive(base / f"{stem}.lock", lambda: _say(waiting, progress)):
        if read_stamp(final, identity):
            return final
        start = time.perf_counter()
        solved.mkdir(exist_ok=True)
        missing = unsolved_cases(solved, case_ids(n_train, n_test, n_val))
        with (
            closing(solve_cases(MODULES[name], seed, solved, missing, workers)) as finished,
            progress_bar(f"{name}: solving", len(missing), progress) as advance,
        ):
            for _ in finished:
                advance()
        redrawn = _finish(data_set, solved, final, identity)
        seconds = time.perf_counter() - start
        _say(f"{name}: {len(missing)} cases solved in {seconds:.0f} s, set in {final}", progress)
        if cases := "; ".join(redrawn):
            _say(f"{name}: drawn again because they had no solution: {cases}", progress)
    return final

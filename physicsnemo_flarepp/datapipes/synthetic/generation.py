"""Make a built-in data set, or find it finished in the cache."""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import track

from ... import __version__
from .parts import drop_unusable_parts, exclusive, read_part, remove_tree, replacing
from .processes import available_cores, solve_cases
from .sets import MODULES, CaseId, SyntheticSet, case_ids, load_set

CACHE_VARIABLE = "PHYSICSNEMO_FLAREPP_CACHE"
STAMP = "stamp.json"


def cache_root(root: str | Path | None = None) -> Path:
    """Directory of the built-in sets: ``root``, the environment variable, or the user's cache."""
    chosen = root or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache/physicsnemo_flarepp"
    return Path(chosen).expanduser().absolute()


def make_stamp(data_set: SyntheticSet, seed: int, n_train: int, n_test: int) -> dict:
    """Content of the stamp file that marks a finished set, but for the sizes of its files."""
    return {
        "name": data_set.name,
        "version": data_set.version,
        "seed": seed,
        "n_train": n_train,
        "n_test": n_test,
        "package_version": __version__,
    }


def file_sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files under ``folder`` but the stamp, by relative path."""
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    sizes.pop(STAMP, None)
    return sizes


def is_finished(final: Path) -> bool:
    """Whether ``final`` holds a stamp; raise if its files are not those that were stamped.

    A crash of the machine can leave short files behind a stamp, and files can be lost later.
    """
    stamp = final / STAMP
    if not stamp.exists():
        return False
    remedy = f"delete {final} and the set is made again"
    try:
        expected = json.loads(stamp.read_text())["files"]
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{stamp} is damaged ({error!r}); {remedy}") from error
    found = file_sizes(final)
    for name, size in expected.items():
        if found.get(name) != size:
            state = f"{found[name]} bytes" if name in found else "no such file"
            raise ValueError(f"{final / name}: {state}, expected {size} bytes; {remedy}")
    return True


def check_count(name: str, value: int, least: int) -> int:
    """Give ``value`` back if it is an integer not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an integer")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return value


def say(message: str, progress: bool) -> None:
    """Print one line to standard error."""
    if progress:
        print(message, file=sys.stderr, flush=True)


def show_progress(finished: Iterable[CaseId], label: str, total: int, progress: bool) -> None:
    """Run through ``finished`` behind a progress bar on a terminal, silently elsewhere."""
    console = Console(stderr=True)
    shown = progress and console.is_terminal
    for _ in track(finished, label, total=total, console=console, disable=not shown):
        pass


def finish(data_set: SyntheticSet, parts: Path, final: Path, stamp: dict) -> None:
    """Turn the part files into the files of the set; the stamp comes last."""
    n_train, n_test = stamp["n_train"], stamp["n_test"]
    unfinished = final.with_name(f"{final.name}.partial")
    remove_tree(unfinished)
    unfinished.mkdir()
    cases = (read_part(parts, case) for case in case_ids(n_train, n_test))
    data_set.assemble(cases, unfinished, n_train, n_test)
    stamp = stamp | {"files": file_sizes(unfinished)}
    remove_tree(final)
    unfinished.rename(final)
    with replacing(final / STAMP) as temporary:
        temporary.write_text(json.dumps(stamp, indent=2) + "\n")
    remove_tree(parts)


def generate(
    name: str,
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Path:
    """Directory of a built-in data set, made now if it is not in the cache yet.

    The files are a function of the name, the counts and the seed; the number of workers does not
    change them. Training and test cases are the beginnings of two fixed sequences: the first cases
    of a larger set are those of a smaller one, in both splits. An interrupted
    run goes on from its finished cases when called again. A finished set with a lost or shortened
    file is an error. Two processes that ask for the same
    set at once make it once.

    Parameters
    ----------
    name : str
        One of ``cars``, ``darcy``, ``elasticity``, ``pipe``, ``airfoil``.
    n_train, n_test : int, optional
        Numbers of training and test cases; the defaults belong to the set.
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
        ``<root>/<name>-v<version>-s<seed>-<n_train>+<n_test>``, with the published files of the
        set and ``stamp.json``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = generate("darcy", n_train=2, n_test=1, root=root, progress=False)
    ...     sorted(file.name for file in path.iterdir())
    ['piececonst_r85_N1_smooth2.mat', 'piececonst_r85_N2_smooth1.mat', 'stamp.json']
    """
    data_set = load_set(name)
    n_train = check_count("n_train", data_set.n_train if n_train is None else n_train, 1)
    n_test = check_count("n_test", data_set.n_test if n_test is None else n_test, 1)
    check_count("seed", seed, 0)
    workers = check_count("workers", available_cores() if workers is None else workers, 1)

    base = cache_root(root)
    base.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-v{data_set.version}-s{seed}"
    final = base / f"{stem}-{n_train}+{n_test}"
    # Cases do not depend on the counts, so sets that differ only in size share their parts.
    parts = base / f"{stem}.parts"
    if is_finished(final):
        return final
    waiting = f"{name}: another process is making {stem} in {base}; waiting for it"
    with exclusive(base / f"{stem}.lock", lambda: say(waiting, progress)):
        if is_finished(final):
            return final
        start = time.perf_counter()
        parts.mkdir(exist_ok=True)
        missing = drop_unusable_parts(parts, case_ids(n_train, n_test))
        workers = min(workers, len(missing))
        finished = solve_cases(MODULES[name], seed, parts, missing, workers)
        show_progress(finished, f"{name}: solving", len(missing), progress)
        finish(data_set, parts, final, make_stamp(data_set, seed, n_train, n_test))
        seconds = time.perf_counter() - start
        say(f"{name}: {len(missing)} cases solved in {seconds:.0f} s, set in {final}", progress)
    return final

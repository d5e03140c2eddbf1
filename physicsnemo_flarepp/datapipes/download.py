"""Fetch published data: ``flarepp download pipe``, ``flarepp download drivaerml_raw --runs 1-10``.

The benchmarks are archives on the hub, which may hold several sets. The raw sets of cars are
folders ``run_<i>``, of which runs and kinds of files are chosen.
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from huggingface_hub.hf_api import RepoFile
from rich.filesize import decimal

from ..files import check_inside, exclusive, put_in_place, reading, replace_text
from ..progress import progress_bar
from .specs import BENCHMARKS, HUB_REPOSITORY, MANIFEST, BenchmarkSpec, benchmark
from .transfer import (
    ORIGIN,
    check_space,
    connecting,
    download_bar,
    fetch_all,
    list_files,
    missing_bytes,
    unpack,
)

ARCHIVED_SETS = tuple(name for name, spec in BENCHMARKS.items() if spec.archive is not None)
# Sets of simulations, one folder run_<i> each, by their repositories on the hub.
RAW_SETS = {
    "drivaerml_raw": "neashton/drivaerml",
    "ahmedml": "neashton/ahmedml",
    "windsorml": "neashton/windsorml",
}
PUBLISHED_SETS = (*ARCHIVED_SETS, *RAW_SETS)
# Names of the files of run {i}; DrivAerML's volumes come in parts of at most 26.8 GB.
FILE_KINDS = {
    "boundary": ("boundary_{i}.vtp", "boundary_{i}.vtu"),
    "stl": ("*_{i}.stl",),
    "csv": ("*_{i}.csv",),
    "volume": ("volume_{i}.vtu", "volume_{i}.vtu.[0-9][0-9].part"),
}
# The splits "full" in assets/downloads/<set>/<set>_official_splits/splits/manifest.json of the
# repository neilashton/caemldatasets. Its other manifests work as they are:
# data.splits={manifest: ..., train: scarce_train, val: scarce_val, test: scarce_test}.
_SPLITS_SOURCE = "https://caemldatasets.org, split full"


def _by_split(runs: range, val: str, test: str, left_out: str = "") -> dict[str, list[int]]:
    """Return the numbers of runs by split; those in no list are for training."""
    listed = {"val": [int(run) for run in val.split()], "test": [int(run) for run in test.split()]}
    others = {*listed["val"], *listed["test"], *map(int, left_out.split())}
    return {"train": [run for run in runs if run not in others], **listed}


PUBLISHED_SPLITS = {
    "drivaerml_raw": _by_split(
        range(1, 501),
        val="4 22 56 109 150 165 177 191 228 234 241 247 252 253 260 271 275 298 303 311 321 324 "
        "328 341 352 366 380 390 401 423 441 447 454 487",
        test="11 12 19 20 24 26 29 41 55 59 108 124 127 133 142 158 173 180 187 188 197 199 203 "
        "205 207 208 210 215 222 226 258 263 280 284 290 322 337 350 354 363 372 382 387 405 410 "
        "424 428 429 436 472",
        # Never published, but for 45, which the authors leave out of training.
        left_out="167 211 218 221 248 282 291 295 316 325 329 364 370 376 403 473 45",
    ),
    "ahmedml": _by_split(
        range(1, 501),
        val="24 26 29 38 41 55 59 104 108 124 133 142 158 173 180 188 196 197 199 205 207 210 222 "
        "226 230 258 263 280 281 284 290 291 295 304 312 337 350 354 363 372 387 403 405 424 428 "
        "429 432 455 472 494",
        test="4 11 12 19 20 22 56 109 127 150 165 177 187 191 203 208 215 228 234 241 247 252 253 "
        "260 271 275 298 303 311 321 322 324 328 329 341 352 364 366 376 380 382 390 401 410 423 "
        "436 441 447 454 487",
    ),
    "windsorml": _by_split(
        range(355),
        val="8 11 25 27 37 43 44 46 50 51 56 57 77 83 94 99 137 149 156 168 210 222 236 242 244 "
        "250 267 273 274 279 287 300 305 317 331",
        test="7 18 23 28 32 47 58 66 69 85 89 95 97 98 100 104 113 123 125 130 136 139 148 172 216 "
        "232 253 256 257 270 283 299 333 336 341 354",
    ),
}


def _lock(folder: Path, name: str) -> AbstractContextManager[None]:
    folder.mkdir(parents=True, exist_ok=True)
    waiting = f"another process is fetching {name} to {folder}; waiting for it"
    return exclusive(folder / f".{name}.lock", lambda: print(waiting, file=sys.stderr))


def download(
    name: str, root: str | Path, *, endpoint: str | None = None, keep: bool = False
) -> Path:
    """Fetch and unpack the archive of a published set below `root` and return its folder.

    An interrupted download resumes. `keep` leaves the archive in `root`; `endpoint` is a mirror.
    """
    if name not in ARCHIVED_SETS:
        raise ValueError(f"set {name!r} is not published; choose one of {ARCHIVED_SETS}")
    spec, root = benchmark(name), Path(root).expanduser()
    folder, archive = root / spec.folder, root / spec.archive
    by_hand = (
        f"Or copy {spec.archive} from {spec.source}/tree/main to {root} and call again. Built-in "
        "sets need no network: set data.builtin"
    )
    with _lock(root, spec.folder):
        if not folder.exists():
            if not archive.exists():
                with connecting(by_hand):
                    _fetch_archive(archive, spec, endpoint)
            with download_bar() as progress:
                unpack(archive, folder, progress, {"archive": spec.archive, "source": spec.source})
            if not keep:
                archive.unlink()
    names = [PurePosixPath(pattern).name for pattern in spec.published or spec.files]
    if all(next(folder.rglob(name), None) is not None for name in names):
        return folder
    origin = folder / ORIGIN
    source = json.loads(origin.read_text())["archive"] if origin.is_file() else "no archive"
    raise FileNotFoundError(
        f"{folder} (from {source}) holds no {', '.join(spec.published or spec.files)}. Move it "
        f"away and call again, or fetch the files from {spec.source} and set data.root"
    )


def _fetch_archive(archive: Path, spec: BenchmarkSpec, endpoint: str | None) -> None:
    files = list_files(HUB_REPOSITORY, None, endpoint)
    remote = next((file for file in files if file.path == spec.archive), None)
    if remote is None:
        present = ", ".join(file.path for file in files[:20]) or "nothing"
        raise FileNotFoundError(
            f"{spec.source} has no file {spec.archive}, only {present}. The repository changed: "
            "fetch the set by hand and set data.root"
        )
    missing = missing_bytes(archive, remote)
    print(f"{spec.archive}: {decimal(missing)} of {decimal(remote.size)} to fetch")
    # Unpacked it takes at least as much as packed, and both exist for a while.
    check_space(archive.parent, missing + remote.size, f"{spec.archive} and its contents")
    fetch_all(HUB_REPOSITORY, [(archive, remote)], endpoint)


def parse_runs(text: str) -> list[int]:
    """Return run numbers from a text: ``1-3,7`` gives [1, 2, 3, 7]."""
    runs: dict[int, None] = {}
    for part in text.split(","):
        bounds = [bound.strip() for bound in part.split("-")]
        if len(bounds) > 2 or not all(bound.isdecimal() for bound in bounds):
            raise ValueError(f"runs are {text!r}, expected numbers and ranges such as 1-10,12")
        runs.update(dict.fromkeys(range(int(bounds[0]), int(bounds[-1]) + 1)))
    if not runs:
        raise ValueError(f"runs are {text!r}, expected numbers and ranges such as 1-10,12")
    return list(runs)


def _files_of_runs(
    repository: str, runs: Sequence[int], kinds: Sequence[str], endpoint: str | None
) -> dict[int, list[RepoFile]]:
    """Return the files of the chosen kinds by run, none for a run that the hub does not hold."""
    unknown = [kind for kind in kinds if kind not in FILE_KINDS]
    if unknown or not kinds:
        raise ValueError(f"kinds of files are {list(kinds)}, expected some of {list(FILE_KINDS)}")
    found = {}
    with progress_bar("asking for sizes", len(runs), wanted=True) as advance:
        for run in runs:
            patterns = [pattern.format(i=run) for kind in kinds for pattern in FILE_KINDS[kind]]
            found[run] = [
                file
                for file in list_files(repository, f"run_{run}", endpoint)
                if any(fnmatchcase(PurePosixPath(file.path).name, p) for p in patterns)
            ]
            advance()
    return found


def download_runs(
    name: str,
    root: str | Path,
    runs: Iterable[int],
    kinds: Sequence[str] = ("boundary", "csv"),
    *,
    endpoint: str | None = None,
    dry_run: bool = False,
) -> Path:
    """Fetch files of runs to ``<root>/<name>/run_<i>`` and return ``<root>/<name>``.

    Interrupted files resume. Volumes in parts are joined, and a manifest assigns the runs to the
    published splits. A dry run prints the size and stops.
    """
    if name not in RAW_SETS:
        raise ValueError(f"set {name!r} has no runs to fetch; choose one of {list(RAW_SETS)}")
    repository, folder = RAW_SETS[name], Path(root).expanduser() / name
    page = f"https://huggingface.co/datasets/{repository}"
    with connecting(f"To fetch it by hand, open {page}"):
        found = _files_of_runs(repository, list(runs), kinds, endpoint)
        absent = [run for run, files in found.items() if not files]
        if len(absent) == len(found):
            raise FileNotFoundError(
                f"{repository} has no {', '.join(kinds)} of the runs {absent[:20]}; look at "
                f"{page}/tree/main"
            )
        if absent:
            print(f"not on the hub: the runs {', '.join(map(str, absent))}")
        files = [(folder / file.path, file) for files in found.values() for file in files]
        check_inside(file.path for _, file in files)  # a mirror may say anything
        sizes: Counter[Path] = Counter()
        for path, file in files:
            if path.suffix == ".part":
                sizes[_whole(path)] += file.size
        joined = {path for path in sizes if path.is_file() and path.stat().st_size == sizes[path]}
        files = [(path, file) for path, file in files if _whole(path) not in joined]
        missing = sum(missing_bytes(path, file) for path, file in files)
        print(
            f"{name}: {len(files)} files of {len(found) - len(absent)} runs, "
            f"{decimal(sum(file.size for _, file in files))}, of which {decimal(missing)} are to "
            f"be fetched to {folder}",
            flush=True,
        )
        if dry_run:
            return folder
        with _lock(Path(root).expanduser(), name):
            largest = max((file.size for _, file in files if ".vtu." in file.path), default=0)
            check_space(folder, missing + 2 * largest, f"fetching {name}")
            fetch_all(repository, files, endpoint)
            for path in sorted({_whole(path) for path, _ in files} - {path for path, _ in files}):
                _join_parts(path)
            if "boundary" in kinds:
                print(write_manifest(name, folder))
    return folder


def _whole(part: Path) -> Path:
    """Return the file that ``<name>.<number>.part`` is a part of, or the file itself."""
    return part.with_suffix("").with_suffix("") if part.suffix == ".part" else part


def _join_parts(whole: Path) -> None:
    """Join ``<whole>.00.part``, ``<whole>.01.part``, ... and remove them."""
    parts = sorted(whole.parent.glob(f"{whole.name}.[0-9][0-9].part"))
    draft = whole.with_name(f".{whole.name}.joining")
    with (
        draft.open("wb") as file,
        progress_bar(f"joining {whole.name}", len(parts), wanted=True) as advance,
    ):
        for part in parts:
            with part.open("rb") as content:
                shutil.copyfileobj(content, file, 1 << 24)
            advance()
    put_in_place(draft, whole)
    for part in parts:
        part.unlink()


def write_manifest(name: str, folder: Path) -> str:
    """Write the published split of the runs in `folder`, unless another manifest is there."""
    path = folder / MANIFEST
    if path.is_file():
        with reading(path):
            content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("source") != _SPLITS_SOURCE:
            return f"{path} is left as it is"
    here = {file.parent.name for file in folder.glob("run_*/boundary_*")}
    published = PUBLISHED_SPLITS[name]
    splits = {
        split: [f"run_{run}" for run in runs if f"run_{run}" in here]
        for split, runs in published.items()
    }
    splits = {split: ids for split, ids in splits.items() if ids}
    replace_text(path, json.dumps({"splits": splits, "source": _SPLITS_SOURCE}) + "\n")
    counts = ", ".join(f"{len(ids)} {split}" for split, ids in splits.items())
    text = f"{path} has the published split of the runs here: {counts or 'none'}"
    for split in ("train", "test"):
        if split not in splits:
            some = ", ".join(map(str, published[split][:5]))
            text += f"; none is for {split}: fetch some of {some}, ..., or set data.splits"
    return text

"""Fetch a published data set: ``flarepp download pipe``.

Plain HTTP with Range requests. The client library of the hub throws away a partial file when it is
interrupted; sets of several gigabytes need to go on where they stopped.
"""

import hashlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ..files import put_in_place
from .specs import BENCHMARKS, HUB_REPOSITORY, BenchmarkSpec, benchmark

HUB = "https://huggingface.co"
PUBLISHED_SETS = tuple(name for name, spec in BENCHMARKS.items() if HUB_REPOSITORY in spec.source)
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class RemoteFile:
    """A file of the repository: where it is, how long, and its checksum.

    Parameters
    ----------
    path : str
        Path in the repository.
    size : int
        Bytes.
    algorithm, digest : str
        ``sha256`` of the content, or ``git``: SHA-1 of a git blob (small files).
    """

    path: str
    size: int
    algorithm: str
    digest: str


@contextmanager
def connecting(url: str, spec: BenchmarkSpec, root: Path) -> Iterator[None]:
    """Turn network errors into what to do by hand."""
    by_hand = (
        f"To fetch it by hand, open {spec.source}/tree/main on a machine with network, copy "
        f"{', '.join(spec.hub_files)} to {root} and set `root` to that directory. A built-in set "
        "needs no network: set `builtin` in the config"
    )
    try:
        yield
    except urllib.error.HTTPError as error:
        raise ConnectionError(f"{url} answered {error.code} {error.reason}. {by_hand}") from error
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(
            f"cannot fetch from {url} ({reason}); this machine seems to be offline or the line "
            f"broke. A repeated call goes on where this one stopped. {by_hand}"
        ) from error


def list_files(endpoint: str, repository: str = HUB_REPOSITORY) -> list[RemoteFile]:
    """Return the files of a data set repository on the hub."""
    url = f"{endpoint}/api/datasets/{repository}/tree/main?recursive=true"
    files = []
    while url:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            entries = json.load(answer)
            url = next_page(answer.headers.get("Link", ""))
        for entry in entries:
            if entry["type"] == "file":
                large = entry.get("lfs")
                digest = ("sha256", large["oid"]) if large else ("git", entry["oid"])
                files.append(RemoteFile(entry["path"], entry["size"], *digest))
    return files


def next_page(link: str) -> str | None:
    """Return the address of the next page from a Link header.

    Examples
    --------
    >>> next_page('<https://hub/tree?cursor=2>; rel="next"')
    'https://hub/tree?cursor=2'
    >>> next_page("") is None
    True
    """
    for part in link.split(","):
        address, _, relation = part.partition(";")
        if 'rel="next"' in relation:
            return address.strip(" <>")
    return None


def select_files(spec: BenchmarkSpec, files: Sequence[RemoteFile]) -> dict[Path, RemoteFile]:
    """Return local path -> remote file for the files of a set.

    The files may lie in any directory of the repository; the local path keeps the part that the
    reader expects.
    """
    chosen = {}
    for pattern in spec.hub_files:
        depth = len(PurePosixPath(pattern).parts)
        matching = [file for file in files if PurePosixPath(file.path).match(pattern)]
        if not matching:
            present = ", ".join(file.path for file in files[:20]) or "nothing"
            raise FileNotFoundError(
                f"{spec.source} has no file {pattern} (it lists {len(files)} files: {present}). "
                "The repository has changed: fetch the set by hand and set `root`"
            )
        for file in matching:
            local = Path(*PurePosixPath(file.path).parts[-depth:])
            if local in chosen or ".." in local.parts:
                raise ValueError(f"{spec.source}: {file.path} and another file both are {local}")
            chosen[local] = file
    return chosen


def digest_of(path: Path, algorithm: str) -> str:
    """Return the checksum of a file, ``sha256`` or ``git``."""
    if algorithm == "git":
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def fetch(url: str, target: Path, remote: RemoteFile, progress: Progress) -> None:
    """Download `url` to `target`, going on from a partial file, and verify its checksum.

    The partial file ``<target>.part`` becomes `target` only when its checksum is right.
    """
    if target.exists() and digest_of(target, remote.algorithm) == remote.digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    done = partial.stat().st_size if partial.exists() else 0
    if done > remote.size:
        done = 0
    task = progress.add_task(target.name, total=remote.size, completed=done)
    if done < remote.size or not partial.exists():
        request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            # A server without Range support answers 200 and starts over.
            resumed = answer.status == 206
            progress.update(task, completed=done if resumed else 0)
            with partial.open("ab" if resumed else "wb") as file:
                while block := answer.read(_BLOCK):
                    file.write(block)
                    progress.advance(task, len(block))
    size = partial.stat().st_size
    if size < remote.size:
        raise ConnectionError(f"{url} broke off after {size} of {remote.size} bytes")
    found = digest_of(partial, remote.algorithm)
    if found != remote.digest:
        partial.unlink()
        raise ValueError(
            f"{url}: {remote.algorithm} checksum is {found}, expected {remote.digest}. The "
            "download was damaged and has been removed: call again"
        )
    put_in_place(partial, target)


def download(name: str, root: str | Path, *, endpoint: str = HUB) -> Path:
    """Fetch a published set to ``<root>/<name>`` and return that directory.

    Files already there are verified and kept; an interrupted download goes on.

    Parameters
    ----------
    name : str
        One of :data:`PUBLISHED_SETS`.
    root : str or Path
        Directory of all downloaded sets.
    endpoint : str, optional
        Address of the hub or of a mirror.
    """
    if name not in PUBLISHED_SETS:
        raise ValueError(f"set {name!r} is not published; choose one of {PUBLISHED_SETS}")
    spec = benchmark(name)
    directory = Path(root) / name
    with connecting(endpoint, spec, directory):
        chosen = select_files(spec, list_files(endpoint))
        columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns) as progress:
            for local, remote in chosen.items():
                path = urllib.parse.quote(remote.path)
                url = f"{endpoint}/datasets/{HUB_REPOSITORY}/resolve/main/{path}"
                fetch(url, directory / local, remote, progress)
    return directory

"""Files of the Hugging Face hub: listed by its client library, fetched with resume.

The library finds token (``HF_TOKEN``), mirror (``HF_ENDPOINT``) and addresses, but throws away a
partial file when it is interrupted; files of many gigabytes need to go on where they stopped, so
the bytes come by plain HTTP with Range requests into a ``.part`` file that outlives the process.
"""

import errno
import hashlib
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ..files import put_in_place

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30
# Times that a line may break without a new byte before the download gives up, and the first pause.
_TRIES = 5
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: where it is, how long, and its checksum.

    Parameters
    ----------
    repository, path : str
        Data set on the hub, and path in it.
    size : int
        Bytes.
    algorithm, digest : str
        ``sha256`` of the content, or ``git``: SHA-1 of a git blob (small files).
    """

    repository: str
    path: str
    size: int
    algorithm: str
    digest: str


@contextmanager
def connecting(by_hand: str) -> Iterator[None]:
    """Turn network errors into what to do, and how to do without: `by_hand`."""
    try:
        yield
    except (HfHubHTTPError, urllib.error.HTTPError) as error:
        status = getattr(error, "code", None) or error.response.status_code
        hint = ""
        if status in (401, 403):
            hint = "Log in with `hf auth login` or set HF_TOKEN, and accept the data set's terms. "
        reason = str(error).partition("\n")[0]
        raise ConnectionError(f"the hub answered {status}: {reason}. {hint}{by_hand}") from error
    except (
        HTTPError,
        urllib.error.URLError,
        HTTPException,
        TimeoutError,
        ConnectionError,
    ) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(
            f"cannot fetch ({reason}); this machine seems to be offline or the line broke. A "
            f"repeated call goes on where this one stopped. {by_hand}"
        ) from error


def list_files(
    repository: str, *, folder: str | None = None, endpoint: str | None = None
) -> list[RemoteFile]:
    """Return the files in a folder of a data set on the hub; none if it has no such folder.

    Parameters
    ----------
    repository : str
        Data set, such as ``neashton/drivaerml``.
    folder : str, optional
        Folder in it; its top by default.
    endpoint : str, optional
        Address of a mirror; ``HF_ENDPOINT`` or the hub by default.
    """
    try:
        entries = list(
            HfApi(endpoint=endpoint).list_repo_tree(repository, folder, repo_type="dataset")
        )
    except EntryNotFoundError:
        return []
    files = []
    for entry in entries:
        if isinstance(entry, RepoFile):
            digest = ("sha256", entry.lfs.sha256) if entry.lfs else ("git", entry.blob_id)
            files.append(RemoteFile(repository, entry.path, entry.size, *digest))
    return files


def check_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise OSError unless the disk of `folder`, which need not exist yet, has `needed` bytes."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{purpose} needs {in_words(needed)}, but the disk of {place} has {in_words(free)} "
            "free. Nothing was written; free some space, or choose another folder with --root",
        )


def in_words(size: int) -> str:
    """Return a number of bytes as people say it.

    Examples
    --------
    >>> in_words(999), in_words(617_000_000), in_words(45_600_000_000)
    ('999 bytes', '617 MB', '45.6 GB')
    """
    for unit, bytes_of_unit in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_of_unit:
            return f"{size / bytes_of_unit:.3g} {unit}"
    return f"{size} bytes"


def digest_of(path: Path, algorithm: str) -> str:
    """Return the checksum of a file, ``sha256`` or ``git``."""
    if algorithm == "git":
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def part_of(target: Path) -> Path:
    """Return where the bytes of `target` wait until they are complete."""
    return target.with_name(f"{target.name}.part")


def missing_bytes(target: Path, remote: RemoteFile) -> int:
    """Return how much of a file is not on the disk; a complete one is told by its size."""
    if target.is_file() and target.stat().st_size == remote.size:
        return 0
    part = part_of(target)
    return remote.size - min(part.stat().st_size if part.exists() else 0, remote.size)


def download_bar() -> Progress:
    """Return a progress bar of bytes."""
    return Progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())


def fetch_all(files: Iterable[tuple[Path, RemoteFile]], *, endpoint: str | None = None) -> None:
    """Fetch files to their local paths, one after the other; complete ones are left as they are."""
    with download_bar() as progress:
        for target, remote in files:
            if missing_bytes(target, remote) or not target.exists():
                fetch(target, remote, progress, endpoint=endpoint)


def fetch(
    target: Path, remote: RemoteFile, progress: Progress, *, endpoint: str | None = None
) -> None:
    """Download a file to `target`, going on from its ``.part`` file, and verify its checksum.

    The partial file becomes `target` only when its checksum is right. A line that breaks is taken
    up again as long as bytes come.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    if part.exists() and part.stat().st_size > remote.size:
        part.unlink()
    part.touch()
    task = progress.add_task(target.name, total=remote.size, completed=part.stat().st_size)
    tries = 0
    while (done := part.stat().st_size) < remote.size:
        try:
            _receive(part, remote, endpoint, lambda count: progress.update(task, completed=count))
            problem: Exception = ConnectionError("the line was closed early")
        except (HTTPException, TimeoutError, ConnectionError, urllib.error.URLError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise
            problem = error
        tries = 0 if part.stat().st_size > done else tries + 1
        if tries == _TRIES:
            raise ConnectionError(
                f"{remote.path} broke off after {done} of {remote.size} bytes ({problem})"
            ) from problem
        if part.stat().st_size < remote.size:
            time.sleep(_PAUSE_SECONDS * 2**tries)
    found = digest_of(part, remote.algorithm)
    if found != remote.digest:
        part.unlink()
        raise ValueError(
            f"{remote.path}: {remote.algorithm} checksum is {found}, expected {remote.digest}. The "
            "download was damaged and has been removed: call again"
        )
    put_in_place(part, target)


def _receive(
    part: Path, remote: RemoteFile, endpoint: str | None, told: Callable[[int], None]
) -> None:
    """Append to the partial file what one request gives."""
    done = part.stat().st_size
    url = hf_hub_url(remote.repository, remote.path, repo_type="dataset", endpoint=endpoint)
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    for name, value in build_hf_headers().items():
        # Not for the storage elsewhere that the hub sends us to: it must not see the token.
        request.add_unredirected_header(name, value)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        # A server without Range support answers 200 and starts over.
        resumed = answer.status == 206
        received = done if resumed else 0
        # What has come is in the file at once, so that a kill costs nothing.
        with part.open("ab" if resumed else "wb", buffering=0) as file:
            while block := answer.read1(_BLOCK):
                file.write(block)
                received += len(block)
                told(received)

"""Files of the Hugging Face hub: listed by its client library, fetched with resume, unpacked.

The library discards a partial file when it is interrupted. Files of many gigabytes must resume, so
the bytes come by plain HTTP with Range requests into a ``.part`` file that outlives the process.
"""

import errno
import hashlib
import json
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from ..files import RefusedFile, nearest_existing, put_in_place, reading, sync_folder

_BLOCK = 1 << 20
# In an unpacked folder: which archive it came from.
ORIGIN = ".archive.json"
# Bytes of the longest name that common file systems accept.
_LONGEST = 255
_TIMEOUT_SECONDS = 30
# Failures without a new byte before the download gives up, and the first pause.
_TRIES = 5
_PAUSE_SECONDS = 1.0
_BROKEN = (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError)


@contextmanager
def connecting(by_hand: str) -> Iterator[None]:
    """Turn network errors into errors that say what to do, and how to fetch `by_hand`."""
    try:
        yield
    except (HfHubHTTPError, urllib.error.HTTPError) as error:
        status = getattr(error, "code", None) or error.response.status_code
        hint = ""
        if status in (401, 403):
            hint = "Log in with `hf auth login` or set HF_TOKEN, and accept the data set's terms. "
        reason = str(error).partition("\n")[0]
        raise ConnectionError(f"the hub answered {status}: {reason}. {hint}{by_hand}") from error
    except (HTTPError, *_BROKEN) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(
            f"the connection failed ({reason}). Call again to resume. {by_hand}"
        ) from error


def list_files(repository: str, folder: str | None, endpoint: str | None) -> list[RepoFile]:
    """Return the files in a folder (None: top) of a data set; none if the folder is missing."""
    try:
        tree = HfApi(endpoint=endpoint).list_repo_tree(repository, folder, repo_type="dataset")
        return [entry for entry in tree if isinstance(entry, RepoFile)]
    except EntryNotFoundError:
        return []


def check_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise OSError unless the disk of `folder`, which need not exist yet, has `needed` bytes."""
    place = nearest_existing(folder)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{purpose} needs {decimal(needed)}, but the disk of {place} has {decimal(free)} "
            "free. Nothing was written; free some space, or choose another folder with --root",
        )


def _part_of(target: Path) -> Path:
    """Return where the bytes of `target` are kept until they are complete."""
    return target.with_name(f"{target.name}.part")


def missing_bytes(target: Path, remote: RepoFile) -> int:
    """Return how much of a file is not on disk; a complete file is recognised by its size."""
    if target.is_file() and target.stat().st_size == remote.size:
        return 0
    part = _part_of(target)
    return remote.size - min(part.stat().st_size if part.exists() else 0, remote.size)


def download_bar() -> Progress:
    """Return a progress bar of bytes."""
    return Progress(*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())


def fetch_all(
    repository: str, files: Iterable[tuple[Path, RepoFile]], endpoint: str | None
) -> None:
    """Fetch files to their local paths, one after the other; complete ones are left as they are."""
    with download_bar() as progress:
        for target, remote in files:
            if missing_bytes(target, remote) or not target.exists():
                url = hf_hub_url(repository, remote.path, repo_type="dataset", endpoint=endpoint)
                _fetch(target, remote, url, progress)


def _fetch(target: Path, remote: RepoFile, url: str, progress: Progress) -> None:
    """Download a file to its ``.part`` file, with retries, and rename that if its hash is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(target)
    if part.exists() and part.stat().st_size > remote.size:
        part.unlink()
    part.touch()
    task = progress.add_task(target.name, total=remote.size, completed=part.stat().st_size)
    tries = 0
    while (done := part.stat().st_size) < remote.size:
        try:
            _receive(part, url, lambda count: progress.update(task, completed=count))
            problem: Exception = ConnectionError("the connection was closed early")
        except _BROKEN as error:
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
    # Small files are known by the SHA-1 of their git blob.
    algorithm, expected = ("sha256", remote.lfs.sha256) if remote.lfs else ("git", remote.blob_id)
    blob = hashlib.sha1(f"blob {remote.size}\0".encode(), usedforsecurity=False)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, hashlib.sha256 if remote.lfs else lambda: blob)
    if digest.hexdigest() != expected:
        part.unlink()
        raise ValueError(
            f"{remote.path}: {algorithm} checksum is {digest.hexdigest()}, expected {expected}. "
            "It was damaged and is removed: call again"
        )
    put_in_place(part, target)


def _receive(part: Path, url: str, report: Callable[[int], None]) -> None:
    """Append the answer to one request to the partial file."""
    done = part.stat().st_size
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    for name, value in build_hf_headers().items():
        # The storage on another host that the hub redirects to must not see the token.
        request.add_unredirected_header(name, value)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        # A server without Range support answers 200 and starts over.
        resumed = answer.status == 206
        received = done if resumed else 0
        # Unbuffered, so that a kill loses nothing.
        with part.open("ab" if resumed else "wb", buffering=0) as file:
            while block := answer.read1(_BLOCK):
                file.write(block)
                received += len(block)
                report(received)


def _members(
    archive: Path, progress: Progress, label: str
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the open archive with each member in turn; the bar shows how much of it is read."""
    with archive.open("rb") as raw, reading(archive):
        task = progress.add_task(label, total=archive.stat().st_size)
        with tarfile.open(fileobj=raw, mode="r|gz") as opened:
            for member in opened:
                yield opened, member
                progress.update(task, completed=raw.tell())
        progress.update(task, completed=archive.stat().st_size)


def check_members(archive: Path, progress: Progress) -> int:
    """Return the bytes that an archive unpacks to; refuse all but new files and folders in it."""
    total = 0
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for _, member in _members(archive, progress, f"check {archive.name}"):
        path = PurePosixPath(member.name)
        reason = None
        if not (member.isfile() or member.isdir()):
            reason = "a link" if member.issym() or member.islnk() else "not a regular file"
        elif path.is_absolute() or ".." in path.parts or {"\\", "\0"} & set(member.name):
            reason = "a path that leaves the folder"
        elif any(len(os.fsencode(part)) > _LONGEST for part in path.parts):
            reason = "a longer name than a file can have"
        elif member.isfile() and path in files:
            reason = "in it twice"
        if reason is not None:
            raise _refused(archive, member.name, reason)
        folders.update(path.parents)
        if member.isdir():
            folders.add(path)
        else:
            files.add(path)
            total += member.size
    if clash := files & folders:
        raise _refused(archive, str(min(clash)), "both a file and a folder")
    if not files:
        raise ValueError(f"{archive} holds no file; fetch it again")
    return total


def _refused(archive: Path, name: str, reason: str) -> RefusedFile:
    return RefusedFile(
        f"{archive} is refused: {name!r} is {reason}. Nothing was unpacked; tell its publisher"
    )


def unpack(archive: Path, target: Path, progress: Progress, origin: dict[str, str]) -> None:
    """Unpack a ``.tar.gz``, or its only folder, to `target`, which appears once complete."""
    check_space(target, check_members(archive, progress), f"unpacking {archive.name}")
    # Beside the target, so that the rename stays on one disk; what a kill left is thrown away.
    unfinished = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for opened, member in _members(archive, progress, f"unpack {archive.name}"):
        path = unfinished / member.name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened.extractfile(member) as content, path.open("xb") as file:
            shutil.copyfileobj(content, file, _BLOCK)
        if path.stat().st_size != member.size:
            raise ValueError(f"{archive}: {member.name} is cut short; fetch the archive again")
        sync_folder(path)
    inside = list(unfinished.iterdir())
    whole = inside[0] if [path.name for path in inside] == [target.name] else unfinished
    (whole / ORIGIN).write_text(json.dumps(origin))
    whole.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(unfinished, ignore_errors=True)

"""Files that are on the disk, whole and checksummed, or not there at all.

And errors that name the file and the next step, for a failed write and for a damaged file.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple

_CHUNK = 1 << 20
PRETRAINED = Path(__file__).parent / "pretrained"


def pretrained_runs() -> dict[str, Path]:
    """Return the runs that come with the package, by name: folders with a model card."""
    return {path.parent.name: path.parent for path in sorted(PRETRAINED.glob("*/MODEL_CARD.md"))}


class Fingerprint(NamedTuple):
    """Size in bytes and SHA-256 of a file, as written."""

    size: int
    sha256: str


class Sink:
    """A binary file written in order, which hashes its contents and remembers a failure.

    ``torch.save`` turns an error of ``write`` (a full disk, an interrupt) into a RuntimeError
    about positions inside the archive; :func:`write_durably` raises the remembered one instead.
    """

    def __init__(self, descriptor: int):
        self.failure: BaseException | None = None
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self._size = 0
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        """Write all of ``data``, small pieces together."""
        view = memoryview(data).cast("B")
        if len(self._waiting) + len(view) > _CHUNK:
            self.finish()
        if len(view) > _CHUNK:
            self._put(view)
        else:
            self._waiting += view
        return len(view)

    def flush(self) -> None:
        """Do nothing: writers call this often, and :meth:`finish` writes the rest."""

    def finish(self) -> None:
        """Write what is buffered."""
        waiting, self._waiting = self._waiting, bytearray()
        self._put(memoryview(waiting))

    def _put(self, view: memoryview) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            written = 0
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except BaseException as error:
            self.failure = error
            raise
        self._hash.update(view)
        self._size += len(view)

    @property
    def fingerprint(self) -> Fingerprint:
        """Size and hash of everything written."""
        return Fingerprint(self._size, self._hash.hexdigest())


def fingerprint(path: Path) -> Fingerprint:
    """Read a file and return its size and hash."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Fingerprint(file.tell(), digest)


def write_durably(path: Path, write: Callable[[Sink], object]) -> Fingerprint:
    """Write a file by ``write(sink)``, wait until the disk has it, and return its fingerprint.

    An existing file is lost, so pass a temporary name and rename it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        sink = Sink(descriptor)
        try:
            write(sink)
            sink.finish()
        except BaseException as error:
            if sink.failure is None or sink.failure is error:
                raise
            raise sink.failure from error
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return sink.fingerprint


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a draft beside `path`, with its suffix, that replaces `path` at the end of the block.

    A writer that fails leaves `path` as it was; a kill also leaves one of :func:`temporaries`.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield draft
        put_in_place(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def put_in_place(draft: Path, path: Path) -> None:
    """Rename a complete file in the same folder to `path` and wait for the disk."""
    with explained(path):
        sync_folder(draft)  # otherwise a power cut could leave the name without the bytes
        os.replace(draft, path)
        sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[Sink], object]) -> Fingerprint:
    """Write a file atomically by ``write(sink)``: readers see the old one or the whole new one."""
    with whole_file(path) as draft, explained(path):
        return write_durably(draft, write)


def replace_text(path: Path, text: str) -> Fingerprint:
    """Write a text file atomically, as :func:`replace_file`."""
    return replace_file(path, lambda sink: sink.write(text.encode()))


def append_whole(path: Path, data: bytes) -> None:
    """Append all of `data`, or nothing if the disk is full, without waiting for the disk."""
    # Not through a link, which could lead to somebody else's file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and wait until the disk has their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def nearest_existing(path: Path) -> Path:
    """Return a path if it is there, or the nearest folder above it."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def temporaries(path: Path) -> list[Path]:
    """Return the drafts that kills inside :func:`whole_file` left beside `path`."""
    return sorted(path.parent.glob(f".{path.name}.{'[0-9a-f]' * 8}{path.suffix}"))


def sync_file(path: Path) -> None:
    """Wait until the disk has a file and the names in its folder."""
    sync_folder(path)
    sync_folder(path.parent)


def checked_json(content: dict[str, Any]) -> str:
    """Return JSON text that carries a checksum of itself, for :func:`read_checked_json`."""
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps(content | {"checksum": checksum}, indent=2) + "\n"


def read_checked_json(path: Path) -> dict[str, Any]:
    """Return what :func:`checked_json` made; anything else in the file is a ValueError."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict) or "checksum" not in content:
        raise ValueError("it has no checksum of itself")
    del content["checksum"]
    if data != checked_json(content).encode():
        raise ValueError("its checksum is not that of its contents")
    return content


def check_inside(names: Iterable[str]) -> None:
    """Raise ValueError if a path that a file in a folder names leads out of that folder."""
    for name in names:
        parts = PurePath(name).parts if isinstance(name, str) else ()
        if not parts or PurePath(name).is_absolute() or ".." in parts:
            raise ValueError(f"it names {name!r}, which is not a file in its own folder")


def verify_file(path: Path, expected: Fingerprint) -> None:
    """Raise ValueError unless a path is a regular file with the contents that were written."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        if size != expected.size:
            raise ValueError(f"{path} has {size} bytes, {expected.size} were written")
        if fingerprint(path) != expected:
            raise ValueError(f"{path} was changed: its contents are not those that were written")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def sync_folder(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder, which makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(lock: Path, on_wait: Callable[[], None]) -> Iterator[IO[bytes]]:
    """Hold the lock file for the block; call ``on_wait()``, which may raise, if it must wait.

    The operating system frees the lock however its holder ends.
    """
    import fcntl  # only POSIX systems have it, as PhysicsNeMo itself expects

    # Not through a link, which could lead to a file of somebody else.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Make an OSError say what could not be written, how much space is free, and what to do."""
    try:
        yield
    except OSError as error:
        place = nearest_existing(path)
        free = shutil.disk_usage(place).free / 1e6
        hint = "make the folder writable"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "free some space, or keep fewer checkpoints"
        raise type(error)(
            error.errno,
            f"cannot write {path}: {error.strerror or error}; {free:.1f} MB are free on its disk. "
            f"What was saved before is untouched; {hint} and start again",
        ) from error


class RefusedFile(ValueError):
    """A file that could run code or reach into other files; nothing of it was used."""


class DamagedFile(ValueError):
    """A file that is not what was once written."""


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what a file library raises on a damaged file into an error that names the file."""
    try:
        yield
    except (KeyError, FileNotFoundError, AttributeError, NameError):
        # These are about names, which the caller reports, or mistakes in the program.
        raise
    except (PermissionError, MemoryError, RefusedFile, DamagedFile):
        # Fetching the file again would not help, or the error names it already.
        raise
    except Exception as error:
        # Zip, HDF5, MATLAB, zarr and memory maps each have their own exception types for the same
        # fact; the original stays attached as the cause.
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path | str, reason: object) -> DamagedFile:
    """Return the error for a damaged file."""
    return DamagedFile(
        f"{path} cannot be read ({reason}). The file is truncated or damaged: fetch or write it "
        "again"
    )

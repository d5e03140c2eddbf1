"""Archives of others: looked through before anything is written, unpacked whole or not at all."""

import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from rich.progress import Progress

from ..files import RefusedFile, reading, sync_folder
from .transfer import check_space

# In an unpacked folder: which archive it came from.
ORIGIN = ".archive.json"
_BLOCK = 1 << 20
# Bytes of a name on the file systems in use.
_LONGEST = 255


def _members(
    archive: Path, progress: Progress, label: str
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Return the open archive with each member in turn; the bar shows how much of it is read."""
    with archive.open("rb") as raw, reading(archive):
        task = progress.add_task(label, total=archive.stat().st_size)
        with tarfile.open(fileobj=raw, mode="r|gz") as opened:
            for member in opened:
                yield opened, member
                progress.update(task, completed=raw.tell())
        progress.update(task, completed=archive.stat().st_size)


def check_members(archive: Path, progress: Progress) -> int:
    """Return the bytes that an archive unpacks to; raise if a member would do harm.

    Only files and folders below the archive's own place are accepted: no absolute name, no "..",
    no link, no device, no name twice, and none that no disk takes.
    """
    total = 0
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for _, member in _members(archive, progress, f"check {archive.name}"):
        path = PurePosixPath(member.name)
        if not (member.isfile() or member.isdir()):
            kind = "a link" if member.issym() or member.islnk() else "no plain file"
            raise _refused(archive, member.name, kind)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
            raise _refused(archive, member.name, "a path that leaves the folder")
        if any(len(os.fsencode(part)) > _LONGEST for part in path.parts):
            raise _refused(archive, member.name, "a longer name than a file can have")
        folders.update(path.parents)
        if member.isdir():
            folders.add(path)
        elif path in files:
            raise _refused(archive, member.name, "in it twice")
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
        f"{archive} is refused: {name!r} is {reason}. Nothing was unpacked; tell whoever published "
        "it"
    )


def unpack(archive: Path, target: Path, progress: Progress, origin: Mapping[str, object]) -> None:
    """Unpack a ``.tar.gz`` to the folder `target`, which is there only once it is complete.

    A single folder at the top of the archive that is called as `target` becomes `target`.

    Parameters
    ----------
    archive : Path
        Checked first (:func:`check_members`), then the disk is asked for the space.
    target : Path
        New folder.
    progress : Progress
        Shows how far it is.
    origin : Mapping
        Written to the file :data:`ORIGIN` of the folder.
    """
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
    (whole / ORIGIN).write_text(json.dumps(dict(origin)))
    whole.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(unfinished, ignore_errors=True)

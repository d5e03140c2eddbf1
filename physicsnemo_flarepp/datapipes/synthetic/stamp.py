"""The stamp of a finished set: what it is, and the size and SHA-256 of each of its files."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

from ...files import check_inside, fingerprint, replace_file

STAMP = "stamp.json"


@cache
def _sha256(path: Path, size: int, modified: int) -> str:
    """Return the hash of a file, read once per process as long as nobody touches the file."""
    return fingerprint(path).sha256


def _text(content: dict) -> str:
    """Return the stamp's text, which ends with a hash of the rest."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    own = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps(content | {"sha256": own}, indent=2) + "\n"


def write_stamp(folder: Path, content: dict) -> None:
    """Mark ``folder`` as finished; what is in it now is what :func:`read_stamp` expects.

    Parameters
    ----------
    folder : Path
        The finished set.
    content : dict
        What the stamp says of the set, ready for JSON.
    """
    files = {
        path.relative_to(folder).as_posix(): fingerprint(path)._asdict()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / STAMP
    }
    text = _text(content | {"files": files})
    replace_file(folder / STAMP, lambda sink: sink.write(text.encode()))


def read_stamp(folder: Path, expected: dict | None = None) -> dict | None:
    """Return the stamp of a set after checking it and every file of the set; None without one.

    Parameters
    ----------
    folder : Path
        The set.
    expected : dict, optional
        What the stamp must say.

    Raises
    ------
    ValueError
        If the stamp or a file is not as it was written, with the way to have it made again.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "data").write_bytes(b"abc")
    ...     write_stamp(folder, {"name": "letters"})
    ...     read_stamp(folder)["files"]["data"]["size"]
    3
    """
    stamp = folder / STAMP
    if not stamp.exists():
        return None
    remedy = f"delete {folder} and the set is made again when used, or by `python -m {__package__}`"
    try:
        text = stamp.read_bytes().decode()
        content = json.loads(text)
        files = {name: (file["size"], file["sha256"]) for name, file in content["files"].items()}
        check_inside(files)
        if text != _text(content):
            raise ValueError("its own checksum does not fit")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{stamp} is damaged or of an earlier version ({error!r}); {remedy}"
        ) from error
    for name, value in (expected or {}).items():
        if content.get(name) != value:
            raise ValueError(
                f"{stamp} is that of another set: {name} is {content.get(name)!r}, "
                f"expected {value!r}; {remedy}"
            )
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path}: no such file, expected {size} bytes; {remedy}")
        found = os.stat(path)
        if found.st_size != size:
            raise ValueError(f"{path}: {found.st_size} bytes, expected {size} bytes; {remedy}")
        if _sha256(path, size, found.st_mtime_ns) != sha256:
            raise ValueError(f"{path}: its contents are not those that were written; {remedy}")
    return content

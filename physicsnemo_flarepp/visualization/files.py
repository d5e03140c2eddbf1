"""The files of figures: their formats, and how they appear."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Paths = str | os.PathLike | Sequence[str | os.PathLike] | None
FORMATS = (".png", ".pdf", ".svg")


def check_paths(path: Paths) -> tuple[Path, ...]:
    """Give the files to write; raise on a format that figures cannot have.

    Examples
    --------
    >>> check_paths("a.png") == (Path("a.png"),)
    True
    """
    paths = () if path is None else [path] if isinstance(path, str | os.PathLike) else path
    paths = tuple(map(Path, paths))
    for target in paths:
        if target.suffix not in FORMATS:
            raise ValueError(f"path {str(target)!r} must end in one of {FORMATS}")
    return paths


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; what is there takes the place of `path` at the end.

    A process that is killed while it writes leaves what was at `path` before.

    Parameters
    ----------
    path : Path
        The file; its folder is made if there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Writers tell the format by the suffix.
    draft = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)

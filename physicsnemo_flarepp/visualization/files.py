"""The formats of the files of figures."""

import os
from collections.abc import Sequence
from pathlib import Path

Paths = str | os.PathLike | Sequence[str | os.PathLike] | None
FORMATS = (".png", ".pdf", ".svg")


def check_paths(path: Paths) -> tuple[Path, ...]:
    """Return the files to write; raise on a format that figures cannot have.

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

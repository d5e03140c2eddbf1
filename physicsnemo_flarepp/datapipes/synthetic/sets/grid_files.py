"""Files of the published sets on structured grids."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .base import Case


def write_grid_files(
    cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, *, stem: str
) -> None:
    """Write ``<stem>_X.npy`` and ``_Y.npy`` (n, I, J) and ``<stem>_Q.npy`` (n, C, I, J) as float32.

    Parameters
    ----------
    cases : Iterable[dict[str, np.ndarray]]
        Cases with ``points`` (I, J, 2) and ``flow`` (C, I, J), training cases first.
    out_dir : Path
        Existing directory.
    n_train, n_test : int
        Numbers of training and test cases.
    stem : str
        Start of the file names.

    Examples
    --------
    >>> import tempfile
    >>> case = {"points": np.zeros((3, 2, 2)), "flow": np.ones((4, 3, 2))}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_grid_files([case, case], Path(folder), 1, 1, stem="Duct")
    ...     np.load(Path(folder) / "Duct_Q.npy").shape
    (2, 4, 3, 2)
    """
    files = {}
    for index, case in enumerate(cases):
        x, y = np.moveaxis(case["points"], -1, 0)
        for name, values in (("X", x), ("Y", y), ("Q", case["flow"])):
            if index == 0:
                files[name] = np.empty((n_train + n_test, *values.shape), np.float32)
            files[name][index] = values
    for name, values in files.items():
        np.save(out_dir / f"{stem}_{name}.npy", values)

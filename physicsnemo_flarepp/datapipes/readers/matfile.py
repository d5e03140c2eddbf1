"""Cases out of MATLAB files, both formats behind one function."""

import struct
from pathlib import Path

import h5py
import numpy as np
import scipy.io

from ...files import RefusedFile, reading
from ..checks import missing_name


def check_complete(path: Path) -> None:
    """Raise EOFError if a MATLAB v5 file ends inside a variable.

    scipy ignores a cut variable at the end of a file, which would then look as if it had never
    been written.
    """
    with path.open("rb") as file:
        header = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
        if order is None:
            return
        size, position = path.stat().st_size, len(header)
        while position < size:
            file.seek(position)
            tag = file.read(8)
            length = struct.unpack(f"{order}II", tag)[1] if len(tag) == 8 else size
            position += 8 + length
    if position > size:
        raise EOFError(f"a variable ends at byte {position}, the file at byte {size}")


def own_dataset(path: Path, file: h5py.File, variable: str) -> h5py.Dataset:
    """Return a dataset that lies in this file; HDF5 can point to bytes of any other file."""
    if variable not in file:
        raise missing_name(path, "variable", variable, file.keys())
    if isinstance(file.get(variable, getlink=True), h5py.HardLink):
        found = file[variable]
        if isinstance(found, h5py.Dataset) and not (found.external or found.is_virtual):
            return found
    raise RefusedFile(
        f"{path} is refused: variable {variable!r} is not stored in it but points elsewhere, maybe "
        "to another file; write it as one plain dataset"
    )


def mat_shape(path: Path, variable: str) -> tuple[int, ...]:
    """Return the MATLAB shape of `variable` without reading its values."""
    with reading(path):
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return own_dataset(path, file, variable).shape[::-1]
        check_complete(path)
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(path)}
    if variable not in shapes:
        raise missing_name(path, "variable", variable, shapes)
    return shapes[variable]


def load_mat(path: Path, variable: str, cases: slice, stride: int = 1) -> np.ndarray:
    """Return some cases of a MATLAB array, case axis first, as float32.

    MATLAB v7.3 files are HDF5 with the axes reversed (MATLAB stores columns first); only the
    chosen cases and grid points are read. Earlier formats have no random access: the variable is
    read whole and cut afterwards.

    Parameters
    ----------
    path : Path
        A ``.mat`` file.
    variable : str
        Name of an array whose first MATLAB axis counts cases.
    cases : slice
        Cases to keep.
    stride : int, optional
        Keep every `stride`-th entry along the second and third axes.

    Returns
    -------
    numpy.ndarray
        Shape (cases, ...), C-contiguous.
    """
    shape = mat_shape(path, variable)
    grid = [slice(None, None, stride)] * min(2, len(shape) - 1)
    index = (cases, *grid, *[slice(None)] * (len(shape) - 1 - len(grid)))
    with reading(path):
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                values = own_dataset(path, file, variable)[index[::-1]].T
        else:
            values = scipy.io.loadmat(path, variable_names=[variable])[variable][index]
        return np.ascontiguousarray(values, dtype=np.float32)

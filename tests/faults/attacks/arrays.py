"""Attacks on files of arrays: NumPy's, MATLAB's and HDF5."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy.io import savemat

from physicsnemo_flarepp.datapipes import GeoFNOReader
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.datapipes.readers.stores import load_mat
from physicsnemo_flarepp.datapipes.synthetic.sets import CaseId
from physicsnemo_flarepp.datapipes.synthetic.workers import case_file, unsolved_cases
from physicsnemo_flarepp.evaluation.inputs import read_points
from tests.faults.attacks.base import Attack, Kind, Trap, edited_zip, replaced_by, whole_file


def write_npy(folder: Path) -> Path:
    from physicsnemo_flarepp.datapipes.specs import benchmark

    grid = benchmark("pipe").grid
    x_file, y_file, q_file = benchmark("pipe").files
    for name in (x_file, y_file):
        np.save(folder / name, np.zeros((2, *grid), np.float32))
    np.save(folder / q_file, np.zeros((2, 3, *grid), np.float32))
    return folder / q_file


def open_pipe(path: Path) -> Any:
    return GeoFNOReader(path.parent, "pipe", n_train=1, n_test=1)[0]


def too_large(path: Path, trap: Trap) -> None:
    """A header that claims more values than the file holds."""
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3, 129, 129)}
        np.lib.format.write_array_header_1_0(file, header)


NPY = whole_file() | {
    "pickle: objects": replaced_by(lambda trap: trap.objects(trap.pickled_call)),
    "import: objects": replaced_by(lambda trap: trap.objects(trap.pickled_import)),
    "instantiate: header": replaced_by(lambda trap: trap.expression()),
    "escape: length": Attack(too_large),
}


def member(name: str, payload: Callable[[Trap], bytes], harmless: bool = False) -> Attack:
    return Attack(lambda path, trap: edited_zip(path, {name: payload(trap)}), harmless)


def npz(name: str) -> dict[str, Attack]:
    """Attacks on the array `name` of an archive of arrays."""
    return whole_file() | {
        "pickle: objects": member(f"{name}.npy", lambda trap: trap.objects(trap.pickled_call)),
        "import: objects": member(f"{name}.npy", lambda trap: trap.objects(trap.pickled_import)),
        "instantiate: header": member(f"{name}.npy", lambda trap: trap.expression()),
        "escape: member above the archive": member(
            "../marker/x.npy", lambda trap: trap.numbers(), harmless=True
        ),
    }


def write_points(folder: Path) -> Path:
    np.savez(folder / "points.npz", coordinates=np.zeros((4, 2)))
    return folder / "points.npz"


def open_points(path: Path) -> Any:
    return read_points(path, Channels(2, {"p": 1}, {}, {}, "point"))


CASE = CaseId("train", 0)


def write_case(folder: Path) -> Path:
    path = case_file(folder, CASE)
    np.savez(path, a=np.zeros(3), draw=0)
    return path


def write_mat(folder: Path) -> Path:
    savemat(folder / "v5.mat", {"coeff": np.zeros((2, 3, 3))})
    return folder / "v5.mat"


def open_mat(path: Path) -> Any:
    return load_mat(path, "coeff", slice(0, 1))


def cells_of_words(path: Path, trap: Trap) -> None:
    words = np.full((2, 3, 3), f"__import__('os').mkdir({str(trap.marker)!r})", dtype=object)
    savemat(path, {"coeff": words})


MAT = whole_file() | {"instantiate: cells": Attack(cells_of_words)}


def write_hdf5(folder: Path) -> Path:
    with h5py.File(folder / "v73.mat", "w") as file:
        file["coeff"] = np.zeros((3, 3, 2))
    return folder / "v73.mat"


def edited_hdf5(change: Callable[[h5py.File, Trap], None]) -> Attack:
    def write(path: Path, trap: Trap) -> None:
        with h5py.File(trap.folder / "other.h5", "w") as file:
            file["coeff"] = np.ones((3, 3, 2))
        with h5py.File(path, "a") as file:
            del file["coeff"]
            change(file, trap)

    return Attack(write)


def link_hdf5(file: h5py.File, trap: Trap) -> None:
    file["coeff"] = h5py.ExternalLink(str(trap.folder / "other.h5"), "coeff")


def soft_link_hdf5(file: h5py.File, trap: Trap) -> None:
    file["hidden"] = h5py.ExternalLink(str(trap.folder / "other.h5"), "coeff")
    file["coeff"] = h5py.SoftLink("/hidden")


def external_hdf5(file: h5py.File, trap: Trap) -> None:
    file.create_dataset("coeff", (1, 1, 2), "u1", external=[(str(trap.outside), 0, 2)])


def virtual_hdf5(file: h5py.File, trap: Trap) -> None:
    layout = h5py.VirtualLayout((3, 3, 2), "f8")
    layout[:] = h5py.VirtualSource(str(trap.folder / "other.h5"), "coeff", (3, 3, 2))
    file.create_virtual_dataset("coeff", layout)


def objects_hdf5(file: h5py.File, trap: Trap) -> None:
    call = f"__import__('os').mkdir({str(trap.marker)!r})"
    file.create_dataset("coeff", data=np.full((3, 3, 2), call, object), dtype=h5py.string_dtype())


HDF5 = whole_file() | {
    "instantiate: words": edited_hdf5(objects_hdf5),
    "escape: external link": edited_hdf5(link_hdf5),
    "escape: link to an external link": edited_hdf5(soft_link_hdf5),
    "escape: external storage": edited_hdf5(external_hdf5),
    "escape: virtual": edited_hdf5(virtual_hdf5),
}

KINDS = {
    "points.npz": Kind(write_points, open_points, npz("coordinates")),
    "built-in case.npz": Kind(
        write_case,
        # A case that cannot be read is solved again, so nothing is raised.
        lambda path: unsolved_cases(path.parent, [CASE]),
        {name: replace(attack, harmless=True) for name, attack in npz("a").items()},
    ),
    "set.npy": Kind(write_npy, open_pipe, NPY),
    "set.mat, version 5": Kind(write_mat, open_mat, MAT),
    "set.mat, version 7.3": Kind(write_hdf5, open_mat, HDF5),
}

"""Attacks on files of arrays: NumPy's, MATLAB's and HDF5."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
from scipy.io import savemat

from physicsnemo_flarepp.builtin.engine import case_file, unsolved_cases
from physicsnemo_flarepp.builtin.sets import CaseId
from physicsnemo_flarepp.datapipes import GeoFNOReader
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.datapipes.readers.array_files import load_mat
from physicsnemo_flarepp.datapipes.readers.contents import Wanted, open_file
from physicsnemo_flarepp.runs.samples import input_sample
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
    channels = Channels(2, {"p": 1}, {}, {}, "point")
    run = SimpleNamespace(name="run", names=None, channels=channels)
    return input_sample(run, open_file(path, Wanted()), "point")


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


def edited_hdf5(name: str, change: Callable[[h5py.File, Trap], None]) -> Attack:
    """Put something else in the place of the array `name`."""

    def write(path: Path, trap: Trap) -> None:
        with h5py.File(path, "a") as file:
            del file[name]
            change(file, trap)

    return Attack(write)


def hdf5(name: str, shape: tuple[int, ...]) -> dict[str, Attack]:
    """Attacks on a file of HDF5 through its array `name`."""

    def other(trap: Trap) -> str:
        path = trap.folder / "other.h5"
        with h5py.File(path, "w") as file:
            file[name] = np.ones(shape)
        return str(path)

    def link(file: h5py.File, trap: Trap) -> None:
        file[name] = h5py.ExternalLink(other(trap), name)

    def soft_link(file: h5py.File, trap: Trap) -> None:
        file["hidden"] = h5py.ExternalLink(other(trap), name)
        file[name] = h5py.SoftLink("/hidden")

    def external(file: h5py.File, trap: Trap) -> None:
        few = (1,) * (len(shape) - 1) + (2,)
        file.create_dataset(name, few, "u1", external=[(str(trap.outside), 0, 2)])

    def virtual(file: h5py.File, trap: Trap) -> None:
        layout = h5py.VirtualLayout(shape, "f8")
        layout[:] = h5py.VirtualSource(other(trap), name, shape)
        file.create_virtual_dataset(name, layout)

    def words(file: h5py.File, trap: Trap) -> None:
        call = f"__import__('os').mkdir({str(trap.marker)!r})"
        file.create_dataset(name, data=np.full(shape, call, object), dtype=h5py.string_dtype())

    return whole_file() | {
        "instantiate: words": edited_hdf5(name, words),
        "escape: external link": edited_hdf5(name, link),
        "escape: link to an external link": edited_hdf5(name, soft_link),
        "escape: external storage": edited_hdf5(name, external),
        "escape: virtual": edited_hdf5(name, virtual),
    }


HDF5 = hdf5("coeff", (3, 3, 2))

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

"""Attacks on data of one's own: arrays, tables, lists of cases, prepared cases, archives."""

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from rich.progress import Progress

from physicsnemo_flarepp.datapipes import OwnReader, PreparedReader, plot_mesh, prepare
from physicsnemo_flarepp.datapipes.inspection import inspect_data
from physicsnemo_flarepp.datapipes.transfer import unpack
from physicsnemo_flarepp.files import checked_json
from tests.faults.attacks.arrays import NPY, edited_hdf5, hdf5, npz
from tests.faults.attacks.base import Attack, Kind, Trap, replaced_by, whole_file
from tests.faults.attacks.meshes import zarr_attacks

N_TOKENS = 20
CASES = ("c0", "c1", "c2")


def arrays(case: str) -> dict[str, np.ndarray]:
    """The arrays of a case; none holds a zero, which zarr would leave out."""
    rng = np.random.default_rng(int(case[1:]))
    return {
        "coordinates": rng.uniform(1, 2, (N_TOKENS, 3)).astype(np.float32),
        "p": rng.uniform(1, 2, N_TOKENS).astype(np.float32),
        "speed": np.float64(rng.uniform(1, 2)),
    }


def write_npz_case(folder: Path, case: str) -> Path:
    np.savez(folder / f"{case}.npz", **arrays(case))
    return folder / f"{case}.npz"


def write_npy_case(folder: Path, case: str) -> Path:
    (folder / case).mkdir()
    for name, array in arrays(case).items():
        np.save(folder / case / f"{name}.npy", array)
    return folder / case / "p.npy"


def write_hdf5_case(folder: Path, case: str) -> Path:
    with h5py.File(folder / f"{case}.h5", "w") as file:
        for name, array in arrays(case).items():
            file[name] = array
    return folder / f"{case}.h5"


def write_zarr_case(folder: Path, case: str) -> Path:
    group = zarr.open_group(folder / f"{case}.zarr", mode="w")
    for name, array in arrays(case).items():
        group.create_array(name, data=np.asarray(array))
    return folder / f"{case}.zarr"


WRITERS = {
    "npz": write_npz_case,
    "npy": write_npy_case,
    "h5": write_hdf5_case,
    "zarr": write_zarr_case,
}


def write_own(kind: str) -> Callable[[Path], Path]:
    """A folder of three cases; returns the file of the first that is attacked."""

    def write(folder: Path) -> Path:
        root = folder / "own"
        root.mkdir()
        return [WRITERS[kind](root, case) for case in CASES][0]

    return write


def root_of(path: Path) -> Path:
    return next(folder for folder in path.parents if folder.name == "own")


def open_own(path: Path, **names: Any) -> Any:
    """Look at a folder as `flarepp inspect` does, and read its training cases."""
    root = root_of(path)
    inspect_data(root)
    cases = None if (root / "manifest.json").exists() else ["c0", "c1"]
    reader = OwnReader(root, cases=cases, coordinates="coordinates", fields=["p"], **names)
    return [reader[index] for index in range(len(reader))]


def pickle_hdf5(file: h5py.File, trap: Trap) -> None:
    file["p"] = np.void(trap.pickled_call)


HDF5 = hdf5("p", (N_TOKENS,)) | {"pickle: opaque": edited_hdf5("p", pickle_hdf5)}


def write_table(folder: Path) -> Path:
    root = write_own("npz")(folder).parent
    (root / "table.csv").write_text("case,u\nc0,1\nc1,2\nc2,3\n")
    return root / "table.csv"


def open_table(path: Path) -> Any:
    return open_own(path, parameters="table.csv", globals=["u"])


def formula(trap: Trap) -> bytes:
    return f"case,u\nc0,=__import__('os').mkdir({str(trap.marker)!r})\nc1,2\nc2,3\n".encode()


TABLE = whole_file() | {"instantiate: formula": replaced_by(formula)}


def write_manifest(folder: Path) -> Path:
    root = write_own("npz")(folder).parent
    (root / "manifest.json").write_text(json.dumps({"train": ["c0", "c1"], "test": ["c2"]}))
    return root / "manifest.json"


def listing(*ids: str) -> Attack:
    content = json.dumps({"train": ["c0", *ids], "test": ["c2"]}).encode()
    return replaced_by(lambda trap: content)


MANIFEST = whole_file() | {
    "escape: above": listing("../own/c1"),
    "escape: absolute": listing("/etc/passwd"),
}


@cache
def prepared_once() -> tempfile.TemporaryDirectory:
    """Raw cases and what `flarepp prepare` makes of them, for all attacks."""
    kept = tempfile.TemporaryDirectory()
    root = write_own("npz")(Path(kept.name)).parent
    splits = {"train": ["c0", "c1"], "test": ["c2"]}
    cfg = {"root": str(root), "reader": {"_target_": "OwnReader"}, "fields": ["p"]}
    prepare(cfg | {"splits": splits}, Path(kept.name, "prepared"), progress=False)
    return kept


def write_prepared(folder: Path) -> Path:
    shutil.copytree(Path(prepared_once().name, "prepared"), folder / "prepared")
    return folder / "prepared" / "c0" / "case.json"


def open_prepared(path: Path) -> Any:
    root = next(folder for folder in path.parents if folder.name == "prepared")
    sample, metadata = PreparedReader(root)[0]
    return sample, plot_mesh(metadata, sample["coordinates"].numpy())


def edited_case(change: Callable[[dict, Trap], None]) -> Attack:
    """A case.json that was rewritten with its checksum."""

    def write(path: Path, trap: Trap) -> None:
        content = json.loads(path.read_text())
        del content["checksum"]
        change(content, trap)
        path.write_text(checked_json(content))

    return Attack(write)


def column_outside(content: dict, trap: Trap) -> None:
    entry = content["columns"]["fields"]["p"]
    entry.update(file=str(trap.outside), size=trap.outside.stat().st_size)


def column_above(content: dict, trap: Trap) -> None:
    content["columns"]["fields"]["p"]["file"] = "../c1/" + content["columns"]["fields"]["p"]["file"]


def order_outside(content: dict, trap: Trap) -> None:
    content["order"]["file"] = str(trap.outside)


PREPARED = whole_file() | {
    "instantiate: original": edited_case(lambda content, trap: content.update(original=trap.call)),
    "escape: absolute column": edited_case(column_outside),
    "escape: column of another case": edited_case(column_above),
    "escape: order": edited_case(order_outside),
}


def write_column(folder: Path) -> Path:
    return next(write_prepared(folder).parent.glob("*_fields_p.npy"))


def write_archive(folder: Path) -> Path:
    return pack(folder / "set.tar.gz", {"set/a.npy": b"1234"})


def pack(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(content)
    return path


def open_archive(path: Path) -> Any:
    target = path.parent / "set"
    try:
        unpack(path, target, Progress(disable=True), {})
    finally:
        left = sorted(p.name for p in path.parent.iterdir())
        assert left in (["set", path.name], [path.name], [".set.unpacking", path.name]), left
    return target


def special(name: str, kind: bytes, target: Callable[[Trap], str]) -> Attack:
    def write(path: Path, trap: Trap) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target(trap)
        pack(path, {"set/a.npy": b"1234", name: info})

    return Attack(write)


def member(name: Callable[[Trap], str]) -> Attack:
    return Attack(lambda path, trap: pack(path, {"set/a.npy": b"1234", name(trap): b"x"}) and None)


ARCHIVE = whole_file() | {
    "escape: absolute member": member(lambda trap: str(trap.folder / "new")),
    "escape: member above": member(lambda trap: "set/../../elsewhere/new"),
    "escape: member with another separator": member(lambda trap: "set\\..\\new"),
    "escape: link out": special("set/l", tarfile.SYMTYPE, lambda trap: str(trap.folder)),
    "escape: hard link out": special("set/l", tarfile.LNKTYPE, lambda trap: str(trap.outside)),
    "escape: pipe": special("set/l", tarfile.FIFOTYPE, lambda trap: ""),
    "escape: device": special("set/l", tarfile.CHRTYPE, lambda trap: ""),
    "escape: name that is too long": member(lambda trap: "set/" + "x" * 300),
    "escape: folder in the place of a file": member(lambda trap: "set/a.npy/b"),
}

KINDS = {
    "own case.npz": Kind(write_own("npz"), open_own, npz("p")),
    "own case.npy": Kind(write_own("npy"), open_own, NPY),
    "own case.h5": Kind(write_own("h5"), open_own, HDF5),
    "own case.zarr": Kind(write_own("zarr"), open_own, zarr_attacks("p")),
    "own table.csv": Kind(write_table, open_table, TABLE),
    "own manifest.json": Kind(write_manifest, open_own, MANIFEST),
    "prepared case.json": Kind(write_prepared, open_prepared, PREPARED),
    "prepared column.npy": Kind(write_column, open_prepared, NPY),
    "archive.tar.gz": Kind(write_archive, open_archive, ARCHIVE),
}

"""Files that would run code or reach elsewhere: for every kind that the package opens, by attack.

An attack rewrites one sound file. Its payload makes the directory ``trap.marker``: by a call named
in the file, by a pickle, or by importing the module ``trap_module``, which is there to be found.
"""

import base64
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyvista as pv
import torch
import yaml
import zarr
from physicsnemo.mesh import DomainMesh, Mesh
from physicsnemo.mesh.io import to_zarr
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.io import savemat

from physicsnemo_flarepp.datapipes import DrivAerMLReader, GeoFNOReader, plot_mesh
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.datapipes.readers.splits import read_manifest
from physicsnemo_flarepp.datapipes.readers.stores import load_mat
from physicsnemo_flarepp.datapipes.synthetic import stamp
from physicsnemo_flarepp.datapipes.synthetic.sets import CaseId
from physicsnemo_flarepp.datapipes.synthetic.workers import case_file, unsolved_cases
from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.evaluation.predictions import read_points
from physicsnemo_flarepp.files import checked_json, fingerprint
from physicsnemo_flarepp.inference.state import LatentState, _checksum
from physicsnemo_flarepp.meshes import read_surface
from physicsnemo_flarepp.training.checkpoints.model_files import load_plain
from physicsnemo_flarepp.training.run_manifest import RunManifest
from tests.evaluation import making

FIELD = "pMeanTrim"


class MakesMarker:
    """Unpickled, it makes a directory."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@dataclass(frozen=True)
class Trap:
    """What an attack would leave behind, and the means to do it."""

    folder: Path

    @property
    def marker(self) -> Path:
        return self.folder / "marker"

    @property
    def outside(self) -> Path:
        """A short file that does not belong to what is opened."""
        return self.folder / "outside.bin"

    @property
    def pickled_call(self) -> bytes:
        return pickle.dumps(MakesMarker(self.marker))

    @property
    def pickled_import(self) -> bytes:
        return b"ctrap_module\nReader\n."

    @property
    def call(self) -> dict[str, Any]:
        """A call as Hydra's ``instantiate`` understands it."""
        return {"_target_": "os.mkdir", "path": str(self.marker)}

    def numbers(self) -> bytes:
        """A sound ``.npy`` file."""
        buffer = BytesIO()
        np.save(buffer, np.zeros(2))
        return buffer.getvalue()

    def objects(self, payload: bytes) -> bytes:
        """A ``.npy`` file of objects whose pickle is the payload."""
        buffer = BytesIO()
        header = {"descr": "|O", "fortran_order": False, "shape": (1,)}
        np.lib.format.write_array_header_1_0(buffer, header)
        return buffer.getvalue() + payload

    def expression(self) -> bytes:
        """A ``.npy`` file whose header is an expression with a call."""
        text = f"{{'descr': __import__('os').mkdir({str(self.marker)!r}), 'shape': (1,)}}".encode()
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@dataclass(frozen=True)
class Attack:
    """One way to abuse a kind of file; `harmless` ones may be opened, without any effect."""

    write: Callable[[Path, Trap], None]
    harmless: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a sound one is made, how the package opens it, how it is abused."""

    write: Callable[[Path], Path]
    open: Callable[[Path], Any]
    attacks: dict[str, Attack]
    names_itself: bool = True


def replaced_by(payload: Callable[[Trap], bytes]) -> Attack:
    return Attack(lambda path, trap: path.write_bytes(payload(trap)))


def whole_file() -> dict[str, Attack]:
    """Attacks on a format that has no room for them: the file is something else altogether."""
    return {
        "pickle": replaced_by(lambda trap: trap.pickled_call),
        "import": replaced_by(lambda trap: trap.pickled_import),
        "instantiate": replaced_by(lambda trap: json.dumps(trap.call).encode()),
        "instantiate: nested too deeply": replaced_by(lambda trap: b"[" * 100_000),
        "escape": Attack(link_outside),
    }


def link_outside(path: Path, trap: Trap) -> None:
    path.unlink()
    path.symlink_to(trap.outside)


def edited_json(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edited_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (old | members).items():
            archive.writestr(name, data)


# Models and training states


def edited_model(change: Callable[[dict, Trap], None]) -> Attack:
    def write(path: Path, trap: Trap) -> None:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read("args.json"))
        change(content, trap)
        edited_zip(path, {"args.json": json.dumps(content).encode()})

    return Attack(write)


def other_weights(payload: Callable[[Trap], bytes]) -> Attack:
    return Attack(lambda path, trap: edited_zip(path, {"model.pt": payload(trap)}))


def torch_file(payload: bytes) -> bytes:
    """A file of ``torch.save`` whose pickle is the payload."""
    buffer = BytesIO()
    torch.save({"weight": torch.zeros(1)}, buffer)
    with zipfile.ZipFile(BytesIO(buffer.getvalue())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, payload if name.endswith("data.pkl") else data)
    return buffer.getvalue()


def asks_for(module: str, name: str, **arguments) -> Callable[[dict, Trap], None]:
    def change(content: dict, trap: Trap) -> None:
        content |= {"__module__": module, "__name__": name}
        content["__args__"] |= arguments

    return change


def nested(marker: str) -> Callable[[dict, Trap], None]:
    """An argument that stands for a model of its own."""

    def change(content: dict, trap: Trap) -> None:
        content["__args__"]["act"] = f"{marker}.act"
        content[f"{marker}.act"] = {
            "__module__": "trap_module",
            "__name__": "Reader",
            "__args__": {},
        }

    return change


def argument(value: Callable[[Trap], Any]) -> Callable[[dict, Trap], None]:
    def change(content: dict, trap: Trap) -> None:
        content["__args__"]["act"] = value(trap)

    return change


def healpix(content: dict, trap: Trap) -> None:
    """A registered model that instantiates its arguments."""
    content |= {"__name__": "HEALPixUNet", "__module__": "physicsnemo.models.dlwp_healpix"}
    sizes = ("input_channels", "output_channels", "n_constants", "decoder_input_channels")
    times = ("input_time_dim", "output_time_dim")
    parts = dict.fromkeys(("encoder", "decoder"), {"_target_": "trap_module.Reader"})
    content["__args__"] = parts | dict.fromkeys(sizes + times, 1)


MODEL = {
    "pickle: weights are a pickle": other_weights(lambda trap: trap.pickled_call),
    "pickle: a pickle in torch's archive": other_weights(
        lambda trap: torch_file(trap.pickled_call)
    ),
    "import: weights": other_weights(lambda trap: torch_file(trap.pickled_import)),
    "import: class": edited_model(asks_for("trap_module", "Reader")),
    "import: class inside": edited_model(nested("__physicsnemo.Module__")),
    "import: class inside, by regular expression": edited_model(nested("__physicsnemoXModule__")),
    "instantiate: class": edited_model(asks_for("os", "mkdir")),
    "instantiate: registered model": edited_model(healpix),
    "instantiate: argument": edited_model(argument(lambda trap: trap.call)),
    "instantiate: deep argument": edited_model(argument(lambda trap: {"a": [{"b": trap.call}]})),
    "escape: member above the archive": Attack(
        lambda path, trap: edited_zip(path, {f"../../{trap.marker.name}": b""})
    ),
    "escape: link": Attack(link_outside),
}


def write_state(folder: Path) -> Path:
    torch.save({"step": 3}, folder / "training.pt")
    return folder / "training.pt"


STATE = whole_file() | {
    "pickle: in torch's archive": replaced_by(lambda trap: torch_file(trap.pickled_call)),
    "import: in torch's archive": replaced_by(lambda trap: torch_file(trap.pickled_import)),
}


# Other files of a run


@cache
def _template() -> tempfile.TemporaryDirectory:
    """A run and its data, made once."""
    folder = tempfile.TemporaryDirectory()
    data = making.darcy_data(making.write_darcy(Path(folder.name) / "set"))
    making.write_run(Path(folder.name) / "run", data)
    return folder


def write_run(folder: Path) -> Path:
    return Path(shutil.copytree(Path(_template().name) / "run", folder / "run"))


def in_run(name: str) -> Callable[[Path], Path]:
    return lambda folder: write_run(folder) / name


def open_run(path: Path) -> Any:
    """Open all that evaluation does, whichever file of the run is given."""
    run = load_run(path.parent, device="cpu")
    return run.test_set, run.channels


def edited_config(change: Callable[[dict, Trap], None]) -> Attack:
    def write(path: Path, trap: Trap) -> None:
        content = yaml.safe_load(path.read_text())
        change(content, trap)
        path.write_text(yaml.safe_dump(content))

    return Attack(write)


def reader(target: str) -> Attack:
    return edited_config(lambda config, trap: config["data"]["reader"].update(_target_=target))


def tagged(text: Callable[[Trap], str]) -> Attack:
    """A tag of YAML that builds an object, in the section that evaluation reads."""
    return Attack(lambda path, trap: path.write_text(f"data:\n  root: {text(trap)}\n"))


def call_of_os(config: dict, trap: Trap) -> None:
    config["data"]["reader"] = trap.call


def root_by(reference: str) -> Attack:
    return edited_config(lambda config, trap: config["data"].update(root=reference))


CONFIG = {
    "pickle: file": replaced_by(lambda trap: trap.pickled_call),
    "pickle: tag": tagged(
        lambda trap: (
            "!!python/object/apply:pickle.loads "
            f'[!!binary "{base64.b64encode(trap.pickled_call).decode()}"]'
        )
    ),
    "import: reader": reader("trap_module.Reader"),
    "import: tag": tagged(lambda trap: "!!python/module:trap_module ''"),
    "instantiate: reader": edited_config(call_of_os),
    "instantiate: reader that unpickles": reader("DomainMeshReader"),
    "instantiate: its path": reader("physicsnemo.datapipes.DomainMeshReader"),
    "instantiate: tag": tagged(lambda trap: f"!!python/object/apply:os.mkdir ['{trap.marker}']"),
    "escape: environment": root_by("${oc.env:HOME}"),
    "escape: environment, decoded": root_by("${oc.decode:${oc.env:HOME}}"),
    "escape: component": root_by("${dp:DarcyReader}"),
    "escape: link": Attack(link_outside),
}


def write_run_manifest(folder: Path) -> Path:
    run = write_run(folder)
    files = {path.name: fingerprint(path) for path in run.iterdir()}
    return RunManifest(run, files, saved=True).write().directory / "run_manifest.json"


def names_outside(name: Callable[[Trap], str], checked: Callable[[dict], str]) -> Attack:
    """A list of files that names another one, which is as the list says."""

    def write(path: Path, trap: Trap) -> None:
        content = json.loads(path.read_text())
        content.pop("checksum", None)
        content["files"][name(trap)] = fingerprint(trap.outside)._asdict()
        path.write_text(checked(content))

    return Attack(write)


def endless(path: Path, trap: Trap) -> None:
    """A pipe in the place of the file: who opens it waits for ever."""
    path.unlink()
    os.mkfifo(path)


RUN_MANIFEST = whole_file() | {
    "escape: absolute name": names_outside(lambda trap: str(trap.outside), checked_json),
    "escape: name": names_outside(lambda trap: "../../elsewhere/outside.bin", checked_json),
    "escape: pipe": Attack(endless),
}


def write_stamp_file(folder: Path) -> Path:
    (folder / "data.npy").write_bytes(b"data")
    stamp.write_stamp(folder, {"name": "pipe"})
    return folder / stamp.STAMP


STAMP = whole_file() | {
    "escape: absolute name": names_outside(lambda trap: str(trap.outside), stamp._text),
    "escape: name": names_outside(lambda trap: "../elsewhere/outside.bin", stamp._text),
}


def write_latents(folder: Path) -> Path:
    LatentState(((torch.zeros(1, 2, 3, 4),),), "fingerprint").save(folder / "state.safetensors")
    return folder / "state.safetensors"


def outside_offsets(path: Path, trap: Trap) -> None:
    """A header whose tensor ends behind the file."""
    save_file({"a": torch.zeros(2)}, path)
    path.write_bytes(path.read_bytes().replace(b"[0,8]", b"[0,9]"))


def other_names(path: Path, trap: Trap) -> None:
    """Tensors that are called otherwise, in a file that is sound in all else."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = {"os.mkdir.shift": torch.zeros(1)}
    if "checksum" in metadata:
        metadata["checksum"] = _checksum(tensors, metadata["fingerprint"])
    save_file(tensors, path, metadata)


SAFETENSORS = whole_file() | {
    "instantiate: names": Attack(other_names),
    "escape: offsets": Attack(outside_offsets),
}


# Data sets


def surface() -> pv.PolyData:
    return making.body(0)


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


def open_surface_set(path: Path) -> Any:
    """Read the only case of a set of surfaces, and its mesh as plots do."""
    root = next(folder for folder in path.parents if folder.name == "set")
    table = DrivAerMLReader(root, cases=["run_1"])
    sample, metadata = table[0]
    return sample, plot_mesh(metadata, sample["coordinates"].numpy())


def write_vtp(folder: Path) -> Path:
    path = folder / "set" / "run_1" / "boundary_1.vtp"
    path.parent.mkdir(parents=True)
    surface().save(path)
    return path


def entity(path: Path, trap: Trap) -> None:
    """An entity of XML that stands for another file."""
    text = path.read_bytes()
    head = f'<?xml version="1.0"?>\n<!DOCTYPE x [<!ENTITY e SYSTEM "file://{trap.outside}">]>\n'
    body = text[text.index(b"<VTKFile") :].replace(b"<PolyData>", b"<PolyData>&e;", 1)
    path.write_bytes(head.encode() + body)


def user_dict(path: Path, trap: Trap) -> None:
    """What pyvista decodes by itself when it reads a file."""
    mesh = surface()
    mesh.user_dict = trap.call
    mesh.save(path)


VTP = whole_file() | {
    "instantiate: user dict": Attack(user_dict, harmless=True),
    "escape: entity": Attack(entity, harmless=True),
}


def write_surface(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        mesh = surface()
        mesh.clear_data()
        mesh.save(folder / f"body{suffix}")
        return folder / f"body{suffix}"

    return write


def materials(path: Path, trap: Trap) -> None:
    path.write_text(f"mtllib {trap.outside}\n{path.read_text()}")


OBJ = whole_file() | {"escape: material": Attack(materials, harmless=True)}


def write_manifest(folder: Path) -> Path:
    path = write_vtp(folder)
    manifest = path.parents[1] / "manifest.json"
    manifest.write_text(json.dumps({"train": ["run_1"]}))
    return manifest


def open_manifest(path: Path) -> Any:
    read_manifest(path)
    return DrivAerMLReader(path.parent)[0]


MANIFEST = whole_file() | {
    "escape: case": replaced_by(lambda trap: json.dumps({"train": ["../run_1"]}).encode())
}


def domain() -> DomainMesh:
    mesh = surface()
    body = Mesh(
        points=torch.from_numpy(np.asarray(mesh.points)),
        cells=torch.from_numpy(mesh.regular_faces.astype(np.int64)),
        cell_data={FIELD: torch.from_numpy(np.asarray(mesh[FIELD]))},
    )
    return DomainMesh(interior=Mesh(points=torch.rand(4, 3)), boundaries={"vehicle": body})


def write_pdmsh(folder: Path) -> Path:
    path = folder / "set" / "run_1" / "domain_1.pdmsh"
    domain().save(path)
    return path


def added(name: str, payload: Callable[[Trap], bytes], place: str = "") -> Attack:
    return Attack(lambda path, trap: (path / place / name).write_bytes(payload(trap)))


BODY = "_tensordict/boundaries/vehicle"


def stack_of_objects(path: Path, trap: Trap) -> None:
    """An entry that TensorDict keeps in a pickle of its own."""
    entry = path / BODY / "_tensordict" / "global_data"
    kind = "<class 'tensordict.tensorclass.NonTensorStack'>"
    edited_json(entry / "meta.json", lambda meta: meta.update(words={"type": "NonTensorStack"}))
    (entry / "words").mkdir()
    meta = {"_type": kind, "stack_dim": 0, "device": None, "data": "pickle.pkl"}
    (entry / "words" / "meta.json").write_text(json.dumps(meta))
    (entry / "words" / "pickle.pkl").write_bytes(trap.pickled_call)


def class_of_domain(path: Path, trap: Trap) -> None:
    edited_json(
        path / "meta.json",
        lambda meta: meta.update(_type="<class 'trap_module.Reader'>", _class="trap_module.Reader"),
    )


def map_outside(path: Path, trap: Trap) -> None:
    file = path / BODY / "_tensordict" / "points.memmap"
    file.unlink()
    file.symlink_to(trap.outside)


def map_above(path: Path, trap: Trap) -> None:
    """A tensor whose name leads out of the store."""
    tensors = path / BODY / "_tensordict" / "cell_data"
    name = os.path.relpath(trap.outside.with_suffix(""), tensors)
    trap.outside.with_suffix(".memmap").write_bytes(bytes(4))
    edited_json(
        tensors / "meta.json",
        lambda meta: meta.update({name: {"dtype": "torch.float32", "shape": [10**6]}}),
    )


PDMSH = {
    "pickle: domain": added("other.pickle", lambda trap: trap.pickled_call),
    "pickle: boundary": added("other.pickle", lambda trap: trap.pickled_call, BODY),
    "pickle: stack": Attack(stack_of_objects),
    "import: pickle": added("other.pickle", lambda trap: trap.pickled_import, BODY),
    "import: class": Attack(class_of_domain),
    "instantiate: description": added("meta.json", lambda trap: json.dumps(trap.call).encode()),
    "escape: link": Attack(map_outside),
    "escape: name": Attack(map_above),
}


def write_pdmsh_zarr(folder: Path) -> Path:
    path = folder / "set" / "run_1" / "domain_1.pdmsh"
    path.parent.mkdir(parents=True)
    to_zarr(domain(), path)
    return path


def edited_array(change: Callable[[dict, Trap], None], array: str) -> Attack:
    """The description of one array of a zarr store of version 3, where it is kept."""

    def write(path: Path, trap: Trap) -> None:
        def consolidated(meta: dict) -> None:
            if "consolidated_metadata" in meta:
                change(meta["consolidated_metadata"]["metadata"][array], trap)

        edited_json(path / "zarr.json", consolidated)
        edited_json(path / array / "zarr.json", lambda meta: change(meta, trap))

    return Attack(write)


def codec(name: str) -> Callable[[dict, Trap], None]:
    return lambda meta, trap: meta["codecs"].append({"name": name, "configuration": {}})


def zarr_attacks(array: str) -> dict[str, Attack]:
    return {
        "pickle: codec": edited_array(codec("numcodecs.pickle"), array),
        "import: codec": edited_array(codec("trap_module.Reader"), array),
        "instantiate: description": edited_array(
            lambda meta, trap: meta.update(codecs=[trap.call]), array
        ),
        "escape: name": Attack(
            lambda path, trap: edited_json(
                path / "zarr.json",
                lambda meta: meta.update(
                    consolidated_metadata={
                        "kind": "inline",
                        "must_understand": False,
                        "metadata": {"../other": {"node_type": "group", "zarr_format": 3}},
                    }
                ),
            )
        ),
    }


def write_zarr(folder: Path, version: int = 3) -> Path:
    path = folder / "set" / "run_1.zarr"
    path.parent.mkdir(parents=True)
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("surface_mesh_centers", data=np.ones((4, 3), np.float32))
    group.create_array(FIELD, data=np.ones(4, np.float32))
    return path


def pickled_chunk(payload: Callable[[Trap], bytes], **changes: Any) -> Attack:
    """A chunk that is a pickle, and a description that says so."""

    def write(path: Path, trap: Trap) -> None:
        array = path / "surface_mesh_centers"
        edited_json(array / ".zarray", lambda meta: meta.update(changes))
        one_chunk(path).write_bytes(payload(trap))

    return Attack(write)


def one_chunk(path: Path) -> Path:
    array = path / "surface_mesh_centers"
    return next(file for file in array.rglob("*") if file.name.startswith("0"))


WORDS = {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]}
ZARR2 = {
    "pickle: compressor": pickled_chunk(
        lambda trap: trap.pickled_call, compressor={"id": "pickle"}
    ),
    "pickle: behind words": pickled_chunk(
        lambda trap: trap.pickled_call, **WORDS, compressor={"id": "pickle"}
    ),
    "pickle: objects": pickled_chunk(
        lambda trap: trap.pickled_call, dtype="|O", filters=[{"id": "pickle"}], compressor=None
    ),
    "import: behind words": pickled_chunk(
        lambda trap: trap.pickled_import, **WORDS, compressor={"id": "pickle"}
    ),
    "import: codec": pickled_chunk(lambda trap: b"", compressor={"id": "trap_module.Reader"}),
    "instantiate: codec": pickled_chunk(lambda trap: b"", compressor={"_target_": "os.mkdir"}),
    "escape: link": Attack(lambda path, trap: link_outside(one_chunk(path), trap)),
}

KINDS = {
    "model.mdlus": Kind(in_run("model.mdlus"), open_run, MODEL),
    "training.pt": Kind(write_state, lambda path: load_plain(path, str(path)), STATE),
    "config.yaml": Kind(in_run("config.yaml"), open_run, CONFIG),
    "normalizer.safetensors": Kind(in_run("normalizer.safetensors"), open_run, SAFETENSORS),
    "channels.json": Kind(in_run("channels.json"), open_run, whole_file(), names_itself=False),
    "run_manifest.json": Kind(write_run_manifest, open_run, RUN_MANIFEST),
    "set stamp.json": Kind(write_stamp_file, lambda path: stamp.read_stamp(path.parent), STAMP),
    "latent state": Kind(write_latents, LatentState.load, SAFETENSORS),
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
    "set manifest.json": Kind(write_manifest, open_manifest, MANIFEST),
    "set.vtp": Kind(write_vtp, open_surface_set, VTP),
    "set.pdmsh": Kind(write_pdmsh, open_surface_set, PDMSH),
    "set.pdmsh, zarr": Kind(
        write_pdmsh_zarr, open_surface_set, zarr_attacks("boundaries/vehicle/points")
    ),
    "set.zarr": Kind(write_zarr, open_surface_set, zarr_attacks("surface_mesh_centers")),
    "set.zarr, version 2": Kind(lambda folder: write_zarr(folder, 2), open_surface_set, ZARR2),
    "surface.vtp": Kind(write_surface(".vtp"), read_surface, VTP),
    "surface.stl": Kind(write_surface(".stl"), read_surface, whole_file()),
    "surface.ply": Kind(write_surface(".ply"), read_surface, whole_file()),
    "surface.vtk": Kind(write_surface(".vtk"), read_surface, whole_file()),
    "surface.obj": Kind(write_surface(".obj"), read_surface, OBJ),
}
CORPUS = [(kind, attack) for kind in KINDS for attack in KINDS[kind].attacks]

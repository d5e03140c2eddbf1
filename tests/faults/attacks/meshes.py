"""Attacks on surfaces: mesh files, and the stores and the manifest of a set of them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh
from physicsnemo.mesh.io import to_zarr

from physicsnemo_flarepp.datapipes import DrivAerMLReader, plot_mesh
from physicsnemo_flarepp.datapipes.readers.splits import read_manifest
from physicsnemo_flarepp.meshes import read_surface
from tests.evaluation import making
from tests.faults.attacks.base import Attack, Kind, Trap, link_outside, replaced_by, whole_file

FIELD = "pMeanTrim"


def edited_json(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def surface() -> pv.PolyData:
    return making.body(0)


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

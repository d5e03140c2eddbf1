"""Attacks on the other files of a run: its config, its normaliser, its channels, its latents."""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from physicsnemo_flarepp.builtin import engine
from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.files import checked_json, fingerprint
from physicsnemo_flarepp.inference.state import LatentState, _checksum
from physicsnemo_flarepp.runs.checkpoints import Manifest
from tests.evaluation import making
from tests.faults.attacks.base import Attack, Kind, Trap, link_outside, replaced_by, whole_file


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
    (run / "training_set.json").write_text("{}")
    files = {path.name: fingerprint(path) for path in run.iterdir()}
    facts = {"written": [], "saved": True}
    return Manifest(run / "run_manifest.json", files, facts).write().path


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
    engine.write_stamp(folder, {"name": "pipe"})
    return folder / engine.STAMP


STAMP = whole_file() | {
    "escape: absolute name": names_outside(lambda trap: str(trap.outside), checked_json),
    "escape: name": names_outside(lambda trap: "../elsewhere/outside.bin", checked_json),
    "escape: pipe": Attack(endless),
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

KINDS = {
    "config.yaml": Kind(in_run("config.yaml"), open_run, CONFIG),
    "normalizer.safetensors": Kind(in_run("normalizer.safetensors"), open_run, SAFETENSORS),
    "channels.json": Kind(in_run("channels.json"), open_run, whole_file(), names_itself=False),
    "run_manifest.json": Kind(write_run_manifest, open_run, RUN_MANIFEST),
    "set stamp.json": Kind(write_stamp_file, lambda path: engine.read_stamp(path.parent), STAMP),
    "latent state": Kind(write_latents, LatentState.load, SAFETENSORS),
}

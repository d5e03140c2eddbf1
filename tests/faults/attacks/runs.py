"""Attacks on the other files of a run: its config, its normaliser, its channels, its latents."""

import base64
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.inference.state import LatentState
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


def write_latents(folder: Path) -> Path:
    LatentState(((torch.zeros(1, 2, 3, 4),),), "fingerprint").save(folder / "state.safetensors")
    return folder / "state.safetensors"


def outside_offsets(path: Path, trap: Trap) -> None:
    """A header whose tensor ends behind the file."""
    save_file({"a": torch.zeros(2)}, path)
    path.write_bytes(path.read_bytes().replace(b"[0,8]", b"[0,9]"))


SAFETENSORS = whole_file() | {"escape: offsets": Attack(outside_offsets)}

KINDS = {
    "config.yaml": Kind(in_run("config.yaml"), open_run, CONFIG),
    "normalizer.safetensors": Kind(in_run("normalizer.safetensors"), open_run, SAFETENSORS),
    "channels.json": Kind(in_run("channels.json"), open_run, whole_file(), names_itself=False),
    "latent state": Kind(write_latents, LatentState.load, SAFETENSORS),
}

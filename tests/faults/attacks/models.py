"""Attacks on the weights of a model and on training states."""

import json
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from physicsnemo_flarepp.runs.model_files import load_plain
from tests.faults.attacks.base import (
    Attack,
    Kind,
    Trap,
    edited_zip,
    link_outside,
    replaced_by,
    whole_file,
)
from tests.faults.attacks.runs import in_run, open_run


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

KINDS = {
    "model.mdlus": Kind(in_run("model.mdlus"), open_run, MODEL),
    "training.pt": Kind(write_state, lambda path: load_plain(path, str(path)), STATE),
}

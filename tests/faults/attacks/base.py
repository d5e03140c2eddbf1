"""What every attack is made of: the trap it would spring, and how it rewrites a sound file."""

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np


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


def edited_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (old | members).items():
            archive.writestr(name, data)

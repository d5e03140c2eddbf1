"""Imports point downward only: no room knows of those above it."""

import ast
from pathlib import Path

import pytest

import physicsnemo_flarepp

ROOT = Path(physicsnemo_flarepp.__file__).parent
# What each room may import; itself and what the package itself defines go without saying.
BASE = {"files", "progress", "texts"}
ALLOWED = {
    "files": set(),
    "progress": set(),
    "texts": set(),
    "ops": set(),
    "mixers": {"ops"},
    "parallel": {"ops", "mixers"},
    "models": {"ops", "mixers", "parallel"},
    "inference": {"ops", "mixers", "models", *BASE},
    "meshes": {"files", "texts"},
    "builtin": BASE,
    "datapipes": {"builtin", "meshes", "parallel", *BASE},
    "sequences": {"ops", "mixers", "models", "parallel", "builtin", "datapipes", *BASE},
    "visualization": {"ops", "meshes", *BASE},
    "runs": {"models", "parallel", "inference", "datapipes", *BASE},
    "training": {
        "ops", "mixers", "models", "parallel", "inference", "datapipes", "runs",
        "sequences", *BASE
    },
}  # fmt: skip
ALLOWED["checks"] = {*ALLOWED} - {"meshes"}
ALLOWED["evaluation"] = {*ALLOWED} - {"checks"}
ALLOWED["design"] = {*ALLOWED} - {"checks"}
ALLOWED["report"] = {*ALLOWED} - {"checks"}
ALLOWED["commands"] = {*ALLOWED}


def imported_rooms(source, package):
    """Rooms that a module of `package`, a path such as ("datapipes", "readers"), imports from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - (node.level - 1)]
            path = (*above, *(node.module.split(".") if node.module else ()))
            yield from [path[0]] if path else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (
                name.split(".")[1] for name in names if name.startswith("physicsnemo_flarepp.")
            )


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_from_below(room):
    files = [ROOT / f"{room}.py"]
    if not files[0].is_file():
        files = sorted((ROOT / room).rglob("*.py"))
    assert files
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in imported_rooms(path.read_text(), path.relative_to(ROOT).parts[:-1])
    }
    known = ALLOWED[room] | {room, "__version__", "lazy_names"}
    assert {(path, name) for path, name in found if name not in known} == set()


def test_every_room_is_listed():
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert rooms - {"conf", "recipes"} <= set(ALLOWED)


def test_the_search_sees_every_way_to_import():
    source = """
from ..files import a
from .. import meshes
from ...training.run import b
import physicsnemo_flarepp.models.layers
def late():
    from physicsnemo_flarepp.parallel import c
"""
    found = set(imported_rooms(source, ("datapipes", "readers")))
    assert found == {"datapipes", "training", "models", "parallel"}

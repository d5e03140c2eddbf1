"""ruff is part of the test command: one command tells whether a change can be merged."""

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "physicsnemo_flarepp"


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def docstrings():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.get_docstring(node)


def test_functions_that_return_something_say_return():
    others = ("Give ", "Gives ", "Returns ", "Yields ")
    assert [place for place, text in docstrings() if text.startswith(others)] == []


def undefined_names(text):
    """Names that a module reads and binds nowhere; ruff's F821 cannot read shapes in strings."""
    bound, read = {*dir(builtins), "__file__", "__name__", "__doc__"}, set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    return read - bound


def test_every_name_is_bound_somewhere():
    assert undefined_names("def f(x):\n    return y(x)") == {"y"}
    paths = [path for room in (PACKAGE, ROOT / "examples") for path in sorted(room.rglob("*.py"))]
    found = {path.name: undefined_names(path.read_text()) for path in paths}
    assert {name: names for name, names in found.items() if names} == {}

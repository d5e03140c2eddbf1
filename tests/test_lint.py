"""ruff is part of the test command: one command tells whether a change can be merged."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def docstrings():
    for path in sorted((ROOT / "physicsnemo_flarepp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.get_docstring(node)


def test_functions_that_return_something_say_return():
    others = ("Give ", "Gives ", "Returns ", "Yields ")
    assert [place for place, text in docstrings() if text.startswith(others)] == []

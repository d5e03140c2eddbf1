"""The notebook runs from top to bottom, at a tiny budget."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_meshes.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) == 10 and not any(cell.get("outputs") for cell in cells)
    shown, display = [], ModuleType("IPython.display")
    display.display = shown.append
    display.Image = display.IFrame = lambda path, *size: Path(path).stat().st_size
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setenv("STEPS", "40")
    monkeypatch.setenv("CASES", "10")
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(shown) == 3 and min(shown) > 10_000
    assert "d(mean Cp) / db: surrogate" in capsys.readouterr().out
    assert np.isfinite(names["surrogate"]) and names["result"].error < 1

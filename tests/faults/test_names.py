"""Names from the files of others are harmless wherever they come out."""

import csv

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.evaluation import draw_comparison, load_run
from physicsnemo_flarepp.visualization import RenderingUnavailable, require_rendering

# A terminal's title and colours, formulas, a table's bar, mathematics that Matplotlib would set.
FIELDS = ("p\x1b]0;own\x07", "=cmd|' /C calc'!A0", "$\\frac{$")
SIZES = ("model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "training.epochs=1")

pytestmark = pytest.mark.slow


def write_cases(folder):
    random = np.random.default_rng(0)
    folder.mkdir()
    for i in range(4):
        x = random.random((30, 2))
        fields = {name: 1 + x[:, 0] + i + k for k, name in enumerate(FIELDS)}
        value = {"-nu\x1b[2J": np.array(float(i))}
        np.savez(folder / f"=1+1|$\\frac$_{i}.npz", coordinates=x, **fields, **value)
    return folder


def test_no_verb_passes_names_on_as_they_are(tmp_path, monkeypatch, capfd):
    data = write_cases(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    own = ("data=own", "data.root=data", "data.weights=none", "training.norm=tokens")
    verbs = {
        "inspect": ["inspect", "data"],
        "check": ["inspect", "--check", *own[:2]],
        "train": ["train", *own, *SIZES, "run_dir=run", "data.num_workers=0"],
        "evaluate": ["evaluate", "run"],
        "predict a case": ["predict", "run", "--cases", "0", "--output", "case"],
        "predict a file": ["predict", "run", str(next(data.glob("*_3.npz"))), "--output", "file"],
        "an error": ["plot", "run", "--fields", FIELDS[0] + "x"],
    }
    for what, arguments in verbs.items():
        code = main(arguments)
        said = "".join(capfd.readouterr())
        assert code == (2 if what == "an error" else 0), said
        assert all(c.isprintable() or c in "\n\t\r" for c in said), (what, said)
    texts = {path.name: path.read_text() for path in tmp_path.rglob("*.csv")}
    texts |= {path.name: path.read_text() for path in tmp_path.rglob("*.md")}
    assert {"errors.csv", "evaluation.csv", "table.md"} <= set(texts)
    for name, text in texts.items():
        assert all(c.isprintable() or c == "\n" for c in text), name
        if name.endswith(".csv"):
            cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
            assert not any(cell.startswith(("=", "+", "@")) for cell in cells), name
    for folder in ("case", "file"):
        (path,) = (tmp_path / folder).iterdir()
        names = pv.read(path).point_data.keys()
        assert f"{FIELDS[1]}_predicted" in names and r"p\x1b]0;own\x07_predicted" in names


def test_figures_show_names_as_they_are(tmp_path, monkeypatch):
    try:
        require_rendering()
    except RenderingUnavailable as reason:
        pytest.skip(str(reason))
    write_cases(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    own = ("data=own", "data.root=data", "data.weights=none", "training.norm=tokens")
    assert main(["train", *own, *SIZES, "run_dir=run", "data.num_workers=0"]) == 0
    drawn = draw_comparison([load_run("run", device="cpu")], "median", tmp_path / "figures")
    assert len(drawn) == len(FIELDS)
    names = [path.name for path in (tmp_path / "figures").iterdir()]
    assert all(c.isalnum() or c in "._-+" for name in names for c in name)

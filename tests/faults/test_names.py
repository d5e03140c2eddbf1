"""Names from the files of others are harmless wherever they come out."""

import csv
import re

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


# Each set of names is tried in all outputs of a training, an evaluation and a plot.
HOSTILE = [
    ["\x1b[2Jp", "\x9b31m", "p\x07", "a\u202eb", "a\u2028b", "\u200bp"],
    ["=1+1", "+1", "-1", "@SUM(A1)", "'quoted", '=HYPERLINK("http://x")'],
    ["a|b", "`x`", "**b**", "<script>alert(1)</script>", "[a](http://x)", "a,b;c"],
    ["$\\frac{$", "$x^2$", "\\textbf{p}", "%s %d {0}", "_", "p" * 200],
    ["CON", "..", "~p", "größe", "p q", "😀"],
]


def write_cases(folder, fields=FIELDS, cases=("=1+1|$\\frac$",) * 4):
    random = np.random.default_rng(0)
    folder.mkdir()
    for i, case in enumerate(cases):
        x = random.random((30, 2))
        values = {name: 1 + x[:, 0] + i + k for k, name in enumerate(fields)}
        value = {"-nu\x1b[2J": np.array(float(i))}
        np.savez(folder / f"{case}_{i}.npz", coordinates=x, **values, **value)
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_of_many_does_harm_in_any_output(tmp_path, monkeypatch, capfd, names):
    """Fields and cases of every name: terminal, tables, CSV, figures and their exports."""
    # Ids of cases that cannot be printed are refused.
    cases = [re.sub("[/\0]", "-", name)[:100] if name.isprintable() else "case" for name in names]
    write_cases(tmp_path / "data", names, cases)
    monkeypatch.chdir(tmp_path)
    own = ("data=own", "data.root=data", "data.weights=none", "training.norm=tokens")
    verbs = (
        ["inspect", "data"],
        ["train", *own, *SIZES, "run_dir=run", "data.num_workers=0"],
        ["evaluate", "run"],
        ["predict", "run", "--cases", "0", "--output", "predicted"],
        ["plot", "run", "--output", "figures", "--formats", "svg"],
    )
    outputs = 0
    for arguments in verbs:
        code = main(arguments)
        said = "".join(capfd.readouterr())
        assert code == 0, (arguments, said)
        assert all(c.isprintable() or c in "\n\t\r" for c in said), (arguments, said)
        outputs += 1
    for path in (*tmp_path.glob("run/*.csv"), *tmp_path.glob("run/*.md")):
        text = path.read_text()
        assert all(c.isprintable() or c == "\n" for c in text), path.name
        if path.suffix == ".csv":
            rows = list(csv.reader(text.splitlines()))
            assert len({len(row) for row in rows}) == 1, path.name
            assert not any(c.startswith(("=", "+", "@")) for row in rows for c in row), path.name
        outputs += 1
    written = [p for name in ("figures", "predicted") for p in (tmp_path / name).iterdir()]
    figures = [path.name for path in written if path.parent.name == "figures"]
    assert all(re.fullmatch(r"[\w.+-]+", name) for name in figures), figures
    drawn = [path for path in written if path.name.startswith("comparison_")]
    assert len({path.stem for path in drawn if path.suffix == ".svg"}) == len(names)
    for path in written:
        if path.suffix == ".svg":
            assert "<script" not in path.read_text()
        elif path.suffix in (".vtp", ".vtu", ".vti", ".vts"):
            assert len(pv.read(path).point_data) >= len(names), path.name
        outputs += 1
    print(f"{len(names)} names, {len(cases)} cases, {outputs} outputs")

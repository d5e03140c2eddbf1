"""Files that leave: equal to the run at any size, in a process without this package."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from physicsnemo_flarepp.evaluation import export, load_run
from tests.evaluation import making

pytestmark = pytest.mark.slow
SNIPPETS = re.findall(r"```python\n(.*?)```", Path("docs/export.md").read_text(), re.S)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("export")
    data = making.surface_data(making.write_surfaces(root / "set"), weights="measure")
    data["reader"] |= {"features": ["normals"], "global_names": ["aRef"]}
    data["normalization"] |= {"globals": "gaussian"}
    run = load_run(making.write_run(root / "run", data), device="cpu")
    for parameter in run.model.parameters():
        parameter.data.div_(3)  # as they are trained: larger ones make much of rounding
    return run


def snippet(format, folder, sample):
    """Run the snippet of the page in a process that has torch and the file, and nothing of ours."""
    np.savez(folder / "inputs.npz", **{name: value.numpy() for name, value in sample.items()})
    code = next(s for s in SNIPPETS if f".{format}" in s)
    code = code.replace(f"cars-flarepp-seed0.{format}", str(folder / f"run.{format}"))
    if format == "pt2":
        code = re.sub(r"model\(.*\)", "model(**given)", code)
    else:
        code = re.sub(r"inputs = .*", "inputs = given", code)
    convert = "torch.from_numpy" if format == "pt2" else ""
    stored = str(folder / "inputs.npz")
    code = (
        "import numpy, sys, torch\n"
        f"given = {{n: {convert}(v) for n, v in numpy.load({stored!r}).items()}}\n"
        f"{code}\nassert not any(n.startswith('physicsnemo') for n in sys.modules)\n"
        f"numpy.save({str(folder / 'fields.npy')!r}, fields)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, cwd=folder, env={})
    return np.load(folder / "fields.npy")


@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_a_file_equals_its_run_without_this_package(format, run, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    done = export.export_run(run, tmp_path / f"run.{format}", format)
    assert done.inputs["coordinates"] == ("N", 3) and done.inputs["globals"] == (1,)
    assert len(done.differences) == 3 and max(done.differences.values()) < 1e-5
    sample, _ = run.test_set[1]
    sample = {name: sample[name] for name in done.inputs}  # 320 cells: none of the sizes checked
    expected = run.predict_sample(sample, progress=False)
    found = snippet(format, tmp_path, sample)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_a_file_that_differs_is_not_kept(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_ALLOWED", -1.0)
    with pytest.raises(ValueError, match="differs from it by .* not written"):
        export.export_run(run, tmp_path / "run.pt2")
    assert list(tmp_path.iterdir()) == []


def test_per_point_statistics_fix_the_size(tmp_path):
    data = making.darcy_data(making.write_darcy(tmp_path / "set"))
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    done = export.export_run(run, tmp_path / "run.pt2")
    assert done.inputs["coordinates"] == (81, 2) and list(done.differences) == [81]


def test_what_cannot_be_exported_says_so(run, tmp_path):
    run.data["transforms"] = [{"_target_": "Anything"}]
    with pytest.raises(ValueError, match="data.transforms"):
        export.export_run(run, tmp_path / "run.pt2")
    run.data["transforms"] = []
    with pytest.raises(ValueError, match="expected one of"):
        export.export_run(run, tmp_path / "run.x", "x")

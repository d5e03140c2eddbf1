"""What a user has in hand is predicted as the cases of training are; the page for Python runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.datapipes import from_arrays, from_meshes
from physicsnemo_flarepp.runs import load_run
from physicsnemo_flarepp.training import train

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
SMALL = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}


def test_the_page_leads_from_arrays_to_a_field_at_new_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = '"model": {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}, "data"'
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    code = code.replace('"minutes": 2', '"steps": 40').replace('"data"', small)
    found = {}
    exec(code, found)
    assert found["field"].shape == (50, 1)
    points = found["points"]
    exact = 1.3 * np.sin(3 * points[:, 0]) + np.exp(-1.8 * points[:, 1])
    error = np.linalg.norm(found["field"][:, 0] - exact) / np.linalg.norm(exact)
    assert error < 0.1
    assert str(found["data"]).splitlines() == [
        "30 cases: case_00, case_01, case_02 ...",
        "  coordinates: coordinates", "  fields: T", "  globals: mu",
    ]  # fmt: skip


def test_points_and_samples_are_weighted_as_in_training(tmp_path, capsys):
    rng = np.random.default_rng(0)
    points, mu = rng.random((6, 20, 2)), rng.random((6, 1))
    data = from_arrays(points, {"u": points[..., 0] * mu}, globals={"mu": mu[:, 0]})
    cfg = {"model": SMALL, "training": {"steps": 3}, "run_dir": str(tmp_path / "run")}
    train(cfg, data=data)
    run = load_run(tmp_path / "run", data=data, device="cpu")
    sample = run.test_set[0][0]
    assert "weights" in sample
    expected = run.predict(sample)
    case = data.case_ids.index(run.case_ids[0])
    np.testing.assert_allclose(run.predict(points[case], mu=mu[case, 0]), expected, rtol=1e-5)
    plain = {"coordinates": torch.from_numpy(points[case]).float(), "globals": sample["globals"]}
    np.testing.assert_allclose(run.predict(plain), expected, rtol=1e-5)
    told = r"outside the range of training: mu is 50 \(training 0\.\d+ to 0\.\d+\)"
    with pytest.warns(UserWarning, match=told) as caught:
        assert not np.allclose(run.predict(points[case], mu=50.0), expected)
    assert caught[0].filename == __file__, "the line of the caller is blamed"
    np.savez(tmp_path / "new.npz", coordinates=points[case], globals=np.array([50.0]))
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.npz"),
                 "--output", str(tmp_path)]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "warning: parameters are outside the range of training: mu is 50" in shown
    with pytest.raises(ValueError, match=r"needs the global values mu.*run.predict\(\.\.\., mu="):
        run.predict(points[case])
    with pytest.raises(ValueError, match="has no global value nu; its global values are mu"):
        run.predict(points[case], nu=1.0)


def test_a_mesh_is_predicted_as_the_case_it_is(tmp_path):
    meshes = [pv.Icosphere(radius=1 + 0.1 * i, nsub=1).elevation() for i in range(5)]
    radius = [1 + 0.1 * i for i in range(5)]
    data = from_meshes(meshes, fields=["Elevation"], parameters={"radius": radius})
    cfg = {"model": SMALL, "training": {"steps": 3}, "run_dir": str(tmp_path / "run")}
    train(cfg, data=data)
    run = load_run(tmp_path / "run", data=data, device="cpu")
    expected = run.predict(run.test_set[0][0])
    case = data.case_ids.index(run.case_ids[0])
    bare = meshes[case].copy()
    bare.clear_data()
    np.testing.assert_allclose(run.predict(bare, radius=radius[case]), expected, rtol=1e-4)


def test_a_traceback_of_one_process_names_no_rank():
    code = "from physicsnemo_flarepp.parallel import initialize; initialize(); 1 / 0"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "ZeroDivisionError" in done.stderr and "rank0" not in done.stderr

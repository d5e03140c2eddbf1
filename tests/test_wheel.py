"""The wheel, installed beside nothing of this checkout, used in an empty folder."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import pyvista as pv

ROOT = Path(__file__).parents[1]


def run(*command, cwd, **environment):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(source, folder):
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin folder of an environment with the wheel; dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    run(
        sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install",
        "--no-deps", "--no-index", wheel, cwd=folder,
    )  # fmt: skip
    # Paths in a .pth file are searched, but .pth files in them, as that of this checkout, are not.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others) + "\n")
    return folder / "bin"


@pytest.mark.slow
def test_wheel_carries_every_config_from_a_checkout_and_from_an_archive(wheel, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    configs = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    expected = {f"physicsnemo_flarepp/{path}" for path in configs} | {
        "physicsnemo_flarepp/py.typed"
    }
    for path in (wheel, build_wheel(archive, tmp_path)):
        assert len(configs) > 40 and expected <= set(zipfile.ZipFile(path).namelist())


@pytest.mark.slow
def test_wheel_trains_evaluates_and_predicts_in_an_empty_folder(installed, tmp_path):
    folder, cache = tmp_path / "empty", tmp_path / "cache"
    folder.mkdir()
    find = "from importlib.util import find_spec; print(find_spec('physicsnemo_flarepp').origin)"
    place = run(installed / "python", "-c", find, cwd=folder)
    assert installed.parent in Path(place.strip()).parents
    environment = {"PHYSICSNEMO_FLAREPP_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    flarepp = installed / "flarepp"
    counts = ["data.n_train=3", "data.n_test=1", "training.epochs=3"]
    run(flarepp, "train", *counts, cwd=folder, **environment)
    trained = folder / "outputs" / "cars-flarepp-seed0"
    assert (trained / "model.mdlus").is_file() and (trained / "table.md").is_file()
    assert (trained / "command.txt").read_text() == f"{flarepp} train {' '.join(counts)}\n"
    surface = pv.read(next(cache.rglob("boundary_*.vtp")))
    surface.save(folder / "car.stl")
    # Two verbs in one process, which imports PhysicsNeMo once.
    verbs = [["evaluate", str(trained)], ["predict", str(trained), "car.stl"]]
    code = f"from physicsnemo_flarepp.commands import main; print([main(v) for v in {verbs}])"
    text = run(installed / "python", "-c", code, cwd=folder, **environment)
    assert "R^2" in text and text.endswith("[0, 0]\n")
    assert "car_predicted.vtp: 5024 cells" in text
    assert {path.name for path in folder.iterdir()} == {"outputs", "car.stl", "car_predicted.vtp"}

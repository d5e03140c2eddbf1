"""Opening a file of someone else runs none of its code and touches no other file."""

import argparse
import contextlib
import os
import sys
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import torch
import yaml
import zarr
from physicsnemo.core import Module
from physicsnemo.mesh import DomainMesh

from physicsnemo_flarepp.builtin import engine
from physicsnemo_flarepp.commands.data import read_data_config
from physicsnemo_flarepp.commands.parsers import add_run_options
from physicsnemo_flarepp.commands.results import load_chosen_run
from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.files import RefusedFile
from physicsnemo_flarepp.visualization import rendering
from tests.faults.attacks import CORPUS, KINDS, Trap

MEANS = ("pickle", "import", "instantiate", "escape")

pytestmark = pytest.mark.slow


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module whose import leaves the marker can be found, as one beside a script could."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    trap = Trap(folder)
    trap.outside.write_bytes(b"not ours")
    (folder / "trap_module.py").write_text(
        f"import os\nos.mkdir({str(trap.marker)!r})\nclass Reader: pass\n"
    )
    monkeypatch.syspath_prepend(folder)
    yield trap
    sys.modules.pop("trap_module", None)


def tree(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_attacked_by_all_means(kind):
    assert {attack.split(":")[0] for attack in KINDS[kind].attacks} == set(MEANS)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_opened(tmp_path, kind):
    """So that the attacks below are refused for what they are."""
    assert KINDS[kind].open(KINDS[kind].write(tmp_path)) is not None


@pytest.mark.parametrize(("kind", "name"), CORPUS, ids=[f"{k}-{a}" for k, a in CORPUS])
def test_an_attack_is_refused_by_the_name_of_the_file_and_does_nothing(tmp_path, trap, kind, name):
    attack = KINDS[kind].attacks[name]
    (tmp_path / "files").mkdir()
    path = KINDS[kind].write(tmp_path / "files")
    attack.write(path, trap)
    before = tree(trap.folder)
    if attack.harmless:
        KINDS[kind].open(path)
    else:
        with pytest.raises((ValueError, OSError, KeyError)) as refusal:
            KINDS[kind].open(path)
        assert path.name in str(refusal.value) or not KINDS[kind].names_itself
    assert "trap_module" not in sys.modules
    assert tree(trap.folder) == before


def unpickle_zarr(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
        return zarr.open_group(path, mode="r")["surface_mesh_centers"][...]


# What the attacks do where nobody looks: the payloads of the corpus are live.
CARELESS = {
    ("model.mdlus", "import: class"): lambda path: Module.from_checkpoint(str(path)),
    ("model.mdlus", "import: class inside, by regular expression"): (
        lambda path: Module.from_checkpoint(str(path))
    ),
    ("model.mdlus", "instantiate: registered model"): (
        lambda path: Module.from_checkpoint(str(path))
    ),
    ("training.pt", "pickle: in torch's archive"): (
        lambda path: torch.load(path, weights_only=False)
    ),
    ("config.yaml", "instantiate: tag"): lambda path: yaml.unsafe_load(path.read_text()),
    ("config.yaml", "import: reader"): (
        lambda path: load_run(path.parent, device="cpu", trust=True).test_set
    ),
    ("points.npz", "import: objects"): (
        lambda path: np.load(path, allow_pickle=True)["coordinates"]
    ),
    ("set.npy", "pickle: objects"): lambda path: np.load(path, allow_pickle=True),
    ("set.pdmsh", "pickle: boundary"): DomainMesh.load,
    ("set.zarr, version 2", "pickle: behind words"): unpickle_zarr,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("kind", "name"), CARELESS, ids=[f"{k}-{a}" for k, a in CARELESS])
def test_the_attacks_would_work_on_a_careless_loader(tmp_path, trap, kind, name):
    (tmp_path / "files").mkdir()
    path = KINDS[kind].write(tmp_path / "files")
    KINDS[kind].attacks[name].write(path, trap)
    with contextlib.suppress(Exception):
        CARELESS[kind, name](path)
    assert trap.marker.exists()


def test_codecs_are_refused_even_where_the_library_allows_them(tmp_path, trap, monkeypatch):
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    kind = KINDS["set.zarr, version 2"]
    path = kind.write(tmp_path)
    kind.attacks["pickle: behind words"].write(path, trap)
    with pytest.raises(RefusedFile, match=r"run_1\.zarr: .* the codec '.*', which is refused"):
        kind.open(path)
    assert not trap.marker.exists()


OWN_READER = """
from physicsnemo_flarepp.datapipes import DarcyReader

class Reader(DarcyReader):
    pass
"""


def test_trust_opens_a_run_with_a_reader_of_its_own(tmp_path, trap):
    config = KINDS["config.yaml"].write(tmp_path)
    (trap.folder / "trap_module.py").write_text(OWN_READER)
    KINDS["config.yaml"].attacks["import: reader"].write(config, trap)
    with pytest.raises(ValueError, match=r"config\.yaml .*'trap_module\.Reader' is not registered"):
        _ = load_run(config.parent, device="cpu").test_set
    assert "trap_module" not in sys.modules
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    trusted = load_chosen_run(config.parent, parser.parse_args(["--trust", "--device", "cpu"]))
    assert type(trusted.test_set).__module__ == "trap_module"


@pytest.mark.parametrize("place", ["absolute", "upwards", "here", "manifest", "files"])
def test_a_run_of_others_names_no_files_outside_of_its_data(tmp_path, monkeypatch, place):
    """Or else it would have lines of them printed, as cases that are not there."""
    config = KINDS["config.yaml"].write(tmp_path)
    content = yaml.safe_load(config.read_text())
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "mine.txt").write_text("my secret\n")
    root = Path(content["data"]["root"])
    upwards = os.path.relpath(here / "mine.txt", root)
    named = {"absolute": str(here / "mine.txt"), "upwards": upwards, "here": "mine.txt"}
    if place == "files":
        content["data"]["reader"]["files"] = str(here / "{case}.npz")
    elif place == "manifest":
        content["data"]["splits"] = str(here / "mine.txt")
    else:
        content["data"]["splits"] = {"test": named[place]}
    config.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="outside of the root of the data.*--trust") as refusal:
        _ = load_run(config.parent, device="cpu").test_set
    assert "secret" not in str(refusal.value)
    with pytest.raises((ValueError, TypeError)) as refusal:
        _ = load_run(config.parent, device="cpu", trust=True).test_set
    assert "outside" not in str(refusal.value)


def aliases(first: str, pattern: str) -> str:
    """Thirty lines, each with nine times the one before."""
    lines = [pattern.format(i=i, others=", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 30)]
    return "\n".join([f"a0: &a0 {first}", *lines, ""])


ALIASES = {
    "bomb": aliases("[1, 1]", "a{i}: &a{i} [{others}]"),
    "merges": aliases("{x: 1}", "a{i}: &a{i} {{<<: [{others}]}}"),
    "circle": "a: &a [*a]\n",
    "depth": "a: " + "[" * 9000 + "]" * 9000,
}


@pytest.mark.parametrize("name", ALIASES)
def test_aliases_of_a_config_do_not_multiply(tmp_path, name):
    config = KINDS["config.yaml"].write(tmp_path)
    config.write_text(ALIASES[name] + config.read_text() if name != "depth" else ALIASES[name])
    with pytest.raises(ValueError, match=r"config\.yaml (stands for more|cannot be read)"):
        load_run(config.parent, device="cpu")
    with pytest.raises(ValueError, match=r"config\.yaml (stands for more|cannot be read)"):
        read_data_config([str(config)])


@pytest.mark.parametrize(
    "target", ["DarcyReader", "physicsnemo_flarepp.datapipes.readers.benchmarks.DarcyReader"]
)
def test_registered_readers_need_no_trust(tmp_path, target):
    config = KINDS["config.yaml"].write(tmp_path)
    content = yaml.safe_load(config.read_text())
    content["data"]["reader"]["_target_"] = target
    config.write_text(yaml.safe_dump(content))
    assert len(load_run(config.parent, device="cpu").test_set) == 3


@pytest.mark.parametrize("trust", [False, True])
def test_pickles_are_refused_with_and_without_trust(tmp_path, trap, trust):
    path = KINDS["model.mdlus"].write(tmp_path)
    KINDS["model.mdlus"].attacks["pickle: a pickle in torch's archive"].write(path, trap)
    with pytest.raises(ValueError, match=r"model\.pt in .*model\.mdlus is refused"):
        load_run(path.parent, device="cpu", trust=trust)
    assert not trap.marker.exists()


def spawn_solver():
    with engine._fresh_interpreters():
        process = engine._SPAWN.Process(target=os.getpid)
        process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "start"),
    [("pyvista", rendering._probe_failure.__wrapped__), ("multiprocessing", spawn_solver)],
)
def test_processes_import_nothing_from_the_directory_one_is_in(
    tmp_path, trap, monkeypatch, module, start
):
    """Such as that of a run of somebody else, where figures are drawn by ``flarepp plot .``"""
    (trap.folder / "trap_module.py").rename(tmp_path / f"{module}.py")
    monkeypatch.chdir(tmp_path)
    start()
    assert not trap.marker.exists()

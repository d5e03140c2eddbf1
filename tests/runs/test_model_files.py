import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import git
import pytest
import torch
from hydra.utils import get_class
from physicsnemo.core import Module
from physicsnemo.core.version_check import get_physicsnemo_pkg_info
from physicsnemo.models.mlp import FullyConnected

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.runs.model_files import load_model, save_module

REFERENCE = Path(__file__).parents[1] / "models" / "data" / "flarepp_small.mdlus"


class Inner(Module):
    def __init__(self, size: int):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)


class Outer(Module):
    def __init__(self, left: Module, right: Module, scale: float = 2.0):
        super().__init__()
        self.left, self.right, self.scale = left, right, scale


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def small_model():
    return FlarePP(functional_dim=2, out_dim=1, n_layers=1, n_hidden=8, n_head=2, slice_num=4)


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def rewrite(path, members):
    """Write an archive anew with some members replaced."""
    with zipfile.ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (old | members).items():
            archive.writestr(name, data)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.mdlus"
    save_module(small_model(), path)
    return path


@pytest.mark.parametrize(
    "load",
    [
        lambda path: load_model(path, allow=(Outer, Inner, FullyConnected)),
        lambda path: Module.from_checkpoint(str(path)),
    ],
    ids=["load_model", "from_checkpoint"],
)
@pytest.mark.parametrize(
    "make",
    [
        small_model,
        lambda: FullyConnected(in_features=2, out_features=3, num_layers=1),
        lambda: Outer(Inner(2), Outer(Inner(3), Inner(4), scale=0.5), scale=3.0),
    ],
    ids=["flarepp", "physicsnemo", "nested"],
)
def test_a_model_comes_back_with_class_arguments_and_weights(tmp_path, make, load):
    model = make()
    save_module(model, tmp_path / "model.mdlus")
    again = load(tmp_path / "model.mdlus")
    assert type(again) is type(model)
    assert same_weights(again, model)
    if isinstance(model, Outer):
        assert (again.scale, again.right.scale) == (3.0, 0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["model.mdlus"]


def test_members_are_those_that_physicsnemo_writes(tmp_path):
    model = Outer(Inner(2), Outer(Inner(3), Inner(4)))
    model.save(str(tmp_path / "theirs.mdlus"))
    save_module(model, tmp_path / "ours.mdlus")
    with (
        zipfile.ZipFile(tmp_path / "theirs.mdlus") as theirs,
        zipfile.ZipFile(tmp_path / "ours.mdlus") as ours,
    ):
        assert sorted(ours.namelist()) == sorted(theirs.namelist())
        for name in ("args.json", "metadata.json"):
            assert json.loads(ours.read(name)) == json.loads(theirs.read(name))


def test_a_file_that_physicsnemo_wrote_is_loaded():
    assert same_weights(load_model(REFERENCE), Module.from_checkpoint(str(REFERENCE)))


def test_saving_works_in_a_repository_without_commits(tmp_path, monkeypatch):
    git.Repo.init(tmp_path)
    monkeypatch.chdir(tmp_path)
    get_physicsnemo_pkg_info.cache_clear()
    with pytest.raises(ValueError, match="refs.heads.* does not exist"):
        small_model().save("theirs.mdlus")  # the reason for save_module
    save_module(small_model(), "ours.mdlus")
    assert isinstance(load_model("ours.mdlus"), FlarePP)


def test_wrapped_models_and_other_names_are_refused(tmp_path):
    with pytest.raises(TypeError, match="OptimizedModule.*bare model"):
        save_module(torch.compile(small_model()), tmp_path / "model.mdlus")
    with pytest.raises(TypeError, match="AveragedModel.*bare model"):
        save_module(torch.optim.swa_utils.AveragedModel(small_model()), tmp_path / "model.mdlus")
    with pytest.raises(TypeError, match="argument left of Outer is a Linear.*from_torch"):
        save_module(Outer(torch.nn.Linear(1, 1), Inner(2)), tmp_path / "model.mdlus")
    with pytest.raises(ValueError, match=r"model\.pt, but PhysicsNeMo loads"):
        save_module(small_model(), tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_run_code_are_refused(saved, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    torch.save({"weight": RunsCode(marker)}, tmp_path / "evil.pt")
    rewrite(saved, {"model.pt": (tmp_path / "evil.pt").read_bytes()})
    # With this variable set PhysicsNeMo's loader runs the pickle: the payload is live.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(Exception), pytest.warns(UserWarning):  # noqa: B017
        Module.from_checkpoint(str(saved))
    assert marker.exists()
    marker.rmdir()

    with pytest.raises(ValueError, match=r"model\.pt in .*model\.mdlus is refused"):
        load_model(saved)
    assert not marker.exists()


@pytest.mark.parametrize("nested", [False, True])
def test_a_class_of_an_unknown_module_is_refused_without_importing_it(
    tmp_path, monkeypatch, nested
):
    path, marker = tmp_path / "model.mdlus", tmp_path / "marker"
    (tmp_path / "evil_module.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    save_module(Outer(Inner(2), Inner(2)), path)
    with zipfile.ZipFile(path) as archive:
        arguments = json.loads(archive.read("args.json"))
    entry = arguments["__physicsnemo.Module__.left"] if nested else arguments
    entry |= {"__module__": "evil_module", "__name__": "Model"}
    rewrite(path, {"args.json": json.dumps(arguments)})
    with pytest.raises(Exception):  # noqa: B017
        Module.from_checkpoint(str(path))
    assert marker.exists()  # PhysicsNeMo's loader imports what the file names
    marker.rmdir()
    del sys.modules["evil_module"]

    for allow in [(Inner, Outer), ()]:
        asked = "evil_module.Model" if allow or not nested else "Outer"
        with pytest.raises(ValueError, match=rf"{path} .* asks for the class .*{asked}; a file"):
            load_model(path, allow=allow)
    assert not marker.exists()
    with pytest.raises(ValueError, match=str(path)):
        load_model(path, allow=(Inner, Outer), trust=True)
    assert marker.exists()  # what trust means
    del sys.modules["evil_module"]


@pytest.mark.parametrize(
    ("module", "name"),
    [("subprocess", "Popen"), ("physicsnemo.core.module", "tempfile"), ("physicsnemo.no", "Model")],
)
def test_what_is_no_model_is_not_called(saved, module, name):
    arguments = {"__module__": module, "__name__": name, "__args__": {}}
    rewrite(saved, {"args.json": json.dumps(arguments)})
    with pytest.raises(ValueError, match=f"asks for the class {module}.{name}; a file may"):
        load_model(saved)
    with pytest.raises(ValueError, match=f"{saved} cannot be loaded as a model"):
        load_model(saved, trust=True)


@pytest.mark.parametrize("family", ["flare.FLARE", "transolver.Transolver"])
def test_models_of_physicsnemo_that_are_fed_come_back(tmp_path, family):
    model = get_class(f"physicsnemo.models.{family}")(
        functional_dim=2, out_dim=1, embedding_dim=2, n_layers=1, n_hidden=8, n_head=2,
        slice_num=4, use_te=False, structured_shape=None,
    )  # fmt: skip
    model.save(str(tmp_path / "model.mdlus"))
    again = load_model(tmp_path / "model.mdlus")
    assert type(again) is type(model) and same_weights(again, model)


def test_another_version_of_a_class_is_refused(saved):
    rewrite(saved, {"metadata.json": json.dumps({"mdlus_file_version": "0.0.1"})})
    with pytest.raises(ValueError, match=f"{saved} .*version '0.0.1' of FlarePP, expected '0.1.0'"):
        load_model(saved)


def test_state_beside_the_tensors_is_refused(saved, tmp_path):
    """Transformer Engine unpickles it; an empty one is what a layer without FP8 leaves."""
    weights = small_model().state_dict()
    for state, reason in [(torch.zeros(3, dtype=torch.uint8), "would unpickle"), (None, "extra")]:
        torch.save({**weights, "blocks.0._extra_state": state}, tmp_path / "weights.pt")
        rewrite(saved, {"model.pt": (tmp_path / "weights.pt").read_bytes()})
        with pytest.raises(ValueError, match=reason):
            load_model(saved)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"__name__": 1, "__module__": 2}'])
def test_arguments_that_name_no_class_are_refused(saved, text):
    rewrite(saved, {"args.json": text})
    with pytest.raises(ValueError, match=str(saved)):
        load_model(saved)


def test_damaged_files_are_refused(saved, tmp_path):
    data = saved.read_bytes()
    saved.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="not a zip archive: it is damaged"):
        load_model(saved)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    saved.write_bytes(flipped)
    with pytest.raises(ValueError, match="is damaged: Bad CRC-32"):
        load_model(saved)
    saved.write_bytes(data)
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("extra", "")
    with pytest.raises(ValueError, match="'extra'"):
        load_model(saved)
    with pytest.raises(FileNotFoundError, match=r"no model at .*nothing\.mdlus"):
        load_model(tmp_path / "nothing.mdlus")


def test_the_tar_format_is_refused_with_the_way_out(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive, tarfile.open(tmp_path / "old.mdlus", "w") as tar:
        archive.extractall(tmp_path)
        for name in archive.namelist():
            tar.add(tmp_path / name, name)
    assert isinstance(Module.from_checkpoint(str(tmp_path / "old.mdlus")), FlarePP)
    with pytest.raises(ValueError, match="tar format of PhysicsNeMo 1; write it again"):
        load_model(tmp_path / "old.mdlus")

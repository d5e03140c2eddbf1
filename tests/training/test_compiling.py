"""Which models are compiled; the machines are emulated, nothing is compiled."""

import shutil
import sysconfig
import warnings

import pytest
import torch

from physicsnemo_flarepp.training.assembly import is_compiled
from physicsnemo_flarepp.training.config import TrainingConfig

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Emulates a machine with these programs and, if asked for, Python's headers."""

    def make(programs, headers=True):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        if headers:
            (tmp_path / "Python.h").touch()

    return make


@pytest.mark.parametrize("programs", [["gcc"], ["clang"]])
def test_auto_compiles_plain_steps_on_cuda_alone(machine, programs):
    machine(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_compiled(TrainingConfig(), CUDA)
        assert not is_compiled(TrainingConfig(), CPU)
        assert not is_compiled(TrainingConfig(stream=100), CUDA)
        assert not is_compiled(TrainingConfig(compile=False), CUDA)
        assert is_compiled(TrainingConfig(compile=True), CPU)


@pytest.mark.parametrize(
    ("programs", "headers", "missing"),
    [
        ([], True, r"no C compiler \(gcc\), with"),
        (["gcc"], False, r"no header Python.h \(python3-dev\), with"),
        ([], False, r"no C compiler \(gcc\) and no header Python.h \(python3-dev\), with"),
    ],
)
def test_without_build_tools_auto_continues_uncompiled_and_true_raises(
    machine, programs, headers, missing
):
    machine(programs, headers)
    with pytest.warns(UserWarning, match=missing + ".*continues uncompiled.*gcc python3-dev"):
        assert not is_compiled(TrainingConfig(), CUDA)
    with pytest.raises(ValueError, match=missing + ".*or set training.compile to false"):
        is_compiled(TrainingConfig(compile=True), CUDA)


def test_a_compiler_named_in_the_environment_counts(machine, monkeypatch):
    machine(["/opt/cc"])
    monkeypatch.setenv("CC", "/opt/cc")
    assert is_compiled(TrainingConfig(), CUDA)

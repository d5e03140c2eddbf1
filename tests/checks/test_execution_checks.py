import pytest
import torch

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.checks import (
    FAILED,
    Check,
    Finding,
    execution,
    machine,
    ranks,
    run_checks,
)
from physicsnemo_flarepp.checks.findings import NOTED, PASSED
from physicsnemo_flarepp.mixers import MIXERS
from physicsnemo_flarepp.visualization.rendering import RenderingUnavailable

CPU = torch.device("cpu")


def statuses(findings):
    return {finding.name: finding.status for finding in findings}


def test_half_precisions_pass_and_a_wrong_one_does_not(monkeypatch):
    names = ("autocast bfloat16", "autocast float16")
    assert statuses(execution.autocast_findings(CPU)) == dict.fromkeys(names, PASSED)
    monkeypatch.setattr(execution, "_AUTOCAST_LIMITS", {torch.bfloat16: 1e-6})
    assert statuses(execution.autocast_findings(CPU)) == {names[0]: FAILED}


@pytest.mark.slow
def test_one_graph_serves_every_token_count(monkeypatch):
    monkeypatch.setattr(execution, "COMPILER", "eager")
    found = list(execution.compile_findings(CPU))
    assert statuses(found) == {
        "torch.compile, dynamic N": PASSED,
        "torch.compile, recompilations": PASSED,
    }
    assert found[1].figures.startswith("0 for two")


def test_parts_are_timed_against_the_whole(monkeypatch):
    monkeypatch.setattr(execution, "median_seconds", lambda steps, label: {1: 2.0, None: 1.0})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    found = {f.name: f for f in execution.split_findings(CPU)}
    assert found["parts, decode H=1 float32"].figures == (
        "auto takes 1 forward, 4 backward: 1000.0 ms, whole 2000.0 ms"
    )
    assert "auto takes 1 forward, 1 backward" in found["parts, decode H=8 float32"].figures
    monkeypatch.setattr(execution, "median_seconds", lambda steps, label: {1: 1.0, None: 2.0})
    slow = {f.name: f for f in execution.split_findings(CPU)}
    assert "set FLAREPP_SPLITS=1" in slow["parts, decode H=1 float32"].advice
    assert not slow["parts, decode H=8 float32"].advice


def test_streaming_passes_and_a_lost_chunk_does_not(monkeypatch):
    assert set(statuses(execution.streaming_findings(CPU)).values()) == {PASSED}
    monkeypatch.setattr(execution, "predict", lambda model, x, **_: torch.rand(*x.shape[:2], 2))
    assert set(statuses(execution.streaming_findings(CPU)).values()) == {FAILED}


def test_costs_say_what_they_are_and_compare_every_mixer_with_flare(monkeypatch):
    calls, ticks = [], iter(range(1000))
    seconds = {"flare": 1, "flarepp": 2, "attention": 5}
    monkeypatch.setattr(
        execution, "make_step", lambda mixer, n, layers, device: lambda: calls.append((n, mixer))
    )
    clock = {"now": 0.0}

    def now():
        # Every second reading is after a step.
        if next(ticks) % 2:
            clock["now"] += seconds.get(calls[-1][1], 3)
        return clock["now"]

    monkeypatch.setattr(execution.time, "perf_counter", now)
    head, *rows = execution.cost_findings(CPU)
    assert "2 blocks, C=128, H=8, M=64" in head.figures and "multiples of flare" in head.figures
    assert f"{torch.get_num_threads()} threads" in head.figures
    assert {row.status for row in rows} == {NOTED}
    found = {row.name: row.figures.split() for row in rows}
    assert found["cost, N=1,000 flarepp"] == ["2.0000", "s", "2.00", "x"]
    assert found["cost, N=10,000 attention"] == ["5.0000", "s", "5.00", "x"]
    assert len(rows) == 2 * len(MIXERS) and len(calls) == 8 * len(MIXERS)


def test_a_step_of_each_mixer_goes_forward_and_back(monkeypatch):
    models = []

    def make(*sizes, **options):
        models.append(MixerBackbone(*sizes, **options))
        return models[-1]

    monkeypatch.setattr(execution, "MixerBackbone", make)
    for mixer in MIXERS:
        execution.make_step(mixer, 50, 1, CPU)()
    for model in models:
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert len(models) == len(MIXERS)


def test_a_mixer_that_does_not_fit_is_told_and_the_others_are_timed(monkeypatch):
    def make(mixer, n_tokens, layers, device):
        def step():
            if mixer == "flare":
                raise torch.OutOfMemoryError("CUDA out of memory")

        return step

    monkeypatch.setattr(execution, "make_step", make)
    found = {row.name: row.figures for row in execution.cost_findings(CPU)}
    assert found["cost, N=1,000 flare"] == "does not fit in the device's memory"
    assert found["cost, N=1,000 flarepp"].endswith(" s")


@pytest.mark.distributed
def test_two_ranks_give_the_step_of_one():
    found = {f.name: f for f in ranks.rank_findings(2, CPU)}
    assert found["2 ranks, gloo: training step"].status == PASSED
    assert found["2 ranks, gloo: collectives"].figures.startswith("1 forward and 1 backward")
    assert "GB/s" in found["2 ranks, gloo: bandwidth"].figures


def test_more_ranks_than_gpus_are_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (found,) = ranks.rank_findings(2, torch.device("cuda"))
    assert found.status == FAILED and "1 GPUs for 2 ranks" in found.figures
    assert "--device cpu" in found.advice


def test_directories_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path / "new" / "cache"))
    monkeypatch.chdir(tmp_path)
    assert set(statuses(machine.directory_findings(CPU)).values()) == {PASSED}
    assert not list(tmp_path.iterdir())  # nothing is left behind

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    found = {f.name: f for f in machine.directory_findings(CPU)}
    assert found["cache"].status == FAILED and str(tmp_path / "new") in found["cache"].figures
    assert machine.CACHE_VARIABLE in found["cache"].advice


def test_rendering_that_fails_says_which_packages_help(monkeypatch):
    def refuse():
        raise RenderingUnavailable("install libegl1")

    monkeypatch.setattr(machine, "require_rendering", refuse)
    (found,) = machine.rendering_findings(CPU)
    assert (found.status, found.advice) == (FAILED, "install libegl1")


def test_versions_and_device_are_told():
    found = {f.name: f.figures for f in machine.version_findings(CPU)}
    assert f"torch {torch.__version__.partition('+')[0]}" in found["versions"]
    assert found["device"].startswith("cpu")


def test_an_error_is_a_finding_and_the_other_checks_go_on():
    def broken(device):
        yield Finding("first", PASSED, "")
        raise RuntimeError("CUDA error:\n  no kernel image")

    checks = [
        Check("broken", broken, "update the driver"),
        Check("next", lambda device: iter([Finding("last", PASSED, "")]), ""),
    ]
    found = list(run_checks(checks, CPU))
    assert [f.name for f in found] == ["first", "broken", "last"]
    assert found[1].figures == "RuntimeError: CUDA error: no kernel image"
    assert found[1].status == FAILED and found[1].advice == "update the driver"

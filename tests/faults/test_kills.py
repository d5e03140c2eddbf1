"""A training that is killed at any file operation goes on with the same command, bit for bit."""

import json
import multiprocessing

import pytest
from omegaconf import OmegaConf

from physicsnemo_flarepp.training import train
from tests.faults.kill_cases import FOREIGN, kill_training
from tests.training.conftest import (  # noqa: F401
    make_config,
    no_group_left,
    one_thread,
    surface_set,
)


def killed(cfg, template, tmp_path, every):
    """Run the kills in a fork of a server that has everything imported and no threads."""
    result = tmp_path / "result.json"
    process = multiprocessing.get_context("forkserver").Process(
        target=kill_training,
        args=(OmegaConf.to_container(cfg), template, str(result), every),
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    counted, whole, *found = json.loads(result.read_text())
    print(f"{len(found)} kills at {counted['operations']} operations")
    return whole, found


def check_begun(make_config, tmp_path, every):  # noqa: F811
    cfg = make_config(training__epochs=2, run_dir=str(tmp_path / "kills"))
    whole, found = killed(cfg, None, tmp_path, every)
    assert whole["hidden"] == []
    for outcome in found:
        assert not outcome["restarted"], f"refused after a kill at operation {outcome['at']}"
        for name in ("model", "losses", "hidden"):
            assert outcome[name] == whole[name], f"killed at operation {outcome['at']}"
    return len(found)


def check_restarted(make_config, tmp_path, every):  # noqa: F811
    """The directory of a finished run, with files of the user's in the run's folders."""
    template = train(make_config(training__epochs=2)).directory
    for name in FOREIGN:
        (template / name).parent.mkdir(exist_ok=True)
        (template / name).write_text("mine")
    cfg = make_config(training__epochs=2, run_dir=str(tmp_path / "kills"), restart=True)
    whole, found = killed(cfg, str(template), tmp_path, every)
    assert whole["foreign"] == list(FOREIGN) and whole["hidden"] == []
    for outcome in found:
        for name in ("model", "losses", "hidden", "foreign"):
            assert outcome[name] == whole[name], f"killed at operation {outcome['at']}"
    return len(found)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_begun, check_restarted], ids=["begun", "restarted"])
def test_a_killed_training_goes_on(make_config, tmp_path, check):  # noqa: F811
    assert check(make_config, tmp_path, every=23) >= 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [check_begun, check_restarted], ids=["begun", "restarted"])
def test_a_training_killed_at_any_operation_goes_on(make_config, tmp_path, check):  # noqa: F811
    assert check(make_config, tmp_path, every=1) > 100

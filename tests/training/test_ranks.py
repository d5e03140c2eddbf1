"""Training on real gloo ranks: the same curve for every mesh, and the same run after a kill."""

import random
import time

import pytest
import torch
from rank_processes import DEADLINE, run_training, start_training

from physicsnemo_flarepp.runs import CheckpointStore, load_training_state, read_metrics

pytestmark = pytest.mark.distributed

RATE = 1e-2
ALONE = {}  # the run of `one_process`, trained once


def losses(run_dir):
    return [row["loss"] for row in read_metrics(run_dir) if row["kind"] == "step"]


def final_state(run_dir):
    return load_training_state(CheckpointStore(f"{run_dir}/checkpoints").newest_sound(print))


@pytest.fixture
def one_process(make_config, tmp_path_factory):
    """20 steps with 2 cases each, plain, on one process."""
    if not ALONE:
        folder = str(tmp_path_factory.mktemp("alone"))
        run_training(make_config(run_dir=folder, training__learning_rate=RATE), 1)
        ALONE["run"] = folder
    return ALONE["run"]


@pytest.mark.parametrize(
    "world, context, stream",
    [(2, 2, None), (4, 4, None), (4, 2, None), (4, 2, 11)],
    ids=["1x2", "1x4", "2x2", "2x2 streamed"],
)
def test_every_mesh_gives_the_same_training_curve(one_process, make_config, world, context, stream):
    cfg = make_config(
        parallel={"context": context}, training__learning_rate=RATE, training__stream=stream
    )
    run_training(cfg, world)
    alone, sharded = losses(one_process), losses(cfg.run_dir)
    assert len(alone) == len(sharded) == 20
    assert max(abs(a - b) / a for a, b in zip(alone, sharded, strict=True)) < 1e-4
    assert alone[-1] < 0.95 * alone[0], "there is a curve"
    errors = [read_metrics(run)[-1]["error"] for run in (one_process, cfg.run_dir)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-4)


def test_ranks_that_share_weighted_tokens_give_the_curve_of_one_process(make_config, tmp_path):
    """With Muon, whose steps have the size of the rate however small a gradient is.

    The transforms need the centre of the whole draw.
    """
    centre = {"coords_key": "coordinates", "output_key": "centre"}
    shift = {"input_keys": ["coordinates"], "center_key_or_value": "centre", "subtract": True}
    changes = {
        "data__transforms": [
            {"_target_": "CenterOfMass", **centre},
            {"_target_": "Translate", **shift},
        ],
        "training__optimizer": "muon",
        "data__n_points": 30,
        "data__weights": "measure",
        "data__sampling_density": "area",
        "training__norm": "measure",
        "training__learning_rate": RATE,
    }
    alone = make_config(run_dir=str(tmp_path / "alone"), **changes)
    run_training(alone, 1)
    for stream in (None, 7):
        directory = str(tmp_path / f"sharded_{stream}")
        sharded = make_config(
            parallel={"context": 2}, run_dir=directory, training__stream=stream, **changes
        )
        run_training(sharded, 2)
        pairs = zip(losses(alone.run_dir), losses(directory), strict=True)
        assert max(abs(a - b) / a for a, b in pairs) < 1e-4, stream
        errors = [read_metrics(cfg.run_dir)[-1]["error"] for cfg in (alone, sharded)]
        assert errors[1] == pytest.approx(errors[0], rel=1e-4), stream


NOISY = {  # a mixer that draws noise on every rank
    "model___target_": "physicsnemo_flarepp.MixerBackbone",
    "model__mixer": "transolver_plus",
}


@pytest.mark.parametrize(
    "world, context, own",
    [
        (1, 1, NOISY),
        (2, 2, {**NOISY, "training__optimizer": "muon"}),
        (2, 1, NOISY),
        (4, 2, {"training__stream": 9}),
    ],
    ids=["alone", "context, muon", "data", "2x2, streamed"],
)
def test_run_killed_at_a_random_step_goes_on_bit_for_bit(
    make_config, tmp_path, world, context, own
):
    changes = {
        "parallel": {"context": context},
        "training__checkpoint_every": 3,
        "training__log_every": 1,
        **own,
    }
    whole = make_config(run_dir=str(tmp_path / "whole"), **changes)
    run_training(whole, world)

    killed = make_config(run_dir=str(tmp_path / "killed"), **changes)
    last = random.randint(4, 16)
    ranks = start_training(killed, world, seconds_per_step=0.05)
    deadline = time.monotonic() + DEADLINE
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < last:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for process in ranks.processes:
        process.kill()
    for process in ranks.processes:
        process.join()
    done = len(losses(killed.run_dir))
    assert last - 4 <= done < 20, "killed before its end"

    run_training(killed, world)
    assert losses(killed.run_dir) == losses(whole.run_dir), f"killed after step {done}"
    first, second = final_state(whole.run_dir), final_state(killed.run_dir)
    for part in ("model", "average"):
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), (name, done)

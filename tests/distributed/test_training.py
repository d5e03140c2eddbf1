"""Losses, optimiser steps, DDP, FSDP2 and checkpoints over data x context meshes."""

import pytest
from cases_training import make_optimizer, train, worst_difference
from physicsnemo.core import Module
from physicsnemo.utils import load_checkpoint

from physicsnemo_flarepp import MixerBackbone

pytestmark = pytest.mark.distributed


def test_relative_l2_of_shards_and_its_gradient_equal_the_whole(on_four_ranks):
    for result in on_four_ranks["cases_training.losses"]:
        assert len(result) == 4
        assert max(result.values()) < 1e-14


@pytest.mark.parametrize("mesh", ["4 x 1", "2 x 2", "1 x 4"])
def test_three_optimiser_steps_equal_one_process_on_the_whole_batch(on_four_ranks, mesh):
    for result in on_four_ranks["cases_training.three_steps"]:
        assert result[mesh] < 1e-10


@pytest.mark.parametrize("ranks", [2, 3])
def test_streamed_shards_have_loss_and_gradients_of_the_whole(on_four_ranks, ranks):
    for result in on_four_ranks["cases_training.streamed"][:ranks]:
        found = {case: errors for case, errors in result.items() if case[1] == ranks}
        assert len(found) == 4
        assert max(map(max, found.values())) < 1e-10, found


def test_a_rank_without_room_stops_all_ranks_of_a_streamed_step(on_four_ranks):
    messages = on_four_ranks["cases_training.streamed_failure"]
    assert "has no room for" in messages[1]
    assert all("rank 1 of the context group failed" in messages[rank] for rank in (0, 2, 3))


def test_an_overflow_on_one_rank_skips_the_update_on_all(on_four_ranks):
    """fp16's scaler with accumulated batches on 2 x 2 ranks, Muon beside AdamW."""
    results = on_four_ranks["cases_training.overflow"]
    for result in results:
        assert result["skipped"] == [8.0, *result["before"][1:]], "weights and average as before"
        assert result["done"][0] == 8.0 and result["done"] != result["skipped"]
        assert result == results[0]


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_wrappers_give_the_gradient_with_the_loss_times_the_context_size(on_four_ranks, wrapper):
    for result in on_four_ranks["cases_training.wrapped"]:
        assert max(result[wrapper].values()) < 1e-10


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP, one rank", "FSDP", "FSDP2"])
def test_models_in_wrappers_are_predicted_as_alone_or_refused(on_four_ranks, wrapper):
    for result in on_four_ranks["cases_training.unwrapped"]:
        assert result[wrapper] < 1e-12
        sharded = result[f"{wrapper}, sharded"]
        if wrapper.startswith("FSDP") and "one" not in wrapper:
            assert "the weights are sharded over ranks" in sharded
        else:
            assert sharded == result[wrapper]


def test_checkpoint_of_four_ranks_continues_on_one(on_four_ranks, tmp_path):
    from cases_model import make_model

    files = on_four_ranks["cases_training.checkpoint"][0]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = next(tmp_path.glob("*.mdlus"))
    model = Module.from_checkpoint(str(path)).double()
    assert type(model) is MixerBackbone
    assert model.context_group is None
    optimizer = make_optimizer(model)
    assert load_checkpoint(str(tmp_path), models=model, optimizer=optimizer) == 2
    continued = train(model.eval(), optimizer, [2])

    reference = make_model("flarepp")
    losses = train(reference, make_optimizer(reference), range(3))
    assert continued[0] == pytest.approx(losses[2], rel=1e-10)
    assert worst_difference(model, reference) < 1e-10

"""What can be sharded, and what says clearly that it cannot."""

import pytest
import torch
from torch import nn

from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.parallel import enable_context_parallel, initialize, make_mesh, ranks
from physicsnemo_flarepp.parallel.ranks import split_bounds

SIZES = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 3}


@pytest.fixture(scope="module")
def group():
    manager = initialize()
    yield make_mesh(1)["context"].get_group()
    manager.cleanup()


def test_full_attention_is_refused(group):
    with pytest.raises(ValueError, match="AttentionMixer cannot be sharded over tokens"):
        enable_context_parallel(MixerBackbone(2, 1, mixer="attention", n_hidden=16), group)


def test_models_without_a_mixer_are_refused(group):
    with pytest.raises(ValueError, match="Linear has no token mixer"):
        enable_context_parallel(nn.Linear(2, 2), group)


def test_positions_of_a_whole_grid_are_refused(group):
    model = FlarePP(2, 1, structured_shape=(4, 4), unified_pos=True, **SIZES)
    with pytest.raises(ValueError, match="unified_pos=True"):
        enable_context_parallel(model, group)


def test_a_grid_model_takes_some_of_its_tokens(group):
    model = enable_context_parallel(FlarePP(2, 1, structured_shape=(4, 4), **SIZES), group)
    assert model(torch.rand(1, 5, 2)).shape == (1, 5, 1)
    enable_context_parallel(model, None)
    with pytest.raises(ValueError, match="16"):
        model(torch.rand(1, 5, 2))


def test_a_shard_may_hold_no_real_token_of_a_sample(group):
    model = enable_context_parallel(FlarePP(2, 1, **SIZES), group)
    mask = torch.tensor([[True, True], [False, False]])
    assert model(torch.rand(2, 2, 2), token_mask=mask)[1].abs().sum() == 0


def test_debug_is_read_from_the_environment(group, monkeypatch):
    hooks = []
    monkeypatch.setattr(nn.Module, "register_forward_pre_hook", lambda *a, **k: hooks.append(k))
    monkeypatch.setenv("FLAREPP_DEBUG_CONTEXT", "0")
    enable_context_parallel(FlarePP(2, 1, **SIZES), group)
    assert not hooks
    monkeypatch.setenv("FLAREPP_DEBUG_CONTEXT", "1")
    enable_context_parallel(FlarePP(2, 1, **SIZES), group)
    assert len(hooks) == 1


def test_mesh_without_the_axes_is_refused(group):
    mesh = torch.distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("domain",))
    with pytest.raises(ValueError, match='axes "data" and "context"'):
        ranks.sync_gradients(FlarePP(2, 1, **SIZES), mesh)


def test_gradients_share_buckets_up_to_their_size_and_never_across_precisions(monkeypatch):
    monkeypatch.setattr(ranks, "BUCKET_BYTES", 40)
    sizes = [4, 5, 2, 20, 1]
    tensors = [torch.zeros(n, dtype=torch.bfloat16 if n == 2 else torch.float32) for n in sizes]
    tensors.append(torch.zeros(1, dtype=torch.float64))
    assert list(ranks._buckets(tensors)) == [[0, 1], [2], [3], [4], [5]]


@pytest.mark.parametrize("n_tokens", [0, 1, 7, 8])
def test_shards_cover_all_tokens_once(n_tokens):
    parts = [split_bounds(n_tokens, 3, rank) for rank in range(3)]
    assert [i for start, stop in parts for i in range(start, stop)] == list(range(n_tokens))

"""A model called with PhysicsNeMo's ShardTensors, on four gloo ranks."""

import itertools

import pytest
from cases_model import KINDS
from physicsnemo.domain_parallel import ShardTensor

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "case", list(itertools.product(["uneven", "none"], KINDS, [False, True])), ids=str
)
def test_shard_tensor_calls_equal_one_process(on_four_ranks, case):
    sizes = {"uneven": [9, 9, 9, 10], "none": [12, 12, 13, 0]}[case[0]]
    for ranks in on_four_ranks["cases_shard_tensor.equality"]:
        result = ranks[case]
        assert max(result["errors"].values()) < 1e-10
        assert result["type"] == "ShardTensor"
        assert result["shape"] == (2, 37, 2)
        assert result["placements"] == "(Shard(dim=1),)"
        assert result["sizes"] == sizes
        assert result["plain call"], "a call with plain tensors must not touch the group"


def test_grids_sharded_over_their_rows_equal_one_process(on_four_ranks):
    for errors in on_four_ranks["cases_shard_tensor.grids"]:
        assert len(errors) == 4 and max(errors.values()) < 1e-12


def test_physicsnemos_own_models_take_shard_tensors_when_served(on_four_ranks):
    for errors in on_four_ranks["cases_shard_tensor.served"]:
        assert {"flare", "flarepp-restated", "transolver"} <= set(errors)
        assert max(errors.values()) < 1e-12


def test_other_shardings_are_refused_by_name(on_four_ranks):
    for messages in on_four_ranks["cases_shard_tensor.refusals"]:
        assert "embedding must be sharded over axis 1" in messages["batch"]
        assert "expected fx or embedding as a ShardTensor" in messages["replicated"]


def test_no_handler_of_physicsnemo_is_replaced():
    import physicsnemo_flarepp.parallel.shard_tensor  # noqa: F401

    handlers = (
        *ShardTensor._function_registry.values(),
        *ShardTensor._dispatch_registry.values(),
        *ShardTensor._named_function_registry.values(),
    )
    assert not [h for h in handlers if h.__module__.startswith("physicsnemo_flarepp")]

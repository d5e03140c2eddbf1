"""Four gloo ranks that run every case once per session; the tests look at what they returned."""

import sys
from pathlib import Path

import pytest

# The ranks import the cases by name.
sys.path.insert(0, str(Path(__file__).parent))

from ranks import run_ranks  # noqa: E402

CASES = {
    "cases_model": ["equality", "geotransolver", "served", "shared_inputs"],
    "cases_features": [
        "checkpointed_blocks",
        "compiled",
        "copied_models",
        "counts",
        "counts_with_weights",
        "debug_mode",
        "decode_is_local",
        "emulated_cards",
        "half_precision",
        "large_groups",
        "rows_that_no_rank_sees",
        "tokens",
    ],
    "cases_training": [
        "checkpoint",
        "losses",
        "overflow",
        "streamed",
        "streamed_failure",
        "three_steps",
        "unwrapped",
        "wrapped",
    ],
    "cases_shard_tensor": ["equality", "grids", "refusals", "served"],
}


@pytest.fixture(scope="session")
def on_four_ranks(tmp_path_factory):
    """What every case returned, {"module.function": [result of rank 0, ..., of rank 3]}."""
    names = [f"{module}.{function}" for module, cases in CASES.items() for function in cases]
    # A busy machine may keep one rank from its core for longer than the usual timeout.
    results = run_ranks(names, 4, tmp_path_factory.mktemp("ranks"), timeout=120.0)
    return {name: [result[name] for result in results] for name in names}

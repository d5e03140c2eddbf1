"""Training on a GPU: compiled, and in every precision."""

import pytest
import torch

from physicsnemo_flarepp.training import train

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_compiled_training_learns(cuda, make_config, precision):
    changes = {"training__precision": precision, "training__learning_rate": 1e-2}
    run = train(make_config(device="cuda", training__epochs=15, training__compile=True, **changes))
    assert run.error < run.mean_predictor_error / 2


def test_eager_and_compiled_training_agree(cuda, make_config, tmp_path):
    errors = []
    for compiled in (False, True):
        changes = {"training__compile": compiled, "run_dir": str(tmp_path / str(compiled))}
        errors.append(train(make_config(device="cuda", training__epochs=2, **changes)).error)
    torch.testing.assert_close(errors[1], errors[0], rtol=1e-3, atol=0)

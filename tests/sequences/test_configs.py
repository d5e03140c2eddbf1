"""The experiments of Long Range Arena have the settings of the authors' runs."""

from dataclasses import asdict

import pytest

from physicsnemo_flarepp.models.feeding import build_model
from physicsnemo_flarepp.sequences import SequenceConfig, layout_of
from physicsnemo_flarepp.training.config import check_config
from tests.conf.composing import composed, options

pytestmark = pytest.mark.slow
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
EXPERIMENTS = [name for name in options("experiment") if name.startswith("lra/")]
MODELS = ("attention", "flare", "flarepp", "flarepp_gated", "transolver")


def test_every_task_has_its_experiments():
    assert {*EXPERIMENTS} == {f"lra/{kind}{task}" for kind in ("", "quick/") for task in TASKS}


# Length, B, C, M, feed-forward, rate, decay, steps, dropouts, pooling, positions, precision.
@pytest.mark.parametrize(
    "task, length, sizes, ffn, rate, decay, steps, dropouts, pooling, positions, precision",
    [
        ("listops", 2048, (4, 128, 64), 4, 2e-4, 3e-5, 10_000, (0, 0, 0.05, 0), "mean", "learned",
         "bf16"),
        ("text", 4096, (4, 128, 128), 4, 1.4e-5, 3e-4, 40_000, (0.08, 0.08, 0.08, 0.02), "cls",
         "rotary", "bf16"),
        ("retrieval", 4096, (4, 128, 128), 4, 5e-4, 1e-4, 10_000, (0, 0, 0, 0), "mean", "learned",
         "bf16"),
        ("image", 1024, (3, 64, 192), 2, 1.5e-3, 6e-2, 20_000, (0.08,) * 4, "mean", "learned",
         "fp32"),
        ("pathfinder", 1024, (4, 128, 128), 1, 3e-4, 1e-4, None, (0.11, 0, 0.11, 0.11), "mean",
         "learned", "fp32"),
    ],
)  # fmt: skip
def test_published_settings(task, length, sizes, ffn, rate, decay, steps, dropouts, pooling,
                            positions, precision):  # fmt: skip
    cfg = check_config(composed(f"experiment=lra/{task}"))
    model, training = cfg.model, cfg.training
    assert (model.n_layers, model.n_hidden, model.slice_num, model.n_head) == (*sizes, 8)
    places = ("embedding", "head", "attention", "projection")
    assert tuple(model[f"{place}_dropout"] for place in places) == dropouts
    assert (model.mlp_ratio, model.pooling, model.positions) == (ffn, pooling, positions)
    assert (cfg.data.length, cfg.data.batch_size, cfg.data.mask_padding) == (length, 32, True)
    assert (training.learning_rate, training.weight_decay, training.steps) == (rate, decay, steps)
    assert (training.precision, training.beta2, training.optimizer) == (precision, 0.98, "adamw")
    # One-cycle from a ten-thousandth of the peak, ending at a hundredth of it.
    assert training.div_factor * training.final_div_factor == 100
    if task == "pathfinder":
        own = (training.epochs, training.clip_norm, training.ema_decay, model.norm)
        assert own == (200, 0.5, 0.999, "layer")


def test_attention_and_flare_have_rates_of_their_own():
    cfg = composed("experiment=lra/listops", "model=attention")
    assert (cfg.training.learning_rate, cfg.training.weight_decay) == (5e-4, 1e-5)
    assert composed("experiment=lra/image", "model=attention").model.n_head == 4
    assert composed("experiment=lra/pathfinder", "model=flare").training.learning_rate == 4.5e-4
    flare = composed("experiment=lra/text", "model=flare").model
    assert flare.query_key_norm and flare.unit_scale and not flare.residual_projections


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_mixers_differ_in_parameters_as_the_paper_says(name):
    """FLARE++ has two more projections of C x C in each block than FLARE, and the same else."""
    counts = {}
    for model in MODELS if "quick" in name else ("flare", "flarepp"):
        cfg = composed(f"experiment={name}", f"model={model}")
        data = SequenceConfig(**cfg.data)
        assert {*cfg.data} == {*asdict(SequenceConfig())}
        built = build_model(cfg.model, layout_of(data), cfg.training.precision)
        counts[model] = sum(p.numel() for p in built.parameters())
    blocks, width = cfg.model.n_layers, cfg.model.n_hidden
    small = blocks * (2 * width + 4 * width // 8)  # biases, and norms of a head
    assert abs(counts["flarepp"] - counts["flare"] - 2 * blocks * width**2) <= small

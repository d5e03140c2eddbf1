import copy

import pytest
from omegaconf import OmegaConf

from physicsnemo_flarepp.training.config import (
    check_config,
    check_same_config,
    config_difference,
)

CONFIG = {
    "model": {"_target_": "a.FlarePP", "n_hidden": 128, "structured_shape": [85, 85]},
    "data": {
        "builtin": "cars",
        "batch_size": 1,
        "num_workers": 2,
        "prefetch": 2,
        "pin_memory": False,
        "device": None,
        "reader": {},
        "normalization": {"fields": "gaussian"},
    },
    "training": {
        "epochs": 10,
        "learning_rate": 1e-3,
        "tf32": True,
        "log_every": 10,
        "keep_checkpoints": 3,
        "evaluate_every": 1,
        "checkpoint_every": 1,
    },
    "parallel": {"context": 1},
    "seed": 0,
    "device": "auto",
    "label": "cars",
    "run_dir": "outputs/a",
    "restart": False,
}


def changed(name, value):
    config = OmegaConf.create(copy.deepcopy(CONFIG))
    OmegaConf.update(config, name, value, force_add=True)
    return config


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("model.n_hidden", 64, "model.n_hidden: 128 in the checkpoint, 64 now"),
        ("model.n_head", 4, "model.n_head: absent in the checkpoint, 4 now"),
        (
            "model.structured_shape",
            [85, 43],
            "model.structured_shape: [85, 85] in the checkpoint, [85, 43] now",
        ),
        (
            "data.normalization.fields",
            "none",
            "data.normalization.fields: 'gaussian' in the checkpoint, 'none' now",
        ),
        ("data.reader", {"name": "x"}, "data.reader.name: absent in the checkpoint, 'x' now"),
        ("training.epochs", 11, "training.epochs: 10 in the checkpoint, 11 now"),
        ("training.tf32", 1, "training.tf32: True in the checkpoint, 1 now"),
        ("parallel.context", 2, "parallel.context: 1 in the checkpoint, 2 now"),
        ("seed", 1, "seed: 0 in the checkpoint, 1 now"),
    ],
)
def test_what_would_change_the_run_is_shown_and_refused(name, value, line):
    assert config_difference(CONFIG, changed(name, value)) == [line]
    with pytest.raises(ValueError) as caught:
        check_same_config(CONFIG, changed(name, value))
    assert line in str(caught.value).splitlines()[1]
    assert "run_dir" in str(caught.value) and "restart=true" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "training.log_every",
        "training.keep_checkpoints",
        "training.evaluate_every",
        "training.checkpoint_every",
        "data.num_workers",
        "data.memory",
        "data.prefetch",
        "data.pin_memory",
        "data.device",
        "device",
        "label",
        "run_dir",
        "restart",
    ],
)
def test_what_changes_no_number_may_differ(name):
    assert config_difference(CONFIG, changed(name, "other")) == []
    check_same_config(CONFIG, changed(name, "other"))


def test_how_often_a_run_is_evaluated_counts_where_that_chooses_the_weights():
    saved = changed("training.select", "best")
    current = saved.copy()
    current.training.evaluate_every = 3
    line = "training.evaluate_every: 1 in the checkpoint, 3 now"
    assert config_difference(saved, current) == [line]


def test_several_differences_come_in_order():
    current = changed("seed", 5)
    current.model.n_hidden = 32
    del current.data.batch_size
    assert config_difference(CONFIG, current) == [
        "data.batch_size: 1 in the checkpoint, absent now",
        "model.n_hidden: 128 in the checkpoint, 32 now",
        "seed: 0 in the checkpoint, 5 now",
    ]


def test_a_config_read_from_its_file_is_the_same(tmp_path):
    config = OmegaConf.create(CONFIG)
    config.training.learning_rate = 1e-05
    config.model.n_head = "${seed}"
    OmegaConf.save(config, tmp_path / "config.yaml", resolve=True)
    saved = OmegaConf.load(tmp_path / "config.yaml")
    assert config_difference(saved, config) == []


def test_equal_values_of_other_types_are_equal():
    saved = {"model": {"shape": (1, 2), "ratio": 2.0, "limit": float("nan"), "options": [{"a": 1}]}}
    now = {"model": {"shape": [1, 2], "ratio": 2, "limit": float("nan"), "options": [{"a": 1}]}}
    assert config_difference(saved, now) == []
    now["model"]["options"] = [{"a": 2}]
    assert config_difference(saved, now) == [
        "model.options: [{'a': 1}] in the checkpoint, [{'a': 2}] now"
    ]


def test_only_a_run_with_wsd_may_change_its_length():
    longer = changed("training.epochs", 20)
    assert config_difference(CONFIG, longer)
    saved, now = (OmegaConf.merge(c, {"training": {"schedule": "wsd"}}) for c in (CONFIG, longer))
    assert config_difference(saved, now) == []
    assert len(config_difference(CONFIG, now)) == 1, "the schedule itself differs"


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("optimizer", "adam", "training.optimizer is 'adam'; choose one of adamw, muon"),
        ("schedule", "linear", "is 'linear'; choose one of one_cycle, cosine, wsd"),
        ("muon_learning_rate", 0, "training.muon_learning_rate is 0.0, expected a positive rate"),
        ("warmup_steps", -1, "training.warmup_steps is -1, expected at least 0"),
        ("decay_fraction", 1.5, "training.decay_fraction is 1.5, expected above 0, at most 1"),
    ],
)
def test_values_that_no_optimisation_has_are_refused(name, value, message):
    cfg = {"model": {}, "data": {"builtin": "darcy"}, "run_dir": "out", "training": {name: value}}
    with pytest.raises(ValueError, match=message):
        check_config(OmegaConf.create(cfg))

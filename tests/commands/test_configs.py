"""The configs as the command finds, explains and composes them."""

import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands import main, training
from physicsnemo_flarepp.commands.configs import (
    REGISTERED,
    completed,
    compose_config,
    config_directory,
    describe_entry,
    sweep_name,
)
from physicsnemo_flarepp.datapipes.config import DataConfig
from physicsnemo_flarepp.training.config import TrainingConfig


@pytest.fixture
def composed(monkeypatch, tmp_path):
    """The configs that a command line would train or compare, in order."""
    monkeypatch.chdir(tmp_path)
    configs = []

    def keep(cfg):
        configs.append(OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)))

    monkeypatch.setattr(training, "train", keep)
    monkeypatch.setattr(training, "compare", keep)

    def make(*arguments):
        configs.clear()
        assert main(arguments) == 0
        return list(configs)

    return make


def directories(configs):
    return [Path(cfg.run_dir).name for cfg in configs]


def test_a_single_run_is_named_after_data_model_and_seed(composed):
    overrides = ["model=flare", "seed=2", "training.epochs=3", "training.learning_rate=1e-4"]
    (cfg,) = composed("train", "experiment=quick/darcy", *overrides)
    assert cfg.run_dir == "outputs/darcy-flare-seed2"


@pytest.mark.slow
def test_jobs_of_a_sweep_have_directories_of_their_own(composed):
    configs = composed(
        "train", "-m", "experiment=quick/darcy", "training.epochs=3",
        "training.learning_rate=1e-3,1e-4", "model.slice_num=32,64", "model.n_layers=1,2",
        "seed=1", "model=flare",
    )  # fmt: skip
    names = directories(configs)
    assert len(set(names)) == len(names) == 8
    for cfg, name in zip(configs, names, strict=True):
        assert name == (
            f"darcy-flare-seed1-learning_rate={cfg.training.learning_rate}"
            f"-slice_num={cfg.model.slice_num}-n_layers={cfg.model.n_layers}"
        )


@pytest.mark.slow
def test_a_sweep_over_what_is_in_the_name_adds_nothing(composed):
    names = directories(composed("train", "-m", "data=darcy,pipe", "seed=0,1", "experiment=none"))
    assert names == [f"{data}-flarepp-seed{seed}" for data in ("darcy", "pipe") for seed in (0, 1)]
    names = directories(composed("train", "-m", "data=darcy,pipe", "label=mine"))
    assert names == ["mine-flarepp-seed0-data=darcy", "mine-flarepp-seed0-data=pipe"]


@pytest.mark.slow
def test_a_directory_that_is_given_is_taken(composed):
    first, second = composed("train", "-m", "seed=0,1", "run_dir=mine/${seed}")
    assert (first.run_dir, second.run_dir) == ("mine/0", "mine/1")


@pytest.mark.slow
def test_comparisons_of_a_sweep_have_directories_of_their_own(composed):
    configs = composed("compare", "-m", "training.epochs=1,2")
    assert [cfg.compare.directory for cfg in configs] == [
        "outputs/compare-darcy-epochs=1",
        "outputs/compare-darcy-epochs=2",
    ]


def test_names_of_sweeps_are_safe_short_and_distinct():
    def name(*job):
        return sweep_name(job, ["-m", *(f"{text},other" for text in job)], "run_dir")

    assert name("experiment=quick/pipe") == "-experiment=quick.pipe"
    assert name("a.x=1", "b.x=2", "a.y=3") == "-a.x=1-b.x=2-y=3"
    assert name("data.reader.fields=[p,q]") != name("data.reader.fields=[p_q]")
    long = [name(f"data.root=/{'x' * 300}/{number}") for number in range(2)]
    assert long[0] != long[1] and all(len(text) < 120 for text in long)
    for text in (*long, name("data.reader.fields=['p q',/r]")):
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.=-")


def test_the_job_sees_the_command_of_the_user(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flarepp", "train", "seed=5"])
    seen = []
    monkeypatch.setattr(training, "train", lambda cfg: seen.append((list(sys.argv), cfg.seed)))
    assert main() == 0
    assert seen == [(["flarepp", "train", "seed=5"], 5)]


@pytest.mark.slow
def test_one_failed_job_fails_the_sweep_and_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    done = []

    def run(cfg):
        if cfg.seed == 0:
            raise ValueError("seed 0 is not to be had")
        done.append(cfg.seed)

    monkeypatch.setattr(training, "train", run)
    assert main(["train", "-m", "seed=0,1"]) == 2
    told = capsys.readouterr().err
    assert done == [1] and "['seed=0']" in told and "Traceback" not in told
    assert told.endswith("flarepp train: seed 0 is not to be had\n")


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_help_lists_every_option_and_value(verb, capsys):
    assert main([verb, "--help", "all"]) == 0
    text = capsys.readouterr().out
    for path in config_directory().glob("*/**/*.yaml"):
        group, *names = path.relative_to(config_directory()).with_suffix("").parts
        shown = f"  {group}={'/'.join(names)} " in text or f"* {group}={'/'.join(names)} " in text
        assert shown != path.name.startswith("_"), path
    for group, names in REGISTERED.items():
        assert all(f"{group}={name} " in text for name in names), group
    with initialize_config_module("physicsnemo_flarepp.conf", version_base="1.3"):
        cfg = compose("train")
    for key in ("seed", "run_dir", *cfg.model, *cfg.training, *cfg.data):
        assert key == "_target_" or f" {key}: " in text, key
    default = {"train": "quick/cars", "compare": "quick/darcy"}[verb]
    assert f"* experiment={default} " in text and "* model=flarepp " in text


def test_options_are_explained():
    lines = describe_entry("train", "train", "train", everything=True).splitlines()
    for line in (line for line in lines if line[2:].startswith("model=")):
        assert line[36:].strip(), line


def test_every_value_has_a_help_of_its_own():
    told = [f.metadata["help"] for kind in (DataConfig, TrainingConfig) for f in fields(kind)]
    assert all(told) and len(set(told)) == len(told)


@pytest.mark.parametrize("verb", ["train", "compare", "prepare"])
def test_short_help_fits_two_screens_and_names_every_option_and_keys_that_exist(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 54 and max(map(len, lines)) <= 80
    words = text.replace("*", " ").split()
    for group in ("experiment", "model", "data", "training"):
        for path in (config_directory() / group).rglob("*.yaml"):
            name = str(path.relative_to(config_directory() / group).with_suffix(""))
            assert (name in words) != path.name.startswith("_"), path
    cfg = OmegaConf.to_container(compose_config("train", []), resolve=False)
    for line in lines[lines.index("Common values") + 1 :]:
        *sections, key = line.split()[0].split(".")
        content = cfg[sections[0]] if sections else cfg
        assert key.endswith(":") or key in content, line


def test_flags_may_follow_overrides(composed):
    first, second = composed("train", "seed=0,1", "-m", "training.epochs=3")
    assert (first.seed, second.seed, second.training.epochs) == (0, 1, 3)


def test_words_that_are_not_ascii_are_quoted_for_hydra():
    given = ["data.fields=[p,Größe,'Maß a']", "data.root=/daten/Flächen 2"]
    quoted = ["data.fields=[p,\"Größe\",'Maß a']", 'data.root="/daten/Flächen 2"']
    assert completed("prepare", given) == quoted


def test_configs_are_a_package_for_the_search_path(tmp_path):
    with initialize_config_module("physicsnemo_flarepp.conf", version_base="1.3"):
        assert compose("train", ["model=flare"]).model.mixer == "flare"
    (tmp_path / "mine.yaml").write_text("defaults: [{model: flarepp}, {training: quick}]\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        cfg = compose("mine", ["hydra.searchpath=[pkg://physicsnemo_flarepp.conf]"])
    assert (cfg.model.n_layers, cfg.training.epochs) == (8, 12)

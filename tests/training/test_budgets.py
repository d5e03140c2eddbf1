"""The length of a run in steps or minutes, and what Python and the command line fill in alike."""

import shutil

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from run_cases import rows

import physicsnemo_flarepp.training.run as run_module
from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.datapipes import from_arrays
from physicsnemo_flarepp.runs.model_files import load_model
from physicsnemo_flarepp.training import run as training_run
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.config import check_config
from physicsnemo_flarepp.training.run import with_defaults


@pytest.mark.parametrize("schedule", ["one_cycle", "wsd"])
def test_a_run_of_steps_resumes_to_the_same_weights(make_config, tmp_path, schedule):
    """Its 7 steps are one epoch of 5 and a part of another; the checkpoint is inside the second."""
    budget = {"epochs": None, "steps": 7, "checkpoint_every": 3, "schedule": schedule,
              "warmup_steps": 1, "keep_checkpoints": 9}  # fmt: skip
    changes = {f"training__{key}": value for key, value in budget.items()}
    whole = train(make_config(**changes))
    assert [row["step"] for row in rows(whole.directory, "step")] == list(range(1, 8))
    assert [row["step"] for row in rows(whole.directory, "evaluation")] == [5, 7]
    assert whole.selection.epoch == 2
    other = tmp_path / "resumed"
    shutil.copytree(whole.directory, other)
    (other / "model.mdlus").unlink()
    shutil.rmtree(max((other / "checkpoints").glob("step_*")))
    again = train(make_config(run_dir=str(other), **changes))
    assert [row["step"] for row in rows(other, "step")] == list(range(1, 8))
    one, two = (load_model(d / "model.mdlus").state_dict() for d in (whole.directory, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(whole.errors, again.errors)


def test_minutes_become_steps_once(make_config, monkeypatch):
    asked = []
    monkeypatch.setattr(run_module, "steps_in_time", lambda *_: asked.append(1) or 7)
    cfg = make_config(training__epochs=None, training__minutes=0.5)
    first = train(cfg)
    stored = OmegaConf.load(first.directory / "config.yaml").training
    assert (stored.minutes, stored.steps, stored.epochs) == (0.5, 7, None)
    train(make_config(training__epochs=None, training__minutes=0.5))  # the same command again
    assert asked == [1] and rows(first.directory, "step")[-1]["step"] == 7


def test_threads_that_were_found_fastest_are_kept(make_config, monkeypatch):
    found = []
    monkeypatch.setattr(run_module, "fastest_threads", lambda *_: found.append(1) or 2)
    first = train(make_config(threads="auto", training__epochs=1))
    assert OmegaConf.load(first.directory / "config.yaml").threads == 2
    torch.set_num_threads(1)
    train(make_config(threads="auto", training__epochs=1))  # resumes as it began
    assert found == [1] and torch.get_num_threads() == 2


@pytest.mark.parametrize("fastest", [1, 3])
def test_the_fastest_number_of_threads_is_found(fastest, make_config, monkeypatch):
    now, tried = [0.0], set()

    def clock():
        threads = torch.get_num_threads()
        tried.add(threads)
        now[0] += 1.0 if threads == fastest else 2.0
        return now[0]

    torch.set_num_threads(3)
    cfg = check_config(make_config(threads="auto"))
    ranks = training_run.start_ranks(cfg)
    loaders = training_run.load_data(cfg, ranks)
    monkeypatch.setattr(training_run.time, "perf_counter", clock)
    assert training_run.fastest_threads(cfg, ranks, loaders) == fastest
    assert tried == {1, 3}


@pytest.mark.parametrize("threads", [0, "many", 1.5, True])
def test_threads_are_a_number_or_auto(threads, make_config):
    with pytest.raises(ValueError, match=f"threads is {threads!r}, expected at least 1, 'auto'"):
        check_config(make_config(threads=threads))


def test_steps_are_timed_without_a_trace(make_config):
    """The timed steps are of another model: the run starts as if they had not been."""
    timed = train(make_config(training__epochs=None, training__minutes=1e-3))
    steps = OmegaConf.load(timed.directory / "config.yaml").training.steps
    changes = {"training__epochs": None, "training__steps": steps}
    plain = train(make_config(run_dir=f"{timed.directory}_plain", **changes))
    losses = [[row["loss"] for row in rows(r.directory, "step")] for r in (timed, plain)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"epochs": None}, "the length of the run is not given"),
        ({"epochs": 3, "steps": 5}, "give one of training.epochs, training.steps"),
        ({"epochs": None, "minutes": -1.0}, "expected a positive time"),
    ],
)
def test_a_run_has_one_length(make_config, given, message):
    changes = {f"training__{key}": value for key, value in given.items()}
    with pytest.raises(ValueError, match=message):
        check_config(make_config(**changes))


def sections(cfg, *names):
    return {name: OmegaConf.to_container(cfg[name]) for name in names}


@pytest.mark.parametrize("model", ["flarepp", "flare"])
def test_the_same_words_train_the_same_model_everywhere(model):
    changed = ["training.minutes=10", "label=own", "run_dir=own"]
    line = compose_config("train", ["data=own", f"model={model}", *changed])
    given = {"model": model, "training": {"minutes": 10}}
    held = with_defaults(given, in_memory=True)
    assert sections(line, "model", "training") == sections(held, "model", "training")
    files = with_defaults({**given, "data": {"root": "data/own"}}, in_memory=False)
    assert sections(line, "model", "training", "data") == sections(
        files, "model", "training", "data"
    )
    assert (line.training.steps, line.model.n_layers, line.data.weights) == (None, 2, "auto")
    compared = compose_config("compare", ["data=own", f"model={model}", *changed])
    assert sections(compared, "model", "training") == sections(line, "model", "training")


def test_own_data_has_a_budget_in_steps_unless_another_length_is_given():
    shared = ["data=own", "label=own", "run_dir=own"]
    assert compose_config("train", shared).training.steps == 3000
    training = compose_config("train", [*shared, "training.epochs=4"]).training
    assert (training.epochs, training.steps) == (4, None)
    assert compose_config("train", ["label=cars", "run_dir=cars"]).training.epochs == 235


def test_no_data_is_the_built_in_default():
    line = compose_config("train", ["model=flare", "label=cars", "run_dir=x"])
    held = with_defaults({"model": "flare"}, in_memory=False)
    names = ("model", "training", "data")
    assert sections(line, *names) == sections(held, *names)
    assert held.run_dir == "outputs/cars-flare-seed0"
    files = with_defaults({"data": {"root": "sets/my cars"}}, in_memory=False)
    assert files.run_dir == "outputs/own-my_cars-flarepp-seed0"


@pytest.mark.parametrize("width, weights", [(2, "measure"), (3, "none")])
def test_tokens_are_weighted_where_their_areas_are_known(width, weights, tmp_path):
    """Points in a plane have areas, a cloud in space has none."""
    rng = np.random.default_rng(0)
    data = from_arrays(rng.random((5, 20, width)), {"u": rng.random((5, 20))})
    small = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    run = train(
        {"model": small, "training": {"steps": 3}, "run_dir": str(tmp_path / "run")}, data=data
    )
    stored = OmegaConf.load(run.directory / "config.yaml")
    assert stored.data.weights == weights
    assert stored.training.norm == ("measure" if weights == "measure" else "tokens")


def test_a_new_run_starts_from_the_weights_of_another(make_config, tmp_path):
    first = train(make_config())
    changes = {"training__start_from": str(first.directory), "training__learning_rate": 1e-12,
               "training__weight_decay": 0.0, "training__epochs": 1}  # fmt: skip
    second = train(make_config(run_dir=str(tmp_path / "second"), **changes))
    torch.testing.assert_close(second.errors, first.errors, rtol=1e-4, atol=0)
    other = make_config(run_dir=str(tmp_path / "third"), model__n_hidden=32, **changes)
    with pytest.raises(ValueError, match="whose model is another: .* weights differ, such as"):
        train(other)
    assert not (tmp_path / "third").exists(), "what is refused leaves no folder"


def test_adapters_are_trained_resumed_and_merged(make_config, tmp_path):
    first = train(make_config())
    changes = {"training__start_from": str(first.directory), "training__checkpoint_every": 3,
               "training__keep_checkpoints": 9, "training__epochs": 2}  # fmt: skip
    adapt = {**changes, "training__lora_rank": 2, "training__learning_rate": 1e-2}
    whole, again = tmp_path / "whole", tmp_path / "again"
    result = train(make_config(run_dir=str(whole), **adapt))
    base, adapted = (
        load_model(folder / "model.mdlus").state_dict() for folder in (first.directory, whole)
    )
    assert base.keys() == adapted.keys()
    for name, weight in base.items():
        change = adapted[name] - weight
        if name.startswith("blocks.") and weight.ndim == 2:
            values = torch.linalg.svdvals(change.double())
            assert values[2:].max() < 1e-3 * values[1], f"{name} changes by a matrix of rank 2"
        else:
            assert not change.any(), name
    shutil.copytree(whole, again)
    (again / "model.mdlus").unlink()
    shutil.rmtree(max((again / "checkpoints").glob("step_*")))
    assert torch.equal(train(make_config(run_dir=str(again), **adapt)).errors, result.errors)
    resumed = load_model(again / "model.mdlus").state_dict()
    assert all(torch.equal(resumed[name], weight) for name, weight in adapted.items())
    still = {**changes, "training__start_from": str(whole), "training__learning_rate": 1e-12,
             "training__weight_decay": 0.0}  # fmt: skip
    merged = train(make_config(run_dir=str(tmp_path / "merged"), **still))
    torch.testing.assert_close(merged.errors, result.errors, rtol=1e-4, atol=0)
    with pytest.raises(ValueError, match="training.lora_rank is 2, but adapters need weights"):
        train(make_config(run_dir=str(tmp_path / "none"), training__lora_rank=2))


def test_more_epochs_on_a_finished_run_say_what_allows_it(make_config):
    train(make_config())
    told = ".*training.start_from=.*/run run_dir=NEW.*training.schedule=wsd"
    line = "\n  - training.epochs: 4 in the checkpoint, 5 now\n"
    with pytest.raises(ValueError, match=f"(?s){line}{told}"):
        train(make_config(training__epochs=5))

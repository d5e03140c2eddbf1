from unittest.mock import Mock

import numpy as np
import pytest
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.commands.data import read_data_config
from physicsnemo_flarepp.datapipes.inspection import check_cases, inspect_data
from physicsnemo_flarepp.datapipes.readers import CaseReader
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.trainer import NonFiniteLoss, Trainer
from tests.own_data.making import STRETCH, surface


@pytest.fixture
def cars(tmp_path):
    folder = tmp_path / "cars"
    folder.mkdir()
    for i, stretch in enumerate(STRETCH):
        surface(stretch).save(folder / f"car_{i}.vtp")
    return folder


def test_a_folder_is_told_with_a_config_and_a_command_that_fit_it(cars, tmp_path, capsys):
    written = tmp_path / "configs" / "data" / "mine.yaml"
    assert main(["inspect", str(cars), "--output", str(written)]) == 0
    told = capsys.readouterr().out
    assert "tau    cell data          80 x 3  float32" in told
    assert "a      value of the case  1" in told and "input of the case" in told
    command = told.splitlines()[-2]
    assert command.startswith("flarepp train data=own data.root=")
    assert OmegaConf.load(written).fields == ["Cp", "tau"]
    assert main(["inspect", "--check", str(written)]) == 0
    assert "6 cases fit together" in capsys.readouterr().out
    overrides = inspect_data(cars).overrides()
    assert read_data_config(overrides)["globals"] == ["a"]


def test_a_cloud_in_space_is_not_measured(tmp_path, capsys):
    for i in range(3):
        points = np.random.default_rng(i).random((20, 3))
        np.savez(tmp_path / f"cloud {i}.npz", pos=points, p=points[:, 0])
    assert main(["inspect", str(tmp_path)]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert command.endswith("data.weights=none training.norm=tokens")
    assert read_data_config(inspect_data(tmp_path).overrides())["weights"] == "none"


def test_a_file_is_told(cars, capsys):
    assert main(["inspect", str(cars / "car_0.vtp")]) == 0
    told = capsys.readouterr().out
    assert "surface of polygons: 80 cells, 42 points" in told and "guess: globals are a" in told


def test_nothing_to_inspect_is_wrong_use(capsys):
    assert main(["inspect"]) == 2
    assert main(["inspect", "no/such/folder"]) == 2
    assert "does not exist" in capsys.readouterr().err


def miss(mesh):
    del mesh.cell_data["tau"]


def swap(mesh):
    mesh.point_data["Cp"] = mesh.points[:, 0]
    mesh.point_data["tau"] = mesh.points
    mesh.cell_data.clear()


def flatten(mesh):
    mesh.cell_data["tau"] = mesh.cell_data["Cp"]


def millimetres(mesh):
    mesh.points *= 1000


def kilopascals(mesh):
    mesh.cell_data["Cp"] *= 1000


def diverge(mesh):
    mesh.cell_data["Cp"][5] = np.nan


def squash(mesh):
    mesh.points[:, 2] = 0


HARMS = pytest.mark.parametrize(
    "harm, message",
    [
        (miss, "bad.vtp has no array 'tau'"),
        (swap, "bad.vtp: Cp is point data, tau is point data, but data.association is cells"),
        (flatten, "bad.vtp: fields is ['Cp', 'tau'], but ['Cp', 'tau_x', 'tau_y', 'tau_z']"),
        (millimetres, "as the size along y, the median of all cases is"),
        (kilopascals, "as the largest value of fields Cp, the median of all cases is"),
        (diverge, "values of fields NaN or infinite (Cp, first at row 5)"),
        (squash, "bad is flat along z (extent 0), unlike {others} others"),
    ],
)


@HARMS
def test_a_case_that_does_not_fit_is_named_with_file_array_and_what_was_found(harm, message, cars):
    mesh = surface(1.2)
    harm(mesh)
    mesh.save(cars / "bad.vtp")
    names = {"fields": ["Cp", "tau"], "features": [], "globals": ["a"], "association": "cells"}
    cfg = {"root": str(cars), "reader": {"_target_": "OwnReader"}, **names}
    count, problems = check_cases(cfg, progress=False)
    message = message.replace("{others}", "6")
    assert count == 7 and any(message in problem for problem in problems), problems
    assert all("bad.vtp" in problem for problem in problems)


@HARMS
def test_a_folder_is_not_judged_by_its_first_case(harm, message, cars, capsys):
    mesh = surface(1.2)
    harm(mesh)
    mesh.save(cars / "xbad.vtp")
    assert main(["inspect", str(cars)]) == 2
    told = capsys.readouterr().out
    assert "5 of 7 cases read; `flarepp inspect --check data=own data.root=" in told
    problems = [line for line in told.splitlines() if line.startswith("problem: ")]
    assert message.replace("{others}", "4") in "\n".join(problems)
    assert all("xbad.vtp" in problem for problem in problems)


def test_a_set_without_inputs_that_differ_is_told(tmp_path, capsys):
    points = np.random.default_rng(0).random((20, 2))
    for i in range(6):
        np.savez(tmp_path / f"{i}.npz", pos=points, p=points[:, 0] * (i + 1))
    assert main(["inspect", str(tmp_path)]) == 2
    assert "problem: no input differs between these 5 cases" in capsys.readouterr().out
    for i in range(6):
        np.savez(tmp_path / f"{i}.npz", pos=points, p=points[:, 0] * (i + 1), mu=float(i))
    assert main(["inspect", str(tmp_path)]) == 0
    assert "problem" not in capsys.readouterr().out


@pytest.fixture
def heat(tmp_path):
    """Thirty solutions on one mesh, a file per array; a parameter of either sign is near 0 once."""
    rng, folder = np.random.default_rng(0), tmp_path / "heat"
    folder.mkdir()
    points, mu = rng.random((50, 2)), np.stack([rng.uniform(1, 2, 30), rng.uniform(-1, 1, 30)], 1)
    mu[0, 1] = 1e-5
    arrays = {"coords": points, "params": mu, "T": mu[:, :1] * points[:, 0] + mu[:, 1:]}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_a_parameter_near_zero_is_not_in_other_units(heat, capsys):
    assert main(["inspect", str(heat)]) == 0
    told = capsys.readouterr().out
    assert "problem" not in told
    assert "guess: one entry along the first axis is one of 30 cases: T, params" in told
    assert "guess: the same in all cases: coords" in told
    assert main(["inspect", "--check", "data=own", f"data.root={heat}"]) == 0
    mu = np.load(heat / "params.npy")
    mu[29, 0] *= 1000
    np.save(heat / "params.npy", mu)
    assert main(["inspect", str(heat)]) == 2
    blamed = f"problem: {heat}: case case_29 has {mu[29, 0]:.4g} as the value of params_1"
    assert blamed in capsys.readouterr().out


def test_a_field_that_is_0_everywhere_has_no_relative_error(heat, tmp_path, capsys):
    values = np.load(heat / "T.npy")
    values[:] = 0
    values[0] = 1
    np.save(heat / "T.npy", values)
    assert main(["inspect", "--check", "data=own", f"data.root={heat}"]) == 2
    told = capsys.readouterr().out
    assert told.count("T of case case_") == 29 and "leave the case out" in told
    run = ["data=own", f"data.root={heat}", f"run_dir={tmp_path / 'run'}", "training.steps=4"]
    assert main(["train", *run, "training.evaluate_every=null"]) == 1
    told = capsys.readouterr().err
    assert "the loss is inf" in told and "0 everywhere, so its relative error is undefined" in told
    assert "training.learning_rate" not in told


def test_files_that_are_gone_do_not_hide_a_loss_that_is_not_finite(heat, tmp_path, monkeypatch):
    values = np.load(heat / "T.npy")
    values[1:] = 0
    np.save(heat / "T.npy", values)
    fail = Trainer._fail

    def lose_files_and_fail(self, *arguments):
        monkeypatch.setattr(CaseReader, "case", Mock(side_effect=FileNotFoundError))
        fail(self, *arguments)

    monkeypatch.setattr(Trainer, "_fail", lose_files_and_fail)
    settings = ["data=own", f"data.root={heat}", "training.steps=4", "device=cpu"]
    cfg = compose_config("train", [*settings, f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(NonFiniteLoss, match="the loss is .* on the cases .*learning_rate"):
        train(cfg)


def test_what_cannot_be_used_is_an_error_with_its_reason(heat, capsys):
    np.save(heat / "coords.npy", np.load(heat / "coords.npy").T.copy())
    assert main(["inspect", str(heat)]) == 2
    shown = capsys.readouterr()
    assert "Transposed?" in shown.out and "Transposed?" in shown.err


def test_a_wrong_name_blames_no_single_file_of_several(heat):
    cfg = {"root": str(heat), "reader": {"_target_": "OwnReader"}, "fields": ["temp"]}
    _, (problem, *_) = check_cases(cfg, progress=False)
    assert problem.startswith("none of ") and "has an array 'temp'; present: T (array" in problem
    assert all(f"{name}.npy" in problem for name in ("T", "coords", "params"))

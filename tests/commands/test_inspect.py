import numpy as np
import pytest
from omegaconf import OmegaConf

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.inspect import read_data_config
from physicsnemo_flarepp.datapipes.inspection import check_cases, inspect_data
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
    assert main(["inspect", str(cars)]) == 0
    told = capsys.readouterr().out
    assert "5 of 7 cases read; `flarepp inspect --check data=own data.root=" in told
    problems = [line for line in told.splitlines() if line.startswith("problem: ")]
    assert message.replace("{others}", "4") in "\n".join(problems)
    assert all("xbad.vtp" in problem for problem in problems)


def test_a_set_without_inputs_that_differ_is_told(tmp_path, capsys):
    points = np.random.default_rng(0).random((20, 2))
    for i in range(6):
        np.savez(tmp_path / f"{i}.npz", pos=points, p=points[:, 0] * i)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "problem: no input differs between these 5 cases" in capsys.readouterr().out
    for i in range(6):
        np.savez(tmp_path / f"{i}.npz", pos=points, p=points[:, 0] * i, mu=float(i))
    assert main(["inspect", str(tmp_path)]) == 0
    assert "problem" not in capsys.readouterr().out

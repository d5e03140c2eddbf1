"""Loading run directories: what is read, what is not, and what is missing."""

import shutil
import zipfile

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.datapipes import Normalizer
from physicsnemo_flarepp.evaluation import load_run, predict_case
from physicsnemo_flarepp.runs import CheckpointStore, load_model, save_module
from tests.evaluation import making


def test_statistics_come_from_the_run_and_other_data_can_be_given(surface_run, tmp_path):
    other = making.write_surfaces(tmp_path / "other", first=50)
    run = load_run(surface_run, device="cpu", data_root=other)
    stored = Normalizer.load(surface_run / "normalizer.safetensors").state_dict()
    assert all(torch.equal(run.normalizer.state_dict()[name], stored[name]) for name in stored)
    case = predict_case(run, 0)
    assert case.case_id == "run_53"
    np.testing.assert_allclose(case.target[:, 0], making.body(53)["pMeanTrim"], atol=1e-3)


def test_the_model_is_ready_to_predict(loaded):
    assert loaded.name == "surfaces" and not loaded.model.training
    assert loaded.test_set.options.n_points is None


def test_a_run_is_loaded_where_its_data_is_not(surface_run, tmp_path):
    copy = shutil.copytree(surface_run, tmp_path / "copy")
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("root: ", "root: /nowhere"))
    run = load_run(copy, device="cpu")
    assert run.channels.fields == {"pMeanTrim": 1, "wallShearStressMeanTrim": 3}
    with pytest.raises(FileNotFoundError, match="cannot be opened.*nowhere.*--data-root"):
        predict_case(run, 0)


@pytest.mark.parametrize("name", ["config.yaml", "normalizer.safetensors", "model.mdlus"])
def test_a_missing_file_is_named_with_the_next_step(surface_run, tmp_path, name):
    copy = shutil.copytree(surface_run, tmp_path / "copy")
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing.*flarepp train"):
        load_run(copy)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="run directory .*none does not exist"):
        load_run(tmp_path / "none")


def test_best_and_latest_checkpoints(surface_run, tmp_path):
    copy = shutil.copytree(surface_run, tmp_path / "copy")
    model = load_model(copy / "model.mdlus")
    with pytest.raises(FileNotFoundError, match="no best checkpoint"):
        load_run(copy, checkpoint="best")
    store = CheckpointStore(copy / "checkpoints")
    for step, error in ((1, 0.1), (2, 0.5), (3, 0.9)):
        for parameter in model.parameters():
            parameter.data.fill_(step)
        store.save(step, {}, model, epoch=0, metric=error)
    with open(copy / "checkpoints" / "step_00000003" / "model.mdlus", "ab") as file:
        file.write(b"damage")
    with pytest.warns(UserWarning, match="step_00000003 is damaged"):
        latest = load_run(copy, checkpoint="latest", device="cpu")
    best = load_run(copy, checkpoint="best", device="cpu")
    for run, step in ((latest, 2), (best, 1)):
        assert all((parameter == step).all() for parameter in run.model.parameters())
    with pytest.raises(ValueError, match="checkpoint is 'newest'"):
        load_run(copy, checkpoint="newest")


def test_weights_that_run_code_are_refused(surface_run, tmp_path):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "attacked"), "w"))

    copy = shutil.copytree(surface_run, tmp_path / "copy")
    save_module(load_model(copy / "model.mdlus"), tmp_path / "plain.mdlus")
    torch.save({"weights": Attack()}, tmp_path / "bad.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.mdlus") as plain,
        zipfile.ZipFile(copy / "model.mdlus", "w") as bad,
    ):
        for name in ("args.json", "metadata.json"):
            bad.writestr(name, plain.read(name))
        bad.writestr("model.pt", (tmp_path / "bad.pt").read_bytes())
    with pytest.raises(ValueError, match="refused"):
        load_run(copy)
    assert not (tmp_path / "attacked").exists()


def test_other_data_brings_its_own_test_cases(surfaces, tmp_path):
    """Lists, counts and manifest of the training say nothing about another folder."""
    surfaces = shutil.copytree(surfaces, tmp_path / "set")
    manifest = surfaces / "mine.json"
    manifest.write_text('{"train": ["run_0", "run_1"], "test": ["run_2"]}')
    data = making.surface_data(surfaces, n_train=2, n_test=1)
    data["splits"] = str(manifest)
    directory = making.write_run(tmp_path / "run", data)
    assert load_run(directory, device="cpu").case_ids == ["run_2"]
    other = making.write_surfaces(tmp_path / "other", n_train=1, n_test=3, first=50)
    run = load_run(directory, device="cpu", data_root=other)
    assert run.case_ids == ["run_51", "run_52", "run_53"]


def test_test_cases_alone_are_enough(surface_run, darcy_run, tmp_path):
    other = making.write_surfaces(tmp_path / "other", n_train=2, n_test=1, first=50)
    for number in (50, 51):
        shutil.rmtree(other / f"run_{number}")
    run = load_run(surface_run, device="cpu", data_root=other)
    assert run.case_ids == ["run_52"] and predict_case(run, 0).prediction.shape == (320, 4)
    grids = making.write_darcy(tmp_path / "grids")
    next(grids.glob("*smooth1.mat")).unlink()
    assert len(load_run(darcy_run, device="cpu", data_root=grids).case_ids) == 3


def test_training_cases_are_not_opened(surface_run, surfaces, tmp_path):
    moved = shutil.copytree(surfaces, tmp_path / "moved")
    config = shutil.copytree(surface_run, tmp_path / "run") / "config.yaml"
    config.write_text(config.read_text().replace(str(surfaces), str(moved)))
    for number in (0, 1, 2):
        (moved / f"run_{number}" / f"boundary_{number}.vtp").write_bytes(b"damaged")
    run = load_run(config.parent, device="cpu")
    assert run.case_ids == ["run_3", "run_4"] and predict_case(run, 0).case_id == "run_3"

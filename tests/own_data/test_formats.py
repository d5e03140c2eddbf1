"""Every format of own data from the file to the figure."""

import pytest
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.datapipes.sources import complete_names
from physicsnemo_flarepp.meshes import read_mesh
from physicsnemo_flarepp.training import train

from .making import FORMATS, N_CASES, write

SMALL = ["model.n_layers=1", "model.n_hidden=16", "model.slice_num=8", "training.epochs=2"]
# Files that hold no parameters.
SILENT = (".stl", ".ply", ".vtp", ".csv")
CHEAP = ("vtu_volume", "npz")


def settings(name, tmp_path):
    """Overrides for a small run on the files of a format, which are written; and one of them."""
    overrides, file, _ = write(name, tmp_path / "data")
    told = [f"data.root={tmp_path / 'data'}", f"run_dir={tmp_path / 'run'}", "data.num_workers=0"]
    return ["data=own", *told, *overrides, *SMALL], file


def use(name, tmp_path, file):
    """Evaluate a run, predict a case and a file, and look for the fields in what is written."""
    run = str(tmp_path / "run")
    assert main(["evaluate", run]) == 0
    assert main(["predict", run, "--cases", "0"]) == 0
    if file is None:
        return
    fields, _, values = FORMATS[name][3].split("|")
    parameters = ["--global", "a=1.2"] if values and file.suffix in SILENT else []
    output = ["--output", str(tmp_path / "predicted")]
    assert main(["predict", run, str(file), *output, *parameters]) == 0
    (written,) = (tmp_path / "predicted").iterdir()
    data = read_mesh(written).data
    assert {f"{field}_predicted" for field in fields.split()} <= {*data["cell"], *data["point"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_files_are_read_by_the_names_that_a_person_would_guess(name, tmp_path):
    overrides, _, expected = write(name, tmp_path / "data")
    told = [f"data.root={tmp_path / 'data'}", "data.num_workers=0", *overrides]
    cfg = compose_config("train", ["data=own", *told]).data
    names, guesses = complete_names(cfg)
    assert {key: list(names[key]) for key in expected} == expected
    assert bool(guesses) == (None in (cfg.fields, cfg.features, cfg.globals))
    loaders = build_dataloaders(cfg)
    readers = [loaders.train.dataset.reader, loaders.test.dataset.reader]
    assert sum(map(len, readers)) == N_CASES
    batch = next(iter(loaders.train))
    assert batch["fields"].isfinite().all() and batch["coordinates"].abs().max() < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_a_format_goes_from_the_file_to_the_prediction(name, tmp_path):
    overrides, file = settings(name, tmp_path)
    result = train(compose_config("train", [*overrides, "label=own"]))
    DistributedManager.cleanup()
    assert result.errors.isfinite().all()
    use(name, tmp_path, file)
    assert (tmp_path / "run" / "evaluation.csv").is_file()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_goes_from_the_file_to_the_figure(name, tmp_path):
    overrides, file = settings(name, tmp_path)
    assert main(["train", *overrides]) == 0
    DistributedManager.cleanup()
    use(name, tmp_path, file)
    run = tmp_path / "run"
    assert main(["plot", str(run), "--figures", "comparison", "training"]) == 0
    assert any((run / "figures").rglob("*.png"))

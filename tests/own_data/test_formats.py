"""Every format of own data from the file to the figure."""

import pytest
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.datapipes.sources import complete_names
from physicsnemo_flarepp.meshes import read_mesh

from .making import FORMATS, N_CASES, write

SMALL = ["model.n_layers=1", "model.n_hidden=16", "model.slice_num=8", "training.epochs=2"]
CHEAP = ("vtu_surface", "npz", "grid_set")


def walk(name, tmp_path, figures):
    """Train two epochs, evaluate, predict a case and a file, and plot; the run directory."""
    overrides, file, _ = write(name, tmp_path / "data")
    run = tmp_path / "run"
    told = [f"data.root={tmp_path / 'data'}", f"run_dir={run}", "data.num_workers=0", *overrides]
    assert main(["train", "data=own", *told, *SMALL]) == 0
    DistributedManager.cleanup()
    assert main(["evaluate", str(run)]) == 0
    assert main(["predict", str(run), "--cases", "0"]) == 0
    if file is not None:
        parameters = ["--global", "a=1.2"] if file.suffix in (".stl", ".ply", ".vtp") else []
        parameters = parameters if "a" in FORMATS[name][3].split("|")[2] else []
        output = ["--output", str(tmp_path / "predicted")]
        assert main(["predict", str(run), str(file), *output, *parameters]) == 0
        (written,) = (tmp_path / "predicted").iterdir()
        mesh = read_mesh(written)
        predicted = {f"{field}_predicted" for field in FORMATS[name][3].split("|")[0].split()}
        assert predicted <= {*mesh.data["cell"], *mesh.data["point"]}
    assert main(["plot", str(run), "--figures", *figures]) == 0
    return run


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
def test_a_format_goes_from_the_file_to_the_figure(name, tmp_path):
    run = walk(name, tmp_path, ["training"])
    assert (run / "evaluation.csv").is_file() and (run / "figures").is_dir()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_goes_from_the_file_to_the_figure(name, tmp_path):
    run = walk(name, tmp_path, ["comparison", "training"])
    assert any((run / "figures").rglob("*.png"))

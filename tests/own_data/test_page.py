"""What the page "Your own data" shows is executed."""

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from physicsnemo.datapipes.registry import register_resolvers
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.data import read_data_config
from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.datapipes.inspection import check_cases

PAGE = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
SMALL = ["model.n_layers=1", "model.n_hidden=16", "model.slice_num=8", "training.epochs=2"]
WRITERS = {
    name: code
    for code, name in re.findall(r"```python\n(# example: (\w+)\n.*?)```", PAGE, re.DOTALL)
}
COMMANDS = dict(
    re.findall(r"# example: (\w+)\n(?:(?!# example).)*?```bash\n(.*?)```", PAGE, re.DOTALL)
)


def enter(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(WRITERS[name], {})
    return [shlex.split(line)[1:] for line in COMMANDS[name].strip().splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_data_of_an_example_is_read_as_the_page_says(name, tmp_path, monkeypatch):
    commands = enter(name, tmp_path, monkeypatch)
    train = next(command for command in commands if command[0] == "train")
    given = [text for text in train[1:] if text.startswith("data")]
    assert check_cases(read_data_config(given), progress=False) == (6, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_an_example_run(name, tmp_path, monkeypatch):
    for verb, *arguments in enter(name, tmp_path, monkeypatch):
        assert main([verb, *arguments, *(SMALL if verb == "train" else [])]) == 0
        DistributedManager.cleanup()


@pytest.mark.slow
def test_the_example_in_memory_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = WRITERS["memory"].replace(
        '"training"', '"model": {"_target_": "physicsnemo_flarepp.FlarePP", "n_layers": 1, '
        '"n_hidden": 16, "slice_num": 8}, "training"'
    )  # fmt: skip
    namespace = {}
    exec(small, namespace)
    assert namespace["result"].errors.isfinite().all()
    assert Path("runs/memory/model.mdlus").is_file()


def test_the_config_with_a_foreign_reader_is_read(tmp_path, monkeypatch):
    enter("clouds", tmp_path, monkeypatch)
    register_resolvers()
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    loaders = build_dataloaders({**OmegaConf.create(text).data, "num_workers": 0})
    reader = loaders.train.dataset.reader
    sample = reader[0][0]
    assert sample["fields"].shape == (80, 1)
    assert sample["coordinates"].mean(0).abs().max() < 1e-6


def test_every_message_of_the_table_is_one_of_the_code():
    """The fixed words of each message stand in the source."""
    import physicsnemo_flarepp.datapipes as package

    root = Path(package.__file__).parent
    source = " ".join(path.read_text() for path in sorted(root.rglob("*.py")))
    source = re.sub(r'"\s*f?"', "", source)
    words = {
        "has no array", "data.association is", "for cells and", "all cases of a set need the same",
        "expected (", "in different units?", "NaN or infinite", "meshes of different dimension",
        "holds no array that looks like coordinates", "no column holds the cases", "have no file",
    }  # fmt: skip
    assert {text for text in words if text not in source} == set()

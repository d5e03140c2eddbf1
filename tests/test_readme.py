"""What the README shows is executed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_usage_example_runs():
    usage = next(block for block in blocks("python") if "FlarePP(" in block)
    assert len(usage.strip().splitlines()) <= 11
    namespace = {}
    exec(usage, namespace)
    assert namespace["loss"].item() > 0
    assert all(p.grad is not None for p in namespace["model"].parameters())


@pytest.mark.slow
def test_own_meshes_are_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(next(block for block in blocks("python") if "from_meshes" in block), {})
    assert (tmp_path / "outputs" / "mine" / "model.mdlus").is_file()


def test_first_two_commands_are_what_ci_runs():
    train, test = (block.strip().split(" && ") for block in blocks("bash")[:2])
    assert train[0] == "pip install -e ." and f"\n{train[1]} " in CI
    assert test[0].removeprefix("pip install ") in CI and f"\n{test[1]}\n" in CI


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(ROOT.glob("examples/**/README.md"))], ids=str
)
def test_pictures_and_files_that_are_named_exist(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not (path.parent / link).exists()]
    scripts = re.findall(r"python (examples/\S+\.py)", text)
    assert missing == [] and all((ROOT / script).is_file() for script in scripts)


def test_pictures_are_small():
    pictures = list((ROOT / "examples").glob("**/*.png"))
    assert pictures and all(path.stat().st_size < 300_000 for path in pictures)

"""What the README shows is executed."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_usage_example_runs():
    usage = next(block for block in blocks("python") if "FlarePP(" in block)
    assert len(usage.strip().splitlines()) <= 11
    namespace = {}
    exec(usage, namespace)
    assert namespace["loss"].item() > 0
    assert all(p.grad is not None for p in namespace["model"].parameters())


def test_test_command_is_what_ci_runs():
    ci = (Path(__file__).parents[1] / ".ci" / "run").read_text()
    install, test = blocks("bash")[0].strip().split(" && ")
    assert install.removeprefix("pip install ") in ci and f"\n{test}\n" in ci


def test_pictures_exist():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    assert all((Path(__file__).parents[1] / picture).is_file() for picture in pictures)

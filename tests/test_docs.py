"""The pages of docs/ build without a warning, and what they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_pages_build_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "html"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "html" / "api.html").read_text()
    for name in ("FlarePP", "attention_with_lse", "predict", "build_dataloaders", "train"):
        assert re.search(rf'id="physicsnemo_flarepp[\w.]*\.{name}"', reference), name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.stem)
def test_scripts_that_pages_name_exist(page):
    scripts = re.findall(r"python (examples/\S+\.py)", page.read_text())
    assert all((ROOT / script).is_file() for script in scripts)

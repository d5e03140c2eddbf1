"""The example of the page is executed."""

import re
import shutil
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "design.md").read_text()


def test_the_example_runs(directory, body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(body, "car.stl")
    Path("geo_ref_1.csv").write_text("lRef\n4.0\n")
    Path("outputs").mkdir()
    Path("outputs/cars-flarepp-seed0").symlink_to(directory)
    names = {}
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, names)
    assert len(names["outcome"].rows) == 3
    assert names["gradient"].shape == (names["shape"].mesh.points.shape)

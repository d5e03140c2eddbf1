from pathlib import Path

import pytest

from physicsnemo_flarepp.visualization.files import check_paths


@pytest.mark.parametrize("path", [None, "a.png", Path("a.pdf"), ["a.png", Path("b.svg")]])
def test_paths_become_a_tuple(path):
    found = check_paths(path)
    given = [] if path is None else path if isinstance(path, list) else [path]
    assert found == tuple(map(Path, given))


def test_other_formats_are_named():
    with pytest.raises(ValueError, match=r"path 'a.jpg' must end in one of \('.png', '.pdf'"):
        check_paths(["a.png", "a.jpg"])

"""Opening a file of someone else runs none of its code and touches no other file."""

import sys

import pytest

from tests.faults.attacks import CORPUS, KINDS, Trap

MEANS = ("pickle", "import", "instantiate", "escape")


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module whose import leaves the marker can be found, as one beside a script could."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    trap = Trap(folder)
    trap.outside.write_bytes(b"not ours")
    (folder / "trap_module.py").write_text(
        f"import os\nos.mkdir({str(trap.marker)!r})\nclass Reader: pass\n"
    )
    monkeypatch.syspath_prepend(folder)
    yield trap
    sys.modules.pop("trap_module", None)


def tree(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_attacked_by_all_means(kind):
    assert {attack.split(":")[0] for attack in KINDS[kind].attacks} == set(MEANS)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_opened(tmp_path, kind):
    """So that the attacks below are refused for what they are."""
    KINDS[kind].open(KINDS[kind].write(tmp_path))


@pytest.mark.parametrize(("kind", "name"), CORPUS, ids=[f"{k}-{a}" for k, a in CORPUS])
def test_an_attack_is_refused_by_the_name_of_the_file_and_does_nothing(tmp_path, trap, kind, name):
    attack = KINDS[kind].attacks[name]
    (tmp_path / "files").mkdir()
    path = KINDS[kind].write(tmp_path / "files")
    attack.write(path, trap)
    before = tree(trap.folder)
    if attack.harmless:
        KINDS[kind].open(path)
    else:
        with pytest.raises((ValueError, OSError, KeyError)) as refusal:
            KINDS[kind].open(path)
        assert path.name in str(refusal.value) or not KINDS[kind].names_itself
    assert "trap_module" not in sys.modules
    assert tree(trap.folder) == before

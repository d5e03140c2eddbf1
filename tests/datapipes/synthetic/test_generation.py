"""The framework makes each set once, whole, and the same however it is made."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from physicsnemo_flarepp import __version__
from physicsnemo_flarepp.datapipes.synthetic import generate, sets
from physicsnemo_flarepp.datapipes.synthetic.__main__ import main
from physicsnemo_flarepp.datapipes.synthetic.parts import exclusive, part_path

IN_ANOTHER_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from physicsnemo_flarepp.datapipes.synthetic import generate, sets
sets.MODULES["counted"] = "counted_set"
generate("counted", root=sys.argv[1], workers=1)
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Register the counted set; the file lists the seeds of all solved cases."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(sets.MODULES, "counted", "counted_set")
    monkeypatch.setenv("COUNTED_SET_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def make(root, **options):
    return generate("counted", root=root, progress=False, **options)


def start_elsewhere(root):
    code = IN_ANOTHER_PROCESS.format(folder=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stderr=subprocess.PIPE, text=True
    )


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def solved(log):
    return log.read_text().split()


def test_a_finished_set_has_its_files_and_a_stamp_and_nothing_is_left_over(tmp_path, log):
    path = make(tmp_path / "cache")
    assert path == tmp_path / "cache" / "counted-v1-s0-6+2"
    assert sorted(contents(path)) == ["stamp.json", "test.npy", "train.npy"]
    assert json.loads((path / "stamp.json").read_text()) == {
        "name": "counted",
        "version": 1,
        "seed": 0,
        "n_train": 6,
        "n_test": 2,
        "package_version": __version__,
        # .npy: a header of 128 bytes, then 100 doubles per case.
        "files": {"test.npy": 128 + 2 * 800, "train.npy": 128 + 6 * 800},
    }
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "counted-v1-s0.lock"}


def test_a_finished_set_is_not_solved_again(tmp_path, log):
    make(tmp_path)
    before = solved(log)
    make(tmp_path)
    assert solved(log) == before and len(before) == len(set(before)) == 8


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: os.truncate(path / "train.npy", 1000),
            "train.npy: 1000 bytes, expected 4928",
        ),
        (lambda path: (path / "test.npy").unlink(), "test.npy: no such file, expected 1728 bytes"),
        (lambda path: (path / "stamp.json").write_text(""), "stamp.json is damaged"),
    ],
)
def test_damage_under_a_stamp_is_noticed_with_a_remedy(tmp_path, log, damage, message):
    path = make(tmp_path)
    damage(path)
    with pytest.raises(ValueError, match=f"{message}.*; delete {re.escape(str(path))} and"):
        make(tmp_path)


def test_workers_do_not_change_a_byte_and_the_seed_does(tmp_path, log):
    one = contents(make(tmp_path / "one", workers=1))
    three = contents(make(tmp_path / "three", workers=3))
    other = contents(make(tmp_path / "one", seed=1))
    assert one == three
    assert one["train.npy"] != other["train.npy"]


def test_both_splits_are_beginnings_of_fixed_sequences(tmp_path, log):
    large = make(tmp_path)
    small = make(tmp_path, n_train=2, n_test=1)
    for file, count in (("train.npy", 2), ("test.npy", 1)):
        assert np.array_equal(np.load(small / file), np.load(large / file)[:count])


def test_no_case_is_in_both_splits(tmp_path, log):
    make(tmp_path, n_train=9, n_test=9)
    assert len(set(solved(log))) == 18


def test_after_an_error_only_the_missing_cases_are_solved(tmp_path, log, monkeypatch):
    expected = contents(make(tmp_path / "whole"))
    log.unlink()
    monkeypatch.setenv("COUNTED_SET_STOP", "error:5")
    with pytest.raises(RuntimeError, match="case train 5 could not be solved[^$]*told to fail"):
        make(tmp_path / "cache", workers=1)
    assert not (tmp_path / "cache" / "counted-v1-s0-6+2").exists()
    monkeypatch.delenv("COUNTED_SET_STOP")
    assert contents(make(tmp_path / "cache")) == expected
    assert len(solved(log)) == len(set(solved(log))) == 8


def test_a_killed_generation_resumes_without_solving_a_case_twice(tmp_path, log, monkeypatch):
    monkeypatch.setenv("COUNTED_SET_STOP", "kill-parent:4")
    process = start_elsewhere(tmp_path / "cache")
    process.communicate()
    assert process.returncode == -9
    assert not (tmp_path / "cache" / "counted-v1-s0-6+2").exists()
    monkeypatch.delenv("COUNTED_SET_STOP")
    make(tmp_path / "cache")
    assert len(solved(log)) == len(set(solved(log))) == 8


def test_damaged_parts_are_solved_again(tmp_path, log, monkeypatch):
    expected = contents(make(tmp_path / "whole"))
    log.unlink()
    monkeypatch.setenv("COUNTED_SET_STOP", "error:6")
    with pytest.raises(RuntimeError):
        make(tmp_path / "cache", workers=1)
    parts = tmp_path / "cache" / "counted-v1-s0.parts"
    damaged = [sets.CaseId("train", index) for index in (0, 1, 3)]
    half, empty, flipped = (part_path(parts, case) for case in damaged)
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    empty.write_bytes(b"")
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    monkeypatch.delenv("COUNTED_SET_STOP")
    assert contents(make(tmp_path / "cache")) == expected
    again = solved(log)[6:]
    missing = [*damaged, sets.CaseId("test", 0), sets.CaseId("test", 1)]
    assert sorted(again) == sorted(str(sets.case_seed(0, case)) for case in missing)


def test_a_directory_without_a_stamp_is_made_anew(tmp_path, log):
    unfinished = tmp_path / "counted-v1-s0-6+2"
    unfinished.mkdir()
    (unfinished / "rubbish.npy").write_bytes(b"half")
    assert sorted(contents(make(tmp_path))) == ["stamp.json", "test.npy", "train.npy"]


def test_a_second_process_waits_for_the_first(tmp_path, log):
    with exclusive(tmp_path / "counted-v1-s0.lock", on_wait=lambda: pytest.fail("lock was free")):
        second = start_elsewhere(tmp_path)
        assert "another process is making counted-v1-s0" in second.stderr.readline()
        assert not log.exists()
    second.communicate()
    assert second.returncode == 0
    assert len(solved(log)) == 8


@pytest.mark.parametrize(
    ("stop", "message"),
    [("exit:2", "ended with status 3"), ("nan:2", "non-finite values in 'values' of case train 2")],
)
def test_a_dying_solver_and_a_bad_result_are_reported(tmp_path, log, monkeypatch, stop, message):
    monkeypatch.setenv("COUNTED_SET_STOP", stop)
    with pytest.raises(RuntimeError, match=message):
        make(tmp_path, workers=1)


def test_one_line_is_printed_without_a_terminal_and_none_when_quiet(tmp_path, log, capsys):
    generate("counted", root=tmp_path)
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "8 cases solved" in told.err and told.out == ""
    generate("counted", root=tmp_path, seed=1, progress=False)
    assert capsys.readouterr().err == ""


def test_the_command_line_prints_the_directory(tmp_path, log, capsys):
    main(["counted", "--train", "2", "--test", "1", "--seed", "4", "--root", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'counted-v1-s4-2+1'}\n"


def test_the_cache_is_chosen_by_argument_then_environment_then_home(tmp_path, log, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PHYSICSNEMO_FLAREPP_CACHE", raising=False)
    small = {"n_train": 1, "n_test": 1, "workers": 1}
    assert make(None, **small).parent == tmp_path / "home/.cache/physicsnemo_flarepp"
    monkeypatch.setenv("PHYSICSNEMO_FLAREPP_CACHE", str(tmp_path / "variable"))
    assert make(None, **small).parent == tmp_path / "variable"
    assert make(tmp_path / "argument", **small).parent == tmp_path / "argument"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_train": 0}, ValueError, "n_train=0 must be at least 1"),
        ({"n_test": -1}, ValueError, "n_test=-1"),
        ({"seed": -1}, ValueError, "seed=-1 must be at least 0"),
        ({"workers": 0}, ValueError, "workers=0"),
        ({"n_train": 2.0}, TypeError, "n_train=2.0 must be an integer"),
    ],
)
def test_bad_arguments_are_named(tmp_path, log, options, error, message):
    with pytest.raises(error, match=message):
        make(tmp_path, **options)
    assert not log.exists()


def test_importing_the_generators_loads_neither_torch_nor_physicsnemo():
    code = (
        "import sys, physicsnemo_flarepp.datapipes.synthetic.cars\n"
        "print([m for m in ('torch', 'physicsnemo', 'vtk') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

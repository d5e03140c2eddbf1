"""The framework makes each set once, whole, and the same however it is made."""

import hashlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from physicsnemo_flarepp import __version__
from physicsnemo_flarepp.builtin import generate, sets
from physicsnemo_flarepp.builtin.__main__ import main
from physicsnemo_flarepp.builtin.engine import case_file
from physicsnemo_flarepp.files import exclusive

pytestmark = pytest.mark.slow


def make(root, **options):
    return generate("counted", root=root, progress=False, **options)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def solved(log):
    return log.read_text().split()


def test_a_finished_set_has_its_files_and_a_stamp_and_nothing_is_left_over(tmp_path, log):
    path = make(tmp_path / "cache")
    assert path == tmp_path / "cache" / "counted-v1-s0-6+2"
    assert sorted(contents(path)) == ["stamp.json", "test.npy", "train.npy"]
    stamp = json.loads((path / "stamp.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", stamp.pop("checksum"))
    assert stamp == {
        "name": "counted",
        "version": 1,
        "seed": 0,
        "n_train": 6,
        "n_test": 2,
        "n_val": 0,
        "package_version": __version__,
        "redrawn": [],
        "files": {
            name: {
                "size": 128 + count * 800,  # .npy: a header, then 100 doubles per case
                "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(),
            }
            for name, count in (("test.npy", 2), ("train.npy", 6))
        },
    }
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "counted-v1-s0.lock"}


def test_a_finished_set_is_not_solved_again(tmp_path, log):
    make(tmp_path)
    before = solved(log)
    make(tmp_path)
    assert solved(log) == before and len(before) == len(set(before)) == 8


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


def test_damaged_case_files_are_solved_again(tmp_path, log, monkeypatch):
    expected = contents(make(tmp_path / "whole"))
    log.unlink()
    monkeypatch.setenv("COUNTED_SET_STOP", "error:6")
    with pytest.raises(RuntimeError):
        make(tmp_path / "cache", workers=1)
    folder = tmp_path / "cache" / "counted-v1-s0.cases"
    damaged = [sets.CaseId("train", index) for index in (0, 1, 3)]
    half, empty, flipped = (case_file(folder, case) for case in damaged)
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


def test_a_second_process_waits_for_the_first(tmp_path, log, start_elsewhere):
    with exclusive(tmp_path / "counted-v1-s0.lock", on_wait=lambda: pytest.fail("lock was free")):
        second = start_elsewhere(tmp_path)
        assert "another process is making counted-v1-s0" in second.stderr.readline()
        assert not log.exists()
    second.communicate()
    assert second.returncode == 0
    assert len(solved(log)) == 8


def test_two_processes_that_ask_at_once_make_the_set_once(tmp_path, log, start_elsewhere):
    processes = [start_elsewhere(tmp_path / "cache") for _ in range(2)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0]
    assert len(solved(log)) == 8


def test_an_unsolvable_case_is_drawn_again_and_told(tmp_path, log, monkeypatch, capsys):
    whole = make(tmp_path / "whole")
    case = sets.CaseId("train", 2)
    refused = [sets.case_seed(0, case), sets.case_seed(0, case, draw=1)]
    monkeypatch.setenv("COUNTED_SET_UNSOLVABLE", " ".join(map(str, refused)))
    first = generate("counted", root=tmp_path / "one", workers=1)
    assert "drawn again because they had no solution: train 2, draw 2\n" in capsys.readouterr().err
    assert json.loads((first / "stamp.json").read_text())["redrawn"] == ["train 2, draw 2"]
    again = make(tmp_path / "three", workers=3)
    assert contents(first) == contents(again)
    expected = np.load(whole / "train.npy")
    other = np.random.default_rng(sets.case_seed(0, case, draw=2)).normal(size=100)
    expected[2] = other
    assert np.array_equal(np.load(first / "train.npy"), expected)
    assert np.array_equal(np.load(first / "test.npy"), np.load(whole / "test.npy"))


def test_no_draw_of_any_case_meets_another():
    draws = [
        sets.case_seed(seed, case, draw)
        for seed in range(3)
        for case in sets.case_ids(20, 20, 20)
        for draw in range(5)
    ]
    assert len(set(draws)) == 3 * 60 * 5


def test_a_case_that_no_draw_makes_solvable_is_an_error(tmp_path, log, monkeypatch):
    case = sets.CaseId("test", 1)
    refused = [str(sets.case_seed(0, case, draw)) for draw in range(10)]
    monkeypatch.setenv("COUNTED_SET_UNSOLVABLE", " ".join(refused))
    with pytest.raises(RuntimeError, match="none of 10 draws of case test 1 is solvable"):
        make(tmp_path)


def test_one_line_is_printed_without_a_terminal_and_none_when_quiet(tmp_path, log, capsys):
    generate("counted", root=tmp_path)
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "8 cases solved" in told.err and told.out == ""
    generate("counted", root=tmp_path, seed=1, progress=False)
    assert capsys.readouterr().err == ""


def test_the_command_line_prints_the_directory(tmp_path, log, capsys):
    main(["counted", "--train", "2", "--test", "1", "--seed", "4", "--root", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'counted-v1-s4-2+1+1'}\n"


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
        "import sys, physicsnemo_flarepp.builtin.sets.cars\n"
        "print([m for m in ('torch', 'physicsnemo', 'vtk') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

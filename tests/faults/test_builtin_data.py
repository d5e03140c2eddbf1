"""A built-in set is as it was written, or opening it is an error that names the file."""

import json
import os
import re
import shutil
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from physicsnemo_flarepp.builtin import generate, sets
from physicsnemo_flarepp.builtin.engine import solve_to_file
from physicsnemo_flarepp.datapipes import build_dataloaders

# What Python tells an audit hook before a file operation.
FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"}
SMALL = {"n_train": 1, "n_test": 1, "progress": False}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Small sets by name, each made once; a test damages its own copy."""
    root = tmp_path_factory.mktemp("made")
    return lambda name: generate(name, root=root, **SMALL)


@pytest.fixture
def copy_of(made, tmp_path):
    def copy(name):
        return Path(shutil.copytree(made(name), tmp_path / "sets" / made(name).name))

    return copy


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_refused(name, folder, path):
    """Whether opening the set is an error with the name of the file and the way out."""
    try:
        generate(name, root=folder.parent, **SMALL)
    except ValueError as error:
        assert str(path) in str(error) and f"delete {folder} and" in str(error)
        return True
    return False


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in files_of(folder)}


def flipped(data, position, bit):
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def mutations(data, rng, flips):
    """Damaged versions of a file's bytes; None stands for a lost file."""
    yield None
    yield b""
    yield data + b"\0"
    yield data[:-1]
    yield data[: len(data) // 2]
    yield data[: len(data) // 2] + bytes(len(data) - len(data) // 2 - 1) + b"\1"
    yield data[::-1]
    for position in {0, len(data) // 2, len(data) - 1}:
        yield flipped(data, position, 0)
    for place in rng.integers(8 * len(data), size=flips):
        yield flipped(data, *divmod(int(place), 8))


def count_accepted(name, folder, flips):
    """Number of damages of one file at a time, and how many of them were accepted."""
    rng = np.random.default_rng(0)
    tried = accepted = 0
    for path in files_of(folder):
        original = path.read_bytes()
        for data in mutations(original, rng, flips):
            if data == original:
                continue
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
            elif path.name == "stamp.json":
                continue  # a set without a stamp is unfinished and made anew
            tried += 1
            accepted += not is_refused(name, folder, path)
        path.write_bytes(original)
    return tried, accepted


@pytest.mark.slow
def test_no_damage_of_any_file_is_accepted(copy_of):
    tried, accepted = count_accepted("darcy", copy_of("darcy"), flips=8)
    assert tried > 40 and accepted == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(sets.MODULES))
def test_no_damage_of_any_file_of_any_set_is_accepted(copy_of, name):
    tried, accepted = count_accepted(name, copy_of(name), flips=100)
    print(name, tried, accepted)
    assert tried > 300 and accepted == 0


def accepted_stamp_flips(folder, bits):
    """Number of flips of bits of the stamp, and those without an error that names the set."""
    stamp = folder / "stamp.json"
    original = stamp.read_bytes()
    places = [(position, bit) for position in range(len(original)) for bit in bits(position)]
    accepted = []
    for place in places:
        stamp.write_bytes(flipped(original, *place))
        try:
            generate("darcy", root=folder.parent, **SMALL)
        except ValueError as error:
            if str(folder) in str(error):
                continue
        accepted.append(place)
    return len(places), accepted


@pytest.mark.slow
def test_a_flipped_bit_in_every_byte_of_the_stamp_is_noticed(copy_of):
    tried, accepted = accepted_stamp_flips(copy_of("darcy"), lambda position: [position % 8])
    assert tried > 100 and accepted == []


@pytest.mark.exhaustive
def test_every_flipped_bit_of_the_stamp_is_noticed(copy_of):
    tried, accepted = accepted_stamp_flips(copy_of("darcy"), lambda position: range(8))
    assert tried > 800 and accepted == []


@pytest.mark.slow
def test_files_exchanged_within_a_set_are_noticed(copy_of):
    folder = copy_of("darcy")
    one, other, _ = files_of(folder)
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)
    assert is_refused("darcy", folder, one)


@pytest.mark.slow
def test_the_set_of_another_seed_is_not_taken_for_this_one(made, tmp_path):
    folder = made("darcy")
    wrong = tmp_path / folder.name.replace("-s0-", "-s1-")
    shutil.copytree(folder, wrong)
    with pytest.raises(
        ValueError, match="stamp.json belongs to another set: seed is 0, expected 1"
    ):
        generate("darcy", seed=1, root=tmp_path, **SMALL)


def test_a_stamp_of_an_earlier_version_is_not_trusted(copy_of):
    folder = copy_of("darcy")
    stamp = json.loads((folder / "stamp.json").read_text())
    stamp["files"] = {name: file["size"] for name, file in stamp["files"].items()}
    (folder / "stamp.json").write_text(json.dumps(stamp))
    with pytest.raises(ValueError, match="stamp.json is damaged or of an earlier version"):
        generate("darcy", root=folder.parent, **SMALL)


@pytest.mark.parametrize("way", ["builtin", "root"])
def test_loaders_refuse_a_damaged_set(copy_of, monkeypatch, way):
    folder = copy_of("darcy")
    damaged = files_of(folder)[0]
    data = damaged.read_bytes()
    monkeypatch.setenv("PHYSICSNEMO_FLAREPP_CACHE", str(folder.parent))
    cfg = {"n_train": 1, "n_val": 0, "n_test": 1, "num_workers": 0}
    cfg |= {"builtin": "darcy"} if way == "builtin" else {"root": folder, "benchmark": "darcy"}
    assert len(build_dataloaders(cfg).train) == 1
    damaged.write_bytes(flipped(data, len(data) // 2, 0))
    with pytest.raises(ValueError, match=re.escape(f"{damaged} was changed")):
        build_dataloaders(cfg)


# --- kills


def solve_case(case_seed):
    return {"values": np.random.default_rng(case_seed).normal(size=100)}


def assemble(cases, out_dir, n_train, n_test, n_val):
    for number, case in enumerate(cases):
        (out_dir / f"run_{number}").mkdir()
        np.save(out_dir / f"run_{number}" / "values.npy", case["values"])


@pytest.fixture
def prepare(monkeypatch, tmp_path):
    """Return a function that makes a cache in which all cases are solved and nothing else is done.

    The set has no equations, and each of its two files a folder.
    """
    module = ModuleType("numbers_set")
    module.SET = sets.BuiltinSet("numbers", 1, 1, 1, solve_case, assemble)
    monkeypatch.setitem(sys.modules, "numbers_set", module)
    monkeypatch.setitem(sets.MODULES, "numbers", "numbers_set:SET")

    def prepared(name):
        solved = tmp_path / name / "numbers-v1-s0.cases"
        solved.mkdir(parents=True)
        for case in sets.case_ids(1, 1):
            solve_to_file(module.SET, 0, solved, case)
        return tmp_path / name

    return prepared


def make_and_die(root, last):
    """Make the set, killed before its file operation number ``last``."""
    done = 0

    def count(event, arguments):
        nonlocal done
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(str(root)):
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    generate("numbers", root=root, **SMALL)


def check_kills(prepare, step):
    """Kill before every ``step``-th file operation; return how many kills there were."""
    whole = generate("numbers", root=prepare("whole"), **SMALL)
    expected = contents(whole)
    for kills, last in enumerate(range(1, 1000, step)):
        root = prepare(f"killed_{last}")
        process = get_context("fork").Process(target=make_and_die, args=(root, last))
        process.start()
        process.join()
        found = root / whole.name
        if (found / "stamp.json").exists():
            assert contents(found) == expected
        assert contents(generate("numbers", root=root, **SMALL)) == expected
        if process.exitcode == 0:
            return kills
        assert process.exitcode == -signal.SIGKILL
    raise AssertionError("the set was never finished")


@pytest.mark.slow
def test_a_kill_leaves_a_set_that_is_whole_or_made_again(prepare):
    assert check_kills(prepare, step=4) >= 5


@pytest.mark.exhaustive
def test_a_kill_before_any_file_operation_leaves_a_set_that_is_whole_or_made_again(prepare):
    kills = check_kills(prepare, step=1)
    print(kills, "kills")
    assert kills >= 20

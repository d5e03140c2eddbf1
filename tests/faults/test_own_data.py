"""Data of one's own from a bad disk or a bad hand: an error names the file, or nothing changed."""

import io
import json
import os
import shutil
import warnings
import zipfile

import h5py
import numpy as np
import pytest

from physicsnemo_flarepp.commands import main
from physicsnemo_flarepp.commands.data import read_data_config
from physicsnemo_flarepp.datapipes import OwnReader, PreparedReader, build_dataloaders, prepare
from physicsnemo_flarepp.datapipes.inspection import inspect_data
from physicsnemo_flarepp.datapipes.readers.splits import read_case_list
from physicsnemo_flarepp.datapipes.sources import complete_names
from physicsnemo_flarepp.files import checked_json
from tests.faults.attacks.base import edited_zip
from tests.faults.attacks.own_data import (
    CASES,
    N_TOKENS,
    arrays,
    open_own,
    open_prepared,
    open_table,
    pack,
    write_own,
    write_prepared,
    write_table,
)


def array_bytes(shape, n_bytes=0, descr="<f4"):
    """A .npy file with a header of its own."""
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(n_bytes)


def in_zip(**members):
    return lambda path: edited_zip(path, {f"{name}.npy": data for name, data in members.items()})


def second_member(path):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("p.npy", array_bytes((N_TOKENS,), 4 * N_TOKENS))


def bomb(path):
    """40 GB of zeros that take some kilobytes, as far as the list of members says."""
    huge = 10**10
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (arrays("c0") | {"p": None}).items():
            data = array_bytes((huge,)) if array is None else saved(array)
            archive.writestr(f"{name}.npy", data)
        info = archive.getinfo("p.npy")
        info.file_size = len(array_bytes((huge,))) + 4 * huge


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def empty(path):
    path.write_bytes(b"")


def to_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def to_nowhere(path):
    path.unlink()
    path.symlink_to("/nowhere/c0.npz")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def in_hdf5(shape, chunks, written=0):
    def write(path):
        with h5py.File(path, "a") as file:
            del file["p"]
            file.create_dataset("p", shape, "f4", chunks=chunks)[:written] = 1

    return write


def in_zarr(**changes):
    def write(path):
        notes = path / "p" / "zarr.json"
        content = json.loads(notes.read_text())
        if "chunk" in changes:
            content["chunk_grid"]["configuration"]["chunk_shape"] = changes["chunk"]
        content |= {key: value for key, value in changes.items() if key != "chunk"}
        notes.write_text(json.dumps(content))

    return write


def chunks(change):
    def write(path):
        for file in (path / "p" / "c").rglob("*"):
            change(file)

    return write


DAMAGES = {
    "npz": {
        "shape of 2**60": (in_zip(p=array_bytes((2**60,))), "p.npy: it has 128 bytes, but"),
        "shape below 0": (in_zip(p=array_bytes((-1,), 80)), "p.npy: it has 208 bytes, but"),
        "shape of half": (in_zip(p=array_bytes((10,), 80)), "p.npy: it has 208 bytes, but 168"),
        "larger than the memory": (bomb, "needs 40 GB|cannot be read"),
        "a member twice": (second_member, "holds p.npy more than once"),
        "words": (in_zip(p=array_bytes((2,), 8, "<U1")), "p is of the type <U1, which is"),
        "NaN": (in_zip(p=saved(np.full(N_TOKENS, np.nan))), "20 of 20 values .* NaN"),
        "beyond float32": (in_zip(p=saved(np.full(N_TOKENS, 1e300))), "20 of 20 values .* inf"),
        "cut": (cut, "truncated or damaged"),
        "empty": (empty, "truncated or damaged"),
        "a link to a device": (to_device, "not a regular file"),
        "a link to nowhere": (to_nowhere, "does not exist: it is a link to /nowhere"),
        "a pipe": (pipe, "not a regular file"),
    },
    "npy": {
        "shape of 2**60": (lambda p: p.write_bytes(array_bytes((2**60,))), "128 bytes, but"),
        "shape of half": (lambda p: p.write_bytes(array_bytes((10,), 80)), "208 bytes, but 168"),
        "records": (lambda p: np.save(p, np.zeros(20, [("a", "f4")])), "p is of the type .*'a'"),
        "cut": (cut, "truncated or damaged"),
    },
    "h5": {
        "never written": (in_hdf5((20,), None), "p has 0 of 1 parts"),
        "written in part": (in_hdf5((20,), (5,), 5), "p has 1 of 4 parts"),
        "shape of 2**40": (in_hdf5((2**40,), (1000,)), "p has 0 of .* parts"),
        "cut": (cut, "truncated or damaged"),
    },
    "zarr": {
        "shape of 2**60": (in_zarr(shape=[2**60]), "p has 1 of 57646075230342349 chunks"),
        "chunks of 2**60": (in_zarr(chunk=[2**60]), "a chunk of p has the shape .* GB"),
        "chunks of 0": (in_zarr(chunk=[0]), "p has chunks of the shape|cannot be read"),
        "shape below 0": (in_zarr(shape=[-20]), "cannot be read .*non-negative"),
        "no chunk": (chunks(os.remove), "p has 0 of 1 chunks"),
        "cut": (chunks(lambda file: os.truncate(file, 10)), "truncated or damaged"),
        "no group": (lambda path: (path / "zarr.json").unlink(), "cannot be read .*no zarr group"),
        "nested": (lambda p: (p / "p/zarr.json").write_text("[" * 10**5), "cannot be read"),
    },
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in DAMAGES for name in DAMAGES[kind]]
)
def test_damage_of_arrays_is_named(tmp_path, kind, name):
    damage, words = DAMAGES[kind][name]
    path = write_own(kind)(tmp_path)
    damage(path)
    with pytest.raises((ValueError, OSError), match=rf"(?s){path.name}.*({words})"):
        open_own(path)


def test_parts_that_are_meant_to_be_absent_are_the_fill_value(tmp_path):
    path = write_own("h5")(tmp_path)
    in_hdf5((N_TOKENS,), (5,), 5)(path)
    reader = OwnReader(
        path.parent, cases=["c0"], coordinates="coordinates", fields=["p"], features=[],
        globals=[], allow_missing_chunks=["p"],
    )  # fmt: skip
    assert reader[0][0]["fields"].flatten().tolist() == [1] * 5 + [0] * 15


TABLES = {
    "a case twice": ("case,u\nc0,1\nc0,2\nc1,3\nc2,4\n", "'case' has c0 more than once"),
    "a case missing": ("case,u\nc0,1\nc1,3\n", "'case' has no row for c2"),
    "a column twice": ("case,u,u\nc0,1,9\nc1,3,8\nc2,4,7\n", "two columns 'u'"),
    "a long row": ("case,u\nc0,1,7\nc1,3\nc2,4\n", "line 2 has 3 entries, the header 2"),
    "a short row": ("case,u\nc0,1\nc1\nc2,4\n", "line 3 has 1 entries"),
    "NaN": ("case,u\nc0,1\nc1,nan\nc2,4\n", "column u has 'nan' for case c1"),
    "a word": ("case,u\nc0,n/a\nc1,3\nc2,4\n", "column u has 'n/a' for case c0"),
    "a number with a comma": ('case,u\nc0,"1,5"\nc1,3\nc2,4\n', "column u has '1,5'"),
    "a number of Python": ("case,u\nc0,1_000\nc1,3\nc2,4\n", "column u has '1_000'"),
    "a huge number": (f"case,u\nc0,{'9' * 400}\nc1,3\nc2,4\n", "column u has '9999"),
    "a zero byte": ("case,u\nc0,1\0\nc1,3\nc2,4\n", r"column u has '1\\x00'"),
    "a huge entry": (f"case,u\nc0,{'x' * 200_000}\nc1,3\nc2,4\n", "field larger"),
    "semicolons": ("case;u\nc0;1,5\nc1;3,5\nc2;4,5\n", "has semicolons"),
    "Latin-1": ("case,u,grö\nc0,1,1\n".encode("latin-1"), "not UTF-8 text"),
    "UTF-16": ("case,u\nc0,1\n".encode("utf-16"), "not UTF-8 text"),
    "two columns of numbers": ("u,v\n2,0\n0,1\n1,2\n", "u, v could each be the cases"),
    "a header alone": ("case,u\n", "no rows below"),
    "nothing": ("", "no rows below"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_would_give_wrong_parameters_is_named(tmp_path, name):
    text, words = TABLES[name]
    path = write_table(tmp_path)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"table.csv.*{words}"):
        open_table(path)


# What train refuses: in a table of the cases it would have been a parameter.
FAULTS = {
    **{k: TABLES[k] for k in ("a case twice", "a case missing", "a word", "a huge number")},
    "an infinite number": ("case,u\nc0,1e400\nc1,3\nc2,4\n", "column u has '1e400' for case c0"),
    "a hole": ("case,u\nc0,1\nc1,\nc2,4\n", "column u has '' for case c1"),
}
OTHERS = {
    "texts": "case,u,author\nc0,1,Ada\nc1,3,Bo\nc2,4,Cy\n",
    "a result": "case,u,drag\nc0,1,2\nc1,3,\nc2,4,5\n",
    "something else": "step,residual\n1,0.5\n9,nan\n",
}


@pytest.mark.parametrize("name", FAULTS)
def test_training_refuses_a_table_that_only_a_fault_keeps_from_being_read(tmp_path, name):
    text, words = FAULTS[name]
    path = write_table(tmp_path)
    path.write_text(text)
    data = {"reader": {"_target_": "OwnReader"}, "root": str(path.parent)}
    with pytest.raises(ValueError, match=rf"table.csv.*{words}.*data.globals="):
        complete_names(data)
    with pytest.raises(ValueError, match=rf"table.csv.*{words}.*data.globals="):
        build_dataloaders({**data, "num_workers": 0})
    assert complete_names({**data, "globals": []})[0]["globals"] == []


@pytest.mark.parametrize("name", OTHERS)
def test_training_goes_without_what_could_not_be_a_parameter(tmp_path, name):
    path = write_table(tmp_path)
    path.write_text(OTHERS[name])
    data = {"reader": {"_target_": "OwnReader"}, "root": str(path.parent)}
    found = complete_names(data)[0]["globals"]  # the files of the cases have a speed
    assert found == (["speed"] if name == "something else" else ["speed", "u"])


def test_the_numbers_of_runs_are_told_from_a_parameter_of_whole_numbers(tmp_path):
    path = write_table(tmp_path)
    path.write_text("u,run\n2,0\n0,1\n1,2\n")
    assert [sample["globals"].tolist() for sample, _ in open_table(path)] == [[2.0], [0.0]]


MANIFESTS = {
    "a split twice": ('{"train":["c0"],"train":["c1"],"test":["c2"]}', "stands there twice"),
    "a case twice": ('{"train":["c0","c0"],"test":["c2"]}', "more than once: c0"),
    "a text for a list": ('{"train":"c0","test":["c1"]}', "train is not a list of case ids"),
    "a mapping in a list": ('{"train":["c0",{}],"test":["c1"]}', "train is not a list of case ids"),
    "no names": ('{"train":[null,1.5,true],"test":["c1"]}', "names 3 cases without files"),
    "a huge number": (f'{{"train":[{"9" * 5000}]}}', "cannot be read"),
    "a list": ('["c0"]', "is not a manifest"),
    "nothing in splits": ('{"splits":["c0"]}', "is not a manifest"),
    "cut": ('{"train":["c0"', "cannot be read"),
    "Latin-1": ('{"train":["cé"]}'.encode("latin-1"), "cannot be read"),
    "control characters": (r'{"train":["c0\u001b[2J\n"]}', r"without files in .*c0\\x1b\[2J\\n\."),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_says_something_else_is_named(tmp_path, name):
    text, words = MANIFESTS[name]
    path = write_own("npz")(tmp_path).with_name("manifest.json")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((ValueError, OSError), match=rf"manifest.json.*{words}"):
        open_own(path)


@pytest.mark.parametrize("text", ['{"a": 1}', '[["c0"]]', '["c0"', "[" * 100_000])
def test_a_list_of_cases_that_is_none_is_named(tmp_path, text):
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(ValueError, match="train.json"):
        read_case_list(tmp_path / "train.json")


# --- folders


@pytest.mark.parametrize("name", [b"c\xff0.npz", b"c\n0.npz", b"c\x1b[2J0.npz"])
def test_a_name_that_cannot_be_printed_is_refused_in_print(tmp_path, capsys, name):
    path = write_own("npz")(tmp_path)
    path.rename(os.fsdecode(os.fsencode(path.parent) + b"/" + name))
    assert main(["inspect", str(path.parent)]) == 2
    told = capsys.readouterr().err
    assert "rename the file" in told and told.strip().isprintable()


def test_a_folder_in_itself_is_told_and_not_read_forty_times(tmp_path):
    path = write_own("npz")(tmp_path)
    (path.parent / "again").symlink_to(path.parent)
    with pytest.raises(ValueError, match="again is a link to a folder that it is in"):
        inspect_data(path.parent)


NAMES = ["p (Pa)", 'q"uo', "it's", "a,b=c:d", "tail\\", "$x", "[x]", "{y}", "null",
         "1e3", "Größe", "esc\x1b[31m", "line\nbreak", "#c"]  # fmt: skip


def test_any_name_of_an_array_gets_through_the_config_that_inspect_proposes(tmp_path, capsys):
    path = write_own("npz")(tmp_path)
    for case in CASES:
        given = arrays(case)
        np.savez(path.parent / f"{case}.npz", **given, **dict.fromkeys(NAMES, given["p"]))
    written = tmp_path / "mine.yaml"
    assert main(["inspect", str(path.parent), "--output", str(written)]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    assert main(["inspect", "--check", str(written)]) == 0
    found = inspect_data(path.parent)
    assert set(NAMES) < set(found.config["fields"])
    overrides = found.overrides()
    assert read_data_config(overrides)["fields"] == found.config["fields"]


def test_a_name_that_is_a_reference_in_configs_is_left_aside_and_told(tmp_path):
    path = write_own("npz")(tmp_path)
    for case in CASES:
        given = arrays(case)
        np.savez(path.parent / f"{case}.npz", **given, **{"${oc.env:HOME}": given["p"]})
    reader = OwnReader(path.parent)
    assert list(reader.names.fields) == ["p"]
    assert any("left aside are ${oc.env:HOME}" in line for line in reader.guesses)


def test_arrays_that_are_not_read_are_told_with_the_reason(tmp_path, capsys):
    path = write_own("npz")(tmp_path)
    in_zip(label=array_bytes((2,), 8, "<U1"))(path)
    assert main(["inspect", str(path)]) == 0
    assert (
        "label is of the type <U1, which is not a real number  not read" in capsys.readouterr().out
    )


# --- prepared cases


def prepared_damage(change):
    def write(path):
        content = json.loads(path.read_text())
        del content["checksum"]
        change(content)
        path.write_text(checked_json(content))

    return write


CASE_FILES = {
    "no columns": lambda content: content.pop("columns"),
    "columns of a list": lambda content: content.update(columns=[]),
    "no coordinates": lambda content: content["columns"].update(coordinates={}),
    "tokens of a word": lambda content: content.update(n_tokens="many"),
    "tokens below 1": lambda content: content.update(n_tokens=-3),
    "more tokens": lambda content: content.update(n_tokens=2**60),
    "no such place": lambda content: content.update(association="edge"),
    "a column without a file": lambda content: content["columns"]["fields"]["p"].pop("file"),
    "a file of a number": lambda content: content["columns"]["fields"]["p"].update(file=3),
    "the folder for a file": lambda content: content["columns"]["fields"]["p"].update(file="."),
    "a size of a word": lambda content: content["columns"]["fields"]["p"].update(size="1"),
    "values of words": lambda content: content.update(globals={"speed": ["fast"]}),
    "another format": lambda content: content.update(format=[1]),
    "no order": lambda content: content.pop("order"),
    "no original": lambda content: content.update(original=None),
}


@pytest.mark.parametrize("name", CASE_FILES)
def test_a_rewritten_case_file_is_named(tmp_path, name):
    path = write_prepared(tmp_path)
    prepared_damage(CASE_FILES[name])(path)
    with pytest.raises(ValueError, match=r"(case.json|\.npy)"):
        open_prepared(path)


def test_prepare_replaces_nothing_that_it_did_not_write(tmp_path):
    root = write_own("npy")(tmp_path).parents[1]
    cfg = {"root": str(root), "reader": {"_target_": "OwnReader"}, "fields": ["p"]}
    before = {path: path.is_file() and path.read_bytes() for path in root.rglob("*")}
    with pytest.raises(FileExistsError, match="was not written by `flarepp prepare`"):
        prepare(cfg, root, progress=False)
    assert {p: p.is_file() and p.read_bytes() for p in root.rglob("*")} == before | {
        root / ".lock": b""
    }
    out = prepare(cfg, tmp_path / "out", progress=False)
    shutil.rmtree(out / "c0")
    shutil.copytree(root / "c0", out / "c0")
    with pytest.raises(FileExistsError, match="c0 is not a prepared case"):
        prepare(cfg, out, progress=False)
    assert (out / "c0" / "p.npy").is_file()


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000])
def test_damaged_settings_are_named(tmp_path, text):
    path = write_prepared(tmp_path)
    (path.parents[1] / "settings.json").write_text(text)
    root = write_own("npz")(tmp_path).parent
    cfg = {"root": str(root), "reader": {"_target_": "OwnReader"}, "fields": ["p"]}
    with pytest.raises(ValueError, match="settings.json cannot be read"):
        prepare(cfg, path.parents[1], progress=False)


# --- all of it at random


def damaged_at_random(content, rng):
    """Flip a bit, cut, overwrite a piece with zeros, or with another piece."""
    changed = bytearray(content)
    at = int(rng.integers(len(changed)))
    match rng.integers(4):
        case 0:
            changed[at] ^= 1 << int(rng.integers(8))
        case 1:
            del changed[at:]
        case 2:
            changed[at : at + 16] = bytes(len(changed[at : at + 16]))
        case _:
            other = int(rng.integers(len(changed)))
            piece = changed[other : other + 16]
            changed[at : at + len(piece)] = piece[: len(changed) - at]
    return bytes(changed)


def open_named(path):
    """All names are given, for a guess depends on what the first cases hold."""
    return open_own(path, features=[], globals=["speed"])


def open_all_prepared(path):
    readers = [PreparedReader(path.parents[1], split) for split in ("train", "test")]
    return [reader[index] for reader in readers for index in range(len(reader))]


SETS = {kind: (write_own(kind), open_named) for kind in ("npz", "npy", "h5", "zarr")} | {
    "table": (write_table, open_table),
    "prepared": (write_prepared, open_all_prepared),
}
# Bytes of values themselves, which carry no checksum in these formats.
PLAIN_VALUES = ("npy", "h5", "zarr", "table", "prepared")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SETS)
def test_random_damage_is_named_or_changes_nothing_but_values(tmp_path, kind):
    write, look = SETS[kind]
    path = write(tmp_path)
    root = next(p for p in path.parents if p.name in ("own", "prepared"))
    sound = look(path)
    rng = np.random.default_rng(5)
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    outcomes = {"refused": 0, "same shapes": 0}
    for _ in range(400):
        file = files[int(rng.integers(len(files)))]
        content = file.read_bytes()
        if not content:
            continue
        file.write_bytes(damaged_at_random(content, rng))
        try:
            found = look(path)
        except (ValueError, OSError) as error:
            assert str(tmp_path) in str(error) or "case c" in str(error), error
            outcomes["refused"] += 1
        else:
            assert shapes_of(found) == shapes_of(sound)
            if kind not in PLAIN_VALUES:
                assert values_of(found) == values_of(sound)
            outcomes["same shapes"] += 1
        file.write_bytes(content)
    print(kind, outcomes)
    assert outcomes["refused"] > 100


def shapes_of(found):
    samples = [sample for sample, _ in found] if isinstance(found, list) else [found[0]]
    return [{key: tuple(value.shape) for key, value in s.items()} for s in samples]


def values_of(found):
    return [{key: value.tolist() for key, value in sample.items()} for sample, _ in found]


def test_archives_of_nothing_are_named(tmp_path):
    from rich.progress import Progress

    from physicsnemo_flarepp.datapipes.transfer import check_members

    path = pack(tmp_path / "set.tar.gz", {})
    with pytest.raises(ValueError, match="set.tar.gz holds no file"):
        check_members(path, Progress(disable=True))


def test_the_sound_prepared_cases_are_read(tmp_path):
    path = write_prepared(tmp_path)
    reader = PreparedReader(path.parents[1])
    assert reader.case_ids == ["c0", "c1"]

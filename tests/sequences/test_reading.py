"""Readers of the published files: what they give, and what they say about bad ones."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from physicsnemo_flarepp.builtin.sets.listops import SYMBOLS
from physicsnemo_flarepp.sequences.reading import (
    read_aan,
    read_cifar,
    read_imdb,
    read_listops,
    read_pathfinder,
)


def sequences(split):
    return [
        split.tokens[a:b].tolist() for a, b in zip(split.starts, split.starts[1:], strict=False)
    ]


# --- ListOps


def write_listops(root, *lines, split="train"):
    for name in ("train", "val", "test"):
        text = lines if name == split else ["1\t1"]
        (root / f"basic_{name}.tsv").write_text("\n".join(["Source\tTarget", *text, ""]))
    return root


def test_listops_in_both_layouts(tmp_path):
    write_listops(tmp_path, "( ( ( [MAX 4 ) 3 ) ] )\t4", "[SM 9 9 ]\t8")
    train = read_listops(tmp_path, 10)["train"]
    words = [["[MAX", "4", "3", "]"], ["[SM", "9", "9", "]"]]
    assert sequences(train) == [[1 + SYMBOLS.index(word) for word in line] for line in words]
    assert train.labels.tolist() == [4, 8]
    assert sequences(train.first(1)) == sequences(train)[:1]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("[AVG 1 2 ]\t1", "'[AVG' is not one of"),
        ("[MIN 1 2 ]\t10", "the value is '10'"),
        ("[MIN 1 2 ]", "the value is ''"),
        ("( )\t3", "the sequence is empty"),
        ("[MIN 1 2 3 4 5 ]\t1", "has 7 tokens, data.length is 6"),
        ("\x1b[2J\t3", "'\\x1b[2J' is not one of"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, reason):
    write_listops(tmp_path, "3\t3", line, split="test")
    with pytest.raises(ValueError) as error:
        read_listops(tmp_path, 6)
    assert "basic_test.tsv, line 3: " in str(error.value) and reason in str(error.value)


def test_empty_and_missing_files_are_named(tmp_path):
    write_listops(tmp_path)
    with pytest.raises(ValueError, match="basic_train.tsv: it holds no expressions"):
        read_listops(tmp_path, 6)
    (tmp_path / "basic_train.tsv").unlink()
    with pytest.raises(FileNotFoundError, match="basic_train.tsv is missing: ListOps is published"):
        read_listops(tmp_path, 6)


# --- IMDB

REVIEWS = {
    "train/pos/0_9.txt": b"good \xc3\xa9",
    "train/neg/0_1.txt": b"bad",
    "test/pos/1_8.txt": b"fine",
    "test/neg/1_2.txt": b"dull and long",
    "train/unsup/0_0.txt": b"unlabelled",
    "README": b"not a review",
}


def write_archive(path, members=REVIEWS, prefix="aclImdb/"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_imdb_from_folder_and_archive(tmp_path):
    for name, content in REVIEWS.items():
        (tmp_path / "aclImdb" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "aclImdb" / name).write_bytes(content)
    found = [
        read_imdb(root, 8)
        for root in (tmp_path / "aclImdb", write_archive(tmp_path / "imdb.tar.gz"))
    ]
    for splits in found:
        by_label = dict(zip(splits["train"].labels, sequences(splits["train"]), strict=True))
        assert by_label == {0: [99, 98, 101], 1: [104, 112, 112, 101, 33, 196, 170]}
        assert max(map(len, sequences(splits["test"]))) == 8, "texts are cut"
        assert splits["val"] is splits["test"]


def test_bad_archives_are_named(tmp_path):
    whole = write_archive(tmp_path / "whole.tar.gz").read_bytes()
    half = tmp_path / "half.tar.gz"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"half.tar.gz: .* downloaded in part"):
        read_imdb(half, 8)
    outside = write_archive(tmp_path / "out.tar.gz", REVIEWS | {"../../evil.txt": b"x"})
    with pytest.raises(ValueError, match=r"out.tar.gz names 'aclImdb/../../evil.txt'"):
        read_imdb(outside, 8)
    empty = write_archive(tmp_path / "empty.tar.gz", REVIEWS | {"train/pos/7_7.txt": b" \n"})
    with pytest.raises(ValueError, match=r"train/pos/7_7.txt, line 1: the review is empty"):
        read_imdb(empty, 8)
    partial = {name: text for name, text in REVIEWS.items() if "test/neg" not in name}
    with pytest.raises(ValueError, match=r"test/neg and test/pos do not both hold reviews"):
        read_imdb(write_archive(tmp_path / "some.tar.gz", partial), 8)


# --- AAN


def write_aan(root, line):
    for name in ("train", "eval", "test"):
        (root / f"new_aan_pairs.{name}.tsv").write_bytes(line + b"\n")
    return root


def test_aan_gives_pairs(tmp_path):
    val = read_aan(write_aan(tmp_path, b'1.0\tA\tB\t"abc"\tde'), 2)["val"]
    assert sequences(val) == [[98, 99], [101, 102]]
    assert (val.labels.tolist(), val.documents, len(val)) == ([1], 2, 1)


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"1\tA\tB\tabc", "it has 4 columns"),
        (b"2\tA\tB\tabc\tde", "the label is '2'"),
        (b"1\tA\tB\t\tde", "the sequence is empty"),
    ],
)
def test_bad_pairs_are_named(tmp_path, line, reason):
    with pytest.raises(ValueError, match=f"new_aan_pairs.train.tsv, line 1: {reason}"):
        read_aan(write_aan(tmp_path, line), 4)


# --- CIFAR-10


def write_cifar(root, label=3):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (12, 3073), np.uint8)
    rows[:, 0] = label
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows[:2].tofile(root / f"{name}.bin")
    return rows


def test_cifar_is_grey_by_luma(tmp_path):
    rows = write_cifar(tmp_path)
    splits = read_cifar(tmp_path, 1024)
    assert [len(splits[name]) for name in ("train", "val", "test")] == [9, 1, 2]
    red, green, blue = rows[1, 1:].reshape(3, 1024).astype(float)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    found = np.array(sequences(splits["test"])[1])
    assert np.abs(found - luma).max() <= 0.5 + 1e-9
    picture = rows[1, 1:].reshape(3, 32, 32).transpose(1, 2, 0)
    theirs = np.asarray(Image.fromarray(picture).convert("L"))
    assert np.abs(found.reshape(32, 32) - theirs.astype(int)).max() <= 1
    small = np.array(sequences(read_cifar(tmp_path, 256, 2)["test"])[1]).reshape(16, 16)
    blocks = [found.reshape(32, 32)[a::2, b::2] for a in (0, 1) for b in (0, 1)]
    assert np.abs(small - np.mean(blocks, 0)).max() <= 0.5


def test_bad_cifar_is_named(tmp_path):
    write_cifar(tmp_path, label=11)
    with pytest.raises(ValueError, match=r"data_batch_1.bin: image 0: the label is 11"):
        read_cifar(tmp_path, 1024)
    write_cifar(tmp_path)
    with pytest.raises(ValueError, match=r"1024 pixels, data.length is 1000"):
        read_cifar(tmp_path, 1000)
    (tmp_path / "test_batch.bin").write_bytes(b"\x01" * 3000)
    with pytest.raises(ValueError, match=r"test_batch.bin: 3000 bytes are not whole images"):
        read_cifar(tmp_path, 1024)


# --- Pathfinder


def write_published(root, line="imgs/0 sample_{}.png 0 {} 1 2"):
    (root / "metadata").mkdir()
    (root / "imgs/0").mkdir(parents=True)
    for i in range(10):
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(root / f"imgs/0/sample_{i}.png")
    lines = [line.format(i, i % 2) for i in range(10)]
    (root / "metadata/0.npy").write_text("\n".join(lines))
    return root


def test_pathfinder_as_published(tmp_path):
    splits = read_pathfinder(write_published(tmp_path), 16)
    assert [len(splits[name]) for name in ("train", "val", "test")] == [8, 1, 1]
    assert sequences(splits["val"]) == [[8] * 16] and splits["test"].labels.tolist() == [1]


def test_bad_published_images_are_named(tmp_path):
    write_published(tmp_path, "imgs/0 sample_{}.png 0 {}")
    meta = tmp_path / "metadata/0.npy"
    for line, reason in (
        ("imgs/0 sample_0.png 0 2", "the label 0 or 1"),
        ("../x sample_0.png 0 1", "is outside of"),
    ):
        meta.write_text(line)
        with pytest.raises(ValueError, match=rf"0.npy, line 1: .*{reason}"):
            read_pathfinder(tmp_path, 16)
    meta.write_text("imgs/0 gone.png 0 1")
    with pytest.raises(FileNotFoundError, match=r"gone.png is missing: named in .*0.npy, line 1"):
        read_pathfinder(tmp_path, 16)
    (tmp_path / "imgs/0/gone.png").write_bytes(b"\x89PNG no more")
    with pytest.raises(ValueError, match=r"gone.png"):
        read_pathfinder(tmp_path, 16)


def test_pathfinder_arrays_run_no_code(tmp_path):
    for split in ("train", "val", "test"):
        np.save(tmp_path / f"pathfinder_{split}_images.npy", np.zeros((2, 4, 4), np.uint8))
        np.save(tmp_path / f"pathfinder_{split}_labels.npy", np.array([0, 1], np.uint8))
    assert read_pathfinder(tmp_path, 16)["val"].labels.tolist() == [0, 1]
    np.save(tmp_path / "pathfinder_val_labels.npy", np.array([0, 2], np.uint8))
    with pytest.raises(ValueError, match=r"val_labels.npy: a label is 2"):
        read_pathfinder(tmp_path, 16)
    pickled = np.array([{}, {}], dtype=object)
    np.save(tmp_path / "pathfinder_train_images.npy", pickled, allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_pathfinder(tmp_path, 16)

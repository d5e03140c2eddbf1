"""Sequences in the files of their owners: ListOps, IMDB, AAN, CIFAR-10 and Pathfinder.

Nothing is unpickled and nothing is unpacked to disk. A bad file is an error that names it and, in a
text, the line.
"""

import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from ..builtin.sets.listops import SYMBOLS
from ..files import DamagedFile, RefusedFile
from ..texts import printable

SPLITS = ("train", "val", "test")
_IDS = {symbol.encode(): number for number, symbol in enumerate(SYMBOLS, 1)}
_IGNORED = {b"(", b")"}  # of the published files; they are not symbols
# ITU-R 601 luma, in thousandths as PIL rounds it.
_LUMA = np.array([299, 587, 114])
_CIFAR_ROW = 1 + 3 * 32 * 32
_REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/[^/]+\.txt")


@dataclass(frozen=True)
class SequenceSplit:
    """Sequences of one split, end to end in `tokens`, and the files that they are from.

    Sequence i is ``tokens[starts[i]:starts[i + 1]]``, of which each label has `documents`. To the
    trainer it is the reader of its cases.
    """

    tokens: np.ndarray
    starts: np.ndarray
    labels: np.ndarray
    files: tuple[Path, ...]
    documents: int = 1

    @classmethod
    def of(
        cls, sequences: Iterable[np.ndarray], labels: Iterable[int], file: Path, documents: int = 1
    ) -> "SequenceSplit":
        """Return the split of these sequences."""
        parts = list(sequences)
        starts = np.cumsum([0, *map(len, parts)])
        labels = np.array(list(labels), np.int64)
        return cls(np.concatenate(parts), starts, labels, (file,), documents)

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> "SequenceSplit":
        """Return the first `count` labels with their sequences; all of them for None."""
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise ValueError(f"{count} sequences are wanted, but {self.files[0]} has {len(self)}")
        ends = self.starts[: count * self.documents + 1]
        kept = self.tokens[: ends[-1]], ends, self.labels[:count]
        return SequenceSplit(*kept, self.files, self.documents)

    @property
    def case_ids(self) -> list[str]:
        """The places of the sequences."""
        return [str(i) for i in range(len(self))]

    def source_files(self) -> tuple[Path, ...]:
        """Return the files that were read."""
        return self.files

    def source_hashes(self) -> dict[str, str]:
        """Return nothing: all of it is in files."""
        return {}

    def describe_names(self) -> list[str]:
        """Return how long the sequences are."""
        sizes = np.diff(self.starts)
        return [f"sequences of {sizes.min()} to {sizes.max()} tokens, mean {sizes.mean():.0f}"]


def _existing(path: Path, what: str) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {what}")
    return path


def _bad(path: Path, reason: object, line: int | None = None) -> DamagedFile:
    return DamagedFile(f"{path}: {reason}" if line is None else f"{path}, line {line}: {reason}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Return the lines of a file that are not empty, numbered from 1."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def _shown(text: bytes) -> str:
    return repr(text.decode("latin-1")[:20])


def _check_length(path: Path, number: int, found: int, length: int) -> None:
    if found == 0:
        raise _bad(path, "the sequence is empty", number)
    if found > length:
        reason = f"the sequence has {found} tokens, data.length is {length}; raise it"
        raise _bad(path, reason, number)


def read_listops(root: Path, length: int, downscale: int = 1) -> dict[str, SequenceSplit]:
    """Read ``basic_{train,val,test}.tsv``: an expression and its value per line."""
    return {split: _listops_split(root / f"basic_{split}.tsv", length) for split in SPLITS}


def _listops_split(path: Path, length: int) -> SequenceSplit:
    _existing(path, "ListOps is published as basic_train.tsv, basic_val.tsv, basic_test.tsv")
    sequences, labels = [], []
    for number, line in _lines(path):
        source, tab, target = line.partition(b"\t")
        if number == 1 and source == b"Source":
            continue
        if not tab or target not in _IDS or not target.isdigit():
            reason = f"the value is {_shown(target)}, expected a tab and 0 to 9"
            raise _bad(path, reason, number)
        words = [word for word in source.split() if word not in _IGNORED]
        if unknown := [word for word in words if word not in _IDS]:
            reason = f"the symbol {_shown(unknown[0])} is not one of {' '.join(SYMBOLS)}"
            raise _bad(path, reason, number)
        _check_length(path, number, len(words), length)
        sequences.append(np.array([_IDS[word] for word in words], np.int16))
        labels.append(int(target))
    if not labels:
        raise _bad(path, "it holds no expressions")
    return SequenceSplit.of(sequences, labels, path)


def encode_text(text: bytes, length: int) -> np.ndarray:
    """Return the bytes of a text as ids from 1, cut to a length."""
    return np.frombuffer(text[:length], np.uint8).astype(np.int16) + 1


def read_imdb(root: Path, length: int, downscale: int = 1) -> dict[str, SequenceSplit]:
    """Read the reviews of IMDB, ``{train,test}/{neg,pos}/*.txt``, of a folder or a tar archive."""
    # The test reviews also serve as validation, as in the benchmark: the set has no others.
    _existing(root, "give the folder aclImdb or its archive, such as aclImdb_v1.tar.gz")
    found: dict[str, list[tuple[str, int, np.ndarray]]] = {"train": [], "test": []}
    for name, read in _archive_members(root) if root.is_file() else _folder_members(root):
        if (place := _REVIEW.fullmatch(name)) is None:
            continue
        text = read()
        if not text.strip():
            raise _bad(root, f"{printable(name)}, line 1: the review is empty")
        found[place[1]].append((name, int(place[2] == "pos"), encode_text(text, length)))
    splits = {}
    for split, reviews in found.items():
        if {label for _, label, _ in reviews} != {0, 1}:
            raise _bad(root, f"{split}/neg and {split}/pos do not both hold reviews (*.txt)")
        # By name, whatever the order of the archive: numbers, then ratings, negative first; then
        # in an order of their own, so that the first of them are of both classes.
        reviews.sort(key=lambda review: review[0])
        order = np.random.default_rng(0).permutation(len(reviews))
        _, labels, texts = zip(*(reviews[i] for i in order), strict=True)
        splits[split] = SequenceSplit.of(texts, labels, root)
    return splits | {"val": splits["test"]}


def _folder_members(root: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for path in sorted(root.glob("*/*/*.txt")):
        yield path.relative_to(root).as_posix(), path.read_bytes


def _archive_members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Return the files of a tar archive; refuse one whose names lead outside."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise RefusedFile(f"{path} names {member.name!r}, which is outside of it")
                if member.isfile():
                    yield member.name, lambda m=member: archive.extractfile(m).read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise _bad(path, f"{error}; if it was downloaded in part, download it again") from error


def read_aan(root: Path, length: int, downscale: int = 1) -> dict[str, SequenceSplit]:
    """Read ``new_aan_pairs.{train,eval,test}.tsv``: label, two ids, two texts per line."""
    names = {"train": "train", "val": "eval", "test": "test"}
    return {s: _aan_split(root / f"new_aan_pairs.{n}.tsv", length) for s, n in names.items()}


def _aan_split(path: Path, length: int) -> SequenceSplit:
    _existing(path, "Retrieval reads new_aan_pairs.train.tsv, .eval.tsv and .test.tsv")
    texts, labels = [], []
    for number, line in _lines(path):
        label, *columns = [column.strip(b'"') for column in line.split(b"\t")]
        if len(columns) != 4:
            raise _bad(path, f"it has {1 + len(columns)} columns, expected 5", number)
        if label not in (b"0", b"1", b"0.0", b"1.0"):
            raise _bad(path, f"the label is {_shown(label)}, expected 0 or 1", number)
        labels.append(int(float(label)))
        for text in columns[2:]:
            texts.append(encode_text(text, length))
            _check_length(path, number, len(texts[-1]), length)
    if not labels:
        raise _bad(path, "it holds no pairs")
    return SequenceSplit.of(texts, labels, path, documents=2)


def grey(images: np.ndarray) -> np.ndarray:
    """Return the ITU-R 601 luma of images (n, 3, ...) in bytes, rounded."""
    return ((np.moveaxis(images, 1, -1) @ _LUMA + 500) // 1000).astype(np.uint8)


def read_cifar(root: Path, length: int, downscale: int = 1) -> dict[str, SequenceSplit]:
    """Read CIFAR-10's binary batches; the last tenth of the training images is validation."""
    paths = tuple(root / f"data_batch_{i}.bin" for i in range(1, 6))
    images, labels = map(np.concatenate, zip(*map(_cifar_batch, paths), strict=True))
    cut, test = len(labels) * 9 // 10, root / "test_batch.bin"
    return {
        "train": _image_split(images[:cut], labels[:cut], paths, length, downscale),
        "val": _image_split(images[cut:], labels[cut:], paths, length, downscale),
        "test": _image_split(*_cifar_batch(test), (test,), length, downscale),
    }


def _cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    _existing(path, "CIFAR-10's binary version has data_batch_1.bin to 5 and test_batch.bin")
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % _CIFAR_ROW:
        reason = f"{len(content)} bytes are not whole images of {_CIFAR_ROW}; download it again"
        raise _bad(path, reason)
    rows = content.reshape(-1, _CIFAR_ROW)
    if (wrong := np.flatnonzero(rows[:, 0] > 9)).size:
        raise _bad(path, f"image {wrong[0]}: the label is {rows[wrong[0], 0]}, expected 0 to 9")
    return grey(rows[:, 1:].reshape(-1, 3, 32, 32)), rows[:, 0]


def _image_split(
    images: np.ndarray, labels: np.ndarray, files: tuple[Path, ...], length: int, downscale: int
) -> SequenceSplit:
    """Return images (n, rows, columns) as sequences of grey levels, row by row."""
    n, rows, columns = images.shape
    if downscale < 1 or rows % downscale or columns % downscale:
        raise ValueError(f"data.downscale is {downscale}, images have {rows} x {columns} pixels")
    if downscale > 1:
        blocks = (n, rows // downscale, downscale, columns // downscale, downscale)
        images = np.rint(images.reshape(blocks).mean((2, 4)))
    tokens = images.reshape(n, -1).astype(np.int16)
    pixels = tokens.shape[1]
    if pixels > length:
        raise _bad(files[0], f"images have {pixels} pixels, data.length is {length}; raise it")
    starts = np.arange(n + 1) * pixels
    return SequenceSplit(tokens.ravel(), starts, labels.astype(np.int64), files)


def read_pathfinder(root: Path, length: int, downscale: int = 1) -> dict[str, SequenceSplit]:
    """Read Pathfinder: our arrays, or the published folders ``imgs`` and ``metadata``."""
    # Of the published images, in the order of their numbers, the first 80 % are for training and
    # 10 % each for validation and test.
    if not (root / "metadata").is_dir():
        return {split: _pathfinder_arrays(root, split, length, downscale) for split in SPLITS}
    files = tuple(sorted((root / "metadata").glob("*.npy"), key=lambda path: int(path.stem)))
    # The files are text, whatever their name says.
    rows = [_published_image(root, path, *line) for path in files for line in _lines(path)]
    if not rows:
        raise _bad(root / "metadata", "it holds no metadata of images (*.npy)")
    images, labels = map(np.stack, zip(*rows, strict=True))
    cuts = [len(rows) * tenths // 10 for tenths in (0, 8, 9, 10)]
    return {s: _image_split(images[a:b], labels[a:b], files, length, downscale)
            for s, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}  # fmt: skip


def _published_image(root: Path, path: Path, number: int, line: bytes) -> tuple[np.ndarray, int]:
    from PIL import Image, UnidentifiedImageError

    words = line.decode("latin-1").split()
    if len(words) < 4 or words[3] not in ("0", "1"):
        raise _bad(path, "expected a folder, a file, a number and the label 0 or 1", number)
    name = PurePosixPath(words[0], words[1])
    if name.is_absolute() or ".." in name.parts:
        raise _bad(path, f"{str(name)!r} is outside of {root}", number)
    picture = _existing(root / name, f"named in {path}, line {number}")
    try:
        with Image.open(io.BytesIO(picture.read_bytes()), formats=["PNG"]) as image:
            return np.asarray(image.convert("L")), int(words[3])
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise _bad(picture, error) from error


def _pathfinder_arrays(root: Path, split: str, length: int, downscale: int) -> SequenceSplit:
    files = tuple(root / f"pathfinder_{split}_{name}.npy" for name in ("images", "labels"))
    for path in files:
        _existing(path, "give a folder with imgs and metadata as published, or a generated set")
    try:
        images, labels = (np.load(path, allow_pickle=False) for path in files)
    except (ValueError, EOFError, OSError) as error:
        raise _bad(files[0], error) from error
    if images.ndim != 3 or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise _bad(files[0], f"images are {images.dtype} {images.shape}, labels {labels.shape}")
    if labels.size and labels.max() > 1:
        raise _bad(files[1], f"a label is {labels.max()}, expected 0 or 1")
    return _image_split(images, labels, files, length, downscale)


READERS: Mapping[str, Callable[[Path, int, int], dict[str, SequenceSplit]]] = {
    "listops": read_listops,
    "text": read_imdb,
    "retrieval": read_aan,
    "image": read_cifar,
    "pathfinder": read_pathfinder,
}

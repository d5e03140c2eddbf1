"""Which runs of the raw sets are for training, validation and testing, as their authors publish it.

These are the splits called ``full`` in the manifests at https://caemldatasets.org (repository
neilashton/caemldatasets, ``assets/downloads/<set>/<set>_official_splits/splits/manifest.json``),
which also has smaller ones and ones by drag, geometry and wake. A manifest fetched from there works
as it is: ``data.splits={manifest: ..., train: scarce_train, val: scarce_val, test: scarce_test}``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..files import reading, replace_text
from .specs import MANIFEST

SOURCE = "https://caemldatasets.org, split full"


@dataclass(frozen=True)
class PublishedSplit:
    """Runs of a set by their numbers; those in no list are for training."""

    first: int
    last: int
    val: str
    test: str
    absent: str = ""  # never published
    dropped: str = ""  # published, but left out of training by the authors

    def runs(self) -> dict[str, list[int]]:
        """Return the numbers by split."""
        listed = (self.val, self.test, self.absent, self.dropped)
        val, test, *left_out = ([int(run) for run in text.split()] for text in listed)
        others = {*val, *test, *(run for runs in left_out for run in runs)}
        train = [run for run in range(self.first, self.last + 1) if run not in others]
        return {"train": train, "val": val, "test": test}


SPLITS = {
    "drivaerml_raw": PublishedSplit(
        1,
        500,
        val="4 22 56 109 150 165 177 191 228 234 241 247 252 253 260 271 275 298 303 311 321 324 "
        "328 341 352 366 380 390 401 423 441 447 454 487",
        test="11 12 19 20 24 26 29 41 55 59 108 124 127 133 142 158 173 180 187 188 197 199 203 "
        "205 207 208 210 215 222 226 258 263 280 284 290 322 337 350 354 363 372 382 387 405 410 "
        "424 428 429 436 472",
        absent="167 211 218 221 248 282 291 295 316 325 329 364 370 376 403 473",
        dropped="45",
    ),
    "ahmedml": PublishedSplit(
        1,
        500,
        val="24 26 29 38 41 55 59 104 108 124 133 142 158 173 180 188 196 197 199 205 207 210 222 "
        "226 230 258 263 280 281 284 290 291 295 304 312 337 350 354 363 372 387 403 405 424 428 "
        "429 432 455 472 494",
        test="4 11 12 19 20 22 56 109 127 150 165 177 187 191 203 208 215 228 234 241 247 252 253 "
        "260 271 275 298 303 311 321 322 324 328 329 341 352 364 366 376 380 382 390 401 410 423 "
        "436 441 447 454 487",
    ),
    "windsorml": PublishedSplit(
        0,
        354,
        val="8 11 25 27 37 43 44 46 50 51 56 57 77 83 94 99 137 149 156 168 210 222 236 242 244 "
        "250 267 273 274 279 287 300 305 317 331",
        test="7 18 23 28 32 47 58 66 69 85 89 95 97 98 100 104 113 123 125 130 136 139 148 172 216 "
        "232 253 256 257 270 283 299 333 336 341 354",
    ),
}


def published_manifest(name: str, runs: Iterable[int] | None = None) -> dict:
    """Return the manifest of a set, of all its runs or of those given.

    Examples
    --------
    >>> published_manifest("windsorml", range(9))["splits"]
    {'train': ['run_0', 'run_1', 'run_2', 'run_3', 'run_4', 'run_5', 'run_6'], 'val': ['run_8'],
    'test': ['run_7']}
    """
    chosen = None if runs is None else set(runs)
    splits = {
        split: [f"run_{run}" for run in numbers if chosen is None or run in chosen]
        for split, numbers in SPLITS[name].runs().items()
    }
    return {"splits": {split: ids for split, ids in splits.items() if ids}, "source": SOURCE}


def write_manifest(name: str, folder: Path) -> str:
    """Write the published split of the runs that are in `folder`, and return what was done.

    A manifest of somebody else is left as it is.
    """
    path = folder / MANIFEST
    if path.is_file():
        with reading(path):
            content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("source") != SOURCE:
            return f"{path} is left as it is"
    names = {file.parent.name for file in folder.glob("run_*/boundary_*")}
    numbers = [name.removeprefix("run_") for name in sorted(names)]
    runs = [int(number) for number in numbers if number.isdecimal()]
    manifest = published_manifest(name, runs)
    replace_text(path, json.dumps(manifest) + "\n")
    counts = ", ".join(f"{len(ids)} {split}" for split, ids in manifest["splits"].items())
    text = f"{path} has the published split of the runs here: {counts or 'none'}"
    for split in ("train", "test"):
        if split not in manifest["splits"]:
            some = ", ".join(str(run) for run in SPLITS[name].runs()[split][:5])
            text += f"; none is for {split}: fetch some of {some}, ..., or set data.splits"
    return text

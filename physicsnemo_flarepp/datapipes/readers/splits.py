"""Which cases are for training, validation and testing: by position, by name, or by fraction."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...files import reading
from ..specs import MANIFEST, BenchmarkSpec
from ..validation import check_unique, printable

SPLITS = ("train", "val", "test")
# How owners of data call their validation split.
_NAMES = {"val": ("val", "valid", "validation")}
# Shares of the splits where nothing says which cases they have; few cases are not validated on.
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
FEW_SHARES = {"train": 0.8, "test": 0.2}
_MANY = 20


class SplitMissing(FileNotFoundError):
    """The data does not say which cases a split has."""


@dataclass(frozen=True)
class SplitFraction:
    """A share of all cases, the same for the same ids and seed; at least one case.

    Cases are ordered by a hash of seed and id, so that a case that is added later moves no other
    between splits but those at a boundary.
    """

    split: str
    fractions: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = {name: part for name, part in self.fractions.items() if not 0 < part <= 1}
        total = sum(self.fractions.values())
        if wrong or total > 1 + 1e-9:
            raise ValueError(
                f"data.splits has the fractions {dict(self.fractions)} with the sum {total:g}, "
                "expected positive ones with a sum of at most 1. For numbers of cases set "
                "data.n_train, data.n_val and data.n_test"
            )

    def choose(self, ids: Sequence[str]) -> list[str]:
        """Return the cases of the split among `ids`, in their order."""
        if len(ids) < len(self.fractions):
            raise ValueError(
                f"{len(ids)} cases cannot give the splits {', '.join(self.fractions)} one case each"
            )
        key = lambda case: hashlib.sha256(f"{self.seed} {case}".encode()).digest()  # noqa: E731
        order, parts, ends = sorted(ids, key=key), list(self.fractions.values()), [0]
        for number in range(1, len(parts) + 1):
            end = round(len(ids) * sum(parts[:number]))
            # Every split has a case, and leaves one to each that follows.
            ends.append(min(max(end, ends[-1] + 1), len(ids) - len(parts) + number))
        position = list(self.fractions).index(self.split)
        chosen = set(order[ends[position] : ends[position + 1]])
        return [case for case in ids if case in chosen]


# Ids; or the name that a split has in the manifest or as a directory; or a share of all cases.
CaseChoice = Sequence[str] | str | SplitFraction


def positional_split(
    spec: BenchmarkSpec,
    split: str,
    n_cases: int,
    *,
    path: Path | str = "",
    n_train: int | None = None,
    n_val: int | None = None,
    n_test: int | None = None,
    alone: bool = False,
    with_tests: bool = True,
) -> slice:
    """Return the cases of `split` in an array of `n_cases`.

    Of the first ``spec.pool`` cases (all, if None), training takes the first `n_train` and
    testing the last `n_test`, if the array has test cases; both default to the published numbers.
    With an `n_train` of 0 all are for testing. Validation takes cases that are in neither: those
    between the two, or else those behind the pool, by default ``spec.n_val`` or all there are. An
    array may also hold the cases of the split `alone`.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {SPLITS}")
    wanted = {"train": n_train, "val": n_val, "test": n_test}[split]
    n_train = spec.n_train if n_train is None else n_train
    if alone:
        if wanted is None:
            wanted = spec.n_test if split == "test" and n_train else n_cases
        if not 1 <= wanted <= n_cases:
            raise ValueError(f"{path}: n_{split}={wanted} is not between 1 and its {n_cases} cases")
        return slice(0, wanted)
    pool = min(n_cases, spec.pool or n_cases)
    if n_test is None or not with_tests:
        n_test = 0 if not with_tests else spec.n_test if n_train else pool
    if n_test < int(with_tests) or n_train < int(split == "train"):
        raise ValueError(f"{spec.name}: n_train={n_train}, n_test={n_test} leaves a split empty")
    if n_train + n_test > pool:
        raise ValueError(
            f"{path}: {pool} cases cannot give n_train={n_train} and n_test={n_test}; lower them "
            "(n_train=0 if all are for testing), or use a file with more cases"
        )
    if split != "val":
        return slice(0, n_train) if split == "train" else slice(pool - n_test, pool)
    between, behind = pool - n_test - n_train, n_cases - pool
    most = max(between, behind)
    wanted = min(spec.n_val, most) if wanted is None else wanted
    if wanted > most:
        raise ValueError(
            f"{path}: {most} cases are in neither n_train={n_train} nor n_test={n_test}, so "
            f"n_val={wanted} cannot be taken; lower it, or n_train"
        )
    if wanted < 1 or n_train == 0:
        raise SplitMissing(f"{path} has no cases left for validation; lower n_train, or n_test")
    start = n_train if wanted <= between else pool
    return slice(start, start + wanted)


def says_its_split(root: Path) -> bool:
    """Return whether a directory tells its test cases: by a manifest or a directory ``test``."""
    return (root / MANIFEST).is_file() or (root / "test").is_dir()


def read_manifest(path: Path) -> dict[str, list[str]]:
    """Return the splits of a manifest: {"train": [ids], ...}, at the top or below ``splits``."""
    content = _read_json(path)
    entries = content.get("splits", content) if isinstance(content, Mapping) else {}
    entries = entries if isinstance(entries, Mapping) else {}
    splits = {name: [str(c) for c in ids] for name, ids in entries.items() if _is_list(ids)}
    if not splits:
        raise ValueError(
            f'{path} is not a manifest; expected {{"train": [case ids], "test": [case ids]}}'
        )
    for name in SPLITS:
        if name in entries and name not in splits:
            raise ValueError(f"{path}: {name} is not a list of case ids")
    return splits


def _is_list(ids: Any) -> bool:
    return isinstance(ids, list) and not any(isinstance(case, list | dict) for case in ids)


def _read_json(path: Path) -> Any:
    """Return what is in a JSON file, in which a name may stand once."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise ValueError(f"one of its names {', '.join(content)} stands there twice")
        return content

    with reading(path):
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=checked)


def read_case_list(path: Path) -> list[str]:
    """Return the case ids in a file: a JSON list, or one per line, where # starts a comment."""
    if path.suffix == ".json":
        content = _read_json(path)
        if not _is_list(content):
            raise ValueError(f'{path} is not a list of case ids; write ["run_1", ...]')
        return [str(case) for case in content]
    with reading(path):
        text = path.read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def case_choices(given: str | Mapping[str, Any] | None, root: Path) -> dict[str, Any]:
    """Return the `cases` of each split in ``data.splits`` for readers, and its ``manifest``."""
    given = {"manifest": given} if isinstance(given, str) else dict(given or {})
    unknown = [name for name in given if name not in (*SPLITS, "manifest", "seed")]
    if unknown:
        raise ValueError(
            f"data.splits has {', '.join(unknown)}; expected {', '.join(SPLITS)}, manifest and seed"
        )
    given = {name: value for name, value in given.items() if value is not None}
    seed, manifest = given.pop("seed", 0), given.pop("manifest", None)
    numbers = {name: given[name] for name in SPLITS if isinstance(given.get(name), int | float)}
    if numbers and len(numbers) < len(given):
        raise ValueError(f"data.splits is {given}; give fractions for all splits or for none")
    if numbers:
        left = 1 - sum(numbers.values())
        if "train" not in numbers and left > 0:
            numbers = {"train": left, **numbers}
        return {name: SplitFraction(name, numbers, seed) for name in numbers}
    choices = {}
    for name, value in given.items():
        choices[name] = value if isinstance(value, str) else list(value)
        if isinstance(value, str) and Path(value).suffix in (".txt", ".json", ".csv", ".lst"):
            path = _found_file(value, root)
            if not path.is_file():
                raise FileNotFoundError(f"{value} of data.splits is neither here nor in {root}")
            choices[name] = read_case_list(path)
    return choices if manifest is None else choices | {"manifest": _found_file(manifest, root)}


def _found_file(name: str, root: Path) -> Path:
    """Return a path as given, or under `root` if it is there."""
    path = Path(name).expanduser()
    return path if path.is_file() or not (root / path).is_file() else root / path


def named_split(
    root: Path,
    split: str,
    found: Mapping[str, Path],
    *,
    cases: CaseChoice | None = None,
    manifest: str | Path | None = None,
    by_share: bool = False,
    n_train: int | None = None,
    n_val: int | None = None,
    n_test: int | None = None,
) -> dict[str, Path]:
    """Return id -> file of the cases of `split`, in the order of the list that defines it.

    The list is, in this order: `cases`; the manifest (``manifest.json`` under `root` unless
    given); else a file belongs to the split if it lies in the directory ``<root>/<split>``. The
    validation split may also be called ``valid`` or ``validation`` there. If there is none of these
    a split is, with `by_share`, a share of all cases. `n_train`, `n_val` and `n_test` keep the
    first cases of their split.
    """
    n_cases = {"train": n_train, "val": n_val, "test": n_test}.get(split)
    unsaid = cases is None and manifest is None and not says_its_split(root)
    if by_share and unsaid and split in SPLITS:
        shares = FEW_SHARES if len(found) < _MANY else SHARES
        if split not in shares:
            raise SplitMissing(f"{len(found)} cases of {root} are too few for a split {split!r}")
        cases = SplitFraction(split, shares)
    if isinstance(cases, SplitFraction):
        where, ids = "data.splits", cases.choose(list(found))
    elif cases is not None and not isinstance(cases, str):
        where, ids = "the list of cases", [str(case) for case in cases]
    else:
        name = split if cases is None else cases
        where, ids = _listed(root, _NAMES.get(name, (name,)), found, manifest)
    check_unique(ids, f"{where}, split {split}")
    if not ids:
        raise ValueError(f"{where}: split {split!r} is empty; it needs at least 1 case")
    absent = [case for case in ids if case not in found]
    if absent:
        raise FileNotFoundError(
            f"{where} names {len(absent)} cases without files in {root}: "
            f"{', '.join(map(printable, absent[:10]))}. Fetch them or take them off the list"
        )
    if n_cases is not None and not 1 <= n_cases <= len(ids):
        raise ValueError(f"{where}: split {split!r} has {len(ids)} cases, {n_cases} were asked for")
    return {case: found[case] for case in ids[:n_cases]}


def _listed(
    root: Path, names: Sequence[str], found: Mapping[str, Path], manifest: str | Path | None
) -> tuple[str, list[str]]:
    """Return where the first split of these names is defined, and its cases."""
    path = Path(manifest) if manifest is not None else root / MANIFEST
    if manifest is not None and not path.is_file():
        raise FileNotFoundError(f"manifest {path} does not exist")
    if path.is_file():
        splits = read_manifest(path)
        for name in names:
            if name in splits:
                return str(path), splits[name]
        raise SplitMissing(
            f"{path} has no split {names[0]!r}; it has {sorted(splits)}. Name the one to use as "
            f"data.splits.{names[0]}=NAME"
        )
    for name in names:
        if (root / name).is_dir():
            ids = [case for case, file in found.items() if file.is_relative_to(root / name)]
            return str(root / name), ids
    raise SplitMissing(
        f"{root} does not say which cases are for {names[0]}: set data.splits, such as "
        '{train: 0.8, test: 0.2}, write a manifest.json {"train": [...], "test": [...]}, or use '
        f"folders train, val and test. Cases found: {', '.join(list(found)[:10])}"
    )

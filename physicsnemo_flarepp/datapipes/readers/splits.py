"""Which cases belong to a split: by position in an array, or by name in a manifest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...files import reading
from ..checks import check_unique
from ..specs import BenchmarkSpec

SPLITS = ("train", "test")
MANIFEST = "manifest.json"


def positional_split(
    spec: BenchmarkSpec,
    split: str,
    n_cases: int,
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    path: Path | str = "",
) -> slice:
    """Return the cases of `split` in an array of `n_cases`.

    Of the first ``spec.pool`` cases (all, if None), training takes the first `n_train` and
    testing the last `n_test`; both default to the published numbers. With an `n_train` of 0 the
    array holds test cases only, by default all of them.

    Examples
    --------
    >>> from physicsnemo_flarepp.datapipes.specs import benchmark
    >>> positional_split(benchmark("pipe"), "test", 2310)
    slice(1000, 1200, None)
    >>> positional_split(benchmark("elasticity"), "test", 2000)
    slice(1800, 2000, None)
    >>> positional_split(benchmark("elasticity"), "test", 30, n_train=0)
    slice(0, 30, None)
    """
    check_split(split)
    pool = min(n_cases, spec.pool or n_cases)
    n_train = spec.n_train if n_train is None else n_train
    if n_test is None:
        n_test = pool if n_train == 0 else spec.n_test
    if n_test < 1 or n_train < (1 if split == "train" else 0):
        raise ValueError(
            f"{spec.name}: n_train={n_train}, n_test={n_test} leaves a split empty; "
            "both need at least 1 case"
        )
    if n_train + n_test > pool:
        raise ValueError(
            f"{path}: {pool} cases cannot give n_train={n_train} and n_test={n_test} without "
            "overlap; lower n_train or n_test (n_train=0 if all are for testing), or use a file "
            "with more cases"
        )
    return slice(0, n_train) if split == "train" else slice(pool - n_test, pool)


def check_split(split: str) -> None:
    """Raise unless `split` is train or test."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {SPLITS}")


def says_its_split(root: Path) -> bool:
    """Return whether a directory tells its test cases: by a manifest or a directory ``test``."""
    return (root / MANIFEST).is_file() or (root / "test").is_dir()


def read_manifest(path: Path) -> dict[str, list[str]]:
    """Return the splits of a manifest: {"train": [ids], "test": [ids], ...}, disjoint."""
    with reading(path):
        content = json.loads(path.read_text())
        if isinstance(content, Mapping) and "splits" in content:
            content = content["splits"]
    if not isinstance(content, Mapping) or not all(
        isinstance(ids, Sequence) and not isinstance(ids, str) for ids in content.values()
    ):
        raise ValueError(
            f'{path} is not a manifest; expected {{"train": [case ids], "test": [case ids]}}'
        )
    splits = {name: [str(case) for case in ids] for name, ids in content.items()}
    check_unique([case for ids in splits.values() for case in ids], str(path))
    return splits


def named_split(
    root: Path,
    split: str,
    found: Mapping[str, Path],
    *,
    cases: Sequence[str] | None = None,
    manifest: str | Path | None = None,
    n_cases: int | None = None,
) -> dict[str, Path]:
    """Return id -> file of the cases of `split`, in the order of the list that defines it.

    The list is, in this order: `cases`; the manifest (``manifest.json`` under `root` unless
    given); else a file belongs to the split if it lies in the directory ``<root>/<split>``.

    Parameters
    ----------
    root : Path
        Root of the set.
    split : str
        ``train`` or ``test``; a manifest may define further ones.
    found : Mapping[str, Path]
        All cases under `root`.
    cases : Sequence[str], optional
        Ids of this split.
    manifest : str or Path, optional
        Manifest to use.
    n_cases : int, optional
        Keep the first `n_cases` of the split.
    """
    manifest_path = Path(manifest) if manifest is not None else root / MANIFEST
    if cases is not None:
        where, ids = "the list of cases", [str(case) for case in cases]
        check_unique(ids, where)
    elif manifest is not None or manifest_path.is_file():
        if not manifest_path.is_file():
            raise FileNotFoundError(f"manifest {manifest_path} does not exist")
        splits = read_manifest(manifest_path)
        if split not in splits:
            raise ValueError(f"{manifest_path} has no split {split!r}; it has {sorted(splits)}")
        where, ids = str(manifest_path), splits[split]
    elif (root / split).is_dir():
        where = str(root / split)
        ids = [case for case, path in found.items() if path.is_relative_to(root / split)]
    else:
        raise FileNotFoundError(
            f"{root} does not say which cases are for {split}: give the reader `cases`, put a "
            'manifest.json {"train": [...], "test": [...]} there, or use directories train/ and '
            f"test/. Cases found: {', '.join(list(found)[:10])}"
        )
    if not ids:
        raise ValueError(f"{where}: split {split!r} is empty; it needs at least 1 case")
    absent = [case for case in ids if case not in found]
    if absent:
        raise FileNotFoundError(
            f"{where} names {len(absent)} cases with no file under {root}: "
            f"{', '.join(absent[:10])}. Fetch them or take them off the list"
        )
    if n_cases is not None and not 1 <= n_cases <= len(ids):
        raise ValueError(
            f"{where}: split {split!r} has {len(ids)} cases, {n_cases} were asked for; "
            f"choose between 1 and {len(ids)}"
        )
    return {case: found[case] for case in ids[:n_cases]}

"""Raw cases to shuffled, memory-mapped ones: ``flarepp prepare data=drivaerml_raw``.

Everything that a reader of this package returns can be prepared; see :mod:`.readers.prepared` for
what is written and why.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from ..files import (
    check_inside,
    checked_json,
    exclusive,
    reading,
    replace_text,
    sync_folder,
    write_durably,
)
from ..progress import progress_bar
from .loaders import check_disjoint
from .readers import CaseReader
from .readers.base import MEASURE, NO_WEIGHTS, TokenTable
from .readers.case_files import some
from .readers.names import NAMES
from .readers.prepared import CASE_FILE, COLUMN_GROUPS, FORMAT, read_case_file
from .readers.splits import MANIFEST, SPLITS
from .sources import DataSource, open_source
from .specs import builtin_name, force_convention
from .statistics import Moments
from .validation import check_finite, check_range

SETTINGS_FILE = "settings.json"
# Rows computed at a time, which bounds the memory that geometry takes besides a column.
_BLOCK = 1 << 20
_TABLE_BYTES = 1 << 20


def prepare(
    cfg: Mapping[str, Any] | DictConfig,
    out: str | Path,
    *,
    workers: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write the cases of a data config to `out` in random order of rows, and return `out`.

    An interrupted preparation resumes; a case appears whole or not at all, and the manifest last.
    A case that cannot be read does not stop the others; an error at the end names all such cases.
    """
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers is {workers}, expected at least 1")
    plain = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)
    plain |= {"n_points": None, "n_points_test": None, "sampling_density": "cells"}
    if plain.get("weights", NO_WEIGHTS) == NO_WEIGHTS:
        plain["weights"] = MEASURE  # stored where it is known
    data = open_source(plain, trust=True)
    readers, named = {}, data
    for split in SPLITS if data.cfg.n_train != 0 else SPLITS[1:]:
        if (reader := named.find_reader(split)) is not None:
            named = named.with_names(reader)  # what one guesses holds for all
            readers[split] = reader
    check_disjoint(readers)
    out = Path(out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / ".lock", lambda: print(f"another process prepares {out}; waiting")):
        _check_settings(out, seed, data)
        check_inside(case for reader in readers.values() for case in reader.case_ids)
        jobs = {
            case: (reader, index, out / case)
            for reader in readers.values()
            for index, case in enumerate(reader.case_ids)
        }
        for _, _, folder in jobs.values():
            _check_replaceable(folder)
        failed = _write_cases(jobs, seed, workers, progress)
        if failed:
            raise RuntimeError(
                f"{len(failed)} of {len(jobs)} cases could not be prepared, the others were: "
                + "; ".join(f"{case}: {reason}" for case, reason in failed.items())
                + ". Repair them, or leave them out of the splits, and start again"
            )
        _write_manifest(out, data, readers)
    return out


def _check_settings(out: Path, seed: int, data: DataSource) -> None:
    """Write the settings that prepared cases depend on; raise if others made those in `out`."""
    given = OmegaConf.to_container(data.cfg, resolve=True)
    settings = {"seed": seed, "reader": data.reader_class.__name__, "arguments": given["reader"]}
    settings |= {name: given[name] for name in (*NAMES, "weights")}
    path = out / SETTINGS_FILE
    others = [found.name for found in out.iterdir() if not found.name.startswith(".")]
    if others and not path.is_file():
        raise FileExistsError(
            f"{out} holds {some(others, 3)} and was not written by `flarepp prepare`; set "
            "prepare.out to a new folder"
        )
    if path.is_file():
        with reading(path):
            stored = json.loads(path.read_text())
            if not isinstance(stored, dict):
                raise ValueError("it holds no settings")
        changed = [name for name in settings if stored.get(name) != settings[name]]
        if changed:
            told = ", ".join(f"{n} was {stored.get(n)} and is {settings[n]}" for n in changed)
            raise ValueError(
                f"{out} was prepared with other settings: {told}. Use these, or another folder"
            )
    replace_text(path, json.dumps(settings, indent=2) + "\n")


def _check_replaceable(folder: Path) -> None:
    """Raise if a folder that a case would replace is not a prepared case itself."""
    if folder.exists() and not (folder / CASE_FILE).is_file():
        raise FileExistsError(
            f"{folder} is not a prepared case, but in the way of one; set prepare.out to another "
            "folder, or move it away"
        )


def _write_cases(
    jobs: Mapping[str, tuple[CaseReader, int, Path]], seed: int, workers: int, progress: bool
) -> dict[str, str]:
    """Write the missing cases; return the reasons of those that could not be written."""
    failed: dict[str, str] = {}
    # Threads suffice: VTK parses in separate processes, and NumPy and the disk release the lock.
    with (
        progress_bar("preparing", len(jobs), progress) as advance,
        ThreadPoolExecutor(workers) as pool,
    ):
        running = {pool.submit(_write_case, *job, seed): case for case, job in jobs.items()}
        try:
            for done in as_completed(running):
                try:
                    done.result()
                except (ValueError, KeyError, OSError, MemoryError) as error:
                    failed[running[done]] = f"{type(error).__name__}: {error}"
                advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _write_case(reader: CaseReader, index: int, folder: Path, seed: int) -> None:
    """Write a case, its rows in a random order, to `folder`, which appears once complete."""
    case_id, described = reader.case_ids[index], reader.describe_case(index)
    files = [Path(file) for file in described.get("files", [described["source"]])]
    # Sizes and times, which show a change.
    states = [path.stat() for path in files if path.exists()]
    seen = [[state.st_size, state.st_mtime_ns] for state in states]
    if _is_prepared(folder, seen):
        return
    table = reader.open_case(index)
    source = Path(table.source)
    unfinished = folder.with_name(f".{folder.name}.preparing")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    n = table.n_tokens
    order = np.random.default_rng([seed, *case_id.encode()]).permutation(n)
    order = order.astype(np.uint32 if n < 2**32 else np.uint64)
    content = {
        "format": FORMAT,
        "case_id": case_id,
        "n_tokens": n,
        "association": table.association,
        "original": {
            **{k: v for k, v in described.items() if isinstance(v, str | int | float | None)},
            "source": str(source.absolute()),
            "files": [str(path.absolute()) for path in files],
        },
        "seen": seen,
        "seed": seed,
        "columns": _write_columns(table, order, unfinished, case_id),
        "globals": {
            name: np.reshape(value, -1).astype(float).tolist()
            for name, value in table.global_values.items()
        },
        "order": _write_column(unfinished, "order.npy", order),
    }
    # The reference values beside a mesh file, which forces need.
    for csv in source.parent.glob("geo_ref_*.csv"):
        if csv.is_file() and csv.stat().st_size < _TABLE_BYTES:
            shutil.copyfile(csv, unfinished / csv.name)
    replace_text(unfinished / CASE_FILE, checked_json(content))
    sync_folder(unfinished)
    _check_replaceable(folder)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    sync_folder(folder.parent)


def _is_prepared(folder: Path, seen: list[list[int]]) -> bool:
    """Return whether a case is complete and was made from its files as they are now."""
    try:
        content = read_case_file(folder / CASE_FILE)
    except (FileNotFoundError, ValueError):
        return False
    entries = [entry for group in content["columns"].values() for entry in group.values()]
    sizes = {folder / entry["file"]: entry["size"] for entry in (*entries, content["order"])}
    return content["seen"] == seen and all(
        path.is_file() and path.stat().st_size == size for path, size in sizes.items()
    )


def _write_columns(
    table: TokenTable, order: np.ndarray, folder: Path, case_id: str
) -> dict[str, dict[str, Any]]:
    n = table.n_tokens
    groups = {group: getattr(table, group) for group in COLUMN_GROUPS}
    lazy = {(group, name): c for group, columns in groups.items() for name, c in columns.items()}
    values = {key: np.empty((n, *column.shape[1:]), np.float32) for key, column in lazy.items()}
    # The same slices for all columns: geometry is computed once for columns that share it.
    for rows in (slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK)):
        for key, whole in values.items():
            whole[rows] = lazy[key][rows]
    written: dict[str, dict[str, Any]] = {group: {} for group in COLUMN_GROUPS}
    for number, (group, name) in enumerate(lazy):
        whole = values.pop((group, name))  # frees its memory once it is written
        check_finite(table.source, case_id, name, whole)
        check_range(table.source, case_id, name, whole.reshape(n, -1))
        file = f"{number:02d}_{group}_{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.npy"
        entry = _write_column(folder, file, whole[order])
        moments = Moments.per_channel(torch.from_numpy(whole.reshape(n, -1)))
        stored = {key: value.tolist() for key, value in moments._asdict().items()}
        written[group][name] = entry | {"statistics": stored}
    return written


def _write_column(folder: Path, file: str, values: np.ndarray) -> dict[str, Any]:
    written = write_durably(folder / file, lambda sink: np.save(sink, values, allow_pickle=False))
    return {"file": file, **written._asdict()}


def _write_manifest(out: Path, data: DataSource, readers: Mapping[str, CaseReader]) -> None:
    splits = {split: list(reader.case_ids) for split, reader in readers.items()}
    ids = [case for listed in splits.values() for case in listed]
    contents = {case: read_case_file(out / case / CASE_FILE) for case in ids}
    training = [contents[case]["columns"] for case in splits.get("train", ())]
    manifest: dict[str, Any] = {
        "splits": splits,
        "n_tokens": {case: content["n_tokens"] for case, content in contents.items()},
        "statistics": {
            group: {
                name: _merged_statistics([case[group][name]["statistics"] for case in training])
                for name in (training[0][group] if training else ())
            }
            for group in COLUMN_GROUPS
        },
    }
    fields = next(iter(contents.values()))["columns"]["fields"]
    convention = force_convention(fields, builtin_name(data.root, data.cfg.builtin))
    if convention is not None:
        manifest["forces"] = asdict(convention)
    replace_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _merged_statistics(parts: list[Mapping[str, list[float]]]) -> dict[str, Any]:
    """Return count, mean, standard deviation and range per channel over at least one case."""
    stored = (
        Moments(**{n: torch.tensor(v, dtype=torch.float64) for n, v in part.items()})
        for part in parts
    )
    merged = reduce(Moments.merge, stored)
    values = {"mean": merged.mean, "std": merged.deviation, "min": merged.low, "max": merged.high}
    return {"count": int(merged.count[0]), **{name: v.tolist() for name, v in values.items()}}


def bytes_of(out: Path) -> int:
    """Return the bytes of all columns of the cases in a folder."""
    return sum(path.stat().st_size for path in out.rglob("*.npy"))

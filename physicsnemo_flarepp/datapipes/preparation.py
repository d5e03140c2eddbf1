"""Raw cases to shuffled, memory-mapped ones: ``flarepp prepare data=drivaerml_raw``.

Whatever a reader of this package gives can be prepared; see :mod:`.readers.prepared` for what is
written, and why so.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
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
from .checks import check_finite, check_range
from .loaders import check_disjoint
from .readers import CaseReader
from .readers.base import MEASURE, NO_WEIGHTS, TokenTable
from .readers.case_files import some
from .readers.prepared import CASE_FILE, COLUMN_GROUPS, FORMAT, read_case_file
from .readers.splits import MANIFEST, SPLITS
from .sources import NAMES, DataSource, open_source
from .specs import builtin_name, force_convention
from .statistics import Moments

SETTINGS_FILE = "settings.json"
# Rows computed at a time, which bounds the memory of geometry beside that of a column.
_BLOCK = 1 << 20
_TABLE_BYTES = 1 << 20


def statistics_of(values: np.ndarray) -> dict[str, list[float]]:
    """Return count, mean, sum of squared deviations, minimum and maximum per channel."""
    moments = Moments.per_channel(torch.from_numpy(values.reshape(len(values), -1)))
    return {name: value.tolist() for name, value in vars(moments).items()}


def merged_statistics(parts: Iterable[Mapping[str, list[float]]]) -> dict[str, Any]:
    """Return count, mean, standard deviation and range per channel over cases.

    Examples
    --------
    >>> parts = [statistics_of(np.array([1.0, 3.0])), statistics_of(np.array([5.0]))]
    >>> merged_statistics(parts)
    {'count': 3, 'mean': [3.0], 'std': [2.0], 'min': [1.0], 'max': [5.0]}
    """
    merged = None
    for part in parts:
        moments = Moments(
            **{name: torch.tensor(v, dtype=torch.float64) for name, v in part.items()}
        )
        merged = moments if merged is None else merged.merge(moments)
    if merged is None:
        return {}
    variance = merged.deviations / (merged.count - 1).clamp(min=1)
    return {
        "count": int(merged.count[0]),
        "mean": merged.mean.tolist(),
        "std": variance.sqrt().tolist(),
        "min": merged.low.tolist(),
        "max": merged.high.tolist(),
    }


def _write_column(folder: Path, file: str, values: np.ndarray) -> dict[str, Any]:
    written = write_durably(folder / file, lambda sink: np.save(sink, values, allow_pickle=False))
    return {"file": file, **written._asdict()}


def write_case(reader: CaseReader, index: int, folder: Path, seed: int) -> None:
    """Write one case to `folder`, which is there only once it is complete.

    Parameters
    ----------
    reader : CaseReader
        Reader of the raw cases.
    index : int
        Which of its cases.
    folder : Path
        New folder of the case; a part of one that a kill left is replaced.
    seed : int
        With the id of the case, seed of the order of its rows.
    """
    case_id = reader.case_ids[index]
    table, described = reader.open_case(index), reader.describe_case(index)
    source = Path(table.source)
    unfinished = folder.with_name(f".{folder.name}.preparing")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    n = table.n_tokens
    order = np.random.default_rng([seed, *case_id.encode()]).permutation(n)
    order = order.astype(np.uint32 if n < 2**32 else np.uint64)
    columns = _write_columns(table, order, unfinished, case_id)
    content = {
        "format": FORMAT,
        "case_id": case_id,
        "n_tokens": n,
        "association": table.association,
        "original": {
            **{k: v for k, v in described.items() if isinstance(v, str | int | float | None)},
            "source": str(source.absolute()),
            "files": [str(path.absolute()) for path in _files(described)],
        },
        "seen": _seen(described),
        "seed": seed,
        "columns": columns,
        "globals": {
            name: np.reshape(value, -1).astype(float).tolist()
            for name, value in table.global_values.items()
        },
        "order": _write_column(unfinished, "order.npy", order),
    }
    _copy_tables(source, unfinished)
    replace_text(unfinished / CASE_FILE, checked_json(content))
    sync_folder(unfinished)
    if folder.exists():
        _check_replaceable(folder)
        shutil.rmtree(folder)
    unfinished.rename(folder)
    sync_folder(folder.parent)


def _check_replaceable(folder: Path) -> None:
    """Raise if what is in the place of a case is something else, which must not be removed."""
    if not (folder / CASE_FILE).is_file():
        raise FileExistsError(
            f"{folder} is no prepared case, and would have to be removed for one. Nothing was "
            "removed; name another folder as prepare.out, or move it away"
        )


def _write_columns(
    table: TokenTable, order: np.ndarray, folder: Path, case_id: str
) -> dict[str, dict[str, Any]]:
    n = table.n_tokens
    # The same slices for all columns: geometry is computed once for columns that share it.
    blocks = [slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK)]
    lazy = {group: dict(getattr(table, group)) for group in COLUMN_GROUPS}
    values: dict[tuple[str, str], np.ndarray] = {
        (group, name): np.empty((n, *column.shape[1:]), dtype=np.float32)
        for group in COLUMN_GROUPS
        for name, column in lazy[group].items()
    }
    for rows in blocks:
        for (group, name), whole in values.items():
            whole[rows] = lazy[group][name][rows]
    written: dict[str, dict[str, Any]] = {group: {} for group in COLUMN_GROUPS}
    for number, (group, name) in enumerate(list(values)):
        whole = values.pop((group, name))
        check_finite(table.source, case_id, name, whole)
        check_range(table.source, case_id, name, whole.reshape(n, -1))
        file = f"{number:02d}_{group}_{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.npy"
        entry = _write_column(folder, file, whole[order])
        written[group][name] = entry | {"statistics": statistics_of(whole)}
    return written


def _files(described: Mapping[str, Any]) -> list[Path]:
    """Return the files that a case is read from, as its reader describes it."""
    return [Path(file) for file in described.get("files", [described["source"]])]


def _seen(described: Mapping[str, Any]) -> list[list[int]]:
    """Return sizes and times of the files of a case, by which changed ones are told."""
    states = [path.stat() for path in _files(described) if path.exists()]
    return [[state.st_size, state.st_mtime_ns] for state in states]


def _copy_tables(source: Path, folder: Path) -> None:
    """Copy the reference values beside a mesh file, which forces need."""
    for table in source.parent.glob("geo_ref_*.csv"):
        if table.is_file() and table.stat().st_size < _TABLE_BYTES:
            shutil.copyfile(table, folder / table.name)


def is_prepared(folder: Path, described: Mapping[str, Any]) -> bool:
    """Return whether a case is there, whole, and made from its files as they are now."""
    try:
        content = read_case_file(folder / CASE_FILE)
    except (FileNotFoundError, ValueError):
        return False
    entries = [entry for group in content["columns"].values() for entry in group.values()]
    return content["seen"] == _seen(described) and all(
        (folder / entry["file"]).is_file()
        and (folder / entry["file"]).stat().st_size == entry["size"]
        for entry in (*entries, content["order"])
    )


def prepare(
    cfg: Mapping[str, Any] | DictConfig,
    out: str | Path,
    *,
    workers: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write the cases of a data config to `out` in random order of rows, and return `out`.

    Cases that are there already are kept, so an interrupted preparation goes on; a case appears
    whole or not at all, and the manifest last. A case that cannot be read does not stop the
    others; all such are named in the end.

    Parameters
    ----------
    cfg : Mapping or DictConfig
        The data of a run (:class:`~.config.DataConfig`): reader, fields, features, splits.
        How many points are drawn does not matter here.
    out : str or Path
        Directory to write to.
    workers : int, optional
        Cases at a time, each in memory as a whole; by default the cores of the machine, at most 4.
    seed : int, optional
        Seed of the orders.
    progress : bool, optional
        Show a bar if stderr is a terminal.

    Raises
    ------
    ValueError
        If `out` holds cases that were prepared with other settings.
    RuntimeError
        If cases could not be prepared.
    """
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers is {workers}, expected at least 1")
    data = open_source(_whole_cases(cfg), trust=True)
    readers = _readers(data)
    out = Path(out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / ".lock", lambda: print(f"another process prepares {out}; waiting")):
        _check_settings(out, {"seed": seed, **_identity(data)})
        jobs = {
            (split, index): out / _inside(reader.case_ids[index])
            for split, reader in readers.items()
            for index in range(len(reader))
        }
        for folder in jobs.values():
            if folder.exists():
                _check_replaceable(folder)
        failed = _write_cases(readers, jobs, seed, workers, progress)
        if failed:
            raise RuntimeError(
                f"{len(failed)} of {len(jobs)} cases could not be prepared, the others were: "
                + "; ".join(f"{case}: {reason}" for case, reason in failed.items())
                + ". Repair them, or leave them out of the splits, and start again"
            )
        _write_manifest(out, data, readers)
    return out


def _whole_cases(cfg: Mapping[str, Any] | DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)
    changes = {"n_points": None, "n_points_test": None, "sampling_density": "cells"}
    if plain.get("weights", NO_WEIGHTS) == NO_WEIGHTS:
        changes["weights"] = MEASURE  # where it is known
    return plain | changes


def _readers(data: DataSource) -> dict[str, CaseReader]:
    """Return the readers of all splits that there are; what one guesses holds for all."""
    splits = [split for split in SPLITS if split != "train" or data.cfg.n_train != 0]
    readers: dict[str, CaseReader] = {}
    for split in splits:
        reader = data.find_reader(split)
        if reader is not None:
            data = data.with_names(reader)
            readers[split] = reader
    check_disjoint(readers)
    return readers


def _identity(data: DataSource) -> dict[str, Any]:
    """Return what the contents of prepared cases depend on, besides the files."""
    given = OmegaConf.to_container(data.cfg, resolve=True)
    return {
        "reader": data.reader_class.__name__,
        "arguments": OmegaConf.to_container(data.cfg.reader, resolve=True),
        **{name: given[name] for name in (*NAMES, "weights")},
    }


def _check_settings(out: Path, settings: dict[str, Any]) -> None:
    path = out / SETTINGS_FILE
    others = [found.name for found in out.iterdir() if not found.name.startswith(".")]
    if others and not path.is_file():
        raise FileExistsError(
            f"{out} holds {some(others, 3)} and was not written by `flarepp prepare`; cases are "
            "put into a folder of their own: name a new one as prepare.out"
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
                f"{out} was prepared with other settings: {told}. Give the same, name another "
                "folder, or remove this one"
            )
    replace_text(path, json.dumps(settings, indent=2) + "\n")


def _inside(case_id: str) -> str:
    check_inside([case_id])
    return case_id


def _write_cases(
    readers: Mapping[str, CaseReader],
    jobs: Mapping[tuple[str, int], Path],
    seed: int,
    workers: int,
    progress: bool,
) -> dict[str, str]:
    """Write the cases that are missing; return the reasons of those that could not be."""
    failed: dict[str, str] = {}

    def work(split: str, index: int, folder: Path) -> None:
        if not is_prepared(folder, readers[split].describe_case(index)):
            write_case(readers[split], index, folder, seed)

    # Threads do: VTK parses in processes of its own, and NumPy and the disk release the lock.
    with (
        progress_bar("preparing", len(jobs), progress) as advance,
        ThreadPoolExecutor(workers) as pool,
    ):
        running = {pool.submit(work, *job, folder): job for job, folder in jobs.items()}
        try:
            for done in as_completed(running):
                split, index = running[done]
                try:
                    done.result()
                except (ValueError, KeyError, OSError, MemoryError) as error:
                    failed[readers[split].case_ids[index]] = f"{type(error).__name__}: {error}"
                advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _write_manifest(out: Path, data: DataSource, readers: Mapping[str, CaseReader]) -> None:
    splits = {split: list(reader.case_ids) for split, reader in readers.items()}
    contents = {
        case: read_case_file(out / case / CASE_FILE) for ids in splits.values() for case in ids
    }
    training = [contents[case] for case in splits.get("train", ())]
    statistics = {
        group: {
            name: merged_statistics(case["columns"][group][name]["statistics"] for case in training)
            for name in (training[0]["columns"][group] if training else ())
        }
        for group in COLUMN_GROUPS
    }
    manifest: dict[str, Any] = {
        "splits": splits,
        "n_tokens": {case: content["n_tokens"] for case, content in contents.items()},
        "statistics": statistics,
    }
    fields = next(iter(contents.values()))["columns"]["fields"]
    convention = force_convention(fields, builtin_name(data.root, data.cfg.builtin))
    if convention is not None:
        manifest["forces"] = asdict(convention)
    replace_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def bytes_of(out: Path) -> int:
    """Return the bytes of all columns of the cases in a folder."""
    return sum(path.stat().st_size for path in out.rglob("*.npy"))

"""Batches of sequences, for the trainer: tokens, mask, labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict

from ..builtin import generate
from ..datapipes.loaders import CaseSampler, Loaders
from ..datapipes.normalization import Normalizer
from .config import SequenceConfig
from .reading import READERS, SPLITS, SequenceSplit


@dataclass(frozen=True)
class SequenceLayout:
    """What a classifier needs to know of a task; see :class:`~.SequenceClassifier`."""

    vocabulary: int
    classes: int
    length: int
    documents: int = 1


# Vocabulary with padding, where there is some: images are whole.
_SIZES = {"listops": (16, 10, 1), "text": (257, 2, 1), "retrieval": (257, 2, 2),
          "image": (256, 10, 1), "pathfinder": (256, 2, 1)}  # fmt: skip
# Sequences in a case of the built-in set.
_BLOCKS = {"listops": 1000, "pathfinder": 250}


def layout_of(cfg: SequenceConfig) -> SequenceLayout:
    """Return the sizes of a task."""
    vocabulary, classes, documents = _SIZES[cfg.sequences]
    return SequenceLayout(vocabulary, classes, cfg.length, documents)


def checked_config(cfg: Mapping[str, Any] | DictConfig) -> SequenceConfig:
    """Return the settings of the data, or say what is wrong with them."""
    merged = OmegaConf.merge(OmegaConf.structured(SequenceConfig), OmegaConf.create(dict(cfg)))
    found: SequenceConfig = OmegaConf.to_object(merged)
    if found.sequences not in READERS:
        known = ", ".join(READERS)
        raise ValueError(f"data.sequences is {found.sequences!r}; choose one of {known}")
    if (found.root is None) == (found.builtin is None):
        raise ValueError(
            f"data.root is {found.root!r} and data.builtin {found.builtin!r}: set one of them. "
            "docs/long_range_arena.md says where the files are"
        )
    if found.builtin is not None and found.builtin.partition("_")[0] != found.sequences:
        raise ValueError(f"data.builtin is {found.builtin!r}, not a set of {found.sequences}")
    for name in ("length", "batch_size", "batch_size_test"):
        if getattr(found, name) < 1:
            raise ValueError(f"data.{name} is {getattr(found, name)}, expected at least 1")
    return found


def find_root(cfg: SequenceConfig) -> Path:
    """Return the folder of the files, generated if they are built in and not there yet."""
    if cfg.builtin is None:
        return Path(cfg.root).expanduser()
    block = _BLOCKS[cfg.sequences]
    # One block more than is asked for: expressions that come twice are left out.
    spare = int(cfg.sequences == "listops")
    given = {f"n_{split}": getattr(cfg, f"n_{split}") for split in SPLITS}
    counts = {
        n: None if count is None else -(-count // block) + spare for n, count in given.items()
    }
    return generate(cfg.builtin, **counts)


class SequenceLoader:
    """Batches of one split; its `sampler` says which of them this rank reads, in which order."""

    def __init__(
        self,
        split: SequenceSplit,
        batch_size: int,
        sampler: CaseSampler,
        device: str | None,
        pad_to: int | None,
    ) -> None:
        self.split, self.batch_size, self.sampler = split, batch_size, sampler
        self.device, self.pad_to = device, pad_to
        self.dataset = SimpleNamespace(reader=split)  # as the trainer asks for names and files

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[TensorDict]:
        cases = np.fromiter(self.sampler, np.int64)
        for first in range(0, len(cases), self.batch_size):
            yield self.batch(cases[first : first + self.batch_size])

    def batch(self, cases: np.ndarray) -> TensorDict:
        """Return ``tokens``, ``label``, ``case_index`` and, if some is padding, ``token_mask``."""
        split = self.split
        rows = (cases[:, None] * split.documents + np.arange(split.documents)).ravel()
        starts, lengths = split.starts[rows], np.diff(split.starts)[rows]
        places = np.arange(self.pad_to or lengths.max())
        real = places < lengths[:, None]
        tokens = split.tokens[np.where(real, starts[:, None] + places, 0)] * real
        if split.documents > 1:
            tokens, real = (a.reshape(len(cases), -1, len(places)) for a in (tokens, real))
        arrays = {"tokens": tokens.astype(np.int64), "label": split.labels[cases]}
        if self.pad_to is None and not real.all():
            arrays["token_mask"] = real
        arrays["case_index"] = cases
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.device is not None:
            tensors = {name: t.pin_memory().to(self.device, non_blocking=True)
                       for name, t in tensors.items()}  # fmt: skip
        return TensorDict(tensors, batch_size=[len(cases)], device=self.device)


def sequence_loaders(cfg: SequenceConfig, placed: Mapping[str, Any]) -> Loaders:
    """Return the loaders of a rank; `placed` has its seed, device and place among the ranks."""
    shard = tuple(placed["parallel"][key] for key in ("data_rank", "data_size"))
    size = cfg.batch_size
    if size % shard[1]:
        raise ValueError(f"data.batch_size is {size}, which {shard[1]} data ranks cannot share")
    splits = READERS[cfg.sequences](find_root(cfg), cfg.length, cfg.downscale)
    pad_to = None if cfg.mask_padding else cfg.length
    loaders = {}
    for name in SPLITS:
        split, training = splits[name].first(getattr(cfg, f"n_{name}")), name == "train"
        order = {"shuffle": training, "seed": placed["seed"], "equal_counts": training}
        sampler = CaseSampler(len(split), shard, **order)
        count = size // shard[1] if training else cfg.batch_size_test
        loaders[name] = SequenceLoader(split, count, sampler, placed["device"], pad_to)
    return Loaders(loaders["train"], loaders["test"], Normalizer(), loaders["val"])

"""From a config to train and test loaders, on one process or on a data x context mesh of ranks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from physicsnemo.datapipes import DataLoader, Dataset

from .collate import PadCollator
from .normalization import Normalizer, normalization_kinds, paper_normalizer
from .readers import CaseReader
from .sampling import CaseSampler
from .sources import TEST_SEED, DataSource, open_source, running_ranks
from .statistics import fit_normalizer


class Loaders(NamedTuple):
    """Train and test loader and the normaliser that both apply."""

    train: DataLoader
    test: DataLoader
    normalizer: Normalizer


def build_dataloaders(cfg: Mapping[str, Any] | DictConfig, *, trust: bool = True) -> Loaders:
    """Return loaders whose batches are TensorDicts (see :class:`PadCollator`).

    Inputs are normalised; the targets ``fields`` are in physical units.

    Call ``loader.set_epoch(epoch)`` before each epoch: it chooses the order of the training
    cases and the tokens drawn, as a function of (seed, epoch) alone. Data ranks read different
    cases, training with equal counts, testing each case once. The ranks of a context group read
    the same cases and draws, each its own shard of the tokens. ``loader.sampler.skip(n)`` resumes
    inside an epoch.

    Parameters
    ----------
    cfg : Mapping or DictConfig
        See :class:`~.config.LoaderConfig`.
    trust : bool, optional
        False for a config that came with files of others: then nothing that it names is imported,
        and the reader must be one that is registered.

    Returns
    -------
    Loaders
        ``train``, ``test`` and ``normalizer``, in this order.
    """
    data = open_source(cfg, trust)
    train, test = data.reader("train"), data.reader("test")
    _check_disjoint(train, test)
    normalizer = _make_normalizer(data, train)
    return Loaders(
        _make_loader(data, "train", train, normalizer),
        _make_loader(data, "test", test, normalizer),
        normalizer,
    )


def build_test_loader(
    cfg: Mapping[str, Any] | DictConfig, normalizer: Normalizer, *, trust: bool = True
) -> DataLoader:
    """Return the test loader of :func:`build_dataloaders` alone; training cases are not needed.

    Parameters
    ----------
    cfg, trust
        As in :func:`build_dataloaders`; ``normalization`` is not looked at.
    normalizer : Normalizer
        Normalises the samples, such as that of the run that is evaluated.
    """
    data = open_source(cfg, trust)
    return _make_loader(data, "test", data.reader("test"), normalizer)


def _check_disjoint(train: CaseReader, test: CaseReader) -> None:
    shared = sorted(set(train.case_ids) & set(test.case_ids))
    if shared:
        raise ValueError(
            f"{len(shared)} cases are in both train and test: {', '.join(shared[:10])}. "
            "Give each case to one split"
        )


def _make_normalizer(data: DataSource, train: CaseReader) -> Normalizer:
    spec, choice = data.spec, data.cfg.normalization
    kinds = normalization_kinds(OmegaConf.to_container(data.cfg, resolve=True))
    if kinds is None:
        return Normalizer.load(choice.load)
    if not kinds:
        return Normalizer()
    if choice == "paper" and spec.constants:
        fields = train.open_case(0).channels()["fields"]
        if fields != list(spec.outputs):
            raise ValueError(
                f"normalization 'paper' has constants for the fields {list(spec.outputs)} of "
                f"{spec.name}, but {fields} are read; read those fields, or use 'fit'"
            )
        return paper_normalizer(spec)
    if "per_point" in kinds.values() and train.options.n_points is not None:
        raise ValueError(
            "per-point statistics need every point of the grid, but n_points is "
            f"{train.options.n_points}; set n_points to null or choose 'gaussian'"
        )
    parallel = data.cfg.parallel
    if running_ranks() is not None:
        mine = range(parallel.data_rank, len(train), parallel.data_size)
        return fit_normalizer(train, kinds, cases=mine, group=dist.group.WORLD)
    if parallel.context_size > 1:
        train = data.reader("train", whole_cases=True)
    return fit_normalizer(train, kinds)


def _make_loader(
    data: DataSource, split: str, reader: CaseReader, normalizer: Normalizer
) -> DataLoader:
    cfg, training = data.cfg, split == "train"
    shard = (cfg.parallel.data_rank, cfg.parallel.data_size)
    dataset = Dataset(
        reader, transforms=normalizer, device=cfg.device, num_workers=max(1, cfg.num_workers)
    )
    return DataLoader(
        dataset,
        batch_size=cfg.batch_size if training else cfg.batch_size_test,
        sampler=CaseSampler(
            len(reader), shard, shuffle=training, seed=cfg.seed, equal_counts=training
        ),
        collate_fn=PadCollator(collate_metadata=cfg.collate_metadata),
        prefetch_factor=cfg.prefetch if cfg.num_workers > 0 else 0,
        seed=cfg.seed if training else TEST_SEED,
    )

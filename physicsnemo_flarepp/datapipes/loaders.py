"""From a config to the loaders of its splits, on one process or on a data x context mesh."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int
from omegaconf import DictConfig, OmegaConf
from physicsnemo.datapipes import Collator, DataLoader, Dataset
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler

from .normalization import Normalizer, fit_baseline, normalization_kinds, paper_normalizer
from .readers import CaseReader, MemoryCases
from .readers.base import TOKEN_KEYS, check_shard
from .sources import TEST_SEED, DataSource, checked_config, open_source
from .statistics import fit_normalizer

# Tokens that are drawn one after the other. Larger batches have reading threads.
DRAWN_TOGETHER = 2**14


@dataclass(eq=False)
class CaseSampler(Sampler[int]):
    """Order of the cases that one data rank, (rank, size) in `shard`, reads in an epoch.

    `equal_counts` repeats the first cases so that every rank reads the same number, which training
    needs; without it each case is read exactly once over all ranks.
    """

    n_cases: int
    shard: tuple[int, int] = (0, 1)
    _: KW_ONLY
    shuffle: bool = False
    seed: int = 0
    equal_counts: bool = False

    def __post_init__(self) -> None:
        self.rank, self.size = check_shard("data", self.shard)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of `epoch`, from its first case."""
        self.epoch, self._skip = epoch, 0

    def skip(self, n_cases: int) -> None:
        """Leave out this rank's first `n_cases` of the current epoch, to resume inside it."""
        count = len(self._order())
        if not 0 <= n_cases <= count:
            raise ValueError(f"cannot skip {n_cases} cases: this rank reads {count} in an epoch")
        self._skip = n_cases

    def _order(self) -> np.ndarray:
        """Return all cases that this rank reads in the epoch."""
        order = np.arange(self.n_cases)
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.n_cases)
        if self.equal_counts:
            order = np.resize(order, -(-self.n_cases // self.size) * self.size)
        return order[self.rank :: self.size]

    def __len__(self) -> int:
        return len(self._order()) - self._skip

    def __iter__(self) -> Iterator[int]:
        yield from map(int, self._order()[self._skip :])


class PadCollator(Collator):
    r"""Stack samples to a batch, with padding and a mask where their lengths differ.

    A batch is a TensorDict of batch size :math:`B` with ``coordinates`` :math:`(B, N, d)`,
    ``fields``, ``features``, ``tokens`` and ``weights`` :math:`(B, N)`, ``globals``
    :math:`(B, g)`, ``case_index`` :math:`(B,)`, the position of each case in its split, and, only
    if the samples differ in length, ``token_mask`` :math:`(B, N)`, True for real tokens. Padding
    is 0.

    Examples
    --------
    >>> short, long = (TensorDict({"coordinates": torch.rand(n, 3)}) for n in (2, 4))
    >>> batch = PadCollator()([(short, {"index": 0}), (long, {"index": 1})])
    >>> batch["token_mask"].sum(1)
    tensor([2, 4])
    """

    def __init__(self, *, collate_metadata: bool = False) -> None:
        self.collate_metadata = collate_metadata

    def __call__(
        self, samples: Sequence[tuple[TensorDict, dict[str, Any]]]
    ) -> TensorDict | tuple[TensorDict, list[dict[str, Any]]]:
        """Return the batch of `samples`."""
        data, metadata = (list(part) for part in zip(*samples, strict=True))
        device = data[0]["coordinates"].device
        batch = {}
        for key in data[0].keys():
            columns = [sample[key] for sample in data]
            ragged = key in TOKEN_KEYS and len({len(column) for column in columns}) > 1
            batch[key] = pad_sequence(columns, True) if ragged else torch.stack(columns)
        lengths = [len(sample["coordinates"]) for sample in data]
        if len(set(lengths)) > 1:
            positions = torch.arange(max(lengths), device=device)
            batch["token_mask"] = positions < _to_device(lengths, device)[:, None]
        batch["case_index"] = _to_device([m["index"] for m in metadata], device)
        collated = TensorDict(batch, batch_size=[len(data)], device=device)
        return (collated, metadata) if self.collate_metadata else collated


def _to_device(values: list[int], device: torch.device) -> Int[Tensor, " n"]:
    """Return `values` on the device without waiting for it, which unpinned memory would."""
    pinned = torch.tensor(values, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


class CaseLoader(DataLoader):
    """PhysicsNeMo's loader, which reads in the calling thread where reading threads cost more.

    On a CPU, reading threads compete with the training step. Where samples are rows of arrays in
    memory, batches are therefore drawn in the calling thread, small ones several at a time, because
    code and tables drop out of the cache between steps.
    """

    def __init__(self, dataset: Dataset, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._unthreaded = DataLoader(
            dataset, **{**options, "prefetch_factor": 0, "use_streams": False}
        )

    def __iter__(self) -> Iterator[TensorDict | tuple[TensorDict, list[dict[str, Any]]]]:
        """Iterate over the batches of the epoch."""
        on_cpu = self.dataset.target_device is None
        rows = self.dataset.reader.rows_in_memory(self.sampler) if on_cpu else None
        size = self.batch_size * (rows or 1)
        if rows is None or (size > DRAWN_TOGETHER and torch.get_num_threads() > 1):
            yield from super().__iter__()
            return
        batches, together = iter(self._unthreaded), max(1, DRAWN_TOGETHER // size)
        while group := list(itertools.islice(batches, together)):
            yield from group


class Loaders(NamedTuple):
    """Loaders of the splits, None for one that the data does not have, and their normaliser."""

    train: DataLoader
    test: DataLoader | None
    normalizer: Normalizer
    val: DataLoader | None = None


def build_dataloaders(
    cfg: Mapping[str, Any] | DictConfig, *, trust: bool = True, data: MemoryCases | None = None
) -> Loaders:
    """Return loaders whose batches are TensorDicts (see :class:`PadCollator`).

    Inputs are normalised; the targets ``fields`` are in physical units.

    Call ``loader.set_epoch(epoch)`` before each epoch: it chooses the order of the training
    cases and the tokens drawn, as a function of (seed, epoch) alone. Data ranks read different
    cases, training with equal counts, testing each case once. The ranks of a context group read
    the same cases and draws, each its own shard of the tokens. ``loader.sampler.skip(n)`` resumes
    inside an epoch.
    """
    source = _open_on_ranks(cfg, trust, data)
    train = source.reader("train")
    source = source.with_names(train)
    readers = {"train": train, "val": source.find_reader("val")}
    # Without validation cases there must be test cases, or no error could be measured.
    finding = source.reader if readers["val"] is None else source.find_reader
    readers["test"] = finding("test")
    present = {split: reader for split, reader in readers.items() if reader is not None}
    check_disjoint(present)
    normalizer = _make_normalizer(source, train)
    if source.cfg.baseline != "none" and "load" not in source.cfg.normalization:
        normalizer.affine |= fit_baseline(train, normalizer, source.cfg.baseline)
    loaders = {
        split: _make_loader(source, split, reader, normalizer) for split, reader in present.items()
    }
    return Loaders(loaders["train"], loaders.get("test"), normalizer, loaders.get("val"))


def build_test_loader(
    cfg: Mapping[str, Any] | DictConfig,
    normalizer: Normalizer,
    *,
    split: str = "test",
    trust: bool = True,
    data: MemoryCases | None = None,
) -> DataLoader:
    """Return the loader that evaluates one split; training cases are not needed."""
    source = _open_on_ranks(cfg, trust, data)
    return _make_loader(source, split, source.reader(split), normalizer)


def evaluated_split(
    cfg: Mapping[str, Any] | DictConfig, *, trust: bool = True, data: MemoryCases | None = None
) -> str:
    """Return the split that results are measured on: ``val`` only if there is no ``test``."""
    source = open_source(cfg, trust, data)
    if source.find_reader("test") is None and source.find_reader("val") is not None:
        return "val"
    return "test"


def _open_on_ranks(
    cfg: Mapping[str, Any] | DictConfig, trust: bool, data: MemoryCases | None
) -> DataSource:
    """Return the source of a config, checked against the ranks that are running."""
    cfg = checked_config(cfg)
    batch_size, parallel = cfg.batch_size, cfg.parallel
    n_data, n_context = parallel.data_size, parallel.context_size
    ranks = n_data * n_context
    if dist.is_initialized() and dist.get_world_size() != ranks:
        raise ValueError(
            f"parallel has data_size={n_data} and context_size={n_context}, but "
            f"{dist.get_world_size()} ranks are running"
        )
    if batch_size < 1:
        raise ValueError(f"data.batch_size is {batch_size}, expected at least 1")
    if batch_size % n_data:
        raise ValueError(
            f"data.batch_size is {batch_size}, which {n_data} data ranks cannot share equally. Let "
            f"ranks share cases (parallel.context={ranks // math.gcd(batch_size, ranks)} of "
            f"{ranks} ranks), which trains as one rank would, or set data.batch_size to a "
            f"multiple of {n_data}, such as {-(-batch_size // n_data) * n_data}"
        )
    return open_source(cfg, trust, data)


def check_disjoint(readers: Mapping[str, CaseReader]) -> None:
    """Raise if a case is in two splits."""
    for (first, a), (second, b) in itertools.combinations(readers.items(), 2):
        shared = sorted(set(a.case_ids) & set(b.case_ids))
        if shared:
            raise ValueError(
                f"{len(shared)} cases are in both {first} and {second}: {', '.join(shared[:10])}. "
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
        fields = train.case(0).channels()["fields"]
        if fields != list(spec.outputs):
            raise ValueError(
                f"normalization 'paper' has constants for the fields {list(spec.outputs)} of "
                f"{spec.name}, but {fields} are read; use 'fit'"
            )
        return paper_normalizer(spec)
    if "per_point" in kinds.values() and train.options.n_points is not None:
        raise ValueError(
            "per-point statistics need every point of the grid, but n_points is "
            f"{train.options.n_points}; set n_points to null or choose 'gaussian'"
        )
    parallel = data.cfg.parallel
    if dist.is_initialized():
        mine = range(parallel.data_rank, len(train), parallel.data_size)
        return fit_normalizer(train, kinds, cases=mine, group=dist.group.WORLD)
    if parallel.context_size > 1:
        train = train.with_options(shard=(0, 1))
    return fit_normalizer(train, kinds)


def _make_loader(
    data: DataSource, split: str, reader: CaseReader, normalizer: Normalizer
) -> DataLoader:
    cfg, training = data.cfg, split == "train"
    shard = (cfg.parallel.data_rank, cfg.parallel.data_size)
    workers = max(1, cfg.num_workers)
    device = cfg.device
    if device == "cpu":  # where samples are: moving none is faster
        device = None
        normalizer.to(cfg.device)
    order = {"shuffle": training, "equal_counts": training, "seed": cfg.seed}
    return CaseLoader(
        Dataset(reader, transforms=normalizer, device=device, num_workers=workers),
        batch_size=cfg.batch_size // shard[1] if training else cfg.batch_size_test,
        sampler=CaseSampler(len(reader), shard, **order),
        collate_fn=PadCollator(collate_metadata=cfg.collate_metadata),
        prefetch_factor=cfg.prefetch if cfg.num_workers > 0 else 0,
        seed=cfg.seed if training else TEST_SEED,
    )

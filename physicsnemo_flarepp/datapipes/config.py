"""What a data set can be told, and what its loaders can; nothing is imported for the help."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DataConfig:
    """Which data a run reads, and how; an unknown key is an error.

    Parameters
    ----------
    benchmark : str or None
        Key of ``BENCHMARKS``: gives the reader, the splits and the normalisation convention. By
        default the built-in set's; None with `root` needs ``reader._target_``.
    reader : Any
        Overrides of the reader: a mapping of its arguments, with ``_target_`` (registry name,
        class path or ``${dp:...}``) if it is not the benchmark's.
    root : str or None
        Directory of the files. Either `root` or `builtin` is set, never both.
    builtin : str or None
        Built-in set to generate or take from its cache.
    n_train, n_test : int or None
        Cases in the splits; the published or built-in numbers by default. An `n_train` of 0 is for
        files of test cases only (:func:`build_test_loader`).
    n_points, n_points_test : int or None
        Tokens drawn per case; None takes all.
    sampling : str
        Training draws: ``epoch`` (fresh each epoch) or ``fixed``. Test draws are always fixed.
    weights : str
        What tokens weigh in the gathers of the model: ``none`` (all alike), ``measure`` (the area
        that each stands for) or the name of a stored array.
    sampling_density : str
        How training tokens are drawn: ``cells``, each as likely as any other, or ``area``, in
        proportion to `weights`, with the weights of those drawn corrected for it. Test tokens are
        always drawn by cells.
    normalization : Any
        ``fit``: coordinates centred and divided by one scale, all else to mean 0 and deviation 1,
        fitted to the training split. ``paper``: what was published for the benchmark. ``none``. A
        mapping of what differs from ``fit``, from sample key to ``gaussian``, ``isotropic``,
        ``per_point``, ``unit_box`` or ``none``. ``{"load": path}``: a stored normaliser.
    batch_size, batch_size_test : int
        Cases per batch of one data rank.
    num_workers : int
        Reading threads; 0 reads in the calling thread.
    prefetch : int
        Batches read ahead.
    builtin_seed : int
        Seed of the built-in set, so that runs that differ in `seed` train on the same data.
    """

    benchmark: str | None = None
    reader: Any = field(default_factory=dict)
    root: str | None = None
    builtin: str | None = None
    n_train: int | None = None
    n_test: int | None = None
    n_points: int | None = None
    n_points_test: int | None = None
    sampling: str = "epoch"
    weights: str = "none"
    sampling_density: str = "cells"
    normalization: Any = "fit"
    batch_size: int = 1
    batch_size_test: int = 1
    num_workers: int = 2
    prefetch: int = 2
    builtin_seed: int = 0


@dataclass
class ParallelConfig:
    """Place of this process in the mesh of ranks."""

    data_rank: int = 0
    data_size: int = 1
    context_rank: int = 0
    context_size: int = 1


@dataclass
class LoaderConfig(DataConfig):
    """What :func:`~.loaders.build_dataloaders` accepts: the data, and where the loaders stand.

    A run sets what is added here from its seed, its device and its ranks.

    Parameters
    ----------
    seed : int
        Seed of the order of training cases and of their draws; those of test cases are the same for
        all seeds.
    device : str or None
        Where batches live: None leaves them on the CPU, ``auto`` follows PhysicsNeMo.
    pin_memory : bool
        Pin host memory for asynchronous copies.
    collate_metadata : bool
        Yield ``(batch, [metadata, ...])``.
    parallel : ParallelConfig
        Place in the mesh of ranks.
    """

    seed: int = 0
    device: str | None = None
    pin_memory: bool = False
    collate_metadata: bool = False
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

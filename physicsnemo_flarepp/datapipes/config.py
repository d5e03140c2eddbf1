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
    coordinates : Any
        Of own files (``data=own``): the array of the coordinates, the arrays x, y, z, or ``grid``.
        Meshes have their own. What is null here and in the next three is guessed, and said.
    features, fields, globals : Any
        Of own files: names of inputs at the tokens, of what is predicted, and of values of the
        whole case; lists, or mappings such as {shear: "surface_fields[1:4]"}.
    association : str or None
        Of own meshes: ``cells``, ``points`` or ``auto``.
    builtin : str or None
        Built-in set to generate or take from its cache.
    splits : Any
        Which cases are for what; None leaves it to the data: its ``manifest.json``, its directories
        ``train``, ``val`` and ``test``, or published positions. Else a mapping with ``train``,
        ``val`` and ``test``: fractions of the cases (with a ``seed``), or each the name of a split
        of the ``manifest``, a list of ids, or a file of ids; a text alone is a manifest.
    n_train, n_val, n_test : int or None
        Cases in the splits; the published or built-in numbers by default. For validation these are
        published cases that are in neither of the other splits, as many as test cases in built-in
        sets, and 0 takes none. An `n_train` of 0 is for files of test cases only
        (:func:`build_test_loader`).
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
    transforms : Any
        Transforms of PhysicsNeMo's registry that every sample passes before it is normalised, such
        as ``[{_target_: "${dp:Translate}", input_keys: [coordinates], translation: [1, 0, 0]}]``.
    normalization : Any
        ``fit``: coordinates centred and divided by one scale, all else to mean 0 and deviation 1,
        fitted to the training split. ``paper``: what was published for the benchmark. ``none``. A
        mapping of what differs from ``fit``, from sample key to ``gaussian``, ``isotropic``,
        ``per_point``, ``unit_box`` or ``none``. ``{"load": path}``: a stored normaliser.
    batch_size : int
        Training cases per batch over all data ranks, so that any number of ranks trains the same:
        each data rank reads an equal part, and a number that they do not divide is an error.
    batch_size_test : int
        Cases that a data rank evaluates at a time; changes no number.
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
    coordinates: Any = None
    features: Any = None
    fields: Any = None
    globals: Any = None
    association: str | None = None
    builtin: str | None = None
    splits: Any = None
    n_train: int | None = None
    n_val: int | None = None
    n_test: int | None = None
    n_points: int | None = None
    n_points_test: int | None = None
    sampling: str = "epoch"
    weights: str = "none"
    sampling_density: str = "cells"
    transforms: Any = field(default_factory=list)
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

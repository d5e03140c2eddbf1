"""PhysicsNeMo data pipes for DrivAerML, the 2D benchmarks and the built-in sets.

Nothing heavy is imported until it is used: data generation and the download command need no
PhysicsNeMo. Importing ``physicsnemo_flarepp.datapipes.readers``, any reader, or calling
:func:`build_dataloaders` registers all readers for ``${dp:...}``.
"""

from .. import lazy_names

_NAMES = {
    ".channels": "plot_mesh",
    ".loaders": "Loaders PadCollator build_dataloaders build_test_loader",
    ".normalization": "Normalizer",
    ".preparation": "prepare",
    ".readers": "DarcyReader DrivAerMLReader GeoFNOReader GraphReader OwnReader PreparedReader "
    "ReaderOptions tokens_from_graph",
    ".readers.memory": "MemoryCases from_arrays from_dataset from_meshes",
    ".sources": "data_elsewhere",
    ".specs": "BENCHMARKS BenchmarkSpec",
    ".statistics": "fit_normalizer",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

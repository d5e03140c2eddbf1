"""PhysicsNeMo data pipes for DrivAerML, the 2D benchmarks and the built-in sets.

Nothing heavy is imported until it is used: data generation and the download command need no
PhysicsNeMo. Importing ``physicsnemo_flarepp.datapipes.readers``, any reader, or calling
:func:`build_dataloaders` registers all readers for ``${dp:...}``.
"""

from importlib import import_module

_NAMES = {
    "channels": "plot_mesh",
    "loaders": "Loaders PadCollator build_dataloaders build_test_loader",
    "normalization": "Normalizer",
    "preparation": "prepare",
    "readers": "DarcyReader DrivAerMLReader GeoFNOReader GraphReader OwnReader PreparedReader "
    "ReaderOptions tokens_from_graph",
    "readers.memory": "MemoryCases from_arrays from_dataset from_meshes",
    "sources": "data_elsewhere",
    "specs": "BENCHMARKS BenchmarkSpec",
    "statistics": "fit_normalizer",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""PhysicsNeMo data pipes for DrivAerML, the 2D benchmarks and the built-in sets.

Nothing heavy is imported until it is used: data generation and the download command need no
PhysicsNeMo. Importing ``physicsnemo_flarepp.datapipes.readers``, any reader, or calling
:func:`build_dataloaders` registers all readers for ``${dp:...}``.
"""

from importlib import import_module

_HOMES = {
    "BENCHMARKS": "specs",
    "BenchmarkSpec": "specs",
    "DarcyReader": "readers",
    "DrivAerMLReader": "readers",
    "GeoFNOReader": "readers",
    "GraphReader": "readers",
    "Loaders": "loaders",
    "MemoryCases": "readers.memory",
    "Normalizer": "normalization",
    "OwnReader": "readers",
    "PadCollator": "loaders",
    "PreparedReader": "readers",
    "ReaderOptions": "readers",
    "build_dataloaders": "loaders",
    "build_test_loader": "loaders",
    "data_elsewhere": "sources",
    "fit_normalizer": "statistics",
    "from_arrays": "readers.memory",
    "from_dataset": "readers.memory",
    "from_meshes": "readers.memory",
    "plot_mesh": "case_meshes",
    "prepare": "preparation",
    "tokens_from_graph": "readers",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""FLARE++ as a plugin model of NVIDIA PhysicsNeMo."""

from importlib import import_module

__version__ = "0.6.0"
__all__ = ["GNOT", "LNO", "FlarePP", "MixerBackbone", "PerceiverIO", "SetTransformer"]


def __getattr__(name: str):
    # Importing PhysicsNeMo takes seconds; tools that need no model (data generation, --help) do
    # not pay for it.
    if name in __all__:
        return getattr(import_module(".models", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

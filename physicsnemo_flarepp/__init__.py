"""FLARE++ as a plugin model of NVIDIA PhysicsNeMo."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.7.3"


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package with names by module.

    They are imported when they are used. PhysicsNeMo alone takes seconds; what needs no model, such
    as data generation and ``--help``, does not pay for it.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(home_of[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return __getattr__, __dir__, sorted(home_of)


__getattr__, __dir__, __all__ = lazy_names(
    __name__, {".models": "GNOT LNO FlarePP MixerBackbone PerceiverIO SetTransformer"}
)

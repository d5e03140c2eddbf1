"""Classification of long sequences: Long Range Arena with the mixers of this package.

Nothing heavy is imported until it is used: the help of the commands needs the settings only.
"""

from importlib import import_module

_HOMES = {
    "READERS": "reading",
    "SequenceClassifier": "classifier",
    "SequenceConfig": "config",
    "SequenceSplit": "reading",
    "layout_of": "loading",
    "sequence_loaders": "loading",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

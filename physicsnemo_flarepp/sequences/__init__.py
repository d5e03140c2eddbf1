"""Classification of long sequences: Long Range Arena with the mixers of this package."""

from .. import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        ".classifier": "SequenceClassifier",
        ".config": "SequenceConfig",
        ".loading": "layout_of sequence_loaders",
        ".reading": "READERS SequenceSplit",
    },
)

"""Classification of long sequences: Long Range Arena with the mixers of this package."""

from .classifier import SequenceClassifier
from .config import SequenceConfig
from .loading import layout_of, sequence_loaders
from .reading import READERS, SequenceSplit

__all__ = [
    "READERS",
    "SequenceClassifier",
    "SequenceConfig",
    "SequenceSplit",
    "layout_of",
    "sequence_loaders",
]

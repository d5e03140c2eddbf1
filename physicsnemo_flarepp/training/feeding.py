"""Former home of :mod:`physicsnemo_flarepp.models.feeding`; these names go after one release."""

from ..models.feeding import INPUT_RULES as FEEDS
from ..models.feeding import InputLayout, build_model, input_adapter, takes_weights
from ..models.feeding import InputRule as Feed
from ..models.feeding import listed_class as fed_class

__all__ = [
    "FEEDS",
    "Feed",
    "InputLayout",
    "build_model",
    "fed_class",
    "input_adapter",
    "takes_weights",
]

"""What leaves the terminal: one page per run, and the same view live."""

from .page import AFTER_TRAINING, write_page
from .scene import Layer, case_layers, make_scene

__all__ = ["AFTER_TRAINING", "Layer", "case_layers", "make_scene", "write_page"]

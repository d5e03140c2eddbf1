"""The run directory: its manifest, checkpoints and metrics, and opening a trained run."""

from .checkpoints import CheckpointStore, load_training_state
from .directory import read_metrics
from .model_files import load_model, save_module
from .trained_run import Run, load_run

__all__ = [
    "CheckpointStore",
    "Run",
    "load_model",
    "load_run",
    "load_training_state",
    "read_metrics",
    "save_module",
]

"""Checkpoints: whole or absent, verified before use, and read without running code from them."""

from .manifest import Checkpoint
from .model_files import load_model, save_module
from .store import CheckpointStore, load_training_state

__all__ = ["Checkpoint", "CheckpointStore", "load_model", "load_training_state", "save_module"]

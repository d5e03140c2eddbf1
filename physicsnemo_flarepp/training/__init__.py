"""Training: losses, the loop, checkpoints and run directories.

The losses alone need neither data nor TensorBoard.
"""

from .. import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {".run": "TrainingResult train", ".streamed": "streamed_gradients streamed_step"}
)

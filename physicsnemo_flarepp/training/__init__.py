"""Training: losses, the loop, checkpoints and run directories."""

from typing import Any

__all__ = ["TrainingResult", "streamed_gradients", "streamed_step", "train"]


def __getattr__(name: str) -> Any:
    """Import the loop when it is asked for: the losses alone need neither data nor TensorBoard."""
    if name.startswith("streamed_"):
        from . import streamed

        return getattr(streamed, name)
    if name in __all__:
        from . import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Whether a model is compiled, and whether this machine can do it."""

import os
import shutil
import sysconfig
import warnings
from pathlib import Path

import torch

from .config import TrainingConfig


def is_compiled(settings: TrainingConfig, device: torch.device) -> bool:
    """Return whether to compile; ``auto`` warns and does without where Triton cannot build."""
    automatic = settings.compile == "auto"
    if automatic and (device.type != "cuda" or settings.stream is not None):
        return False
    missing = missing_build_tools() if settings.compile and device.type == "cuda" else []
    if not missing:
        return bool(settings.compile)
    problem = (
        f"training.compile is {str(settings.compile).lower()}, but this machine has no "
        f"{' and no '.join(missing)}, with which Triton builds its launchers"
    )
    advice = "install both, such as with `apt install gcc python3-dev`, or name a compiler in CC"
    if not automatic:
        raise ValueError(f"{problem}; {advice}, or set training.compile to false")
    warnings.warn(
        f"{problem}: training continues uncompiled, slower. To compile, {advice}", stacklevel=2
    )
    return False


def missing_build_tools() -> list[str]:
    """Return what of a C compiler and Python's headers Triton would not find."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    found = {
        "C compiler (gcc)": any(map(shutil.which, compilers)),
        "header Python.h (python3-dev)": headers.is_file(),
    }
    return [name for name, there in found.items() if not there]

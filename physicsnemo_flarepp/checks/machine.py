"""The machine: versions, devices, off-screen rendering, writable directories."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
import torch

from .. import __version__
from ..builtin.engine import CACHE_VARIABLE, cache_root
from ..files import nearest_existing
from ..visualization.rendering import RenderingUnavailable, require_rendering
from .findings import FAILED, NOTED, PASSED, Finding

_PACKAGES = ("torch", "nvidia-physicsnemo", "numpy", "vtk", "pyvista", "triton")


def version_findings(device: torch.device) -> Iterator[Finding]:
    """List versions, the machine and the device."""
    packages = [f"{name} {_version(name)}" for name in _PACKAGES]
    yield Finding("versions", NOTED, ", ".join([f"physicsnemo_flarepp {__version__}", *packages]))
    yield Finding(
        "machine",
        NOTED,
        f"{platform.platform(terse=True)}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, {torch.get_num_threads()} threads, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    )
    if device.type != "cuda":
        yield Finding("device", NOTED, f"{device}; CUDA is not used")
        return
    about = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    yield Finding(
        "device",
        NOTED,
        f"{about.name}, compute capability {about.major}.{about.minor}, "
        f"{about.multi_processor_count} multiprocessors, {free / 2**30:.0f} of "
        f"{total / 2**30:.0f} GiB free, CUDA {torch.version.cuda}; "
        f"{torch.cuda.device_count()} devices",
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


def rendering_findings(device: torch.device) -> Iterator[Finding]:
    """Check that VTK renders off-screen."""
    try:
        require_rendering()
    except RenderingUnavailable as error:
        yield Finding("off-screen rendering", FAILED, "no picture", str(error))
    else:
        yield Finding("off-screen rendering", PASSED, "a test picture was drawn")


def directory_findings(device: torch.device) -> Iterator[Finding]:
    """Check that data, outputs and the cache of built-in sets can be written, there or above."""
    elsewhere = "run in another directory"
    for name, place, advice in (
        ("data directory", Path("data"), elsewhere),
        ("output directory", Path("outputs"), elsewhere),
        ("cache", cache_root(), f"set {CACHE_VARIABLE} to a writable directory"),
    ):
        path = place.absolute()
        there = nearest_existing(path)
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(b"written")
                file.flush()
        except OSError as error:
            yield Finding(name, FAILED, f"{path}: {error.strerror or error}", advice)
            continue
        free = shutil.disk_usage(there).free / 2**30
        yield Finding(name, PASSED, f"{path} is writable, {free:.0f} GiB free")

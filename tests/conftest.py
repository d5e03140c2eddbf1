import gc
import multiprocessing
import os

import pytest
import torch
from physicsnemo.distributed import DistributedManager
from torch._subclasses.fake_tensor import FakeTensorMode

# Tests share the cores: more threads each, here and in the processes they start, would only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# One server, which imports these once, forks the processes of all tests.
multiprocessing.set_forkserver_preload(
    [
        "physicsnemo_flarepp.evaluation",
        "physicsnemo_flarepp.inference",
        "physicsnemo_flarepp.parallel.shard_tensor",
        "physicsnemo_flarepp.training.run",
    ]
)


def pytest_addoption(parser):
    parser.addoption("--one-of-each", action="store_true", help="one set of parameters per test")


def pytest_xdist_auto_num_workers():
    """One more than there are cores: tests that start ranks or wait for a limit leave some idle."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Count exhaustive and distributed tests as slow, and skip those of a GPU without one."""
    if config.getoption("--one-of-each"):
        items[:] = {item.nodeid.partition("[")[0]: item for item in items}.values()
    for item in items:
        if item.get_closest_marker("exhaustive") or item.get_closest_marker("distributed"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """Let collections pass over what imports left: every training begins with a whole one."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Let the interpreter free it all: bindings print what is left at its end."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def without_gpu():
    """Everything runs on the CPU, in processes that tests start too; see ``cuda`` for the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="module", autouse=True)
def no_group_left():
    """Training starts a process group, which tests of other files do not expect."""
    yield
    DistributedManager.cleanup()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def fake_cuda_autocast():
    """CUDA's bf16 autocast on fake tensors; ``torch.autocast`` gives way without a GPU."""
    dtype = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with FakeTensorMode(), torch.device("cuda"):
        yield
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", dtype)

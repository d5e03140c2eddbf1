"""From a config to everything that a training loop needs."""

import itertools
import os
import shutil
import statistics
import sysconfig
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from torch.optim.swa_utils import AveragedModel

from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.readers.memory import MemoryCases
from ..parallel import enable_context_parallel, initialize, make_mesh
from ..parallel.launch import find_device
from ..parallel.ranks import Ranks
from .config import TrainingConfig
from .optimizers import TrainStep, adapt_blocks, make_average, make_optimizer, make_schedule
from .planning import StreamChoice
from .tasks import Measure, Objective, task_of

# Steps that each number of threads is tried for, after one to warm up.
_TRIED_STEPS = 5


@dataclass(frozen=True)
class Assembly:
    """What a training loop needs; `evaluation` judges the averaged weights."""

    loaders: Loaders
    channels: Channels
    model: Module
    step: TrainStep
    evaluation: Objective
    constant: Measure | None  # errors of the best guess that ignores the inputs
    steps_per_epoch: int
    total_steps: int

    @property
    def epochs(self) -> int:
        """Passes over the training cases, of which the last may be a part."""
        return -(-self.total_steps // self.steps_per_epoch)

    @property
    def fields(self) -> dict[str, int]:
        """What has an error of its own, and its channels."""
        return self.channels.norms

    @property
    def average(self) -> AveragedModel:
        """The moving average of the weights."""
        return self.step.average

    @property
    def parameters(self) -> int:
        """Size of the model."""
        return sum(p.numel() for p in self.model.parameters())


def start_ranks(cfg: DictConfig) -> Ranks:
    """Start the process group, of one process or of many; choose device, threads and TF32."""
    manager = initialize(device=None if cfg.device == "auto" else cfg.device)
    mesh, own = make_mesh(cfg.parallel.context), manager.device
    device = own if cfg.device in ("auto", own.type) else find_device(cfg.device)
    if device != own and manager.world_size > 1:
        raise ValueError(
            f"device is {cfg.device!r}, but this rank of {manager.world_size} owns {own}; use "
            "'auto' (and CUDA_VISIBLE_DEVICES to choose among GPUs, empty for the CPU)"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if isinstance(cfg.threads, int):
        torch.set_num_threads(cfg.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cfg.training.tf32
    return Ranks(manager.rank, manager.world_size, mesh, device)


def load_data(
    cfg: DictConfig, ranks: Ranks, normalizer: Path | None = None, data: MemoryCases | None = None
) -> Loaders:
    """Return the loaders of this rank, with the stored normaliser if one is given."""
    on_gpu, mesh = ranks.device.type == "cuda", ranks.mesh
    place = {f"{axis}_rank": mesh[axis].get_local_rank() for axis in ("data", "context")}
    place |= {f"{axis}_size": mesh[axis].size() for axis in ("data", "context")}
    device = str(ranks.device) if on_gpu else None
    placed = {"seed": cfg.seed, "device": device, "pin_memory": on_gpu, "parallel": place}
    return task_of(cfg).load_data(cfg, placed, normalizer, data)


def assemble(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Assembly:
    """Build model, optimiser and steps; the weights depend on the seed, not on the rank."""
    settings: TrainingConfig = cfg.training
    torch.manual_seed(cfg.seed)
    model, channels, objective, constant = task_of(cfg).build(cfg, ranks, loaders)
    if settings.lora_rank is not None:
        adapt_blocks(model, settings.lora_rank)
    if ranks.context_group is not None:
        enable_context_parallel(model, ranks.context_group)
    # Once the weights are drawn, every rank has noise of its own (dropout, Gumbel).
    torch.manual_seed(int(np.random.SeedSequence([cfg.seed, ranks.rank]).generate_state(1)[0]))

    steps_per_epoch = -(-len(loaders.train) // settings.accumulate)
    total_steps = settings.steps or settings.epochs * steps_per_epoch
    optimizer = make_optimizer(model, settings)
    average = make_average(model, settings.ema_decay)
    if settings.stream is None:
        # Cases of different sizes share one graph from the first step on, instead of a second
        # compilation at the second size; drawn points and grids have one size, and static code.
        ragged = cfg.data.get("n_points") is None and cfg.model.get("structured_shape") is None
        compiled = model
        if is_compiled(settings, ranks.device):
            compiled = torch.compile(model, dynamic=ragged or None)
        loss, evaluation = objective(compiled), objective(average.module)
    else:
        choice = StreamChoice(settings.stream, model, settings.precision, ranks.context_group)
        loss, evaluation = objective(model, choice), objective(average.module, choice)
    schedule = make_schedule(optimizer, settings, total_steps)
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=settings.precision == "fp16")
    clip, mesh = settings.clip_norm, ranks.mesh
    step = TrainStep(loss, model, optimizer, schedule, scaler, average, clip, mesh)
    parts = (loaders, channels, model, step, evaluation, constant)
    return Assembly(*parts, steps_per_epoch, total_steps)


def _assemble_trial(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Assembly:
    """Return a model that is timed and thrown away."""
    return assemble(OmegaConf.merge(cfg, {"training": {"steps": 1000}}), ranks, loaders)


def steps_in_time(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> int:
    """Return how many steps ``training.minutes`` allow; the first compiles and is not counted."""
    budget = 60 * cfg.training.minutes
    step = _assemble_trial(cfg, ranks, loaders).step
    start, done = 0.0, -1
    for epoch in itertools.count():
        loaders.train.set_epoch(epoch)
        for batch in loaders.train:
            step((batch,) * cfg.training.accumulate).item()
            done += 1
            now = time.perf_counter()
            start = start or now
            if done >= 3 and now - start > min(5.0, 0.05 * budget) or done >= 200:
                return max(3, int(budget * done / (now - start)))


def fastest_threads(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> int | None:
    """Return how many CPU threads train fastest now; None on a GPU, where it is left to torch."""
    if ranks.device.type != "cpu":
        return None
    cores = torch.get_num_threads()
    choices = sorted({1, min(8, cores), cores})
    if len(choices) == 1:
        return choices[0]
    step = _assemble_trial(cfg, ranks, loaders).step
    loaders.train.set_epoch(0)
    batches = (next(iter(loaders.train)),) * cfg.training.accumulate
    seconds: dict[int, list[float]] = {threads: [] for threads in choices}
    # Ranks take their steps together, so it is their number that is fixed, not their time. In
    # turns, because other programs come and go.
    for threads in choices * (1 + _TRIED_STEPS):
        torch.set_num_threads(threads)
        start = time.perf_counter()
        step(batches).item()
        seconds[threads].append(time.perf_counter() - start)
    return min(choices, key=lambda threads: statistics.median(seconds[threads][1:]))


def is_compiled(settings: TrainingConfig, device: torch.device) -> bool:
    """Return whether to compile; ``auto`` warns and does without where Triton cannot build."""
    automatic, on_gpu = settings.compile == "auto", device.type == "cuda"
    if automatic and (not on_gpu or settings.stream is not None):
        return False
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    tools = {
        "C compiler (gcc)": any(map(shutil.which, compilers)),
        "header Python.h (python3-dev)": headers.is_file(),
    }
    missing = [name for name, there in tools.items() if not there]
    if not (settings.compile and on_gpu and missing):
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

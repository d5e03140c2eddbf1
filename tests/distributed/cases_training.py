"""What the ranks run: losses, optimiser steps, DDP, FSDP2 and checkpoints over a mesh."""

import errno
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from cases_model import BATCH, TOKENS, bounds, make_inputs, make_model, take
from physicsnemo.utils import save_checkpoint
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from physicsnemo_flarepp.inference import predict
from physicsnemo_flarepp.ops.errors import relative_l2
from physicsnemo_flarepp.parallel import (
    enable_context_parallel,
    flatten_mesh,
    make_mesh,
    shard_tokens,
    sync_gradients,
)
from physicsnemo_flarepp.parallel.ranks import sum_in_buckets
from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.optimizers import TrainStep, make_average, make_schedule
from physicsnemo_flarepp.training.optimizers import make_optimizer as recipe_optimizer
from physicsnemo_flarepp.training.streamed import streamed_gradients, streamed_step

SAMPLES = 4


def batch_at(step: int) -> dict[str, torch.Tensor]:
    """The whole batch of a step, with its target."""
    torch.manual_seed(100 + step)
    return {
        "fx": torch.randn(SAMPLES, TOKENS, 3, dtype=torch.float64),
        "embedding": torch.randn(SAMPLES, TOKENS, 4, dtype=torch.float64),
        "time": torch.rand(SAMPLES, dtype=torch.float64),
        "target": torch.randn(SAMPLES, TOKENS, 2, dtype=torch.float64),
    }


def local_part(batch: dict, mesh) -> dict:
    """The samples of this rank's data index and, of them, its tokens."""
    data, index = mesh["data"].size(), mesh["data"].get_local_rank()
    group = mesh["context"].get_group()
    batch = {key: value.chunk(data)[index] for key, value in batch.items()}
    return {key: v if key == "time" else shard_tokens(v, group) for key, v in batch.items()}


def loss_of(model, batch: dict, group=None) -> torch.Tensor:
    inputs = {key: value for key, value in batch.items() if key != "target"}
    return relative_l2_loss(model(**inputs), batch["target"], group=group)


def make_optimizer(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)


def train(model, optimizer, steps, mesh=None) -> list[float]:
    """Clipped AdamW steps on the whole batch, or on this rank's part of it."""
    losses = []
    for step in steps:
        batch = batch_at(step) if mesh is None else local_part(batch_at(step), mesh)
        optimizer.zero_grad()
        loss = loss_of(model, batch, None if mesh is None else mesh["context"].get_group())
        loss.backward()
        if mesh is not None:
            sync_gradients(model, mesh)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses


def worst_difference(model, other) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


def three_steps(rank: int) -> dict[str, float]:
    """Parameters after three steps on each mesh, against one process on the whole batch."""
    reference = make_model("flarepp")
    train(reference, make_optimizer(reference), range(3))
    results = {}
    for context in (1, 2, 4):
        mesh = make_mesh(context)
        model = enable_context_parallel(make_model("flarepp"), mesh["context"].get_group())
        train(model, make_optimizer(model), range(3), mesh)
        results[f"{4 // context} x {context}"] = worst_difference(model, reference)
    return results


class OverflowsOnce:
    """A loss whose first gradient is infinite on one rank."""

    def __init__(self, model, rank: int) -> None:
        self.model, self.last = model, rank == 3
        self.calls = 0

    def backward(self, batch: None, weigh) -> torch.Tensor:
        self.calls += 1
        loss = sum(p.square().sum() for p in self.model.parameters())
        weigh(loss * (torch.inf if self.last and self.calls == 2 else 1.0)).backward()
        return loss.detach()


def overflow(rank: int) -> dict[str, list[float]]:
    """Weights, average and scale after steps of two batches, in the first of which rank 3 fails."""
    settings = TrainingConfig(optimizer="muon", schedule="cosine", warmup_steps=0)
    model = make_model("flarepp").float()
    optimizer = recipe_optimizer(model, settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    step = TrainStep(
        OverflowsOnce(model, rank),
        model,
        optimizer,
        make_schedule(optimizer, settings, 10),
        scaler,
        make_average(model, 0.9),
        1.0,
        make_mesh(2),
    )

    def look() -> list[float]:
        weights = [*model.parameters(), *step.average.parameters()]
        return [scaler.get_scale(), *(float(p.detach().double().sum()) for p in weights)]

    found = {"before": look()}
    for name in ("skipped", "done"):
        step([None, None])
        found[name] = look()
    return found


def wrapped(rank: int) -> dict[str, dict]:
    """Gradients under DDP and FSDP2, with the loss times the context size, against one process."""
    reference = make_model("flarepp")
    loss_of(reference, batch_at(0)).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    mesh = make_mesh(2)
    group = mesh["context"].get_group()
    results = {}
    for kind in ("DDP", "FSDP2"):
        model = enable_context_parallel(make_model("flarepp"), group)
        if kind == "DDP":
            model = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block, mesh=flatten_mesh(mesh))
            fully_shard(model, mesh=flatten_mesh(mesh))
        loss = loss_of(model, local_part(batch_at(0), mesh), group)
        (loss * mesh["context"].size()).backward()
        results[kind] = {}
        for name, p in model.named_parameters():
            grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            true = expected[name.removeprefix("module.")]
            results[kind][name] = float((grad - true).norm() / true.norm())
    return results


def unwrapped(rank: int) -> dict[str, float | str]:
    """Predictions of models in DDP and FSDP against those of the model alone, or the refusal."""
    inputs = make_inputs(torch.float64)
    cloud = {key: inputs[key] for key in ("fx", "embedding", "time") if key in inputs}
    expected = predict(make_model("flarepp"), **cloud, chunk_size=9)
    alone = [dist.new_group([member]) for member in range(dist.get_world_size())][rank]
    cpu = torch.device("cpu")
    made = {
        "DDP": DistributedDataParallel(make_model("flarepp")),
        "FSDP, one rank": FullyShardedDataParallel(
            make_model("flarepp"), process_group=alone, device_id=cpu
        ),
        "FSDP": FullyShardedDataParallel(make_model("flarepp"), device_id=cpu),
        "FSDP2": fully_shard(make_model("flarepp"), mesh=flatten_mesh(make_mesh(2))),
    }
    results = {}

    def compare(name):
        try:
            found = predict(made[name], **cloud, chunk_size=9)
            results[name] = float((found - expected).abs().max())
        except ValueError as error:
            results[name] = str(error)

    for name in made:
        compare(name)
        results[f"{name}, sharded"] = results[name]
    with FullyShardedDataParallel.summon_full_params(made["FSDP"]):
        compare("FSDP")
    made["FSDP2"].unshard()
    compare("FSDP2")
    return results


def streamed(rank: int) -> dict[tuple, tuple[float, float]]:
    """Loss and gradients of streamed shards, some of them empty, against the whole by autograd."""
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in (2, 3)}
    results = {}
    for name in ("flarepp", "flarepp-anchored", "transolver", "gnot"):
        for ranks, layout, kind in ((2, "uneven", "whole"), (3, "none", "weighted")):
            model, inputs = make_model(name), make_inputs(torch.float64, kind=kind)
            if not model.time_input:
                del inputs["time"]
            torch.manual_seed(3)
            target = torch.randn(BATCH, TOKENS, 2, dtype=torch.float64)
            mask = inputs.get("token_mask")
            loss = relative_l2(model(**inputs), target, token_mask=mask).mean()
            loss.backward()
            expected = [p.grad for p in model.parameters()]
            if rank >= ranks:
                continue
            enable_context_parallel(model.zero_grad() or model, groups[ranks])
            rows = bounds(layout, ranks)[rank : rank + 2]
            local = {**take(inputs, *rows), "target": target[:, slice(*rows)]}
            got = streamed_step(model, **local, chunk_size=5)
            of_inputs = input_gradient_errors(model, inputs, rows, groups[ranks])
            found = sum_in_buckets([p.grad for p in model.parameters()], groups[ranks])
            total = max(g.norm() for g in expected)
            errors = [
                float((a - b).norm() / max(b.norm(), 1e-3 * total))
                for a, b in zip(found, expected, strict=True)
            ]
            results[name, ranks] = (abs(float(got / loss.detach()) - 1), max(errors), *of_inputs)
    return results


class SquareOfSum:
    def sums(self, prediction, target, rows):
        return prediction.sum((0, 1))

    def value(self, sums):
        return sums.square().sum()


def input_gradient_errors(model, inputs, rows, group) -> list[float]:
    """Of streamed gradients on this rank's tokens against those of one process."""
    enable_context_parallel(model, None)
    keys = [key for key in ("fx", "embedding", "token_weights") if key in inputs]
    leaves = [inputs[key].clone().requires_grad_() for key in keys]
    whole = model(**{**inputs, **dict(zip(keys, leaves, strict=True))})
    expected = torch.autograd.grad(whole.sum((0, 1)).square().sum(), leaves)
    enable_context_parallel(model, group)
    local = take(inputs, *rows)
    _, found = streamed_gradients(model, **local, objective=SquareOfSum(), chunk_size=5)
    errors = []
    for key, gradient in zip(keys, expected, strict=True):
        own = gradient if key == "fx" else gradient[:, slice(*rows)]
        errors.append(float((found[key] - own).norm() / gradient.norm()))
    return errors


def streamed_failure(rank: int) -> str:
    """What every rank says when one of them has no room for its hidden states."""
    model, inputs = make_model("flare"), make_inputs(torch.float64)
    enable_context_parallel(model, dist.group.WORLD)
    target = torch.zeros(BATCH, TOKENS, 2)
    if rank == 1:
        os.posix_fallocate = _no_room
    try:
        with tempfile.TemporaryDirectory() as directory:
            streamed_step(model, **inputs, target=target, chunk_size=9, offload=directory)
    except (OSError, RuntimeError) as error:
        return str(error)
    return "no error"


def _no_room(*_) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def losses(rank: int) -> dict[str, float]:
    """The relative L2 of shards and its gradient against the whole, masked and not."""
    torch.manual_seed(0)
    group = dist.group.WORLD
    prediction, target = torch.randn(2, 3, TOKENS, 2, dtype=torch.float64)
    results = {}
    for masked in (False, True):
        mask = torch.rand(3, TOKENS) < 0.5 if masked else None
        whole = prediction.clone().requires_grad_()
        expected = relative_l2(whole, target, token_mask=mask)
        expected.mean().backward()
        part = shard_tokens(prediction, group).clone().requires_grad_()
        local = None if mask is None else shard_tokens(mask, group)
        got = relative_l2(part, shard_tokens(target, group), token_mask=local, group=group)
        got.mean().backward()
        results[f"value, masked={masked}"] = float((got - expected).detach().abs().max())
        gradient = part.grad - shard_tokens(whole.grad, group)
        results[f"gradient, masked={masked}"] = float(gradient.abs().max() / whole.grad.abs().max())
    return results


def checkpoint(rank: int) -> dict[str, bytes]:
    """Two steps on four ranks that share every sample, then a PhysicsNeMo checkpoint."""
    mesh = make_mesh(4)
    model = enable_context_parallel(make_model("flarepp"), mesh["context"].get_group())
    optimizer = make_optimizer(model)
    train(model, optimizer, range(2), mesh)
    if rank:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        save_checkpoint(directory, models=model, optimizer=optimizer, epoch=2)
        return {path.name: path.read_bytes() for path in Path(directory).iterdir()}

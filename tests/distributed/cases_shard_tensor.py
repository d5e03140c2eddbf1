"""What the ranks run: models called with PhysicsNeMo's ShardTensors."""

import torch
from cases_features import errors_of
from cases_model import (
    BATCH,
    KINDS,
    SERVED,
    TOKENS,
    bounds,
    make_inputs,
    make_model,
    make_served,
    worst_errors,
)
from physicsnemo.domain_parallel import ShardTensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.models import view_physicsnemo
from physicsnemo_flarepp.parallel import make_mesh


def shard(value: torch.Tensor, mesh, edges: list[int], rank: int) -> ShardTensor:
    part = value[:, edges[rank] : edges[rank + 1]].contiguous()
    part.requires_grad_(part.is_floating_point())
    sizes = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    shapes = {0: [torch.Size((value.shape[0], n, *value.shape[2:])) for n in sizes]}
    return ShardTensor.from_local(part, mesh, [Shard(1)], sharding_shapes=shapes), part


def equality(rank: int) -> dict[str, dict[str, float]]:
    """Output, sharding and gradients of ShardTensor calls against one process."""
    mesh = make_mesh(4)["context"]
    cotangent = torch.randn(BATCH, TOKENS, 2, generator=torch.Generator().manual_seed(2)).double()
    results = {}
    for layout in ("uneven", "none"):
        for kind in KINDS:
            for checkpoint_blocks in (False, True):
                model = make_model("flarepp", checkpoint_blocks=checkpoint_blocks)
                inputs = make_inputs(torch.float64, kind=kind)
                edges = bounds(layout, 4)
                whole = {
                    k: v if k.startswith("token_") else v.clone().requires_grad_()
                    for k, v in inputs.items()
                }
                y = model(**whole)
                (y * cotangent).sum().backward()
                gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
                gradients |= {key: whole[key].grad for key in ("fx", "time")}
                expected = y.detach(), gradients, whole["embedding"].grad

                model.zero_grad()
                sharded, parts = dict(inputs), {}
                for key in set(inputs) & {"embedding", "token_mask", "token_weights"}:
                    sharded[key], parts[key] = shard(inputs[key], mesh, edges, rank)
                row, time = (inputs[key].clone().requires_grad_() for key in ("fx", "time"))
                sharded["fx"] = ShardTensor.from_local(row, mesh, [Replicate()])
                sharded["time"] = time
                out = model(**sharded)
                start, stop = edges[rank], edges[rank + 1]
                (out.to_local() * cotangent[:, start:stop]).sum().backward()
                gradients = {name: p.grad for name, p in model.named_parameters()}
                gradients |= {"fx": row.grad, "time": time.grad}
                got = out._local_tensor.detach(), gradients, parts["embedding"].grad
                results[layout, kind, checkpoint_blocks] = {
                    "errors": worst_errors(got, expected, start, stop),
                    "type": type(out).__name__,
                    "shape": tuple(out.shape),
                    "placements": str(out.placements),
                    "sizes": [shape[1] for shape in out._spec.sharding_shapes()[0]],
                    "plain call": torch.equal(model(**inputs), y),
                }
    return results


def grids(rank: int) -> dict[str, float]:
    """Errors of output and gradients for grids sharded over their rows, and for unified_pos."""
    mesh = make_mesh(4)["context"]
    torch.manual_seed(3)
    shape, edges = (7, 3, 2), [0, 3, 5, 7, 7]
    whole = {"fx": torch.randn(BATCH, *shape, 3), "embedding": torch.randn(BATCH, *shape, 4)}
    errors = {}
    for unified in (False, True):
        given = {"unified_pos": True, "ref": 2} if unified else {"embedding_dim": 4}
        options = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3, **given}
        torch.manual_seed(0)
        model = FlarePP(3, 2, structured_shape=shape, **options).double()
        inputs = {k: v.double() for k, v in whole.items() if k == "fx" or not unified}
        y = model(**inputs)
        y.square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        for flat in (False, True):
            model.zero_grad()
            bounds_ = [6 * edge for edge in edges] if flat else edges
            values = {k: v.flatten(1, -2) if flat else v for k, v in inputs.items()}
            sharded = {k: shard(v, mesh, bounds_, rank)[0] for k, v in values.items()}
            out = model(**sharded)
            reference = y.flatten(1, -2) if flat else y
            assert out.shape == reference.shape
            local = out.to_local()
            local.square().sum().backward()
            part = reference[:, bounds_[rank] : bounds_[rank + 1]]
            pairs = zip(model.parameters(), expected, strict=True)
            found = [(p.grad - g).norm() / max(g.norm() for g in expected) for p, g in pairs]
            worst = max([(local - part).norm().detach() / y.norm().detach(), *found])
            errors[f"unified {unified}, flat {flat}"] = float(worst)
    return errors


def served(rank: int) -> dict[str, float]:
    """Errors of output and gradients of PhysicsNeMo's own models, served with ShardTensors."""
    mesh, edges = make_mesh(4)["context"], bounds("uneven", 4)
    inputs = make_inputs(torch.float64)
    worst = {}
    for name in SERVED:
        model = make_served(name)
        y = model(inputs["fx"].expand(-1, TOKENS, -1), inputs["embedding"])
        y.square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        embedding, _ = shard(inputs["embedding"], mesh, edges, rank)
        out = view_physicsnemo(model)(inputs["fx"], embedding).to_local()
        out.square().sum().backward()
        error = (out - y[:, edges[rank] : edges[rank + 1]]).norm() / y.norm()
        total = max(g.norm() for g in expected)
        gradients = [
            (p.grad - g).norm() / total for p, g in zip(model.parameters(), expected, strict=True)
        ]
        worst[name] = float(max([error.detach(), *gradients]))
    return worst


def refusals(rank: int) -> dict[str, str]:
    """Errors for what cannot be sharded over tokens."""
    mesh = make_mesh(4)["context"]
    model = make_model("flarepp")
    inputs = make_inputs(torch.float64, n_tokens=8)
    row = inputs["embedding"]
    replicated = ShardTensor.from_local(row, mesh, [Replicate()])
    shapes = {"sharding_shapes": "chunk", "global_shape": (4 * BATCH, *row.shape[1:])}
    batch = ShardTensor.from_local(row, mesh, [Shard(0)], **shapes)
    return {
        "replicated": errors_of(lambda: model(**inputs | {"embedding": replicated})),
        "batch": errors_of(lambda: model(**inputs | {"embedding": batch})),
    }

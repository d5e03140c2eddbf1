"""What the ranks run: counting, compiling, half precision, checkpointing, tokens, debug mode."""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from cases_model import BATCH, TOKENS, bounds, compare, make_inputs, make_model, take

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.ops import all_reduce, decode, encode, merge_over_group, merging
from physicsnemo_flarepp.parallel import (
    CollectiveCounter,
    enable_context_parallel,
    gather_tokens,
    make_mesh,
    shard_tokens,
)
from tests.cuda.standins import emulate


def errors_of(function, *arguments) -> str:
    try:
        function(*arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def checkpointed_blocks(rank: int) -> dict[str, float]:
    model = make_model("flarepp", checkpoint_blocks=True)
    return compare(rank, model, bounds("none", 4), "ragged", dist.group.WORLD)


def large_groups(rank: int) -> dict[str, float]:
    """The same equality when the payload is above the limit: max and sum instead of a gather."""
    limit, merging.GATHER_LIMIT = merging.GATHER_LIMIT, 0
    with CollectiveCounter() as counter:
        errors = compare(rank, make_model("flarepp"), bounds("none", 4), "ragged", dist.group.WORLD)
    merging.GATHER_LIMIT = limit
    return {"errors": errors, "calls": dict(counter.calls)}


def rows_that_no_rank_sees(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A merge of rows without any token, by both ways."""
    out, lse = torch.zeros(2, 3), torch.tensor([-torch.inf, 0.0 if rank == 0 else -torch.inf])
    gathered = merge_over_group(out + rank, lse, dist.group.WORLD)
    limit, merging.GATHER_LIMIT = merging.GATHER_LIMIT, 0
    reduced = merge_over_group(out + rank, lse, dist.group.WORLD)
    merging.GATHER_LIMIT = limit
    return gathered, reduced


def compiled(rank: int) -> dict[tuple, float]:
    """A model on two ranks, one graph for all token counts, against itself in eager mode."""
    group = dist.new_group([0, 1])
    if rank > 1:
        return {}
    model = make_model("flarepp", n_layers=1)
    enable_context_parallel(model, group)
    fast = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    errors = {}
    for mine in (5 + rank, 9 - 2 * rank, 4 * rank):  # at last no tokens on rank 0
        inputs = make_inputs(torch.float64, mine, kind="weighted")
        del inputs["token_mask"]  # it leaves no token of sample 0 here
        results = []
        for call in (model, fast):
            model.zero_grad()
            call(**inputs).square().sum().backward()
            results.append([p.grad.clone() for p in model.parameters()])
        pairs = enumerate(zip(*results, strict=True))
        errors |= {(mine, i): float((a - b).abs().max()) for i, (b, a) in pairs}
    return errors


def half_precision(rank: int) -> dict[tuple, list[float]]:
    """Errors against fp32 of half-precision runs, sharded and in one process, for four losses."""
    edges = bounds("one", 4)
    start, stop = edges[rank], edges[rank + 1]
    inputs = make_inputs(torch.float32)
    model = make_model("flarepp", torch.float32)

    def run(model, inputs, cotangent, autocast=False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model(**inputs)
        (y.float() * cotangent).sum().backward()
        return y.detach(), torch.cat([p.grad.float().flatten() for p in model.parameters()])

    results = {}
    for kind, seed in itertools.product(("bf16", "autocast"), range(4)):
        generator = torch.Generator().manual_seed(seed)
        cotangent = torch.randn(BATCH, TOKENS, 2, generator=generator)
        expected = run(model, inputs, cotangent)
        half = model if kind == "autocast" else copy.deepcopy(model).bfloat16()
        dtype = next(half.parameters()).dtype
        whole = {key: value.to(dtype) for key, value in inputs.items()}
        one = run(half, whole, cotangent, kind == "autocast")
        enable_context_parallel(half, dist.group.WORLD)
        part = take(whole, start, stop)
        with CollectiveCounter() as counter:
            y, gradient = run(half, part, cotangent[:, start:stop], kind == "autocast")
        enable_context_parallel(half, None)
        y = gather_tokens(y, dist.group.WORLD)
        sharded = y, all_reduce(gradient, "sum", dist.group.WORLD)
        for name, values in (("one", one), ("sharded", sharded)):
            for what, a, b in zip(("output", "gradient"), values, expected, strict=True):
                error = float((a.float() - b).norm() / b.norm())
                results.setdefault((kind, name, what), []).append(error)
        results[kind, "bytes"] = counter.total_bytes
    return results


def counts(rank: int) -> dict:
    """Calls and bytes of one mixer, forward and backward, and of a step, by number of tokens."""
    results = {}
    for name in ("flarepp", "flare", "transolver", "transolver3"):
        for n_tokens in (512, 65536):
            mixer = make_model(name, torch.float32, n_layers=1).blocks[0].mixer
            enable_context_parallel(mixer, dist.group.WORLD)
            x = torch.randn(BATCH, n_tokens // 4, mixer.dim, requires_grad=True)
            with CollectiveCounter() as forward:
                y = mixer(x)
            with CollectiveCounter() as backward:
                y.sum().backward()
            results[name, n_tokens] = [
                (dict(counter.calls), dict(counter.bytes)) for counter in (forward, backward)
            ]
    return results


def counts_with_weights(rank: int) -> dict:
    """What token weights add to the collectives of a whole model, forward and backward."""
    counted = {}
    for kind in ("ragged", "weighted"):
        model = enable_context_parallel(make_model("flarepp"), dist.group.WORLD)
        inputs = take(make_inputs(torch.float64, kind=kind), 9 * rank, 9 * rank + 9)
        with CollectiveCounter() as counter:
            model(**inputs).sum().backward()
        counted[kind] = counter.calls, counter.bytes
    calls, size = (counted["weighted"][i] - counted["ragged"][i] for i in range(2))
    return {"calls": dict(calls), "bytes": dict(size)}


def decode_is_local(rank: int) -> int:
    k, q, z = torch.randn(1, 2, 50, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    with CollectiveCounter() as counter:
        decode(k, q, z)
        encode(q, k, k)
    return counter.total_calls


def tokens(rank: int) -> dict:
    """Round trips of uneven shards on several axes and dtypes, and the refused gradient."""
    group = dist.group.WORLD
    results = {}
    for shape, dim in (((2, 7, 3), 1), ((3, 2), 0), ((2, 5, 6), 2)):
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
            whole = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            part = shard_tokens(whole, group, dim)
            back = gather_tokens(part, group, dim)
            results[shape, dim, str(dtype)] = (
                part.shape[dim],
                back.dtype == dtype and torch.equal(back, whole),
            )
    part = torch.ones(1, 2, 1, requires_grad=True)
    return {"round trips": results, "gradient": errors_of(gather_tokens, part, group)}


def debug_mode(rank: int) -> dict[str, str]:
    """What the debug mode says when rank 2 differs from the others."""
    odd = rank == 2
    group = dist.group.WORLD
    messages = {}

    def attempt(what, model, inputs):
        enable_context_parallel(model, group, debug=True)
        messages[what] = errors_of(lambda: model(**inputs))

    inputs = make_inputs(torch.float64)
    sample = {key: value[:1] for key, value in inputs.items()}
    attempt("batch", make_model("flarepp"), sample if odd else inputs)
    attempt("heads", make_model("flarepp", n_head=2 if odd else 4), inputs)
    weights = make_model("flarepp")
    if odd:
        weights.out_projection[-1].bias.data += 1
    attempt("weights", weights, inputs)
    model = make_model("flarepp", torch.float32 if odd else torch.float64)
    attempt("dtype", model, {k: v.to(model.blocks[0].mixer.seeds.dtype) for k, v in inputs.items()})
    attempt("equal", make_model("flarepp"), take(inputs, rank, rank + 1))
    messages["mesh"] = errors_of(make_mesh, 3)
    return messages


def copied_models(rank: int) -> bool:
    """A deep copy, as an EMA makes it, stays on the group."""
    model = enable_context_parallel(make_model("flarepp"), dist.group.WORLD)
    twin = copy.deepcopy(model)
    inputs = take(make_inputs(torch.float64), 5 * rank, 5 * rank + 5)
    return torch.equal(twin(**inputs), model(**inputs)) and twin.context_group is not None


def emulated_cards(rank: int) -> dict[str, float]:
    """Gradients of two ranks in half precision on emulated cards, against fp64 in one process."""
    group = dist.new_group([0, 1])
    if rank > 1:
        return {}
    torch.manual_seed(0)
    x, cotangent = torch.rand(1, 4200, 3), torch.randn(1, 4200, 2)
    sizes = {"n_layers": 1, "n_hidden": 128, "n_head": 8, "slice_num": 32, "norm": "rms"}
    model = FlarePP(3, 2, **sizes)
    exact = copy.deepcopy(model).double()
    (exact(x.double()) * cotangent).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in exact.parameters()])
    enable_context_parallel(model, group)
    mine = slice(0, 2100) if rank == 0 else slice(2100, None)
    errors = {}
    for card, dtype in (("sm_75", torch.float16), ("sm_80", torch.bfloat16)):
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch:
            emulate(patch, card)
            with torch.autocast("cpu", dtype):
                y = model(x[:, mine])
            (y.float() * cotangent[:, mine]).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        gradient = all_reduce(gradient, "sum", group)
        errors[card] = ((gradient - expected).norm() / expected.norm()).item()
    return errors

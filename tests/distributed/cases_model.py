"""What the ranks run: sharded models against the same model in one process."""

import torch
import torch.distributed as dist
from physicsnemo.models.flare import FLARE
from physicsnemo.models.geotransolver import GeoTransolver
from physicsnemo.models.transolver import Transolver

from physicsnemo_flarepp import GNOT, LNO, MixerBackbone, PerceiverIO, SetTransformer
from physicsnemo_flarepp.inference import predict
from physicsnemo_flarepp.models import view_physicsnemo
from physicsnemo_flarepp.parallel import enable_context_parallel
from physicsnemo_flarepp.parallel.ranks import sum_in_buckets
from physicsnemo_flarepp.training.streamed import streamed_step
from tests.restated_flarepp import FLARE_PLUS_PLUS

BATCH, TOKENS = 2, 37
LAYOUTS = ("uneven", "one", "none")
KINDS = ("whole", "ragged", "weighted")
MODELS = {
    "flarepp": {},
    "flarepp-anchored": {"anchored_queries": True},
    "flarepp-shared": {"shared_projections": True},
    "flarepp-rms": {"norm": "rms", "seed_norm": False},
    "flare": {},
    "transolver": {},
    "transolver_plus": {},
    "transolver3": {},
}
COMPLETE = {
    "perceiver_io": PerceiverIO,
    "set_transformer": SetTransformer,
    "gnot": GNOT,
    "lno": LNO,
}

SERVED = {
    "flare": FLARE,
    "transolver": lambda *args, **options: Transolver(*args, use_te=False, **options),
    **{f"flarepp-{name}": cls for name, cls in FLARE_PLUS_PLUS.items()},
}


def bounds(layout: str, ranks: int, n_tokens: int = TOKENS) -> list[int]:
    """Where the shards begin and end: uneven, one token on rank 0, or none on the last rank."""
    if layout == "one" and ranks > 1:
        inner = [1 + (n_tokens - 1) * r // (ranks - 1) for r in range(ranks)]
        return [0, *inner]
    if layout == "none" and ranks > 1:
        return [n_tokens * r // (ranks - 1) for r in range(ranks)] + [n_tokens]
    return [n_tokens * r // ranks for r in range(ranks + 1)]


def make_model(name: str, dtype: torch.dtype = torch.float64, **options) -> MixerBackbone:
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 32, "n_head": 4}
    if name != "gnot":
        sizes["slice_num"] = 5
    if name in COMPLETE:
        model = COMPLETE[name](3, 2, embedding_dim=4, **sizes, **options)
    else:
        options = {**sizes, **MODELS[name], **options, "mixer": name.split("-")[0]}
        model = MixerBackbone(3, 2, embedding_dim=4, time_input=True, **options)
    for p in model.parameters():  # away from the zeros and ones of the initialisation
        torch.nn.init.normal_(p, std=0.3)
    return model.to(dtype).eval()  # eval: no Gumbel noise in transolver_plus


def make_inputs(dtype: torch.dtype, n_tokens: int = TOKENS, kind: str = "whole") -> dict:
    torch.manual_seed(1)
    inputs = {
        "fx": torch.randn(BATCH, 1, 3),
        "embedding": torch.randn(BATCH, n_tokens, 4),
        "time": torch.rand(BATCH),
    }
    inputs = {key: value.to(dtype) for key, value in inputs.items()}
    if kind == "weighted":
        # Of any scale, over orders of magnitude along the tokens, some 0, and fp64 for all models.
        scale = torch.tensor([[1e-9], [1e6]], dtype=torch.float64)
        weights = scale * torch.logspace(-3, 3, n_tokens) * (torch.rand(BATCH, n_tokens) > 0.2)
        inputs["token_weights"] = torch.cat((scale, weights), 1)[:, :n_tokens]
    if kind != "whole":
        # Sample 1 is real on the first three tokens only: most ranks see none of it.
        lengths = torch.tensor([[n_tokens - 4], [3]])
        inputs["token_mask"] = torch.arange(n_tokens)[None] < lengths
    return inputs


def take(inputs: dict, start: int, stop: int) -> dict:
    """Cut the tokens out of whole inputs; what all tokens share stays."""
    whole = ("fx", "time")
    return {key: v if key in whole else v[:, start:stop] for key, v in inputs.items()}


def outputs_and_gradients(model, inputs, cotangent, group=None):
    """Output, gradient of every parameter and shared input, and of the token-wise input."""
    model.zero_grad(set_to_none=True)
    inputs = {
        key: v if key == "token_mask" else v.clone().requires_grad_() for key, v in inputs.items()
    }
    y = model(**inputs)
    (y * cotangent).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    if group is not None:
        gradients = dict(
            zip(gradients, sum_in_buckets(list(gradients.values()), group), strict=True)
        )
    # Complete on every rank, without a sum.
    gradients |= {f"input {key}": inputs[key].grad for key in ("fx", "time") if key in inputs}
    token_gradient = inputs["embedding"].grad
    if "token_weights" in inputs:  # of many scales: with respect to their logarithms
        weights = inputs["token_weights"]
        token_gradient = torch.cat((token_gradient, (weights * weights.grad)[..., None]), -1)
    return y.detach(), gradients, token_gradient


def worst_errors(got, expected, start: int, stop: int) -> dict[str, float]:
    """Largest relative errors of the output, of each parameter and of the inputs."""
    (y, gradients, token_gradient), (y_whole, whole, token_whole) = got, expected
    total = max(g.double().norm().item() for g in whole.values())
    errors = {
        # A gradient that cancels to rounding has no relative error of its own.
        name: ((g - whole[name]).double().norm() / max(whole[name].double().norm(), 1e-3 * total))
        for name, g in gradients.items()
    }
    for name, a, b in (("output", y, y_whole), ("input", token_gradient, token_whole)):
        errors[name] = (a - b[:, start:stop]).double().norm() / b.double().norm()
    return {name: float(error) for name, error in errors.items()}


def compare(rank, model, edges, kind, group, expected=None) -> dict[str, float]:
    """Errors of the sharded model against ``expected``, by default itself in one process."""
    start, stop = edges[rank], edges[rank + 1]
    dtype = next(model.parameters()).dtype
    inputs = make_inputs(dtype, kind=kind)
    if not model.time_input:
        del inputs["time"]
    cotangent = torch.randn(BATCH, TOKENS, 2, generator=torch.Generator().manual_seed(2)).to(dtype)
    if expected is None:
        expected = outputs_and_gradients(model, inputs, cotangent)
    enable_context_parallel(model, group)
    local = take(inputs, start, stop)
    got = outputs_and_gradients(model, local, cotangent[:, start:stop], group)
    enable_context_parallel(model, None)
    return worst_errors(got, expected, start, stop)


def cases() -> list[tuple[str, int, str, str, str]]:
    """(model, ranks, layout, kind, dtype): every combination for flarepp, the worst for all."""
    grid = [("flarepp", 1, "uneven", kind) for kind in KINDS]
    for ranks in (2, 3, 4):
        layouts = [(layout, kind) for layout in LAYOUTS for kind in KINDS]
        grid += [("flarepp", ranks, *layout) for layout in layouts]
    others = [name for name in (*MODELS, *COMPLETE) if name != "flarepp"]
    grid += [(name, 3, "none", "ragged") for name in others]
    grid += [(name, 4, "none", "weighted") for name in others]
    grid += [(name, 4, "one", "whole") for name in others]
    return [(*case, dtype) for case in grid for dtype in ("float64", "float32")]


def equality(rank: int) -> dict:
    """Relative error by tensor, for every case."""
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in (1, 2, 3, 4)}
    results = {}
    for case in cases():
        name, ranks, layout, kind, dtype = case
        if rank < ranks:
            model = make_model(name, getattr(torch, dtype))
            results[case] = compare(rank, model, bounds(layout, ranks), kind, groups[ranks])
    return results


def shared_inputs(rank: int) -> dict[str, float]:
    """Errors of gradients against one process, where it is hard to tell what the ranks share."""
    group = dist.new_group([0, 1, 2, 3])
    edges = bounds("one", 4)
    mine = slice(edges[rank], edges[rank + 1])
    model = make_model("flarepp", n_layers=1)
    flare = FLARE(3, 2, 4, n_layers=1, n_hidden=16, n_head=2, slice_num=3, time_input=True)
    served = flare.double()
    for p in served.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    encoder = torch.nn.Linear(3, 3, bias=False).double()
    torch.nn.init.eye_(encoder.weight)
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    inputs = make_inputs(torch.float64)
    row, x, time = inputs["fx"], inputs["embedding"], inputs["time"]
    rows = row + x[..., :3]

    def gradient(call, leaf, tokens):
        leaf = leaf.detach().clone().requires_grad_()
        return torch.autograd.grad(call(leaf, tokens).square().sum(), leaf)[0]

    def gradient_of_encoder(tokens):
        y = model(encoder(row), x[:, tokens], time)
        return torch.autograd.grad(y.square().sum(), encoder.weight)[0]

    ways = {
        "row": lambda part: gradient(lambda f, t: model(f, x[:, t], time), row, part),
        "computed row": lambda part: gradient(lambda f, t: model(2 * f, x[:, t], time), row, part),
        "time": lambda part: gradient(lambda s, t: model(row, x[:, t], s), time, part),
        "rows of tokens": lambda part: gradient(
            lambda f, t: model(f, x[:, t], time), rows[:, part], part
        ),
        "compiled": lambda part: gradient(lambda f, t: fast(f, x[:, t], time), row, part),
        "time of FLARE": lambda part: gradient(
            lambda s, t: served(rows[:, t], x[:, t], time=s), time, part
        ),
        "encoder, to be summed": gradient_of_encoder,
    }
    expected = {name: way(slice(None)) for name, way in ways.items()}
    enable_context_parallel(model, group)
    enable_context_parallel(served, group)
    got = {name: way(mine) for name, way in ways.items()}
    got["encoder, to be summed"] = sum_in_buckets([got["encoder, to be summed"]], group)[0]
    expected["rows of tokens"] = expected["rows of tokens"][:, mine]
    enable_context_parallel(served, None)
    got["off again"], expected["off again"] = (
        ways["time of FLARE"](slice(None)),
        expected["time of FLARE"],
    )
    return {k: float((g - expected[k]).norm() / expected[k].norm()) for k, g in got.items()}


def geotransolver(rank: int) -> dict[str, float]:
    """Errors of GeoTransolver's outputs and gradients on four ranks against one process."""
    group = dist.new_group([0, 1, 2, 3])
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3, "use_te": False}
    model = GeoTransolver(3, 2, geometry_dim=4, global_dim=5, **sizes).double().eval()
    for key, parameter in model.named_parameters():
        bounds_ = (0.6, 2.0) if key.endswith("temperature") else (-0.5, 0.5)
        torch.nn.init.uniform_(parameter, *bounds_)
    fx = torch.randn(BATCH, TOKENS, 3, dtype=torch.float64)
    geometry = torch.randn(BATCH, 29, 4, dtype=torch.float64)
    conditions = torch.randn(BATCH, 2, 5, dtype=torch.float64)

    def run(tokens: slice, points: slice) -> tuple:
        model.zero_grad(set_to_none=True)
        leaf = fx[:, tokens].clone().requires_grad_()
        y = model(leaf, global_embedding=conditions, geometry=geometry[:, points])
        y.square().sum().backward()
        return y.detach(), [p.grad for p in model.parameters() if p.grad is not None], leaf.grad

    y, gradients, token_gradient = run(slice(None), slice(None))
    tokens, points = bounds("none", 4), bounds("uneven", 4, 29)
    mine = slice(tokens[rank], tokens[rank + 1])
    enable_context_parallel(model, group)
    got, parts, own = run(mine, slice(points[rank], points[rank + 1]))
    enable_context_parallel(model, None)
    total = max(g.norm() for g in gradients)
    summed = zip(sum_in_buckets(parts, group), gradients, strict=True)
    errors = {
        "output": (got - y[:, mine]).norm() / y.norm(),
        "tokens": (own - token_gradient[:, mine]).norm() / token_gradient.norm(),
        "parameters": max((a - b).norm() / total for a, b in summed),
        "off again": (run(slice(None), slice(None))[0] - y).norm(),
    }
    return {key: float(error) for key, error in errors.items()}


def make_served(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3}
    model = SERVED[name](3, 2, embedding_dim=4, **sizes).double().eval()
    for key, parameter in model.named_parameters():
        if key.endswith("temperature"):
            torch.nn.init.uniform_(parameter, 0.6, 2.0)  # inside of where it is clamped
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def served(rank: int) -> dict:
    """Errors of PhysicsNeMo's own models on 1, 2 and 3 ranks, the third without tokens."""
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in (1, 2, 3)}
    layouts = {1: "uneven", 2: "uneven", 3: "none"}
    return {
        (name, ranks, kind): served_errors(rank, name, bounds(layouts[ranks], ranks), kind, group)
        for name in SERVED
        for ranks, group in groups.items()
        for kind in ("whole", "weighted")
        if rank < ranks
    }


def relative_l2_gradients(model, inputs, target) -> list[torch.Tensor]:
    """Gradients of the mean relative L2 error over real tokens, by a plain backward pass."""
    model.zero_grad(set_to_none=True)
    fx = inputs["fx"].expand(-1, TOKENS, -1)
    y = model(fx, **{key: value for key, value in inputs.items() if key != "fx"})
    real = inputs.get("token_mask", torch.ones(BATCH, TOKENS, dtype=torch.bool))[..., None]
    error, size = ((value * real).flatten(1).norm(dim=1) for value in (y - target, target))
    (error / size).mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def served_errors(rank, name, edges, kind, group) -> dict[str, float]:
    """Errors of output, gradients and streamed output against the model in one process.

    Whole clouds go through the model's own forward, weighted ones through a view of it.
    """
    model = make_served(name)
    callee = view_physicsnemo(model) if kind == "weighted" else model
    inputs = make_inputs(torch.float64, kind=kind)
    del inputs["time"]
    # A token-wise fx, which PhysicsNeMo's forward needs; its gradient is of the shared row.
    shared = inputs["fx"]

    def run(start: int, stop: int, group=None):
        row = shared.clone().requires_grad_()
        local = {key: value[:, start:stop] for key, value in inputs.items() if key != "fx"}
        local["embedding"] = local["embedding"].clone().requires_grad_()
        model.zero_grad(set_to_none=True)
        y = callee(row.expand(-1, stop - start, -1), **local)
        (y * cotangent[:, start:stop]).sum().backward()
        gradients = {key: p.grad for key, p in model.named_parameters()} | {"input fx": row.grad}
        if group is not None:
            summed = sum_in_buckets(list(gradients.values()), group)
            gradients = dict(zip(gradients, summed, strict=True))
        return y.detach(), gradients, local["embedding"].grad

    generator = torch.Generator().manual_seed(2)
    cotangent = torch.randn(BATCH, TOKENS, 2, dtype=torch.float64, generator=generator)
    expected = run(0, TOKENS)
    trained = relative_l2_gradients(callee, inputs, cotangent)
    start, stop = edges[rank], edges[rank + 1]
    enable_context_parallel(model, group)
    errors = worst_errors(run(start, stop, group), expected, start, stop)
    streamed = predict(model, **take(inputs, start, stop), chunk_size=13)
    errors["streamed"] = (streamed - expected[0][:, start:stop]).norm() / expected[0].norm()
    model.zero_grad(set_to_none=True)
    local = take(inputs, start, stop)
    streamed_step(
        model,
        local.pop("fx"),
        local.pop("embedding"),
        cotangent[:, start:stop],
        chunk_size=13,
        **local,
    )
    got = sum_in_buckets([p.grad for p in model.parameters()], group)
    total = max(gradient.norm() for gradient in trained)
    pairs = zip(got, trained, strict=True)
    errors["streamed training"] = max((a - b).norm() / total for a, b in pairs)
    enable_context_parallel(model, None)
    errors["off again"] = (run(0, TOKENS)[0] - expected[0]).norm()
    return {key: float(error) for key, error in errors.items()}

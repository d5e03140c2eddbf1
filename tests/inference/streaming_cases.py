"""Small models and clouds shared by the tests, and what spawned ranks run."""

import numpy as np
import torch
import torch.distributed as dist
import zarr

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.inference import encode_state, predict
from physicsnemo_flarepp.parallel import enable_context_parallel

BATCH, TOKENS, WORLD = 2, 53, 3
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}
MODELS = {
    "flarepp": {},
    "flarepp-anchored": {"anchored_queries": True},
    "flarepp-shared": {"shared_projections": True},
    "flarepp-shared-anchored": {"shared_projections": True, "anchored_queries": True},
    "flarepp-rms": {"norm": "rms"},
    "flarepp-plain": {"seed_norm": False, "residual_projections": False, "io_layers": 0},
    "flarepp-deep": {"projection_layers": 2, "synthesis_layers": 1, "ffn_layers": 2},
    "flare": {},
    "flare-first": {"projection_layers": 4, "ffn_layers": 4, "unit_scale": True},
    "transolver": {},
    "transolver_plus": {},
    "transolver3": {},
}


def make_model(name: str = "flarepp", dtype: torch.dtype = torch.float64, **options):
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "slice_num": 5, "embedding_dim": 3}
    if name == "attention":
        del sizes["slice_num"]
    options = {**sizes, **MODELS.get(name, {}), **options, "mixer": name.split("-")[0]}
    model = MixerBackbone(4, 2, **options)
    for parameter in model.parameters():  # away from the zeros and ones of the initialisation
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype).eval()


def make_cloud(dtype: torch.dtype = torch.float64, tokens: int = TOKENS):
    torch.manual_seed(1)
    return torch.randn(BATCH, tokens, 4, dtype=dtype), torch.randn(BATCH, tokens, 3, dtype=dtype)


def make_weights(tokens: int = TOKENS) -> torch.Tensor:
    """Weights over orders of magnitude; sample 1 has none on its first 20 tokens."""
    generator = torch.Generator().manual_seed(3)
    weights = torch.exp(3 * torch.randn(BATCH, tokens, dtype=torch.float64, generator=generator))
    weights[1, :20] = 0.0
    return weights


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    return ((got - expected).norm() / expected.norm()).item()


def run_rank(rank: int, rendezvous: str, results: str) -> None:
    """Stream the shards of groups of 1, 2 and 3 ranks against the whole in one process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    found = {}
    for size in range(1, WORLD + 1):
        group = dist.new_group(list(range(size)))
        if rank < size:
            for name in ("flarepp", "flarepp-anchored", "flare-first", "transolver3"):
                for dtype in TOLERANCE:
                    for weighted in (False, True):
                        errors = shard_errors(name, dtype, weighted, rank, size, group)
                        found[size, name, dtype, weighted] = errors
            if size == WORLD:
                for where in ("embedding", "token_weights"):
                    found[where] = message_for_bad_shard(where, rank, group)
    torch.save(found, f"{results}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def shard_errors(name, dtype, weighted, rank, size, group):
    """Errors of the outputs and of the latents; the last of several ranks has no token."""
    model, (fx, embedding) = make_model(name, dtype), make_cloud(dtype)
    weights = make_weights() if weighted else None
    expected = model(fx, embedding, token_weights=weights).detach()
    state = encode_state(model, fx, embedding, token_weights=weights)
    shards = max(size - 1, 1)
    start, stop = TOKENS * rank // shards, min(TOKENS, TOKENS * (rank + 1) // shards)
    rows = slice(min(start, TOKENS), stop)
    enable_context_parallel(model, group)
    mine = fx[:, rows], embedding[:, rows]
    options = {"chunk_size": 7, "token_weights": weights[:, rows] if weighted else None}
    got = predict(model, *mine, **options)
    latents = encode_state(model, *mine, **options).latents
    errors = [
        relative_error(a, b)
        for block, reference in zip(latents, state.latents, strict=True)
        for a, b in zip(block, reference, strict=True)
    ]
    difference = (got - expected[:, rows]).norm() / expected.norm()
    return [float(difference), *errors]


def message_for_bad_shard(where, rank, group):
    model, (fx, embedding), weights = make_model(), make_cloud(), make_weights()
    enable_context_parallel(model, group)
    if rank == 1:
        {"embedding": embedding[0, 4], "token_weights": weights[0]}[where][2] = float("nan")
    try:
        predict(model, fx, embedding, chunk_size=9, token_weights=weights)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def as_memmap(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def as_zarr(array, path):
    return zarr.create_array(store=str(path), data=array, chunks=(1, 8, array.shape[-1]))


STORES = {"numpy": lambda array, path: array, "memmap": as_memmap, "zarr": as_zarr}

"""Strong scaling of context parallelism: one training step at a fixed N on 1, 2, ... ranks.

Usage
-----
On one machine, CPU or GPUs; starts its own ranks, one thread each on CPU::

    python examples/scaling/context_parallel.py --ranks 1 2 --tokens 200000 --output runs/scaling

Prints and writes (``context_parallel.csv``, ``context_parallel.png``) per rank count: step time,
time and memory efficiency against the first rank count, the shares of the step spent in collectives
and waiting for slower ranks, and the number and bytes of collectives per step and rank.
"""

import argparse
import os
import socket
import statistics
from pathlib import Path

import torch
import torch.multiprocessing as mp
from measuring import peak_of, print_table, timed, write_csv

COLUMNS = {
    "ranks": "{:d}",
    "tokens": "{:d}",
    "seconds": "{:.3f}",
    "time efficiency": "{:.3f}",
    "peak MiB per rank": "{:.0f}",
    "memory efficiency": "{:.3f}",
    "collective share": "{:.4f}",
    "waiting share": "{:.4f}",
    "collectives": "{:d}",
    "KiB": "{:.1f}",
}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--mixer", default="flarepp")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--latents", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after one to warm up")
    parser.add_argument("--output", "--out", type=Path, default=Path("runs/scaling"))
    return parser.parse_args()


def measure(rank: int, ranks: int, port: int, options: argparse.Namespace, results) -> None:
    """Run the steps on one rank and put its measurements into ``results``."""
    from physicsnemo_flarepp import MixerBackbone
    from physicsnemo_flarepp.parallel import (
        CollectiveCounter,
        enable_context_parallel,
        initialize,
        make_mesh,
        shard_bounds,
        sync_gradients,
    )
    from physicsnemo_flarepp.training.losses import relative_l2_loss

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    manager = initialize()
    mesh = make_mesh(context_size=ranks)
    group = mesh["context"].get_group()
    torch.manual_seed(0)
    model = MixerBackbone(
        functional_dim=3,
        out_dim=1,
        n_layers=options.layers,
        n_hidden=options.channels,
        n_head=options.heads,
        slice_num=options.latents,
        mixer=options.mixer,
    ).to(manager.device)
    enable_context_parallel(model, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start, stop = shard_bounds(options.tokens, group)
    torch.manual_seed(rank)  # each rank makes its own tokens: none ever holds them all
    fx = torch.rand(1, stop - start, 3, device=manager.device)
    target = fx.square().sum(-1, keepdim=True)

    def step(tokens: slice = slice(None)) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = relative_l2_loss(model(fx[:, tokens]), target[:, tokens], group=group)
        loss.backward()
        sync_gradients(model, mesh)
        optimizer.step()

    step(slice(64))  # libraries and optimiser states come with the first step
    memory = peak_of(step, manager.device)
    seconds = [timed(step, manager.device)[0] for _ in range(options.steps)]
    traces = []
    for _ in range(options.steps):
        with CollectiveCounter(timed=True) as counter:
            whole, _ = timed(step, manager.device)
        traces.append((whole, counter.durations))
    results[rank] = {
        "seconds": statistics.median(seconds),
        "bytes": memory,
        "traces": traces,
        "calls": counter.total_calls,
        "payload": counter.total_bytes,
    }
    manager.cleanup(barrier=True)


def run(ranks: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure one rank count; the slowest and largest rank counts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as shared:
        results = shared.dict()
        mp.spawn(measure, (ranks, port, options, results), nprocs=ranks)
        by_rank = list(results.values())
    transfer, waiting = zip(*map(split_shares, *(r["traces"] for r in by_rank)), strict=True)
    return {
        "ranks": ranks,
        "tokens": options.tokens,
        "seconds": max(r["seconds"] for r in by_rank),
        "peak MiB per rank": max(r["bytes"] for r in by_rank) / 2**20,
        "collective share": statistics.median(transfer),
        "waiting share": statistics.median(waiting),
        "collectives": by_rank[0]["calls"],
        "KiB": by_rank[0]["payload"] / 2**10,
    }


def split_shares(*ranks: tuple[float, list[float]]) -> tuple[float, float]:
    """Split one step's time in collectives into transfer and waiting, as shares of the step.

    The last rank to reach a collective waits for nobody, so its time is the transfer.
    """
    step = max(whole for whole, _ in ranks)
    transfer = sum(map(min, zip(*(durations for _, durations in ranks), strict=True)))
    total = statistics.mean(sum(durations) for _, durations in ranks)
    return transfer / step, (total - transfer) / step


def add_efficiencies(rows: list[dict[str, float]]) -> None:
    """Compare every row with the first: 1 is ideal."""
    first = rows[0]
    for row in rows:
        growth = row["ranks"] / first["ranks"]
        row["time efficiency"] = first["seconds"] / row["seconds"] / growth
        row["memory efficiency"] = first["peak MiB per rank"] / row["peak MiB per rank"] / growth


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Draw both efficiencies over the rank count."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    ranks = [row["ranks"] for row in rows]
    for name, marker in (("time efficiency", "o"), ("memory efficiency", "s")):
        axes.plot(ranks, [row[name] for row in rows], marker=marker, label=name)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="ranks", ylabel="efficiency", ylim=(0, 1.2), xticks=ranks)
    axes.set_title(f"{rows[0]['tokens']:,} tokens")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure every rank count and write the table and the plot."""
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = [run(ranks, options) for ranks in options.ranks]
    add_efficiencies(rows)
    print_table([{name: text.format(row[name]) for name, text in COLUMNS.items()} for row in rows])
    ordered = [{name: row[name] for name in COLUMNS} for row in rows]
    write_csv(ordered, options.output / "context_parallel.csv")
    plot(rows, options.output / "context_parallel.png")


if __name__ == "__main__":
    main()

"""Peak memory and time against the number of tokens, plain forward and streaming.

Every row of the table comes from a process of its own, so that its peak memory is its own.
"Working memory" is the peak beyond what must be there: the process before the call with its
inputs, the outputs, and for streaming the hidden states on the host.

    python examples/scaling/streaming.py --tokens 100000 500000 --chunks 1024 4096
    python examples/scaling/streaming.py --tokens 8800000 --chunks 4096 --plain-limit 0 --memmap
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import measure_in_own_process, peak_bytes, peak_of, print_row, write_csv


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[100_000, 500_000, 2_000_000])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--plain-limit", type=int, default=500_000, help="plain forward up to N")
    parser.add_argument("--mixer", default="flarepp")
    parser.add_argument("--n-hidden", type=int, default=128)
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memmap", action="store_true", help="inputs and outputs are files")
    parser.add_argument("--out", type=Path, default=Path("streaming"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one row, in this process
    return parser.parse_args()


def make_cloud(n_tokens: int, directory: str | None):
    """Make random features (1, N, 3) and coordinates (1, N, 3), in memory or as memory maps."""
    arrays = []
    for seed in range(2):
        generator = np.random.default_rng(seed)
        if directory is None:
            array = np.empty((1, n_tokens, 3), np.float32)
        else:
            path = f"{directory}/{seed}.npy"
            array = np.lib.format.open_memmap(path, "w+", np.float32, (1, n_tokens, 3))
        for start in range(0, n_tokens, 2**18):
            part = array[:, start : start + 2**18]
            part[:] = generator.random(part.shape, np.float32)
        arrays.append(array if directory is None else np.load(path, mmap_mode="r"))
    return arrays


def measure(n_tokens: int, chunk: int, settings: dict) -> dict:
    """Run one prediction in this process; ``chunk`` 0 is the plain forward."""
    import torch

    from physicsnemo_flarepp import MixerBackbone
    from physicsnemo_flarepp.inference import predict

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    sizes = {key: settings[key] for key in ("n_hidden", "n_layers", "mixer")}
    model = MixerBackbone(3, 1, embedding_dim=3, **sizes).eval()
    warm_up = torch.rand(1, 64, 3)
    predict(model, warm_up, warm_up, chunk_size=32)
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        cloud = make_cloud(n_tokens, directory if settings["memmap"] else None)
        result = []

        def call() -> None:
            if chunk:
                out = f"{directory}/out.npy" if settings["memmap"] else None
                result.append(predict(model, *cloud, chunk_size=chunk, out=out))
            else:
                result.append(model(*map(torch.from_numpy, cloud)))

        wall, cpu = time.perf_counter(), time.process_time()
        needed = peak_of(call, torch.device("cpu"))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = peak_bytes()
        finite = bool(np.isfinite(np.asarray(result[0])).all())
    stream = 4 * n_tokens * settings["n_hidden"] if chunk else 0
    # Pages of mapped files are inputs and outputs too, whether or not they were resident.
    arrays = 4 * n_tokens * (1 if not settings["memmap"] else 7)
    return {
        "tokens": n_tokens,
        "chunk": chunk,
        "seconds": round(wall, 2),
        "cpu_us_per_token": round(1e6 * cpu / n_tokens, 2),
        "peak_mb": round(peak / 1e6),
        "stream_mb": round(stream / 1e6),
        "working_mb": round((needed - stream - arrays) / 1e6),
        "finite": finite,
    }


def plot(rows: list[dict], path: Path) -> None:
    """Draw working memory and time per token against N, one line per method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (memory, speed) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for chunk in dict.fromkeys(row["chunk"] for row in rows):
        line = [row for row in rows if row["chunk"] == chunk]
        tokens = [row["tokens"] for row in line]
        label = f"chunks of {chunk}" if chunk else "plain forward"
        memory.loglog(tokens, [row["working_mb"] for row in line], "o-", label=label)
        speed.semilogx(tokens, [row["cpu_us_per_token"] for row in line], "o-", label=label)
    memory.set(xlabel="tokens N", ylabel="working memory (MB)")
    slowest = max(row["cpu_us_per_token"] for row in rows)
    speed.set(xlabel="tokens N", ylabel="CPU time per token (µs)", ylim=(0, 1.1 * slowest))
    memory.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure all rows, print them as they come, write the table and the plot."""
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    keys = ("mixer", "n_hidden", "n_layers", "threads", "memmap")
    settings = {key: getattr(arguments, key) for key in keys}
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for chunk in (0, *arguments.chunks):
        for n_tokens in arguments.tokens:
            if chunk or n_tokens <= arguments.plain_limit:
                job = {"n_tokens": n_tokens, "chunk": chunk, "settings": settings}
                rows.append(measure_in_own_process(__file__, job))
                print_row(rows[-1], header=len(rows) == 1)
    write_csv(rows, arguments.out / "streaming.csv")
    plot(rows, arguments.out / "streaming.png")


if __name__ == "__main__":
    main()

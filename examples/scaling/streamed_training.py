"""Streamed training steps against plain ones: time as a ratio, peak memory against the mesh.

The ratios of the first table compare CPU times of steps that alternate in one process. Every
row of the second comes from a process of its own, so that its peak memory is its own. "Working
memory" is the peak beyond what must be there: the process before the step with model, moments and
inputs, and the hidden states that wait.

    python examples/scaling/streamed_training.py --compare 20000 100000
    python examples/scaling/streamed_training.py --compare --tokens 8800000 --chunks 4096 \
        --n-hidden 64 --memmap --stream-dtype bfloat16
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import measure_in_own_process, peak_bytes, peak_of, print_row, write_csv

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.streamed import streamed_step


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compare", type=int, nargs="*", default=[100_000], help="tokens, in turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="*", default=[100_000, 500_000, 2_000_000])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--mixer", default="flarepp")
    parser.add_argument("--n-hidden", type=int, default=128)
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memmap", action="store_true", help="inputs and targets are files")
    parser.add_argument("--offload", default="cpu", help="cpu or a directory")
    parser.add_argument("--stream-dtype", help="of the hidden states that wait, e.g. bfloat16")
    parser.add_argument("--out", type=Path, default=Path("streamed_training"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one row, in this process
    return parser.parse_args()


def make_case(n_tokens: int, directory: str | None) -> list[np.ndarray]:
    """Make features (1, N, 3), coordinates (1, N, 3) and targets (1, N, 1), in memory or files."""
    arrays = []
    for seed, width in enumerate((3, 3, 1)):
        generator = np.random.default_rng(seed)
        shape = (1, n_tokens, width)
        if directory is None:
            array = np.empty(shape, np.float32)
        else:
            path = f"{directory}/{seed}.npy"
            array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
        for start in range(0, n_tokens, 2**18):
            part = array[:, start : start + 2**18]
            part[:] = generator.random(part.shape, np.float32)
        arrays.append(array if directory is None else np.load(path, mmap_mode="r"))
    return arrays


class Trainee:
    """A model with its optimiser, that takes plain and streamed steps."""

    def __init__(self, settings: dict) -> None:
        torch.set_num_threads(settings["threads"])
        torch.manual_seed(0)
        sizes = {key: settings[key] for key in ("n_hidden", "n_layers", "mixer")}
        self.settings = settings
        # eval: transolver_plus draws no noise
        self.model = MixerBackbone(3, 1, embedding_dim=3, **sizes).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        small = make_case(64, None)
        self.step(small, 32)
        self.step(small, 0)

    def step(self, case: list[np.ndarray], chunk: int) -> float:
        """Take one optimiser step and return the loss; ``chunk`` 0 is the plain step."""
        if chunk:
            dtype = self.settings["stream_dtype"]
            loss = streamed_step(
                self.model,
                *case,
                chunk_size=chunk,
                offload=self.settings["offload"],
                stream_dtype=None if dtype is None else getattr(torch, dtype),
            )
        else:
            fx, embedding, target = map(torch.from_numpy, case)
            loss = relative_l2_loss(self.model(fx, embedding), target)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def compare(n_tokens: int, chunks: list[int], repeats: int, settings: dict) -> list[dict]:
    """Return CPU times of plain and streamed steps that alternate, and their median ratios."""
    trainee, case = Trainee(settings), make_case(n_tokens, None)
    times: dict[int, list[float]] = {chunk: [] for chunk in (0, *chunks)}
    for _ in range(repeats):
        for chunk, spent in times.items():
            start = time.process_time()
            trainee.step(case, chunk)
            spent.append(time.process_time() - start)
    rows = []
    for chunk, spent in times.items():
        ratios = [a / b for a, b in zip(spent, times[0], strict=True)]
        rows.append(
            {
                "tokens": n_tokens,
                "chunk": chunk,
                "cpu_us_per_token": round(1e6 * statistics.median(spent) / n_tokens, 1),
                "ratio": round(statistics.median(ratios), 2),
            }
        )
    return rows


def measure(n_tokens: int, chunk: int, settings: dict) -> dict:
    """Take one streamed step in this process and tell its time and memory."""
    trainee = Trainee(settings)
    with tempfile.TemporaryDirectory() as directory:
        case = make_case(n_tokens, directory if settings["memmap"] else None)
        losses = []
        wall, cpu = time.perf_counter(), time.process_time()
        needed = peak_of(lambda: losses.append(trainee.step(case, chunk)), torch.device("cpu"))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    itemsize = torch.empty(0, dtype=getattr(torch, settings["stream_dtype"] or "float32")).itemsize
    states = itemsize * n_tokens * settings["n_hidden"] * (settings["n_layers"] + 1)
    # Pages of mapped inputs are inputs too, whether or not they were resident.
    inputs = 4 * n_tokens * 7 if settings["memmap"] else 0
    return {
        "tokens": n_tokens,
        "chunk": chunk,
        "seconds": round(wall, 1),
        "cpu_us_per_token": round(1e6 * cpu / n_tokens, 1),
        "peak_mb": round(peak_bytes() / 1e6),
        "states_mb": round(states / 1e6),
        "working_mb": round((needed - states - inputs) / 1e6),
        "loss": round(losses[0], 4),
    }


def main() -> None:
    """Measure all rows, print them as they come, and write the tables."""
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    keys = ("mixer", "n_hidden", "n_layers", "threads", "memmap", "offload", "stream_dtype")
    settings = {key: getattr(arguments, key) for key in keys}
    arguments.out.mkdir(parents=True, exist_ok=True)
    ratios = []
    for n_tokens in arguments.compare:
        for row in compare(n_tokens, arguments.chunks, arguments.repeats, settings):
            print_row(row, header=not ratios)
            ratios.append(row)
    if ratios:
        write_csv(ratios, arguments.out / "ratios.csv")
        print()
    rows = []
    for chunk in arguments.chunks:
        for n_tokens in arguments.tokens:
            job = {"n_tokens": n_tokens, "chunk": chunk, "settings": settings}
            rows.append(measure_in_own_process(__file__, job))
            print_row(rows[-1], header=len(rows) == 1)
    if rows:
        write_csv(rows, arguments.out / "memory.csv")


if __name__ == "__main__":
    main()

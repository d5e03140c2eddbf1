"""The planner's memory of a training step against measured peaks.

Every row comes from processes of its own. The peak is that of a step beyond the process before it,
with model and inputs there; so is the planner's figure, less what it counts for them.

On a CPU the C library keeps freed blocks of up to 32 MB for itself, which would add a quarter to
the peak of a plain step and much more to one that frees often. The processes are told to give them
back (MALLOC_MMAP_THRESHOLD_), which helps long trainings on a CPU as well.

    python examples/scaling/plan_accuracy.py --tokens 20000 50000 100000
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from measuring import measure_in_own_process, peak_of, print_row, write_csv

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.parallel import enable_context_parallel
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.planning import StepCosts
from physicsnemo_flarepp.training.streamed import streamed_step

WAYS = ("plain", "recomputed", "context", "streamed")
RANKS = 2


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[20_000, 50_000, 100_000])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--mixer", default="flarepp")
    parser.add_argument("--n-hidden", type=int, default=64)
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=Path("plan_accuracy"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one row, in this process
    return parser.parse_args()


def make_model(settings: dict) -> MixerBackbone:
    """Build the model of the settings."""
    torch.manual_seed(0)
    sizes = {key: settings[key] for key in ("n_hidden", "n_layers", "mixer")}
    return MixerBackbone(3, 1, embedding_dim=3, **sizes).eval()


def measured_peak(model: MixerBackbone, way: str, n_tokens: int, chunk: int, group=None) -> int:
    """Return the bytes that a step of the rank's tokens needs beyond what is there before it."""
    model.checkpoint_blocks = way == "recomputed"

    def step(case: list[torch.Tensor]) -> None:
        *inputs, target = case
        if way == "streamed":
            streamed_step(model, *case, chunk_size=chunk)
        else:
            relative_l2_loss(model(*inputs), target, group=group).backward()

    def make_case(rows: int) -> list[torch.Tensor]:
        return [torch.rand(1, rows, width) for width in (3, 3, 1)]

    step(make_case(64))
    model.zero_grad(set_to_none=True)
    case = make_case(n_tokens)
    return peak_of(lambda: step(case), torch.device("cpu"))


def measure_rank(rank: int, rendezvous: str, n_tokens: int, settings: dict) -> None:
    """Measure the share of one rank of a context group."""
    torch.set_num_threads(1)
    path = f"file://{rendezvous}/meet"
    dist.init_process_group("gloo", init_method=path, rank=rank, world_size=RANKS)
    model = enable_context_parallel(make_model(settings), dist.group.WORLD)
    peak = measured_peak(model, "plain", -(-n_tokens // RANKS), 0, dist.group.WORLD)
    Path(f"{rendezvous}/{rank}.json").write_text(json.dumps(peak))
    dist.destroy_process_group()


def measure(way: str, n_tokens: int, settings: dict) -> dict:
    """Return predicted and measured peak of one way for one number of tokens."""
    torch.set_num_threads(1)
    model = make_model(settings)
    counts = StepCosts(model, 1, "fp32")
    chunk = settings["chunk"]
    tokens = -(-n_tokens // RANKS) if way == "context" else n_tokens
    streams = way == "streamed"
    kind = "plain" if way == "context" else way
    predicted = counts.peak(kind, tokens, chunk if streams else None) - counts.held(tokens)
    predicted += counts.waiting(tokens) if streams else 0
    if way == "context":
        with tempfile.TemporaryDirectory() as folder:
            arguments = (folder, n_tokens, settings)
            torch.multiprocessing.spawn(measure_rank, arguments, RANKS)
            measured = max(json.loads(file.read_text()) for file in Path(folder).glob("*.json"))
    else:
        measured = measured_peak(model, way, n_tokens, chunk)
    return {
        "step": f"context over {RANKS} ranks" if way == "context" else way,
        "tokens": n_tokens,
        "predicted_mb": round(predicted / 1e6),
        "measured_mb": round(measured / 1e6),
        "off_percent": round(100 * (predicted / measured - 1), 1),
    }


def main() -> None:
    """Measure all rows, print them as they come, and write the table."""
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    keys = ("mixer", "n_hidden", "n_layers", "chunk")
    settings = {key: getattr(arguments, key) for key in keys}
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "500000")
    rows = []
    for way in arguments.ways:
        for n_tokens in arguments.tokens:
            job = {"way": way, "n_tokens": n_tokens, "settings": settings}
            rows.append(measure_in_own_process(__file__, job))
            print_row(rows[-1], header=len(rows) == 1)
    write_csv(rows, arguments.out / "plan_accuracy.csv")


if __name__ == "__main__":
    main()

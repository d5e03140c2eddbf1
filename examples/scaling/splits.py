"""What splitting the tokens of one attention call into parts brings.

Encode and decode, forward and backward, whole and in parts, in turn in one run; each figure is the
median of its repetitions. The defaults starve the kernel: one head of one sample. With ``--blocks``
nothing is timed: the table shows the thread blocks of each kernel on two GPUs, before and after,
from the rules by which torch launches them.

    python examples/scaling/splits.py --threads 2
    python examples/scaling/splits.py --device cuda --heads 8 --dtype float16
    python examples/scaling/splits.py --blocks
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from measuring import print_row, print_table, timed

from physicsnemo_flarepp.ops import decode, encode
from physicsnemo_flarepp.ops.kernels import select_backend
from physicsnemo_flarepp.ops.splits import choose_splits, count_slots, work_items

GPUS = {"A100": 108, "H100": 132}  # multiprocessors
FLASH_KEYS = 256  # in a block of the flash forward kernel, heads of up to 64 channels


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--latents", type=int, default=64)
    parser.add_argument("--width", type=int, default=16, help="channels of a head")
    parser.add_argument("--splits", type=int, nargs="+", default=[], help="besides the choice")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--blocks", action="store_true", help="thread blocks on GPUs")
    return parser.parse_args()


def make_calls(arguments: argparse.Namespace) -> dict[str, tuple[Callable, tuple]]:
    """Return encode and decode with their inputs, stored as projections store them."""
    options = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}

    def rows(n: int) -> torch.Tensor:
        shape = (arguments.batch, n, arguments.heads, arguments.width)
        return torch.randn(shape, **options).transpose(1, 2).requires_grad_()

    n, m = arguments.tokens, arguments.latents
    return {"encode": (encode, (rows(m), rows(n), rows(n))),
            "decode": (decode, (rows(n), rows(m), rows(m)))}  # fmt: skip


def measure(function: Callable, inputs: tuple, splits: list[int | None], repeats: int) -> dict:
    """Return median seconds forward and backward by number of parts, all of them in turn."""
    seconds: dict = {parts: ([], []) for parts in splits}
    device = inputs[0].device
    for repeat in range(-1, repeats):  # one to warm up
        for parts, (forward, backward) in seconds.items():
            ahead, out = timed(lambda p=parts: function(*inputs, splits=p), device)
            back, _ = timed(lambda y=out: torch.autograd.grad(y.sum(), inputs), device)
            if repeat >= 0:
                forward.append(ahead)
                backward.append(back)
    return {
        parts: (statistics.median(forward), statistics.median(backward))
        for parts, (forward, backward) in seconds.items()
    }


def print_times(arguments: argparse.Namespace) -> None:
    """Print a row for each call and number of parts."""
    slots = count_slots(torch.device(arguments.device))
    header = True
    for name, (function, inputs) in make_calls(arguments).items():
        backend = select_backend(*inputs, None)
        sizes = (*inputs[0].shape[:3], inputs[1].shape[2])
        chosen = [choose_splits(backend, backward, sizes, slots) for backward in (False, True)]
        times = measure(function, inputs, [1, None, *arguments.splits], arguments.repeats)
        for parts, (forward, backward) in times.items():
            total = forward + backward
            row = {
                "call": name,
                "parts": "auto, {} and {}".format(*chosen) if parts is None else parts,
                "forward s": f"{forward:.4f}",
                "backward s": f"{backward:.4f}",
                "both / whole": f"{total / sum(times[1]):.2f}",
            }
            print_row(row, header)
            header = False


def thread_blocks(gpu: str, dtype: str, call: str, backward: bool, tokens: int, latents: int):
    """Return the thread blocks of a call with 8 heads, whole, and in parts as they are chosen."""
    slots = 2 * GPUS[gpu]
    backend = "efficient" if dtype == "fp32" else "flash"
    sizes = (1, 8, latents, tokens) if call == "encode" else (1, 8, tokens, latents)
    whole = work_items(backend, backward, *sizes)
    if whole is None:
        blocks = 8 * -(-sizes[2] // 64)
        return (blocks * flash_key_splits(blocks, slots, -(-sizes[3] // FLASH_KEYS)),) * 2
    parts = choose_splits(backend, backward, sizes, slots)
    return whole, work_items(backend, backward, 1, 8, *part_sizes(sizes, parts)) * parts


def part_sizes(sizes: tuple[int, int, int, int], parts: int) -> tuple[int, int]:
    """Return queries and keys of one part of the longer of both."""
    queries, keys = sizes[2:]
    return (queries, keys // parts) if keys >= queries else (queries // parts, keys)


def flash_key_splits(blocks: int, slots: int, key_blocks: int) -> int:
    """Return the splits of the flash forward kernel's own: the fewest that waste little."""
    if blocks >= 0.8 * slots:
        return 1
    choices = range(1, min(128, slots, key_blocks) + 1)
    used = [blocks * s / (slots * -(-blocks * s // slots)) for s in choices]
    return next(s for s, share in zip(choices, used, strict=True) if share >= 0.85 * max(used))


def print_blocks() -> None:
    """Print thread blocks, whole and in parts, at the sizes of the paper: B=1, H=8, D=16."""
    table = []
    for tokens, latents in ((40_000, 64), (1_000_000, 64), (1_000_000, 128)):
        for dtype in ("fp16", "fp32"):
            row = {"N": f"{tokens:,}", "M": latents, "dtype": dtype}
            for call in ("encode", "decode"):
                for backward, direction in ((False, "forward"), (True, "backward")):
                    cells = []
                    for gpu in GPUS:
                        pair = thread_blocks(gpu, dtype, call, backward, tokens, latents)
                        cells.append(" -> ".join(f"{n:,}" for n in dict.fromkeys(pair)))
                    row[f"{call} {direction}"] = "; ".join(dict.fromkeys(cells))
            table.append(row)
    print_table(table)


def main() -> None:
    """Print the table that was asked for."""
    arguments = parse_arguments()
    if arguments.blocks:
        print_blocks()
        return
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    print_times(arguments)


if __name__ == "__main__":
    main()

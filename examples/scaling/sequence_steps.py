"""Time and peak memory of a training step on sequences, by mixer, as ratios to ``flare``.

The models are those of experiment=lra/listops (B=4, C=128, H=8, M=64) without dropout, a quarter of
the tokens being padding. Repetitions are interleaved over the mixers and the median is taken; each
memory figure comes from a process of its own.

    python examples/scaling/sequence_steps.py --tokens 2048 4096
"""

import argparse
import json
import statistics
import sys

import torch
from measuring import measure_in_own_process, peak_of, print_row, timed

from physicsnemo_flarepp.sequences import SequenceClassifier

MODELS = {
    "flare": {"mixer": "flare", "query_key_norm": True, "unit_scale": True},
    "flarepp": {},
    "flarepp, anchored": {"anchored_queries": True},
    "transolver": {"mixer": "transolver"},
    "attention": {"mixer": "attention", "slice_num": None},
}


class Step:
    """Forward and backward pass of one model on one batch."""

    def __init__(self, name: str, tokens: int, batch: int, masked: bool, device: str) -> None:
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.model = SequenceClassifier(16, 10, tokens, **MODELS[name]).to(self.device)
        self.tokens = torch.randint(1, 16, (batch, tokens), device=self.device)
        real = torch.arange(tokens, device=self.device) < tokens * 3 // 4
        self.mask = real.expand(batch, -1) if masked else None

    def __call__(self) -> None:
        """Add to the gradients."""
        self.model(self.tokens, self.mask).logsumexp(1).mean().backward()


def main() -> None:
    """Print a table per length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--unmasked", action="store_true", help="no padding")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure is not None:
        step = Step(**chosen.measure)
        print(json.dumps({"bytes": peak_of(step, step.device)}))
        return
    for tokens in chosen.tokens:
        job = {"tokens": tokens, "batch": chosen.batch, "masked": not chosen.unmasked}
        steps = {name: Step(name, **job, device=chosen.device) for name in MODELS}
        times: dict[str, list[float]] = {name: [] for name in MODELS}
        for repeat in range(chosen.repeats + 1):
            for name, step in steps.items():
                seconds, _ = timed(step, step.device)
                times[name] += [seconds] if repeat else []  # the first one allocates
        seconds = {name: statistics.median(found) for name, found in times.items()}
        own = {name: {"name": name, **job, "device": chosen.device} for name in MODELS}
        memory = {n: measure_in_own_process(sys.argv[0], j)["bytes"] for n, j in own.items()}
        for name, step in steps.items():
            row = {
                "tokens": tokens,
                "mixer": name,
                "parameters": f"{sum(p.numel() for p in step.model.parameters()):,}",
                "time / flare": f"{seconds[name] / seconds['flare']:.2f}",
                "memory / flare": f"{memory[name] / memory['flare']:.2f}",
                "seconds": f"{seconds[name]:.2f}",
                "MB": f"{memory[name] / 2**20:.0f}",
            }
            print_row(row, header=name == "flare")


if __name__ == "__main__":
    main()

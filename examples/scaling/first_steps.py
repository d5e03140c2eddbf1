"""What happens in the first steps of a training run, with the weights of the paper and balanced.

python examples/scaling/first_steps.py --out first_steps
"""

import argparse
import itertools
from pathlib import Path

import torch
from learning_curves import config
from matplotlib.figure import Figure
from measuring import legend_below, write_csv
from tensordict import TensorDict
from torch import Tensor

from physicsnemo_flarepp.mixers import Mixer
from physicsnemo_flarepp.training.config import check_config
from physicsnemo_flarepp.training.run import Assembly, assemble, load_data, start_ranks

MODELS = ("FLARE++", "FLARE")
DEFAULTS = ("old", "new")
COLORS = {"FLARE++": "C3", "FLARE": "C0"}
PANELS = {
    "own share": "share of the stream that\ndiffers between tokens, after block 1",
    "mixer / stream": "what the first mixer adds\nover what the stream has",
    "rank": "effective rank of the latents\nof block 1 (M = 32, D = 8)",
    "gradient of the in-projection": "gradient of the in-projection\nover that of all weights",
    "loss": "training loss",
}


def own_share(x: Tensor) -> float:
    """Return the part of the stream's energy that is not the mean over its tokens."""
    own = x - x.mean(1, keepdim=True)
    return (own.square().mean() / x.square().mean()).item()


def effective_rank(latents: Tensor) -> float:
    """Return how many directions the latents of a head span, averaged over heads; 1 if all agree.

    Examples
    --------
    >>> effective_rank(torch.ones(1, 1, 4, 2)), effective_rank(torch.eye(4)[None, None])
    (1.0, 4.0)
    """
    energy = torch.linalg.svdvals(latents.float()).square()
    share = energy / energy.sum(-1, keepdim=True)
    return round((1 / share.square().sum(-1)).mean().item(), 4)


def gathered(mixer: Mixer, x: Tensor) -> Tensor:
    """Return what the latents of a mixer hold."""
    found: tuple[Tensor, ...] = ()
    for _ in range(mixer.n_gathers):
        found += (mixer.finish(mixer.gather(x, found), found),)
    return found[-1]


def look(assembly: Assembly, batch: TensorDict) -> dict[str, float]:
    """Return a row of numbers about the model as it is."""
    model, loss = assembly.model, assembly.step.loss(batch)
    loss.backward()
    norms = {name: p.grad.norm() for name, p in model.named_parameters()}
    model.zero_grad()
    inward = [norm for name, norm in norms.items() if name.startswith("in_projection")]
    total = torch.stack(list(norms.values())).norm()
    with torch.no_grad():
        stream = model.embed(**assembly.step.loss.adapter(batch))
        block = model.blocks[0]
        tokens = block.norm_mixer(stream)
        added = block.mixer(tokens)
        return {
            "stream": stream.square().mean().sqrt().item(),
            "own share": own_share(block(stream)),
            "mixer / stream": (added.norm() / stream.norm()).item(),
            "rank": effective_rank(gathered(block.mixer, tokens)),
            "gradient of the in-projection": (torch.stack(inward).norm() / total).item(),
            "loss": loss.item(),
        }


def measure(data: str, model: str, defaults: str, steps: int, every: int) -> list[dict]:
    """Train for some steps at the start of a run and look at the model between them."""
    cfg = check_config(config(data, model, defaults, 0, Path("unused")))
    ranks = start_ranks(cfg)
    assembly = assemble(cfg, ranks, load_data(cfg, ranks))
    loader = assembly.loaders.train
    rows = []
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, batch in enumerate(itertools.islice(batches, steps + 1)):
        if step % every == 0:
            identity = {"set": data, "model": model, "defaults": defaults, "step": step}
            rows.append(identity | look(assembly, batch))
        assembly.step([batch])
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Draw one panel per number: dashed the old defaults, solid the new."""
    figure = Figure(figsize=(13, 3.0), dpi=110, layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for model, defaults in itertools.product(MODELS, DEFAULTS):
            found = [r for r in rows if (r["model"], r["defaults"]) == (model, defaults)]
            style = "--" if defaults == "old" else "-"
            axes.plot(
                [row["step"] for row in found],
                [row[key] for row in found],
                style,
                color=COLORS[model],
                label=f"{model}, {defaults}",
                lw=1.3,
            )
        if key == "mixer / stream":
            axes.set_yscale("log")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    legend_below(figure)
    figure.savefig(path)


def main() -> None:
    """Measure both models with both defaults, and write a CSV file and a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="darcy", help="built-in set")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps between looks")
    parser.add_argument("--out", type=Path, default=Path("first_steps"), help="for .csv and .png")
    chosen = parser.parse_args()
    rows = []
    for model, defaults in itertools.product(MODELS, DEFAULTS):
        rows += measure(chosen.data, model, defaults, chosen.steps, chosen.every)
    write_csv(rows, chosen.out.with_suffix(".csv"))
    draw(rows, chosen.out.with_suffix(".png"))


if __name__ == "__main__":
    main()

"""Does the data pipe keep up with training? Points per second of both, and their ratio.

Writes vehicle-like surfaces to a temporary directory, reads them through ``build_dataloaders`` at
40,000 points per case, and compares with training steps of FlarePP as trained on DrivAerML-40K
(4 blocks, 128 channels, 8 heads, 64 latents, batch 1).

    python examples/scaling/datapipe_throughput.py --layout presampled vtp

A ratio above 1 means that the pipe delivers faster than the model consumes. The last column is the
share of a training loop's time spent waiting for data, with reading threads and model sharing the
processor.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from torch.nn.functional import mse_loss

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.datapipes import Loaders, build_dataloaders


def write_presampled(root: Path, case: int, n_cells: int) -> None:
    """Write a case of the DrivAerML-40K layout with `n_cells` tokens."""
    rng = np.random.default_rng(case)
    fields = rng.normal([-230, 0, 0, 0], [270, 1, 1, 1], (n_cells, 4))
    np.savez(
        root / f"run_{case}.npz",
        surface_mesh_centers=rng.uniform(-1, 4, (n_cells, 3)).astype(np.float32),
        surface_fields=fields.astype(np.float32),
    )


def write_vtp(root: Path, case: int, n_cells: int) -> None:
    """Write a case of the raw layout: a triangulated ellipsoid with about `n_cells` cells."""
    side = int((n_cells / 2) ** 0.5)
    mesh = pv.Sphere(theta_resolution=side, phi_resolution=side).scale((4, 1 + 0.1 * case, 1))
    pressure = np.random.default_rng(case).normal(-230, 270, mesh.n_cells)
    mesh.cell_data["pMeanTrim"] = pressure.astype(np.float32)
    (root / f"run_{case}").mkdir()
    mesh.save(root / f"run_{case}" / f"boundary_{case}.vtp")


WRITERS = {"presampled": write_presampled, "vtp": write_vtp}


def make_loaders(root: Path, layout: str, options: argparse.Namespace) -> Loaders:
    """Write the cases and return loaders on them."""
    cells = options.points if layout == "presampled" else options.cells
    for case in range(options.cases + 1):
        WRITERS[layout](root, case, cells)
    names = [f"run_{case}" for case in range(options.cases + 1)]
    (root / "manifest.json").write_text(json.dumps({"train": names[:-1], "test": names[-1:]}))
    return build_dataloaders(
        {
            "benchmark": "drivaerml_40k",
            "root": str(root),
            "n_points": options.points,
            "num_workers": options.workers,
        }
    )


def loader_rate(loaders: Loaders, epochs: int) -> float:
    """Return the points per second of the training loader alone."""
    points, start = 0, time.perf_counter()
    for epoch in range(epochs):
        loaders.train.set_epoch(epoch)
        points += sum(batch["coordinates"].shape[:2].numel() for batch in loaders.train)
    return points / (time.perf_counter() - start)


class Trainer:
    """One model and optimiser, as small as a fair step allows."""

    def __init__(self) -> None:
        self.model = FlarePP(3, 1, n_layers=4, n_hidden=128, n_head=8, slice_num=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    def step(self, batch) -> None:
        """Run forward, backward and update on one batch."""
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(batch["coordinates"]), batch["fields"])
        loss.backward()
        self.optimizer.step()


def step_rate(trainer: Trainer, batch, steps: int) -> float:
    """Return the points per second of training steps on one batch in memory."""
    trainer.step(batch)
    start = time.perf_counter()
    for _ in range(steps):
        trainer.step(batch)
    return steps * batch["coordinates"].shape[:2].numel() / (time.perf_counter() - start)


def waiting_share(loaders: Loaders, trainer: Trainer) -> float:
    """Return the share of an epoch of training that is spent waiting for the next batch.

    The first batch fills the pipe and is not counted.
    """
    batches = iter(loaders.train)
    trainer.step(next(batches))
    waited, start = 0.0, time.perf_counter()
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            return waited / (time.perf_counter() - start)
        trainer.step(batch)


def main() -> None:
    """Measure and print one line per layout."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layout", nargs="+", choices=sorted(WRITERS), default=sorted(WRITERS))
    parser.add_argument("--points", type=int, default=40_000, help="points per case and step")
    parser.add_argument("--cells", type=int, default=160_000, help="cells of a raw surface")
    parser.add_argument("--cases", type=int, default=6, help="training cases")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the loader alone")
    parser.add_argument("--steps", type=int, default=3, help="training steps timed")
    parser.add_argument("--workers", type=int, default=2, help="reading threads")
    options = parser.parse_args()
    torch.manual_seed(0)
    trainer = Trainer()
    print(f"{torch.get_num_threads()} threads, {options.points} points per case")
    print("layout      pipe points/s  step points/s  ratio  waiting in training")
    for layout in options.layout:
        with tempfile.TemporaryDirectory() as root:
            loaders = make_loaders(Path(root), layout, options)
            pipe = loader_rate(loaders, options.epochs)
            step = step_rate(trainer, next(iter(loaders.train)), options.steps)
            waiting = waiting_share(loaders, trainer)
        print(f"{layout:<10} {pipe:14,.0f} {step:14,.0f} {pipe / step:6.1f} {waiting:20.1%}")


if __name__ == "__main__":
    main()

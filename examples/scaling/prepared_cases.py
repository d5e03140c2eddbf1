"""What preparing a case saves: seconds per sample from a ``.vtp`` file and from the prepared case.

Makes a closed surface of 2 million cells with the arrays of DrivAerML, prepares it, and reads
40,000 of its cells through both readers, as training does.

    python examples/scaling/prepared_cases.py

With ``--cold`` the files are dropped from the system's cache before every sample.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyvista as pv

from physicsnemo_flarepp.datapipes import DrivAerMLReader, PreparedReader, prepare
from physicsnemo_flarepp.datapipes.readers import CaseReader

FIELDS = ("pMeanTrim", "wallShearStressMeanTrim")


def write_raw(root: Path, n_cells: int) -> int:
    """Write a train and a test case of about `n_cells` triangles, the second small; count them."""
    for run, cells in ((1, n_cells), (2, 200)):
        side = max(4, round((cells / 2) ** 0.5) + 1)
        mesh = pv.Sphere(theta_resolution=side, phi_resolution=side + 1).scale((4, 1.5, 1))
        rng = np.random.default_rng(run)
        mesh.cell_data[FIELDS[0]] = rng.normal(-230, 270, mesh.n_cells).astype(np.float32)
        mesh.cell_data[FIELDS[1]] = rng.normal(0, 1, (mesh.n_cells, 3)).astype(np.float32)
        (root / f"run_{run}").mkdir(parents=True)
        mesh.save(root / f"run_{run}" / f"boundary_{run}.vtp")
        if run == 1:
            made = mesh.n_cells
    (root / "manifest.json").write_text(json.dumps({"train": ["run_1"], "test": ["run_2"]}))
    return made


def drop_from_cache(folder: Path) -> None:
    """Ask the system to forget the contents of files."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def seconds_per_sample(reader: CaseReader, samples: int, before: Callable[[], None]) -> float:
    """Return the median time of a fresh draw of the first case."""
    times = []
    for epoch in range(samples):
        reader.set_epoch(epoch)
        before()
        start = time.perf_counter()
        sample = reader[0][0]
        times.append(time.perf_counter() - start)
        if not sample["fields"].isfinite().all():
            raise RuntimeError("a sample has values that are not finite")
    return float(np.median(times))


def main() -> None:
    """Measure and print a line per reader."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=2_000_000)
    parser.add_argument("--points", type=int, default=40_000, help="cells per sample")
    parser.add_argument("--samples", type=int, default=5, help="timed, from the raw file")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not its cache")
    parser.add_argument("--folder", help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root, out = Path(folder) / "raw", Path(folder) / "prepared"
        cells = write_raw(root, options.cells)
        reading = {"fields": FIELDS, "features": ["normals"]}
        start = time.perf_counter()
        prepare(
            {"root": str(root), "reader": {"_target_": "DrivAerMLReader", **reading}},
            out,
            workers=1,
        )
        seconds = time.perf_counter() - start
        print(f"{cells:,} cells prepared in {seconds:.1f} s, {options.points:,} per sample")

        def before() -> None:
            if options.cold:
                drop_from_cache(Path(folder))

        draws = {"n_points": options.points, "sampling": "epoch"}
        raw = seconds_per_sample(
            DrivAerMLReader(root, **reading, options=draws), options.samples, before
        )
        ready = seconds_per_sample(PreparedReader(out, options=draws), 10 * options.samples, before)
        print(f".vtp      {raw:10.4f} s per sample")
        print(f"prepared  {ready:10.4f} s per sample")
        print(f"ratio     {raw / ready:10.0f}")


if __name__ == "__main__":
    main()

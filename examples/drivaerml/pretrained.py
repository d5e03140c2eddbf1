"""Put a trained run into the package, as ``flarepp predict --pretrained NAME`` finds it.

NAME is the name of the run directory. Its files and a model card with its errors on its test cases
are written; what the card says about use is taken from the card of the cars.
"""

import argparse
import shutil
from pathlib import Path

from physicsnemo_flarepp.evaluation import evaluate_run, load_run
from physicsnemo_flarepp.evaluation.calibration import case_forces
from physicsnemo_flarepp.evaluation.reports import error_rows, force_rows
from physicsnemo_flarepp.files import PRETRAINED
from physicsnemo_flarepp.runs.directory import MANIFEST, read_run_manifest
from physicsnemo_flarepp.texts import format_table

_USE = "## What it is for"


def keep(directory: Path, folder: Path = PRETRAINED) -> Path:
    """Copy what predictions need to ``folder`` and describe it in a card; return the new folder."""
    run, manifest = load_run(directory, device="cpu"), read_run_manifest(directory)
    card = _card(run, (PRETRAINED / "cars" / "MODEL_CARD.md").read_text())
    target = folder / run.name
    target.mkdir(parents=True)
    for name in (*manifest.files, MANIFEST, "versions.json"):
        shutil.copyfile(directory / name, target / name)
    (target / "MODEL_CARD.md").write_text(card)
    return target


def _card(run, other):
    report = evaluate_run(run, *(case_forces(run) or (None, None)), progress=False)
    data, model = run.config.data, run.config.model
    source = data.get("builtin") or data.root
    command = (run.directory / "command.txt").read_text().strip()
    count = sum(parameter.numel() for parameter in run.model.parameters())
    name = model._target_.rpartition(".")[2]
    keys = ("n_layers", "n_hidden", "n_head", "slice_num")
    sizes = ", ".join(f"{model[key]} {key}" for key in keys)
    facts = [
        ["", ""],
        ["model", f"{name}, {count:,} parameters: {sizes}"],
        ["data", f"`{source}`, seed {data.get('builtin_seed', 0)}; "
                 f"{run.training_set['cases']} training, {len(run.case_ids)} {report.split} cases"],
        ["command", f"`flarepp {command.partition('flarepp ')[2] or command}`"],
    ]  # fmt: skip
    parts = [
        f"# Pretrained {name} for `{source}`: {run.name}",
        f"```bash\nflarepp predict --pretrained {run.name} car.stl\n```",
        format_table(facts, markdown=True),
        f"## Errors on {len(run.case_ids)} {report.split} cases",
        format_table(error_rows(report), markdown=True),
        format_table(force_rows(report), markdown=True) if report.forces else "",
        f"Predicting the mean gives {100 * report.mean_errors.mean:.1f} %.",
        _USE + other.partition(_USE)[2].rstrip(),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
    print(keep(parser.parse_args().run))

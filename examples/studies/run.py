"""Run studies, add what is new to the ledger, and render its page and figures.

python examples/studies/run.py start equal_cost --reduced --jobs 2
python examples/studies/run.py table1 --paper
python examples/studies/run.py --render
"""

import argparse
from pathlib import Path

from engine import ROOT, run_studies
from studies import STUDIES


def main() -> None:
    """Read the command line, run, render."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="one or more")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", dest="size", action="store_const", const="reduced",
                      help="hours on two CPU cores (default)")  # fmt: skip
    size.add_argument("--paper", dest="size", action="store_const", const="paper",
                      help="the published sizes, for GPUs")  # fmt: skip
    parser.add_argument("--seeds", type=int, help="runs of each cell; the study's by default")
    parser.add_argument(
        "--cells", nargs="+", default=(), help="parts of names, such as darcy/flare"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("outputs/studies"))
    parser.add_argument("--ledger", type=Path, default=ROOT / "results/ledger.jsonl")
    parser.add_argument("--render", action="store_true", help="write the page and the figures")
    chosen = parser.parse_args()
    if not chosen.studies and not chosen.render:
        parser.error(f"name studies ({', '.join(STUDIES)}) or give --render")
    picked = {name: STUDIES[name] for name in chosen.studies}
    size = chosen.size or "reduced"
    where = chosen.runs, chosen.ledger
    run_studies(picked, size, *where, chosen.jobs, chosen.seeds, chosen.cells)
    if chosen.render:
        from rendering import render

        render(STUDIES, chosen.ledger)


if __name__ == "__main__":
    main()

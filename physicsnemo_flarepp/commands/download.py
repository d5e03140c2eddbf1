"""Fetch a published data set.

    flarepp download pipe
    flarepp download drivaerml_raw --runs 1-10 --files boundary csv

Files come from the Hugging Face hub to the folder `data`, where the configs look for them, and
their checksums are verified. An interrupted download goes on with the same command. A token
(HF_TOKEN, `hf auth login`) and a mirror (HF_ENDPOINT) are used as huggingface_hub does.
"""

import argparse

from ..datapipes.download import (
    FILE_KINDS,
    PUBLISHED_SETS,
    RAW_SETS,
    download,
    download_runs,
    parse_runs,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument(
        "set", choices=PUBLISHED_SETS, metavar="SET", help=", ".join(PUBLISHED_SETS)
    )
    parser.add_argument("--root", default="data", help="directory of all sets (default: data)")
    parser.add_argument("--endpoint", help="address of a mirror (default: HF_ENDPOINT, or the hub)")
    parser.add_argument("--keep", action="store_true", help="keep the archive after unpacking")
    raw = parser.add_argument_group(f"sets of runs ({', '.join(RAW_SETS)})")
    raw.add_argument("--runs", help="numbers of runs, such as 1-10,12")
    raw.add_argument(
        "--files",
        nargs="+",
        choices=tuple(FILE_KINDS),
        default=["boundary", "csv"],
        help="kinds of files (default: boundary csv)",
    )
    raw.add_argument("--dry-run", action="store_true", help="tell the size and fetch nothing")


def run(options: argparse.Namespace) -> None:
    """Fetch the set and say where it is."""
    if options.set not in RAW_SETS:
        if options.runs is not None:
            raise ValueError(f"--runs is for {', '.join(RAW_SETS)}; {options.set} is one archive")
        folder = download(options.set, options.root, endpoint=options.endpoint, keep=options.keep)
    else:
        if options.runs is None:
            raise ValueError(f"--runs is missing: say which runs of {options.set}, such as 1-10")
        folder = download_runs(
            options.set,
            options.root,
            parse_runs(options.runs),
            options.files,
            endpoint=options.endpoint,
            dry_run=options.dry_run,
        )
        if options.dry_run:
            return
    print(f"{options.set} is complete: set `data.root` to {folder}")

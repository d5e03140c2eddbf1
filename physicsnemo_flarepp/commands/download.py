"""Fetch a published data set."""

import argparse

from ..datapipes.download import RAW_SETS, download, download_runs, parse_runs


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

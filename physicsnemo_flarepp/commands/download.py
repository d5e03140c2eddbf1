"""Fetch a published data set.

    flarepp download pipe

Files come from the Hugging Face hub to data/<set>, where the configs look for them, and their
checksums are verified. An interrupted download goes on with the same command.
"""

import argparse

from ..datapipes.download import HUB, PUBLISHED_SETS, download


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("set", choices=PUBLISHED_SETS)
    parser.add_argument("--root", default="data", help="directory of all sets (default: data)")
    parser.add_argument("--endpoint", default=HUB, help=f"hub or mirror (default: {HUB})")


def run(options: argparse.Namespace) -> None:
    """Fetch the set and say where it is."""
    directory = download(options.set, options.root, endpoint=options.endpoint)
    print(f"{options.set} is complete: set `data.root` to {directory}")

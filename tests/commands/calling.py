"""Verbs as functions of their arguments."""

import argparse
from importlib import import_module


def verb(name):
    """What ``flarepp <name>`` runs, with its return value."""
    module = import_module(f"physicsnemo_flarepp.commands.{name}")

    def call(arguments):
        parser = argparse.ArgumentParser()
        module.add_options(parser)
        return module.run(parser.parse_args(arguments))

    return call

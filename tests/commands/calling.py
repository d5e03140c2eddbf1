"""Verbs as functions of their arguments."""

from importlib import import_module

from physicsnemo_flarepp.commands.dispatch import parse_options


def verb(name):
    """What ``flarepp <name>`` runs, with its return value."""
    module = import_module(f"physicsnemo_flarepp.commands.{name}")
    return lambda arguments: module.run(parse_options(name, arguments))

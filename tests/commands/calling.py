"""Verbs as functions of their arguments."""

from importlib import import_module

from physicsnemo_flarepp.commands.dispatch import VERBS
from physicsnemo_flarepp.commands.parsers import parse_options


def verb(name):
    """What ``flarepp <name>`` runs, with its return value."""
    module = import_module(f"physicsnemo_flarepp.commands.{VERBS[name][0]}")
    return lambda arguments: getattr(module, name)(parse_options(name, arguments))

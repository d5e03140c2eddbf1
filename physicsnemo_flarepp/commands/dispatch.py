"""From a command line to the module of its verb.

Imports nothing that takes long: what a verb needs is imported once the verb is known.
"""

import argparse
import ctypes.util
import difflib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from .. import __version__
from .failures import FAILED, WRONG_USE, exit_code, one_line

_SIGNALLED = 128  # plus the number of the signal, as shells have it


@dataclass(frozen=True)
class Verb:
    """What a verb does, and how its arguments are read.

    The module ``commands.<verb>`` has ``add_options(parser)`` and ``run(options)``. A verb with an
    `entry` is told by Hydra's overrides instead: its module has ``run(cfg)``.

    Parameters
    ----------
    summary : str
        A line for the help.
    entry : str, optional
        Config in ``conf/`` that Hydra composes.
    directory : str, optional
        Key of the config that names where results go; see
        :func:`~physicsnemo_flarepp.commands.configs.run_composed`.
    """

    summary: str
    entry: str | None = None
    directory: str = "run_dir"


VERBS = {
    "train": Verb("train a model, or go on with a run that was stopped", entry="train"),
    "evaluate": Verb("errors and forces of runs on their test cases"),
    "predict": Verb("fields on a surface, at points, or of test cases, for ParaView"),
    "plot": Verb("figures of runs"),
    "compare": Verb("train several models at equal settings and tabulate them", "compare",
                    "compare.directory"),
    "plan": Verb("memory and time of training on whole meshes, and what fits"),
    "download": Verb("fetch a published data set"),
    "inspect": Verb("what is in files of data, and how to train on them"),
    "prepare": Verb("write cases so that reading some points of them costs no more", "prepare",
                    "prepare.out"),
    "check": Verb("does everything work on this machine?"),
}  # fmt: skip


def usage() -> str:
    """Return the help of the command itself."""
    verbs = "\n".join(f"  {name:10}{verb.summary}" for name, verb in VERBS.items())
    return f"""\
usage: flarepp VERB [arguments] [--debug]

Surrogates for PDE fields on meshes with FLARE++, on NVIDIA PhysicsNeMo.

{verbs}

  flarepp train experiment=quick/darcy model=flare
  flarepp evaluate outputs/darcy-flare-seed0
  flarepp predict outputs/cars-flarepp-seed0 car.stl

flarepp VERB --help tells the arguments of a verb. Exit codes: 2 wrong use,
1 failure, 128 + n signal n. --debug or FLAREPP_DEBUG=1 shows where an error
arose. flarepp --version prints {__version__}."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; return the exit code.

    Errors that are expected are one line on stderr; see :mod:`.failures`. Any other shows its
    traceback, as does every error with ``--debug`` on the line or FLAREPP_DEBUG in the environment.

    Examples
    --------
    >>> main(["--version"])
    0.3.1
    0
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or os.environ.get("FLAREPP_DEBUG", "0") not in ("", "0")
    arguments = [text for text in arguments if text != "--debug"]
    name = arguments[0] if arguments else None
    if name in ("-h", "--help", "help", None):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else WRONG_USE
    if name == "--version":
        print(__version__)
        return 0
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(VERBS)}"
        print(f"flarepp: there is no verb {name!r}; {hint}", file=sys.stderr)
        return WRONG_USE
    try:
        _run(name, arguments[1:])
    except KeyboardInterrupt as reason:
        print(f"flarepp {name}: interrupted {reason}".rstrip(), file=sys.stderr)
        return _SIGNALLED + signal.SIGINT
    except BrokenPipeError:  # whoever reads the output has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGNALLED + signal.SIGPIPE
    except Exception as error:
        code = exit_code(error)
        if debug or code is None:
            traceback.print_exc()
        else:
            print(f"flarepp {name}: {one_line(error)}", file=sys.stderr)
        return FAILED if code is None else code
    return 0


def _start_warp() -> None:
    """Start Warp, which PhysicsNeMo uses, without its line about a driver that is not there."""
    if ctypes.util.find_library("cuda") is not None:
        return
    warp = import_module("warp")
    warp.config.quiet, warp.config.log_level = True, logging.WARNING  # older and newer versions
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)  # the line is written by native code
        warp.init()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _run(name: str, arguments: list[str]) -> None:
    verb = VERBS[name]
    if verb.entry is not None:
        configs = import_module(".configs", __package__)
        if {"-h", "--help"} & set(arguments):
            chosen = argparse.ArgumentParser(add_help=False)
            chosen.add_argument("--config-name", "-cn", default=verb.entry)
            entry = chosen.parse_known_args(arguments)[0].config_name
            print(configs.describe_entry(name, entry, verb.summary))
            return

        def task(cfg: object) -> None:  # a wrong override is told before torch is imported
            _start_warp()
            import_module(f".{name}", __package__).run(cfg)

        configs.run_composed(verb.entry, task, arguments, verb.directory)
        return
    module = import_module(f".{name}", __package__)
    parser = argparse.ArgumentParser(
        prog=f"flarepp {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    module.run(parser.parse_args(arguments))

"""From a command line to the module of its verb, and from an error to a line and an exit code.

Imports nothing slow: what a verb needs is imported once its arguments have been read.
"""

import argparse
import atexit
import difflib
import gc
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from ctypes.util import find_library
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from .. import __version__
from ..texts import printable
from .parsers import parse_options

WRONG_USE = 2
FAILED = 1
# Raised with a sentence about the request. Every class of Hydra and OmegaConf is about a config
# and counts as wrong use too.
_ABOUT_THE_REQUEST = (
    ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError
)  # fmt: skip
_CONFIG_PACKAGES = {"hydra", "omegaconf"}
# Lines of their messages that do not help a user.
_HIDDEN = ("Config search path", "object_type=", "provider=", "reference_type=")
_OWN_PACKAGE = __name__.partition(".")[0]
_SIGNALLED = 128  # plus the number of the signal, as shells have it
_HELP = {"-h", "--help"}
_LAUNCHED = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}


def exit_code(error: Exception) -> int | None:
    """Return 2 for wrong use, 1 for a failure despite right use, None for a bug.

    Expected failures are the machine's (OSError: a full disk, no network, no permission) and every
    exception class of this package. Packages are recognised by name, so that none is imported just
    to report an error.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if isinstance(error, _ABOUT_THE_REQUEST) or packages & _CONFIG_PACKAGES:
        return WRONG_USE
    if isinstance(error, OSError) or _OWN_PACKAGE in packages:
        return FAILED
    return None


def one_line(error: Exception) -> str:
    r"""Return the message of an error on one line, or with a line for each item of a list.

    >>> print(one_line(ValueError("two differ:\n - seed\n - epochs\nRestore\nthem")))
    two differ:
      - seed
      - epochs
    Restore them
    """
    texts = [str(error)]
    cause = error.__cause__
    if cause is not None and type(error).__module__.startswith("hydra"):
        texts.append(str(cause))
    lines = [line.strip() for text in texts for line in text.splitlines()]
    # Hydra also lists options such as _backbone, which are parts of other options.
    shown = (li for li in lines if not (li.startswith(_HIDDEN) or re.fullmatch(r"_\w+", li)))
    parts: list[list[str]] = [[]]
    for line in shown:  # items of a list keep their lines
        if line.startswith("- ") or parts[-1][:1] == ["-"]:
            parts.append([])
        parts[-1] += line.split()
    texts = [("  " if words[:1] == ["-"] else "") + " ".join(words) for words in parts]
    return "\n".join(map(printable, filter(None, texts))) or type(error).__name__


# The module that runs a verb, by a function of the verb's name, and what the verb does.
VERBS = {
    "train": ("training", "train a model, or resume a run that was stopped"),
    "evaluate": ("results", "errors and forces of runs on their test cases"),
    "predict": ("results", "fields on a surface, at points, or of test cases, for ParaView"),
    "calibrate": ("results", "error bounds of a run, from held-out cases"),
    "delta": ("results", "what changes between two surfaces, and whether its sign is certain"),
    "plot": ("results", "figures of runs"),
    "report": ("results", "everything about runs on one page, with a 3D view"),
    "sensitivity": ("shapes", "how a force changes with every vertex of a surface"),
    "optimize": ("shapes", "change a surface until a predicted force is best"),
    "view": ("results", "look at a run or a mesh in a browser, and predict surfaces there"),
    "export": ("results", "a run as one file for other programs: torch.export or ONNX"),
    "compare": ("training", "train several models at equal settings and tabulate them"),
    "plan": ("training", "memory and time of training on whole meshes, and what fits"),
    "download": ("data", "fetch a published data set"),
    "inspect": ("data", "what is in data files, and how to train on them"),
    "prepare": ("data", "rewrite cases so that random subsets load fast"),
    "check": ("training", "does everything work on this machine?"),
}
# Verbs that get the config of their name, composed by Hydra, and its key of where results go. The
# others get the options of their function in parsers.py.
COMPOSED = {"train": "run_dir", "compare": "compare.directory", "prepare": "prepare.out"}


def usage() -> str:
    """Return the help of the command itself."""
    verbs = "\n".join(f"  {name:12}{summary}" for name, (_, summary) in VERBS.items())
    return f"""\
usage: flarepp VERB [arguments] [--debug]

Surrogates for PDE fields on meshes with FLARE++, on NVIDIA PhysicsNeMo.

{verbs}

flarepp VERB --help explains a verb. Exit codes: 2 wrong use, 1 failure, 128 + n
signal n. --debug shows where an error came from. Version {__version__}."""


def run(*verb: str) -> NoReturn:
    """Run the process's command line, after `verb` if one is given, and end the process.

    The system frees the memory: Python would spend seconds clearing objects of imported libraries.
    """
    code = main([*verb, *sys.argv[1:]])
    threading._shutdown()  # waits for threads, as Python does first of all
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError as error:  # a full disk; not a reader that has enough
            code = code or FAILED * (not isinstance(error, BrokenPipeError))
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own; return the exit code.

    Expected errors are one line on stderr; see :func:`exit_code`. Any other error shows its
    traceback, and so does every error with ``--debug`` or with FLAREPP_DEBUG in the environment.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or os.environ.get("FLAREPP_DEBUG", "0") not in ("", "0")
    arguments = [text for text in arguments if text != "--debug"]
    name = arguments[0] if arguments else None
    if name in (*_HELP, "help", None):
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
        # Helper processes, started as `python -c`, import nothing from the working directory. Hydra
        # raises instead of printing and exiting.
        with _environment(PYTHONSAFEPATH="1", HYDRA_FULL_ERROR="1"), _interrupts_kept():
            _run(name, arguments[1:])
        print(end="", flush=True)
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


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error that follows Ctrl-C, and SystemExit on SIGTERM."""
    # Extension modules turn an interrupt during their import into an ImportError. A process that
    # `kill` or `timeout` ends would leave drafts of files behind.
    interrupted, process = [], os.getpid()

    def interrupt(number: int, frame: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    def terminate(number: int, frame: object) -> None:
        if os.getpid() == process:
            raise SystemExit(_SIGNALLED + number)
        signal.signal(number, signal.SIG_DFL)  # a forked worker ends as it would without us
        os.kill(os.getpid(), number)

    # Only the main thread may set handlers; whoever set one of their own keeps it.
    alone = threading.current_thread() is threading.main_thread()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    watched = [n for n, handler in usual.items() if alone and signal.getsignal(n) is handler]
    for number in watched:
        signal.signal(number, interrupt if number == signal.SIGINT else terminate)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number in watched:
            signal.signal(number, usual[number])


def _run(name: str, arguments: list[str]) -> None:
    home, summary = VERBS[name]

    def task(given: object) -> object:  # wrong arguments are reported before torch is imported
        with _solving_ahead(given.data) if name == "train" else nullcontext():
            if name != "download":
                _silence_warp()
            return getattr(_import_uncollected(home), name)(given)

    if name not in COMPOSED:
        task(parse_options(name, arguments))
        return
    configs = import_module(".configs", __package__)
    if _HELP & set(arguments):
        chosen = argparse.ArgumentParser(add_help=False)
        chosen.add_argument("--config-name", "-cn", default=name)
        entry = chosen.parse_known_args(arguments)[0].config_name
        print(configs.describe_entry(name, entry, summary, everything="all" in arguments))
        return
    configs.run_composed(name, task, arguments, COMPOSED[name])


def _import_uncollected(home: str) -> ModuleType:
    """Import the module of a verb without a search for garbage among the objects of libraries."""
    name = f"{__package__}.{home}"
    resting = gc.isenabled() and name not in sys.modules
    if resting:
        gc.disable()
    try:
        return import_module(name)
    finally:
        if resting:
            if not gc.get_freeze_count():  # all at once to the oldest generation, searched last
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def _solving_ahead(data: Mapping) -> Iterator[None]:
    """Let other processes solve a built-in set while this one imports torch."""
    keys = ("builtin", "n_train", "n_test", "n_val", "builtin_seed")
    alone = not _LAUNCHED & set(os.environ)  # of several ranks the first makes it
    with ExitStack() as stack:
        # Sequences have no seed here, and count in blocks of their own.
        if alone and data.get("builtin") and data.get("root") is None and "builtin_seed" in data:
            from ..builtin.engine import begin

            with suppress(Exception):  # the training raises it again, after checking the config
                stack.enter_context(begin(*(data[key] for key in keys)))
        yield


def _silence_warp() -> None:
    """Start Warp, which PhysicsNeMo needs, without its warning that a GPU's driver is absent."""
    # Its library writes straight to the terminal.
    if find_library("cuda") is not None:
        return
    import warp

    warp.config.log_level = warp.LOG_WARNING  # no greeting
    terminal = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        warp.init()
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)

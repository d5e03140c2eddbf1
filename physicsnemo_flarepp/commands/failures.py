"""Which errors a user is told of in one line, and the exit code of each."""

from ..texts import printable

WRONG_USE = 2
FAILED = 1

# Raised with a sentence about what was asked for. Every class of Hydra and OmegaConf is about a
# config and counts as wrong use too.
_ABOUT_THE_REQUEST = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_CONFIG_PACKAGES = {"hydra", "omegaconf"}
# Lines of their messages that tell a user nothing.
_ABOUT_THE_PROGRAM = ("Config search path", "object_type=", "provider=", "reference_type=")
_OWN_PACKAGE = __name__.partition(".")[0]


def exit_code(error: Exception) -> int | None:
    """Return 2 for wrong use, 1 for what failed all the same, None for a defect of the program.

    Expected failures are those of the machine (OSError: a full disk, no network, no permission)
    and every exception class of this package. They are told by the names of their packages, so
    that none of these is imported for an error in a command that does without it.

    Examples
    --------
    >>> exit_code(ValueError("epochs is 0")), exit_code(OSError(28, "No space left on device"))
    (2, 1)
    >>> exit_code(ZeroDivisionError()) is None
    True
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if isinstance(error, _ABOUT_THE_REQUEST) or packages & _CONFIG_PACKAGES:
        return WRONG_USE
    if isinstance(error, OSError) or _OWN_PACKAGE in packages:
        return FAILED
    return None


def one_line(error: Exception) -> str:
    r"""Return the message of an error on one line, with the reason if a config is wrong.

    Examples
    --------
    >>> one_line(ValueError("seed is 'x',\n  expected a number"))
    "seed is 'x', expected a number"
    """
    texts = [str(error)]
    cause = error.__cause__
    if cause is not None and type(error).__module__.startswith("hydra"):
        texts.append(str(cause))
    lines = [line.strip() for text in texts for line in text.splitlines()]
    words = " ".join(line for line in lines if not line.startswith(_ABOUT_THE_PROGRAM))
    return printable(" ".join(words.split())) or type(error).__name__

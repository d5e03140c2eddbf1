"""Which errors are shown in one line, and their exit codes."""

import re

from ..texts import printable

WRONG_USE = 2
FAILED = 1

# Raised with a sentence about the request. Every class of Hydra and OmegaConf is about a config
# and counts as wrong use too.
_ABOUT_THE_REQUEST = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_CONFIG_PACKAGES = {"hydra", "omegaconf"}
# Lines of their messages that do not help a user.
_HIDDEN = ("Config search path", "object_type=", "provider=", "reference_type=")
_OWN_PACKAGE = __name__.partition(".")[0]


def exit_code(error: Exception) -> int | None:
    """Return 2 for wrong use, 1 for a failure despite right use, None for a bug.

    Expected failures are the machine's (OSError: a full disk, no network, no permission) and every
    exception class of this package. Packages are recognised by name, so that none is imported just
    to report an error.

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
    r"""Return the message of an error on one line, or with a line for each item of a list.

    >>> one_line(ValueError("seed is 'x',\n  expected a number"))
    "seed is 'x', expected a number"
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

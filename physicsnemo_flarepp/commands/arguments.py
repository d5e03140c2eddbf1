"""Options that several verbs share, and what they choose. Imports nothing slow, for the help."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..texts import printable

if TYPE_CHECKING:
    from ..evaluation import ForceSettings, Run

# Names of the settings whose options are named differently.
_SETTINGS = {"pressure_field": "pressure", "shear_field": "shear"}
_FORCE_OPTIONS = (
    "pressure_field", "shear_field", "shear_sign", "speed", "density", "reference_area",
    "drag_axis", "lift_axis", "orientation",
)  # fmt: skip
# Fields of which forces may be expected; of others nothing is said.
_OF_FORCES = re.compile(r"(?i)^(c?p|tau)($|_|mean)|press|druck|shear|traction")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`load_chosen_run`."""
    add = parser.add_argument
    add("--checkpoint", default="final", metavar="WHICH", help="final (default), best or latest")
    add("--device", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one")
    add("--trust", action="store_true",
        help="import the classes that the run names (custom readers and models); this lets its "
        "author run code here, see SECURITY.md")  # fmt: skip
    add("--data-root", help="other data in the same layout, with its own test cases")


def load_chosen_run(directory: Path, options: argparse.Namespace) -> "Run":
    """Load a run with the options of :func:`add_run_options`."""
    from ..evaluation import load_run

    return load_run(
        directory,
        checkpoint=options.checkpoint,
        device=options.device,
        data_root=options.data_root,
        trust=options.trust,
    )


def add_force_options(parser: argparse.ArgumentParser) -> None:
    """Add the conventions of forces."""
    group = parser.add_argument_group("forces", "conventions; by default the data set's")
    add = group.add_argument
    add("--no-forces", action="store_true", help="do not integrate forces")
    add("--pressure-field", metavar="NAME")
    add("--shear-field", metavar="NAME")
    add("--shear-sign", type=int, choices=(1, -1),
        help="1: wall shear stress is stored along the flow; -1: OpenFOAM's sign")  # fmt: skip
    add("--speed", type=float, help="free-stream speed")
    add("--density", type=float, help="1 for kinematic pressure")
    add("--reference-area", type=float, help="default: aRef, else the frontal area")
    for name in ("drag", "lift"):
        add(f"--{name}-axis", type=float, nargs=3, metavar=("X", "Y", "Z"))
    add("--orientation", metavar="SIDE", help="where cells face: auto (default), outward or inward")


def force_overrides(options: argparse.Namespace) -> dict[str, object]:
    """Return the force options that were given, as arguments of ``ForceSettings``.

    >>> parser = argparse.ArgumentParser()
    >>> add_force_options(parser)
    >>> force_overrides(parser.parse_args(["--shear-sign", "-1", "--drag-axis", "0", "1", "0"]))
    {'shear_sign': -1, 'drag_axis': (0.0, 1.0, 0.0)}
    """
    given = {name: getattr(options, name) for name in _FORCE_OPTIONS}
    return {
        _SETTINGS.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }


def chosen_forces(
    run: "Run", options: argparse.Namespace, surface: Path | None = None
) -> "tuple[ForceSettings | None, ForceSettings | None]":
    """Return the force conventions of a run and of its targets; None where there are no forces.

    If the conventions are unknown and no option gives them, a line says so. An option that does
    not fit the run is an error. `surface` is a file that is predicted instead of test cases.
    """
    from ..evaluation import force_settings, target_settings

    given = force_overrides(options)
    if options.no_forces or not (given or on_surfaces(run)):
        return None, None
    try:
        return force_settings(run, given), target_settings(run, given, surface=surface)
    except ValueError as reason:
        if given:
            raise
        if any(_OF_FORCES.search(name) for name in run.channels.fields):
            print(printable(f"no forces of {run.name}: {reason}"))
        return None, None


def on_surfaces(run: "Run") -> bool:
    """Return whether a run was trained on points in space, not in the plane or on a grid."""
    return run.channels.coordinates == 3 and run.channels.grid is None


def named_numbers(texts: Sequence[str]) -> dict[str, list[float]]:
    """Return {name: numbers}.

    >>> named_numbers(["rho_inf=1", "U_inf=38.9,0,0", "mu=[0.1,2]"])
    {'rho_inf': [1.0], 'U_inf': [38.9, 0.0, 0.0], 'mu': [0.1, 2.0]}
    >>> named_numbers(["38.9"])
    Traceback (most recent call last):
    ValueError: '38.9' must be a name and numbers, such as rho_inf=1 or U_inf=38.9,0,0
    """
    values = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        try:
            values[name] = [float(number) for number in numbers.strip("[]").split(",")]
        except ValueError as error:
            raise ValueError(
                f"{text!r} must be a name and numbers, such as rho_inf=1 or U_inf=38.9,0,0"
            ) from error
    return values

"""Command-line options that several verbs share."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..evaluation.force_conventions import (
    ORIENTATIONS,
    ForceSettings,
    force_settings,
    target_settings,
)
from ..runs.trained_run import CHECKPOINTS, Run, load_run

_FORCE_OPTIONS = {
    "pressure_field": "pressure",
    "shear_field": "shear",
    "shear_sign": "shear_sign",
    "speed": "speed",
    "density": "density",
    "reference_area": "reference_area",
    "drag_axis": "drag_axis",
    "lift_axis": "lift_axis",
    "orientation": "orientation",
}


def add_run_options(parser: argparse.ArgumentParser, *, data: bool = True) -> None:
    """Add what :func:`load_run` can be told; `data` adds the directory of other data."""
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="final")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the classes that the run names (own readers and models): its author may then "
        "run code here; see SECURITY.md",
    )
    if data:
        parser.add_argument(
            "--data-root", help="other data in the layout of the run's, with test cases of its own"
        )
    else:
        parser.set_defaults(data_root=None)


def load_chosen_run(directory: Path, options: argparse.Namespace) -> Run:
    """Load a run with the options of :func:`add_run_options`."""
    return load_run(
        directory,
        checkpoint=options.checkpoint,
        device=options.device,
        data_root=options.data_root,
        trust=options.trust,
    )


def add_force_options(parser: argparse.ArgumentParser) -> None:
    """Add the conventions of forces; those not given are the data set's."""
    group = parser.add_argument_group("forces", "conventions; by default those of the data set")
    group.add_argument("--no-forces", action="store_true", help="integrate no forces")
    group.add_argument("--pressure-field", metavar="NAME")
    group.add_argument("--shear-field", metavar="NAME")
    group.add_argument(
        "--shear-sign",
        type=int,
        choices=(1, -1),
        help="1: wall shear stress is stored along the flow; -1: OpenFOAM's sign",
    )
    group.add_argument("--speed", type=float, help="free-stream speed")
    group.add_argument("--density", type=float, help="1 for kinematic pressure")
    group.add_argument("--reference-area", type=float, help="default: aRef, else frontal area")
    for name in ("drag", "lift"):
        group.add_argument(f"--{name}-axis", type=float, nargs=3, metavar=("X", "Y", "Z"))
    group.add_argument("--orientation", choices=ORIENTATIONS, help="which way the cells face")


def force_overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the force options that were given, for :func:`force_settings`.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> add_force_options(parser)
    >>> force_overrides(parser.parse_args(["--shear-sign", "-1", "--drag-axis", "0", "1", "0"]))
    {'shear_sign': -1, 'drag_axis': (0.0, 1.0, 0.0)}
    """
    given = {
        setting: getattr(arguments, option)
        for option, setting in _FORCE_OPTIONS.items()
        if getattr(arguments, option) is not None
    }
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}


def chosen_forces(
    run: Run, options: argparse.Namespace, surface: Path | None = None
) -> tuple[ForceSettings | None, ForceSettings | None]:
    """Return the conventions of a run's forces and those of what they are compared with.

    None where no forces are wanted, for runs that are not on surfaces, and, with a line that says
    so, where the conventions are not known and no option gives them. An option that does not fit
    the run is an error.

    Parameters
    ----------
    run : Run
        The trained model.
    options : argparse.Namespace
        Of :func:`add_force_options`.
    surface : Path, optional
        As in :func:`target_settings`.
    """
    given = force_overrides(options)
    if options.no_forces or not (given or on_surfaces(run)):
        return None, None
    try:
        return force_settings(run, given), target_settings(run, given, surface=surface)
    except ValueError as reason:
        if given:
            raise
        print(f"no forces of {run.name}: {reason}")
        return None, None


def on_surfaces(run: Run) -> bool:
    """Return whether a run was trained on points in space, not in the plane or on a grid."""
    return run.channels.coordinates == 3 and run.channels.grid is None


def named_numbers(texts: Sequence[str]) -> dict[str, list[float]]:
    """Return {name: numbers} of texts such as ``rho_inf=1`` or ``U_inf=38.9,0,0``.

    Examples
    --------
    >>> named_numbers(["rho_inf=1", "U_inf=38.9,0,0"])
    {'rho_inf': [1.0], 'U_inf': [38.9, 0.0, 0.0]}
    >>> named_numbers(["38.9"])
    Traceback (most recent call last):
    ValueError: '38.9' must be a name and numbers, such as rho_inf=1 or U_inf=38.9,0,0
    """
    values = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        try:
            values[name] = [float(number) for number in numbers.split(",")]
        except ValueError as error:
            raise ValueError(
                f"{text!r} must be a name and numbers, such as rho_inf=1 or U_inf=38.9,0,0"
            ) from error
    return values

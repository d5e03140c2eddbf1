"""Predictions of test cases, in physical units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyvista as pv
from jaxtyping import Float
from tensordict import TensorDict

from ..datapipes import plot_mesh
from ..datapipes.channels import Channels
from ..meshes import PolygonMesh, polygon_mesh
from ..meshes.export import add_arrays, prediction_arrays
from ..runs.trained_run import Run
from ..training.reporting import SPLIT_NAMES
from .errors import relative_l2


@dataclass(frozen=True)
class Case:
    """One test case, all of its tokens, in physical units.

    Parameters
    ----------
    case_id : str
        Id of the case.
    index : int
        Its position in the test split.
    coordinates : numpy.ndarray
        (N, d).
    target : numpy.ndarray
        (N, O).
    features : numpy.ndarray or None
        (N, f).
    channels : Channels
        What the columns of these arrays are.
    metadata : Mapping[str, Any]
        Of the reader: where the case comes from.
    """

    case_id: str
    index: int
    coordinates: np.ndarray
    target: np.ndarray
    features: np.ndarray | None
    channels: Channels
    metadata: Mapping[str, Any]

    @property
    def field_names(self) -> tuple[str, ...]:
        """One name per channel of the target."""
        return self.channels.field_names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per channel of the features."""
        return self.channels.feature_names

    @property
    def association(self) -> str:
        """Whether values belong to the points or the cells of :attr:`mesh`."""
        return self.metadata["association"]

    @property
    def mesh(self) -> pv.DataSet:
        """The mesh of the case, read again or built at every access."""
        return plot_mesh(self.metadata, self.coordinates)

    @property
    def polygons(self) -> PolygonMesh:
        """The surface of the case as arrays; ValueError for points without faces."""
        mesh = self.mesh
        if not isinstance(mesh, pv.PolyData) or mesh.GetPolys().GetNumberOfCells() == 0:
            raise ValueError(
                f"case {self.case_id!r} has points without a surface, over which no forces can be "
                "integrated"
            )
        return polygon_mesh(mesh, self.metadata["source"])

    def columns(self, field: str) -> slice:
        """Return the columns of a field, or the one of a channel."""
        if field in self.channels.fields:
            return self.channels.columns(field)
        if field in self.field_names:
            column = self.field_names.index(field)
            return slice(column, column + 1)
        known = list(dict.fromkeys([*self.channels.fields, *self.field_names]))
        raise ValueError(
            f"field {field!r} of case {self.case_id!r} is not known; choose among {known}"
        )

    def scalars(self, field: str, values: Float[np.ndarray, "N O"]) -> Float[np.ndarray, " N"]:
        """Return one number per token of a field: its channel, or the length of a vector."""
        chosen = values[:, self.columns(field)]
        return chosen[:, 0] if chosen.shape[1] == 1 else np.linalg.norm(chosen, axis=1)


@dataclass(frozen=True)
class CasePrediction(Case):
    """A test case with the prediction of a run.

    Parameters
    ----------
    prediction : numpy.ndarray
        (N, O).
    """

    prediction: np.ndarray

    @property
    def errors(self) -> dict[str, float]:
        """Relative L2 error of each field, or of all in one norm, as the run was trained."""
        return relative_l2(self.prediction, self.target, self.channels.norms)

    def error(self, field: str, weights: Float[np.ndarray, " N"] | None = None) -> float:
        """Return the relative L2 error of a field or a channel, in a norm of its own."""
        columns = self.columns(field)
        chosen = (values[:, columns] for values in (self.prediction, self.target))
        return relative_l2(*chosen, {field: columns.stop - columns.start}, weights)[field]


def find_case(run: Run, case: int | str) -> int:
    """Return the position of a test case given by position (negative from the end) or id."""
    ids, kind = run.case_ids, SPLIT_NAMES[run.split]
    if isinstance(case, str):
        if case not in ids:
            shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
            raise ValueError(
                f"run {run.name} has no {kind} case {case!r}; its {len(ids)} {kind} cases are "
                f"{shown}"
            )
        return ids.index(case)
    if not -len(ids) <= case < len(ids):
        raise ValueError(
            f"case is {case}, but run {run.name} has {len(ids)} {kind} cases; choose 0 to "
            f"{len(ids) - 1}, or an id such as {ids[0]!r}"
        )
    return case % len(ids)


def read_case(run: Run, case: int | str) -> Case:
    """Return a test case without predicting it.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`.
    case : int or str
        Position in the test split, or id.
    """
    index = find_case(run, case)
    return Case(**_contents(run, index, *run.test_set[index]))


def predict_case(run: Run, case: int | str, *, progress: bool = True) -> CasePrediction:
    """Return the prediction of a test case beside its target, at all of its tokens.

    Parameters
    ----------
    run, case
        As in :func:`read_case`.
    progress : bool, optional
        Show a bar while a large case is streamed, if stderr is a terminal.
    """
    index = find_case(run, case)
    sample, metadata = run.test_set[index]
    prediction = run.predict_sample(sample, progress=progress)
    return CasePrediction(**_contents(run, index, sample, metadata), prediction=prediction)


def _contents(
    run: Run, index: int, sample: TensorDict, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a :class:`Case`."""
    return {
        "case_id": metadata["case_id"],
        "index": index,
        "coordinates": sample["coordinates"].numpy(),
        "target": sample["fields"].numpy(),
        "features": sample["features"].numpy() if "features" in sample else None,
        "channels": run.channels,
        "metadata": metadata,
    }


def predict_with_all(
    runs: Sequence[Run], names: Sequence[str], case_id: str
) -> dict[str, CasePrediction]:
    """Return the predictions of one case by all runs, or raise if it is not the same case in each.

    Parameters
    ----------
    runs : sequence of Run
        The runs.
    names : sequence of str
        Their names.
    case_id : str
        Id of the test case.
    """
    found = {
        name: predict_case(run, case_id, progress=False)
        for name, run in zip(names, runs, strict=True)
    }
    first, *others = names
    for name in others:
        if difference := _difference(found[first], found[name]):
            raise ValueError(
                f"case {case_id!r} has another {difference} in run {name!r} than in run {first!r}; "
                "compare runs that were trained on the same data"
            )
    return found


def _difference(one: Case, other: Case) -> str | None:
    """Return what is not the same in two readings of a case."""
    if one.field_names != other.field_names:
        return f"list of fields ({', '.join(other.field_names)})"
    if one.association != other.association:
        return "association of values"
    if len(one.coordinates) != len(other.coordinates):
        return f"number of tokens ({len(other.coordinates)})"
    if not np.array_equal(one.coordinates, other.coordinates):
        return "set of coordinates"
    if not np.array_equal(one.target, other.target):
        return "target"
    return None


def case_mesh(predictions: Mapping[str, CasePrediction]) -> pv.DataSet:
    """Return the mesh of a test case with target, prediction and error of each field.

    Names are those of :mod:`physicsnemo_flarepp.meshes.export`; the features that the models were
    given are there as well.

    Parameters
    ----------
    predictions : Mapping[str, CasePrediction]
        Of one case, by the names of the runs.
    """
    one = next(iter(predictions.values()))
    values = {name: case.prediction for name, case in predictions.items()}
    arrays = {name: one.features[:, i] for i, name in enumerate(one.feature_names)}
    arrays |= prediction_arrays(one.channels.fields, values, one.target)
    return add_arrays(one.mesh, arrays, one.association)

"""Predictions of test cases in physical units, and their relative L2 errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Float
from tensordict import TensorDict

from ..datapipes import plot_mesh
from ..datapipes.channels import Channels
from ..inference import LatentState
from ..meshes import PolygonMesh, polygon_mesh
from ..meshes.export import add_arrays, prediction_arrays
from ..ops.errors import field_errors
from ..runs.trained_run import Run
from ..texts import read_csv
from ..training.reporting import SPLIT_NAMES

CHOICES = ("median", "worst", "best")


def relative_l2(
    prediction: Float[np.ndarray, "N O"],
    target: Float[np.ndarray, "N O"],
    widths: Mapping[str, int],
    weights: Float[np.ndarray, " N"] | None = None,
) -> dict[str, float]:
    """Return ||p - y|| / ||y|| of each field of a case, in fp64.

    If the target is 0 everywhere, the error is infinite, or 0 if the prediction is 0 too.

    Parameters
    ----------
    prediction, target : numpy.ndarray
        In physical units.
    widths : Mapping[str, int]
        Channels of each field, in the order of the O columns.
    weights : numpy.ndarray, optional
        Areas of the tokens: the norms are integrals instead of sums over tokens.

    Examples
    --------
    >>> target = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 2.0]])
    >>> relative_l2(target + [[0, 1, 0], [1, 0, 0]], target, {"p": 1, "u": 2})
    {'p': 0.2, 'u': 0.5}
    """
    both = (torch.from_numpy(values.astype(np.float64))[None] for values in (prediction, target))
    if weights is not None:
        weights = torch.from_numpy(weights.astype(np.float64))[None]
    errors = field_errors(*both, tuple(widths.values()), token_weights=weights)
    return dict(zip(widths, errors[0].tolist(), strict=True))


@dataclass(frozen=True)
class CaseErrors:
    """Relative L2 errors as fractions, (n_cases, n_fields), and the names of rows and columns.

    Examples
    --------
    >>> errors = CaseErrors(("a", "b", "c"), ("p",), np.array([[0.25], [1.0], [0.5]]))
    >>> errors.median, errors.ranked()
    (0.5, ['a', 'c', 'b'])
    """

    case_ids: tuple[str, ...]
    fields: tuple[str, ...]
    values: np.ndarray

    @classmethod
    def of_rows(cls, case_ids: Sequence[str], rows: Sequence[dict[str, float]]) -> Self:
        """Make the table from one dictionary {field: error} per case."""
        return cls(tuple(case_ids), tuple(rows[0]), np.array([list(row.values()) for row in rows]))

    @property
    def per_case(self) -> np.ndarray:
        """Mean over the fields of each case, (n_cases,)."""
        return self.values.mean(axis=1)

    @property
    def mean(self) -> float:
        """Mean over cases and fields, the figure of the paper's tables."""
        return float(self.values.mean())

    @property
    def median(self) -> float:
        """Median over the cases of the mean over their fields."""
        return float(np.median(self.per_case))

    def ranked(self) -> list[str]:
        """Return the case ids from best to worst by the mean over their fields."""
        return [self.case_ids[i] for i in np.argsort(self.per_case, kind="stable")]

    def choose(self, choice: str) -> str:
        """Return the id of the ``median`` (lower of an even number), ``worst`` or ``best`` case."""
        if choice not in CHOICES:
            raise ValueError(f"choice is {choice!r}, expected one of {CHOICES}")
        undefined = np.flatnonzero(np.isnan(self.per_case))
        if len(undefined):
            raise ValueError(
                f"the error of case {self.case_ids[undefined[0]]!r} is NaN; name a case by its id"
            )
        ranked = self.ranked()
        return ranked[{"median": (len(ranked) - 1) // 2, "worst": -1, "best": 0}[choice]]


def stored_errors(run: Run) -> CaseErrors | None:
    """Return the errors that training wrote to ``errors.csv``, of the final model on its own data.

    They have the resolution of the test loader and save predicting every test case in full. None
    if the run was loaded with other weights or other data, or has no such file.
    """
    path = run.directory / "errors.csv"
    if run.checkpoint != "final" or run.data_root is not None or not path.is_file():
        return None
    (_, *fields), *rows = read_csv(path)
    values = np.array([[float(value) for value in row[1:]] for row in rows])
    errors = CaseErrors(tuple(row[0] for row in rows), tuple(fields), values)
    return errors if set(errors.case_ids) == set(run.case_ids) else None


@dataclass(frozen=True)
class Case:
    """One test case, all of its tokens, in physical units."""

    case_id: str
    index: int  #: in the test split
    coordinates: np.ndarray  #: (N, d)
    target: np.ndarray  #: (N, O)
    features: np.ndarray | None  #: (N, f)
    channels: Channels  #: what the columns of these arrays are
    metadata: Mapping[str, Any]  #: of the reader: where the case comes from

    @classmethod
    def of(
        cls, run: Run, index: int, sample: TensorDict, metadata: Mapping[str, Any], **more: Any
    ) -> Self:
        """Make the case from a sample of a reader."""
        names = ("coordinates", "fields", "features")
        arrays = (sample[name].numpy() if name in sample else None for name in names)
        return cls(metadata["case_id"], index, *arrays, run.channels, metadata, **more)

    # One name per channel of the target and of the features; where values are on the mesh.
    field_names = property(lambda self: self.channels.field_names)
    feature_names = property(lambda self: self.channels.feature_names)
    association = property(lambda self: self.metadata["association"])

    @property
    def mesh(self) -> pv.DataSet:
        """The mesh of the case, read again or built at every access."""
        return plot_mesh(self.metadata, self.coordinates)

    @property
    def polygons(self) -> PolygonMesh:
        """The surface of the case as arrays; ValueError for points without faces."""
        mesh = self.mesh
        if not isinstance(mesh, pv.PolyData) or mesh.GetPolys().GetNumberOfCells() == 0:
            raise ValueError(f"case {self.case_id!r} has points without a surface")
        return polygon_mesh(mesh, self.metadata["source"])

    def columns(self, field: str) -> slice:
        """Return the columns of a field, or the one of a channel."""
        if field in self.channels.fields:
            return self.channels.columns(field)
        if field in self.field_names:
            column = self.field_names.index(field)
            return slice(column, column + 1)
        known = list(dict.fromkeys([*self.channels.fields, *self.field_names]))
        raise ValueError(f"field {field!r} is not known; choose among {known}")

    def scalars(self, field: str, values: Float[np.ndarray, "N O"]) -> Float[np.ndarray, " N"]:
        """Return one number per token of a field: its channel, or the length of a vector."""
        chosen = values[:, self.columns(field)]
        return chosen[:, 0] if chosen.shape[1] == 1 else np.linalg.norm(chosen, axis=1)


@dataclass(frozen=True)
class CasePrediction(Case):
    """A test case with the prediction of a run, (N, O), in physical units.

    `pooled_state`, (D,), is what the case is compared with training by.
    """

    prediction: np.ndarray
    pooled_state: np.ndarray | None = None

    @property
    def errors(self) -> dict[str, float]:
        """Relative L2 error of each field, or of all in one norm, as the run was trained."""
        return self.errors_in(None)

    def errors_in(self, weights: Float[np.ndarray, " N"] | None) -> dict[str, float]:
        """Return the errors in norms that are integrals with these weights, if given."""
        return relative_l2(self.prediction, self.target, self.channels.norms, weights)

    def error(self, field: str, weights: Float[np.ndarray, " N"] | None = None) -> float:
        """Return the relative L2 error of a field or a channel, in a norm of its own."""
        columns = self.columns(field)
        chosen = (values[:, columns] for values in (self.prediction, self.target))
        return relative_l2(*chosen, {field: columns.stop - columns.start}, weights)[field]


def find_case(run: Run, case: int | str) -> int:
    """Return the position of a test case given by position (negative from the end) or id."""
    ids, kind = run.case_ids, SPLIT_NAMES[run.split]
    if case in (ids if isinstance(case, str) else range(-len(ids), len(ids))):
        return ids.index(case) if isinstance(case, str) else case % len(ids)
    shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
    raise ValueError(f"run {run.name} has no {kind} case {case!r}; its {len(ids)} are {shown}")


def read_case(run: Run, case: int | str) -> Case:
    """Return a test case, by position or id, without predicting it."""
    index = find_case(run, case)
    return Case.of(run, index, *run.test_set[index])


def predict_case(run: Run, case: int | str, *, progress: bool = True) -> CasePrediction:
    """Return the prediction of a test case, by position or id, at all of its tokens.

    With `progress` a bar shows while a large case is streamed, if stderr is a terminal.
    """
    index = find_case(run, case)
    sample, metadata = run.test_set[index]
    found = predict_members([run], sample, progress=progress)
    more = {"prediction": found.values, "pooled_state": found.features}
    return CasePrediction.of(run, index, sample, metadata, **more)


class MemberPrediction(NamedTuple):
    """Mean and spread (N, O) of the predictions of runs, and the latent state of the first."""

    values: np.ndarray
    spread: np.ndarray | None
    state: LatentState | None

    @property
    def features(self) -> Float[np.ndarray, " D"] | None:
        """What the case is compared by."""
        return None if self.state is None else state_features(self.state)


def state_features(state: LatentState) -> Float[np.ndarray, " D"]:
    """Return what a case is compared by: the latents of every block, averaged over their rows."""
    pooled = [latent[0].mean(dim=-2).flatten() for block in state.latents for latent in block]
    return torch.cat(pooled).double().cpu().numpy()


def predict_members(
    runs: Sequence[Run], sample: Mapping[str, torch.Tensor], *, progress: bool = True
) -> MemberPrediction:
    """Return the mean prediction of runs with the same inputs and fields, and their spread."""
    values, state = runs[0].predict_with_state(sample, progress=progress)
    if len(runs) == 1:
        return MemberPrediction(values, None, state)
    others = [run.predict_sample(sample, progress=progress) for run in runs[1:]]
    every = np.stack([values, *others])
    return MemberPrediction(every.mean(axis=0), every.std(axis=0, ddof=1), state)


def predict_with_all(
    runs: Sequence[Run], names: Sequence[str], case_id: str
) -> dict[str, CasePrediction]:
    """Return the predictions of one case by all runs, or raise if it is not the same case in each.

    They are by `names`; `case_id` is the id of the test case.
    """
    pairs = zip(names, runs, strict=True)
    found = {name: predict_case(run, case_id, progress=False) for name, run in pairs}
    first = found[names[0]]
    for name, other in found.items():
        for what in ("field_names", "association", "coordinates", "target"):
            if not np.array_equal(getattr(first, what), getattr(other, what)):
                raise ValueError(
                    f"case {case_id!r} differs in its {what} between runs {names[0]!r} and "
                    f"{name!r}; compare runs that were trained on the same data"
                )
    return found


def case_mesh(predictions: Mapping[str, CasePrediction]) -> pv.DataSet:
    """Return the mesh of a test case with target, prediction and error of each field.

    `predictions` are of one case, by the names of the runs. Arrays are named as in
    :mod:`physicsnemo_flarepp.meshes.export`; the features that the models were given are there too.
    """
    one = next(iter(predictions.values()))
    values = {name: case.prediction for name, case in predictions.items()}
    arrays = {name: one.features[:, i] for i, name in enumerate(one.feature_names)}
    arrays |= prediction_arrays(one.channels.fields, values, one.target)
    return add_arrays(one.mesh, arrays, one.association)

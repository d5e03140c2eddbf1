"""Predictions of a run: of a test case, or of any sample in physical units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Float
from tensordict import TensorDict
from torch import Tensor

from ..datapipes import PadCollator, plot_mesh
from ..datapipes.channels import Channels
from ..inference import predict
from ..inference.api import unwrap
from .trained_run import Run


def field_relative_l2(
    prediction: np.ndarray, target: np.ndarray, channels: Channels
) -> dict[str, float]:
    """Return ||p - y|| / ||y|| of each field, or of all in one norm, as the run was trained.

    A target that is 0 everywhere gives infinity, or 0 where the prediction is 0 too.

    Parameters
    ----------
    prediction, target : numpy.ndarray
        (N, O), in physical units.
    channels : Channels
        Which columns belong to which field.

    Examples
    --------
    >>> channels = Channels(2, {"p": 1, "u": 2}, {}, {}, "point")
    >>> target = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 2.0]])
    >>> field_relative_l2(target + [[0, 1, 0], [1, 0, 0]], target, channels)
    {'p': 0.2, 'u': 0.5}
    """
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction has shape {prediction.shape} and target {target.shape}; give both for "
            "the same tokens and channels"
        )
    errors = {}
    stop = 0
    for name, width in channels.norms.items():
        columns = slice(stop, stop + width)
        stop += width
        true = target[:, columns].astype(np.float64)
        error = np.linalg.norm(prediction[:, columns] - true)
        size = np.linalg.norm(true)
        errors[name] = float(error / size) if size > 0 else float(np.inf if error > 0 else 0.0)
    return errors


@dataclass(frozen=True)
class CasePrediction:
    """One test case, all of its tokens, in physical units.

    Parameters
    ----------
    case_id : str
        Id of the case.
    index : int
        Its position in the test split.
    coordinates : numpy.ndarray
        (N, d).
    prediction, target : numpy.ndarray
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
    prediction: np.ndarray
    target: np.ndarray
    features: np.ndarray | None
    channels: Channels
    metadata: Mapping[str, Any]

    @property
    def field_names(self) -> tuple[str, ...]:
        """One name per channel of prediction and target."""
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
    def errors(self) -> dict[str, float]:
        """Relative L2 error of each field, as a fraction."""
        return field_relative_l2(self.prediction, self.target, self.channels)

    @property
    def mesh(self) -> pv.DataSet:
        """The mesh of the case, read again or built at every access."""
        return plot_mesh(self.metadata, self.coordinates)


def find_case(run: Run, case: int | str) -> int:
    """Return the position of a test case given by position (negative from the end) or id."""
    ids = run.loaders.test.dataset.reader.case_ids
    if isinstance(case, str):
        if case not in ids:
            shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
            raise ValueError(
                f"run {run.name} has no test case {case!r}; its {len(ids)} test cases are {shown}"
            )
        return ids.index(case)
    if not -len(ids) <= case < len(ids):
        raise ValueError(
            f"case is {case}, but run {run.name} has {len(ids)} test cases; choose 0 to "
            f"{len(ids) - 1}, or an id such as {ids[0]!r}"
        )
    return case % len(ids)


def predict_case(run: Run, case: int | str, *, progress: bool = True) -> CasePrediction:
    """Return the prediction of a test case beside its target, at all of its tokens.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`.
    case : int or str
        Position in the test split, or id.
    progress : bool, optional
        Show a bar while a large case is streamed, if stderr is a terminal.
    """
    index = find_case(run, case)
    sample, metadata = run.loaders.test.dataset.reader[index]
    normalised = predict_normalised(run, run.normalizer(sample), progress=progress)
    return CasePrediction(
        case_id=metadata["case_id"],
        index=index,
        coordinates=sample["coordinates"].numpy(),
        prediction=run.normalizer.inverse(normalised, sample["tokens"]).numpy(),
        target=sample["fields"].numpy(),
        features=sample["features"].numpy() if "features" in sample else None,
        channels=run.channels,
        metadata=metadata,
    )


@torch.no_grad()
def predict_normalised(run: Run, sample: TensorDict, *, progress: bool) -> Float[Tensor, "N O"]:
    """Return what the model gives for a normalised sample, on the CPU in fp32, not denormalised.

    Models that stream (see :func:`physicsnemo_flarepp.inference.predict`) take the tokens chunk by
    chunk, with the same result; others take them at once.
    """
    batch = PadCollator()([(sample, {"index": 0})])
    n_tokens = batch["coordinates"].shape[1]
    if can_stream(run.model):
        result = predict(run.model, **run.adapter(batch), progress=progress)
    else:
        result = run.model(**run.adapter(batch.to(run.device)))
    return result.reshape(n_tokens, -1).float().cpu()


def can_stream(model: torch.nn.Module) -> bool:
    """Return whether exact streaming serves `model`."""
    try:
        unwrap(model)
    except (TypeError, ValueError):
        return False
    return True


def physical_prediction(
    run: Run, sample: Mapping[str, Tensor], *, progress: bool = True
) -> Float[Tensor, "N O"]:
    """Return the fields at the tokens of a sample, inputs and result in physical units.

    Parameters
    ----------
    run : Run
        The trained model.
    sample : Mapping[str, Tensor]
        ``coordinates`` (N, d) and, as in training, ``features`` (N, f) and ``globals`` (g,).
    progress : bool, optional
        As in :func:`predict_case`.
    """
    # Without token numbers, per-point statistics are refused for any but the points of training.
    normalised = run.normalizer(TensorDict(dict(sample)))
    result = predict_normalised(run, normalised, progress=progress)
    return run.normalizer.inverse(result, key="fields")

"""What a model has to beat: the mean, the mean field, linear regression, the nearest case."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from tensordict import TensorDict
from torch import Tensor

from ..datapipes.normalization import BASELINES, FieldFit, Normalizer, whole_cases
from ..datapipes.readers import CaseReader
from ..ops.errors import field_errors

Predictor = Callable[[TensorDict], Float[Tensor, "N O"]]
MEAN = "constant"
# Beside the plain regression, where it is the better one and data.baseline=linear begins with it.
SIZED = "linear regression with a fitted size"
# Most tokens of training cases that are read for it.
_MOST_TOKENS = 5_000_000


class NearestCase:
    """Predicts the fields of the training case that is most alike, at its nearest points."""

    def __init__(self, samples: Sequence[TensorDict]) -> None:
        self._samples = samples
        described = np.stack([self._describe(sample) for sample in samples])
        self._scale = described.std(0) + 1e-12
        self._cases = cKDTree(described / self._scale)

    @staticmethod
    def _describe(sample: TensorDict) -> Float[np.ndarray, " k"]:
        """Return the parameters of a case, or those of its shape if it has none."""
        if "globals" in sample.keys():
            return sample["globals"].double().numpy()
        points = sample["coordinates"].double()
        parts = (points.mean(0), points.std(0), points.amin(0), points.amax(0))
        return torch.cat(parts).nan_to_num().numpy()

    def __call__(self, sample: TensorDict) -> Float[Tensor, "N O"]:
        """Return the fields at the points of a case."""
        chosen = int(self._cases.query(self._describe(sample) / self._scale)[1])
        known = self._samples[chosen]
        rows = cKDTree(known["coordinates"].numpy()).query(sample["coordinates"].numpy())[1]
        return known["fields"][torch.from_numpy(rows)]


def _fit_predictors(
    reader: CaseReader, normalizer: Normalizer, widths: Sequence[int]
) -> dict[str, Predictor]:
    """Return what can be fitted to the cases of a reader: to some, if they have many tokens."""
    whole = whole_cases(reader)
    count = min(len(whole), max(8, _MOST_TOKENS // len(whole[0][0]["fields"])))
    fit, samples, shared = FieldFit(widths), [], True
    for index in np.linspace(0, len(whole) - 1, count).astype(int).tolist():
        sample = normalizer(whole[index][0])
        shared = shared and fit.see(sample)
        samples.append(sample.select("coordinates", "fields", "globals", strict=False))
    total = sum(sample["fields"].double().sum(0) for sample in samples)
    mean = (total / sum(len(sample["fields"]) for sample in samples)).float()
    predictors: dict[str, Predictor] = {MEAN: lambda sample: mean.expand_as(sample["fields"])}
    if not (shared and fit.corresponds):
        by = "parameters" if fit.parameters else "shape"
        return predictors | {f"nearest training case by {by}": NearestCase(samples)}
    kinds = ["mean_field", *(["linear"] if 0 < fit.parameters <= fit.cases - 2 else [])]
    over_sizes = fit.over_sizes()
    for sample in samples:
        over_sizes.see(sample)
    fits = {BASELINES[kind]: fit.solve(kind, over_sizes, plain=True) for kind in kinds}
    if "linear" in kinds and (best := fit.solve("linear", over_sizes)).gain[0].any():
        fits[SIZED] = best
    for name, affine in fits.items():
        fitted = Normalizer({"fields": affine})

        def predict(sample: TensorDict, fitted: Normalizer = fitted) -> Tensor:
            given = sample.get("globals", None)
            zeros = torch.zeros_like(sample["fields"])
            return fitted.inverse(zeros, sample["tokens"], given=given)

        predictors[name] = predict
    return predictors


def baseline_errors(
    train: CaseReader,
    test: CaseReader,
    normalizer: Normalizer,
    widths: Sequence[int],
    norm: str = "tokens",
) -> dict[str, Float[Tensor, "cases F"]]:
    """Return the errors of simple predictors on the cases of `test`, by name."""
    normalizer = Normalizer(normalizer.affine).to("cpu")
    predictors = _fit_predictors(train, normalizer, widths)
    found: dict[str, list[Tensor]] = {name: [] for name in predictors}
    tested = whole_cases(test, n_points=test.options.n_points)
    for index in range(len(tested)):
        sample = normalizer(tested[index][0])
        weights = sample["weights"][None] if norm == "measure" else None
        for name in list(found):
            try:
                values, target = predictors[name](sample)[None], sample["fields"][None]
            except IndexError:  # a case that does not share the mesh of training
                del found[name]
                continue
            found[name].append(field_errors(values, target, widths, token_weights=weights))
    return {name: torch.cat(errors) for name, errors in found.items()}


def describe_baselines(errors: Mapping[str, float]) -> str:
    """Return mean errors in percent as a line."""
    texts = (f"{name} {100 * error:.2f}" for name, error in errors.items())
    return f"For comparison, in percent: {', '.join(texts)}."


def verdict(error: float, baselines: Mapping[str, float], used: str) -> str | None:
    """Return what to try for a model that loses to the best baseline; None if it wins."""
    best = min(baselines, key=baselines.__getitem__, default=None)
    if best is None or error <= baselines[best]:
        return None
    kinds = {SIZED: "linear"} | {name: kind for kind, name in BASELINES.items()}
    if best in kinds and used != kinds[best]:
        advice = f"train longer, or try data.baseline={kinds[best]} (for this mesh only)"
    elif best == MEAN:
        advice = (
            "see with flarepp inspect whether every input that differs between cases is used, then "
            "train longer or with another training.learning_rate"
        )
    else:
        advice = "train longer, or on more cases"
    return (
        f"The model LOSES to the {best}, {100 * error:.2f} % against "
        f"{100 * baselines[best]:.2f} %: {advice}."
    )

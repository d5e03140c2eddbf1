"""Errors of a split, however its cases are batched and ordered."""

import torch

from physicsnemo_flarepp.datapipes.normalization import Affine, Normalizer
from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.losses import case_errors
from physicsnemo_flarepp.training.tasks import FieldLoss

TARGETS = torch.arange(1.0, 25.0).reshape(3, 4, 2)


def make_loss(widths, normalizer=None):
    settings = TrainingConfig(norm="tokens")
    options = {"adapter": None, "normalizer": normalizer, "widths": widths, "settings": settings}
    return FieldLoss(None, **options)


def errors_of(predictors, batches, widths):
    def measure(predict):
        return lambda given: make_loss(widths).errors_of(predict(given), given)

    measures = {name: measure(predict) for name, predict in predictors.items()}
    return case_errors(measures, batches, len(widths))


def batch(*cases):
    index = torch.tensor(cases)
    tokens = torch.arange(4).expand(len(cases), 4)
    return {"fields": TARGETS[index], "case_index": index, "tokens": tokens}


def test_errors_are_in_the_order_of_the_split():
    def predict(given):  # off by 0, 1, 2 times the target
        return given["fields"] * (1 + given["case_index"])[:, None, None]

    errors = errors_of({"twice": predict}, [batch(2, 0), batch(1)], (1, 1))["twice"]
    torch.testing.assert_close(errors, torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))


def test_padding_does_not_count():
    padded = batch(0, 1)
    padded["token_mask"] = torch.tensor([[True] * 4, [True, True, False, False]])
    padded["fields"][1, 2:] = torch.nan
    errors = errors_of({"": lambda given: 1.5 * given["fields"]}, [padded], (2,))[""]
    torch.testing.assert_close(errors, torch.full((2, 1), 0.5))


def test_a_rank_without_cases_has_no_errors():
    found = errors_of({"": lambda given: given["fields"]}, [], (1, 3))
    assert found[""].shape == (0, 2)


def test_the_mean_is_predicted_per_point():
    mean, spread = TARGETS.mean(0), TARGETS.std(0)
    loss = make_loss((2,), Normalizer({"fields": Affine(mean, spread)}))
    expected = (TARGETS - mean).flatten(1).norm(dim=1) / TARGETS.flatten(1).norm(dim=1)
    errors = case_errors({"mean": loss.errors_of_mean}, [batch(0, 2), batch(1)], 1)
    torch.testing.assert_close(errors["mean"][:, 0], expected)

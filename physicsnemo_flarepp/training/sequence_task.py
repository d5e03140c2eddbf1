"""Classes of sequences, by cross-entropy and accuracy."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor, nn

from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.readers.memory import MemoryCases
from ..models.feeding import build_model, input_adapter
from ..parallel.ranks import Ranks
from ..runs.training_set import data_files
from ..sequences.loading import checked_config, layout_of, sequence_loaders
from ..texts import format_table
from .losses import case_errors
from .planning import StreamChoice
from .tasks import Adapter, Built, FieldTask, Objective, Weigh

if TYPE_CHECKING:
    from .run import Assembly, TrainingResult

FIELD = "class"


class LabelLoss(Objective):
    """Cross-entropy of the labels of a batch; the error of a case is 1 if its class is wrong."""

    # `context_ranks` share each sequence and all compute its loss, so each counts its part.

    def __init__(
        self, forward: Callable[..., Tensor], adapter: Adapter, precision: str, context_ranks: int
    ) -> None:
        super().__init__(forward, adapter, precision)
        self.context_ranks = context_ranks

    def logits(self, batch: TensorDict) -> Float[Tensor, "B classes"]:
        """Return the logits of the classes; one of two classes is that of class 1."""
        with self.autocast(batch):
            return self.forward(**self.adapter(batch)).float()

    def classify(self, batch: TensorDict) -> Int[Tensor, " B"]:
        """Return the most likely class of each case."""
        logits = self.logits(batch)
        return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)

    def errors(self, batch: TensorDict) -> Float[Tensor, "B 1"]:
        """Return 1 for each case whose class is wrong, 0 for the others."""
        return (self.classify(batch) != batch["label"])[:, None].float()

    def backward(self, batch: TensorDict, weigh: Weigh) -> Float[Tensor, ""]:
        """Add the gradients of the weighed loss to those of the model; return the loss."""
        return super().backward(batch, lambda loss: weigh(loss / self.context_ranks))

    def __call__(self, batch: TensorDict) -> Float[Tensor, ""]:
        """Return the loss, differentiable."""
        logits, labels = self.logits(batch), batch["label"]
        if logits.shape[1] == 1:
            return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
        return F.cross_entropy(logits, labels)


class SequenceTask(FieldTask):
    """Classes of sequences, by the share that is classified wrong."""

    constant_name = "the commonest class"

    def complete(self, cfg: DictConfig, data: MemoryCases | None) -> Sequence[str]:
        """Refuse what classification does not have."""
        if data is not None:
            raise ValueError("data in memory holds fields; sequences are read from data.root")
        checked_config(cfg.data)
        if (stream := cfg.training.stream) is not None:
            raise ValueError(f"training.stream is {stream}; sequences are not streamed, set null")
        if cfg.training.derivative_weight > 0:
            raise ValueError("training.derivative_weight is for fields on grids; set it to 0")
        return ()

    def load_data(
        self, cfg: DictConfig, placed: Mapping, normalizer: Path | None, data: MemoryCases | None
    ) -> Loaders:
        """Return the loaders; nothing is normalised."""
        return sequence_loaders(checked_config(cfg.data), placed)

    def build(self, cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Built:
        """Build the classifier for the vocabulary, classes and length of the data."""
        layout = layout_of(checked_config(cfg.data))
        model = build_model(cfg.model, layout, cfg.training.precision).to(ranks.device)
        adapter, context = input_adapter(model), ranks.mesh["context"].size()

        def objective(forward: nn.Module, choice: StreamChoice | None = None) -> LabelLoss:
            return LabelLoss(forward, adapter, cfg.training.precision, context)

        labels = torch.from_numpy(loaders.train.split.labels)
        commonest = labels.bincount(minlength=layout.classes).argmax().item()

        def constant(batch: TensorDict) -> Tensor:
            return (batch["label"] != commonest)[:, None].float()

        return model, Channels(1, {FIELD: 1}, {}, {}, "point"), objective, constant

    def describe(
        self, cfg: DictConfig, ranks: Ranks, assembly: "Assembly", chosen_on_test: bool
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the files of the data; there are no ranges of inputs."""
        files = data_files(assembly.loaders, test=chosen_on_test) if ranks.is_first else {}
        unknown = dict.fromkeys(("coordinates", "extent", "forces", "builtin"))
        return {**unknown, "files": files}, ()

    def baselines(self, assembly: "Assembly", split: str) -> Mapping[str, float]:
        """Return none: the commonest class is in the table."""
        return {}

    def table(
        self, result: "TrainingResult", cfg: DictConfig, ranks: Ranks, assembly: "Assembly"
    ) -> str:
        """Return the accuracies on both splits in percent, and who is taken for whom."""
        classes = layout_of(checked_config(cfg.data)).classes
        rows = [("split", "sequences", "accuracy", "commonest class")]
        measures = {
            "found": lambda batch: assembly.evaluation.classify(batch)[:, None].float(),
            "missed": assembly.constant,
        }
        for split, name in (("val", "validation (dev)"), ("test", "test")):
            loader = getattr(assembly.loaders, split)
            found = case_errors(measures, loader, 1, data_group=ranks.data_group)
            labels = torch.from_numpy(loader.split.labels)
            pairs = labels * classes + found["found"][:, 0].long()
            table = pairs.bincount(minlength=classes**2).view(classes, classes)
            right, common = table.trace().item() / len(labels), 1 - found["missed"].mean().item()
            rows.append((name, str(len(labels)), f"{100 * right:.2f}", f"{100 * common:.2f}"))
        confusion = [("true \\ predicted", *range(classes))]
        confusion += [(i, *row) for i, row in enumerate(table.tolist())]  # of the test split
        padding = "masked" if cfg.data.get("mask_padding", True) else "not masked, as published"
        lines = [f"Accuracy in percent; padding {padding}", "", format_table(rows, markdown=True)]
        lines += ["", "Test sequences by class", "", format_table(confusion, markdown=True)]
        return "\n".join([*lines, "", result.selection.describe(assembly.epochs, result.split), ""])

"""The training loop: epochs, evaluation, checkpoints, and resuming after a stop."""

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor

from ..datapipes.channels import zero_fields
from ..datapipes.readers import CaseReader
from ..ops import all_reduce
from ..parallel.ranks import Ranks, on_first_rank
from ..runs import checkpoints
from ..runs.checkpoints import Checkpoint, CheckpointStore
from ..runs.directory import RunDirectory, read_metrics
from .config import BUDGETS
from .losses import case_errors
from .reporting import SPLIT_NAMES, PeakMemory, Reporter, StopRequest

if TYPE_CHECKING:
    from .run import Assembly

# What of a step has a state of its own, by its name in checkpoints.
_PARTS = ("model", "average", "optimizer", "schedule", "scaler")


@dataclass(frozen=True)
class Selection:
    """Which weights are the result of a run."""

    select: str
    split: str | None
    epoch: int
    step: int
    error: float | None

    def describe(self, epochs: int, measured_on: str) -> str:
        """Return the choice in a sentence, for tables of errors on the split `measured_on`."""
        if self.split is None:
            return f"Weights: of the last epoch ({self.epoch})."
        text = (
            f"Weights: best on {SPLIT_NAMES[self.split]} cases, epoch {self.epoch} of {epochs} "
            f"(error there {100 * self.error:.2f} %)."
        )
        if self.split == measured_on:
            text += " They were selected on these same cases, so the error is optimistic."
        return text


class NonFiniteLoss(RuntimeError):
    """The loss or a weight became NaN or infinite."""


class Trainer:
    """Runs a training from wherever it stands to its end, or to a request to stop."""

    def __init__(
        self,
        cfg: DictConfig,
        ranks: Ranks,
        assembly: "Assembly",
        directory: RunDirectory,
        store: CheckpointStore,
        reporter: Reporter,
    ) -> None:
        self.cfg, self.settings, self.ranks = cfg, cfg.training, ranks
        self.assembly, self.directory = assembly, directory
        self.store, self.reporter = store, reporter
        self.epoch = self.step_in_epoch = 0
        loaders, select = assembly.loaders, self.settings.select
        watches_test = self.settings.watch_test or select == "best_on_test"
        if select == "best" and loaders.val is None:
            raise ValueError(
                "training.select is 'best', but the data has no validation split to choose on: set "
                "data.n_val, or data.splits with val, or training.select=last or best_on_test"
            )
        if watches_test and loaders.test is None:
            raise ValueError(
                "training.watch_test or training.select=best_on_test needs a test split, but the "
                "data has none; name one in data.splits"
            )
        # What is evaluated while training, what of it makes a checkpoint the best, and what the
        # result is measured on.
        self._watched = ["val"] * (loaders.val is not None) + ["test"] * watches_test
        by_validation = None if loaders.val is None else "val"
        self.chosen_by = "test" if select == "best_on_test" else by_validation
        self.result_split = "val" if loaders.test is None else "test"
        self._errors: dict[str, Float[Tensor, "cases F"]] = {}
        # Of predicting the training mean on each evaluated split; None if it is unknown.
        self.mean_errors: dict[str, float | None] = {}
        self._pending: list[tuple[dict, Tensor, list[Tensor]]] = []  # row, loss, cases of a step
        self._saved_step = self._evaluated_step = -1
        self._metric: float | None = None
        self._log_fails = False
        self._tokens = 0
        self._since = time.perf_counter()
        self._memory = PeakMemory(ranks.device)

    @property
    def step(self) -> int:
        """Optimisation steps done."""
        return self.epoch * self.assembly.steps_per_epoch + self.step_in_epoch

    @property
    def begun(self) -> int:
        """Epochs done, with one of which a part is done."""
        return self.epoch + (self.step_in_epoch > 0)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.step >= self.assembly.total_steps

    # Checkpoints ---------------------------------------------------------------------------

    def resume(self, state: dict) -> None:
        """Take up the state of a checkpoint."""
        self.epoch, self.step_in_epoch = state["epoch"], state["step_in_epoch"]
        if self.step > self.assembly.total_steps:
            given = {name: self.settings[name] for name in BUDGETS}
            length = ", ".join(f"training.{n} is {v}" for n, v in given.items() if v is not None)
            raise ValueError(
                f"{length}, but the run has begun epoch {self.begun} and done {self.step} steps; "
                "allow it as many or more"
            )
        for name in _PARTS:
            getattr(self.assembly.step, name).load_state_dict(state[name])
        checkpoints.restore_own_random_state(state["random"])
        if self.ranks.is_first:
            self.directory.forget_after(self.step, result=not self.is_complete)

    def save(self, metric: float | None = None, *, required: bool = False) -> None:
        """Write a checkpoint; a full disk costs a warning unless it is `required`."""
        # All ranks learn whether it was written, so that they agree on what is left to save.
        self._flush()
        self._check_weights()
        state = {name: getattr(self.assembly.step, name).state_dict() for name in _PARTS}
        state["config"] = OmegaConf.to_container(self.cfg)
        state |= {"epoch": self.epoch, "step_in_epoch": self.step_in_epoch}
        state["random"] = checkpoints.gather_random_states()

        def write() -> None:
            self.directory.check_present()
            self.directory.metrics.sync()
            module = self.assembly.average.module
            self.store.save(self.step, state, module, epoch=self.epoch, metric=metric)

        try:
            on_first_rank(write, "writing a checkpoint")
        except OSError as failure:
            if required:
                raise
            self.reporter.say(f"WARNING no checkpoint at step {self.step}: {failure}")
        else:
            self._saved_step = self.step
            try:
                if self.ranks.is_first:
                    self.directory.mark_saved()
            except OSError as error:  # the checkpoint is there, and the next one marks the run
                self.reporter.say(f"WARNING {error}")
        self._since = time.perf_counter()

    def _save_before_stop(self, signal_name: str) -> None:
        """Save where the run was asked to stop; if that fails, say what there is instead."""
        if self._saved_step == self.step:
            return
        try:
            self.save(self._metric if self._evaluated_step == self.step else None, required=True)
        except OSError as error:
            entries = self.store.entries()
            last = f"the last checkpoint is {entries[0].path}" if entries else "there is none"
            raise type(error)(
                error.errno,
                f"stopped by {signal_name} at step {self.step}, which was NOT saved; {last}. "
                f"{error.strerror}",
            ) from error

    # Training ------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Train to the end; return the name of the signal if one stopped the run before."""
        with StopRequest() as stop:
            while not self.is_complete:
                stopped = self._train_epoch(stop)
                if not stopped:
                    self._end_epoch()
                    stopped = not self.is_complete and stop.agree(self.ranks.device)
                if stopped:
                    signal_name = stop.signal_name or "SIGTERM"
                    self._save_before_stop(signal_name)
                    return signal_name
        self._log([])  # what a full disk has left
        if waiting := len(self.directory.metrics.waiting):
            self.reporter.say(f"WARNING {waiting} rows of metrics are lost")
        return None

    def _train_epoch(self, stop: StopRequest) -> bool:
        """Do the rest of an epoch; return whether it was asked to stop."""
        self._since = time.perf_counter()
        every = self.settings.checkpoint_every
        for batches in self._batches():
            rate = self.assembly.step.schedule.get_last_lr()[0]
            loss = self.assembly.step(batches)
            self.step_in_epoch += 1
            row = {"kind": "step", "step": self.step, "epoch": self.epoch, "loss": None}
            cases = [batch["case_index"] for batch in batches]
            self._pending.append((row | {"learning_rate": rate}, loss, cases))
            self._tokens += sum(batch["tokens"].numel() for batch in batches)
            if self.step_in_epoch == self.assembly.steps_per_epoch or self.is_complete:
                return False
            looks = self.step % self.settings.log_every == 0
            if looks:
                self._flush()
            # Several ranks ask each other only when they look.
            if (looks or self.ranks.size == 1) and stop.agree(self.ranks.device):
                return True
            if every is not None and self.step % every == 0:
                self.save()
        return False

    def _batches(self) -> Iterator[tuple[TensorDict, ...]]:
        loader = self.assembly.loaders.train
        loader.set_epoch(self.epoch)
        loader.sampler.skip(self.step_in_epoch * self.settings.accumulate * loader.batch_size)
        batches = iter(loader)
        while group := tuple(itertools.islice(batches, self.settings.accumulate)):
            yield group

    def _end_epoch(self) -> None:
        self._flush()
        if self.step_in_epoch == self.assembly.steps_per_epoch:  # else the last, of which a part
            self.epoch, self.step_in_epoch = self.epoch + 1, 0
        metric = None
        often = self.settings.evaluate_every or max(1, self.assembly.epochs // 20)
        if self.epoch % often == 0 or self.is_complete:
            found = {split: self.evaluate(split) for split in self._watched}
            metric = found.get(self.chosen_by)
            self._metric, self._evaluated_step = metric, self.step
        every = self.settings.checkpoint_every
        due = every is None or self.step % every == 0
        if due or metric is not None or self.is_complete:
            self.save(metric, required=self.is_complete)

    # Evaluation ----------------------------------------------------------------------------

    def evaluate(self, split: str) -> float:
        """Evaluate the averaged weights on ``val`` or ``test``; log and return the mean error."""
        self._flush()
        errors = self._measure(split)
        row = self._error_row("evaluation", split, errors)
        self._log([row])
        self.reporter.evaluated(self.begun, split, row["error"], row["mean_predictor_error"])
        self._errors[split] = errors
        self._since = time.perf_counter()
        return row["error"]

    def finish(self) -> tuple[Selection, Float[Tensor, "cases F"]]:
        """Choose the resulting weights and read the test set; return the choice and its errors."""
        selection, split = self._select(), self.result_split
        errors = self._errors.get(split) if selection.step == self.step else None
        if errors is None:  # else the last epoch was evaluated on it
            errors = self._measure(split)
        row = self._error_row("result", split, errors)
        row |= {"select": selection.select, "selected_epoch": selection.epoch}
        written = self.ranks.is_first and self.directory.metrics.path.exists()
        if not (written and any(r["kind"] == "result" for r in read_metrics(self.directory.path))):
            self._log([row])
        return selection, errors

    def _select(self) -> Selection:
        """Set the averaged weights to those of the chosen checkpoint, on all ranks."""
        select = self.settings.select
        if select == "last":
            return Selection("last", None, self.begun, self.step, None)

        def load() -> tuple[Checkpoint, dict]:
            best = self.store.best(self.reporter.say)
            if best is None:
                raise FileNotFoundError(f"{self.store.directory} holds no evaluated checkpoint")
            return best, checkpoints.load_training_state(best)["average"]

        try:
            best, average = on_first_rank(load, "loading the best checkpoint")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"training.select is {select!r}, but the best checkpoint cannot be used: {error}. "
                "Restore it, or train again (restart=true)"
            ) from error
        self.assembly.average.load_state_dict(average)
        epoch = -(-best.step // self.assembly.steps_per_epoch)  # as `begun` counts them
        return Selection(select, self.chosen_by, epoch, best.step, best.metric)

    def _measure(self, split: str) -> Float[Tensor, "cases F"]:
        """Return the errors of the averaged weights; measure the mean predictor the first time."""
        self.assembly.average.eval()
        measures = {"model": self.assembly.evaluation.errors}
        if split not in self.mean_errors and self.assembly.constant is not None:
            measures["mean"] = self.assembly.constant
        loader, fields = getattr(self.assembly.loaders, split), len(self.assembly.fields)
        with self.reporter.evaluating(split, len(loader)) as advance:
            group = self.ranks.data_group
            errors = case_errors(measures, loader, fields, data_group=group, advance=advance)
        mean = errors["mean"].mean().item() if "mean" in errors else None
        self.mean_errors.setdefault(split, mean)
        return errors["model"]

    def _error_row(self, kind: str, split: str, errors: Float[Tensor, "cases F"]) -> dict:
        means = errors.mean(0)
        row = {"kind": kind, "split": split, "step": self.step, "epoch": self.epoch}
        row["error"] = means.mean().item()
        row["errors"] = dict(zip(self.assembly.fields, means.tolist(), strict=True))
        return row | {"mean_predictor_error": self.mean_errors[split]}

    # Metrics -------------------------------------------------------------------------------

    def _log(self, rows: list[dict]) -> None:
        """Write metrics on the first rank; a full disk costs one warning, not the run."""
        if not self.ranks.is_first:
            return
        try:
            self.directory.metrics.append(rows)
            self._log_fails = False
        except OSError as error:
            if not self._log_fails:
                self.reporter.say(f"WARNING metrics are kept for later: {error}")
            self._log_fails = True

    def _flush(self) -> None:
        """Read the losses of the last steps from the device: the run's only wait for it."""
        if not self._pending:
            return
        rows, losses, cases = zip(*self._pending, strict=True)
        self._pending = []
        losses, data_size = torch.stack(losses), self.ranks.mesh["data"].size()
        if data_size > 1:
            losses = all_reduce(losses / data_size, "sum", self.ranks.data_group)
        for row, loss in zip(rows, losses.tolist(), strict=True):
            row["loss"] = loss
        seconds = time.perf_counter() - self._since
        rows[-1].update(
            tokens_per_second=self._tokens * self.ranks.size / seconds,
            seconds_per_step=seconds / len(rows),
            memory_mb=self._memory.megabytes(),
        )
        self._tokens, self._since = 0, time.perf_counter()
        finite = list(itertools.takewhile(lambda row: math.isfinite(row["loss"]), rows))
        self._log(finite)
        if len(finite) < len(rows):
            first = rows[len(finite)]
            self._fail(f"the loss is {first['loss']} at step {first['step']}", cases[len(finite)])
        self.reporter.show(rows[-1])

    def _check_weights(self) -> None:
        """Never save weights that are not finite."""
        sums = torch.stack([p.detach().sum() for p in self.assembly.model.parameters()])
        if not bool(torch.isfinite(sums).all()):
            named = zip(self.assembly.model.named_parameters(), sums.isfinite(), strict=True)
            bad = [name for (name, _), finite in named if not finite]
            self._fail(f"the weights {', '.join(bad[:3])} are not finite at step {self.step}", [])

    def _fail(self, what: str, cases: list[Tensor]) -> None:
        """Stop all ranks with what went wrong, on which cases, and where to go back to."""
        reader = self.assembly.loaders.train.dataset.reader
        indices = torch.cat(cases).tolist() if cases else []
        lists = [indices]
        if self.ranks.size > 1:
            lists = [None] * self.ranks.size
            dist.all_gather_object(lists, indices)
        cases = sorted({index for part in lists for index in part}, key=reader.case_ids.__getitem__)
        zero = []
        if isinstance(reader, CaseReader):  # not one of sequences
            for index in cases:
                with suppress(OSError, ValueError):  # unreadable files must not hide the loss
                    table = reader.case(index)
                    fields = torch.from_numpy(table.read("fields", slice(0, table.n_tokens)))
                    zero += [
                        f"{name} of case {reader.case_ids[index]} is 0 everywhere"
                        for name in zero_fields(fields, self.assembly.fields)
                    ]
        last = self.store.newest_sound(self.reporter.say)
        good = "there is no checkpoint" if last is None else f"the last good one is {last.path}"
        ids = ", ".join(reader.case_ids[index] for index in cases)
        on = f" on the cases {ids}" if cases else ""
        remedy = (
            "Look at those cases, or train in another run_dir (or with restart=true) with a lower "
            "training.learning_rate or training.precision=fp32"
        )
        if zero:
            remedy = (
                f"{'; '.join(zero)}, so its relative error is undefined. Leave such cases out "
                "(data.splits takes lists of cases)"
            )
            if len(self.assembly.fields) > 1:
                remedy += ", or, if other fields are not 0, train with training.field_norms=joint"
        raise NonFiniteLoss(f"{what}{on}; {good}. {remedy}")

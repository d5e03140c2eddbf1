"""Rows of metrics on the disk, as they are read back and as TensorBoard has them."""

import json
from contextlib import suppress

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

from physicsnemo_flarepp.runs.directory import METRICS, MetricsLog, read_metrics

EVALUATION = {
    "kind": "evaluation",
    "step": 2,
    "epoch": 1,
    "error": 0.25,
    "errors": {"pMeanTrim": 0.125, "wallShearStressMeanTrim": 0.375},
}


def step(number, loss):
    return {"kind": "step", "step": number, "loss": loss}


def scalars(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_has_every_number_and_the_errors_of_every_field(tmp_path):
    log = MetricsLog(tmp_path)
    log.append([step(1, 0.5), step(2, 0.75), EVALUATION])
    assert scalars(tmp_path / "tensorboard") == {
        "step/loss": [(1, 0.5), (2, 0.75)],
        "evaluation/error": [(2, 0.25)],
        "evaluation/errors/pMeanTrim": [(2, 0.125)],
        "evaluation/errors/wallShearStressMeanTrim": [(2, 0.375)],
    }


def test_steps_that_were_done_again_count_as_they_were_done_last(tmp_path):
    log = MetricsLog(tmp_path)
    log.append([step(1, 0.5), step(2, 0.75), EVALUATION, step(3, 2.0)])
    log.append([step(2, 0.625), step(3, 1.0)])
    assert read_metrics(tmp_path) == [step(1, 0.5), step(2, 0.625), EVALUATION, step(3, 1.0)]


def test_strange_lines_are_left_out_with_a_warning_and_a_cut_one_without(tmp_path, recwarn):
    rows = [step(1, 0.5), step(2, 0.25)]
    good = [json.dumps(row) for row in rows]
    (tmp_path / METRICS).write_text("\n".join([*good, '{"kind": "st']))
    assert read_metrics(tmp_path) == rows and not recwarn
    (tmp_path / METRICS).write_text("\n".join([good[0], "[1]", '{"step": "2"}', good[1], ""]))
    with pytest.warns(UserWarning, match="line 2, 3 of 4 is not a row of metrics"):
        assert read_metrics(tmp_path) == rows


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the directory of a training run"):
        read_metrics(tmp_path)


def test_rows_that_a_full_disk_refuses_wait(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("physicsnemo_flarepp.runs.directory.append_whole", refuse)
        for number in (1, 2):
            with pytest.raises(OSError, match="No space left"):
                log.append([step(number, 0.5)])
    assert len(log.waiting) == 2
    log.append([step(3, 0.5)])
    assert not log.waiting
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    assert [number for number, _ in scalars(tmp_path / "tensorboard")["step/loss"]] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("refused", [0, 1, 3, 4])
def test_tensorboard_catches_up_after_its_writer_has_died(tmp_path, monkeypatch, refused):
    """The first failed write ends the writer's thread; the last call shows what it has lost."""
    log, writes = MetricsLog(tmp_path), []
    original = LocalFileSystem._write

    def write(self, *arguments):
        writes.append(None)
        if len(writes) > refused:
            raise OSError(28, "No space left on device")
        original(self, *arguments)

    with monkeypatch.context() as full:
        full.setattr(LocalFileSystem, "_write", write)
        for number in (1, 2, 3, 4):
            with suppress(OSError):
                log.append([step(number, number / 4)])
    assert not log.waiting and len(writes) > refused
    log.close()
    assert scalars(tmp_path / "tensorboard")["step/loss"] == [
        (number, number / 4) for number in (1, 2, 3, 4)
    ]


def test_a_resumed_run_shows_repeated_steps_once(tmp_path):
    first = MetricsLog(tmp_path)
    first.append([step(number, 1.0) for number in (1, 2, 3)])
    first.close()
    second = MetricsLog(tmp_path)
    second.replace([step(1, 1.0)], next_step=2)
    second.append([step(2, 0.5)])
    second.close()
    assert scalars(tmp_path / "tensorboard")["step/loss"] == [(1, 1.0), (2, 0.5)]

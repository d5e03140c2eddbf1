"""What a run says on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from physicsnemo_flarepp.training import reporting
from physicsnemo_flarepp.training.reporting import Reporter


def row(*values):
    names = ("step", "epoch", "loss", "learning_rate", "tokens_per_second", "memory_mb")
    return dict(zip(names, values, strict=True))


STATUS = row(50, 4, 0.1234, 5e-4, 12_345.6, 678.9)
SHOWN = ("loss 0.1234", "test 7.50 %", "lr 5.0e-04", "12,346 tokens/s", "679 MB")


def run(terminal, enabled=True):
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=terminal, width=150, soft_wrap=not terminal, highlight=False
    )
    reporter = Reporter(enabled, console)
    reporter.epochs = 10
    reporter.total_steps = 100
    with reporter:
        reporter.show(row(10, 0, 1.0, 1e-5, 1.0, 1.0))
        reporter.evaluated(5, "test", 0.075, 0.5)
        reporter.show(STATUS)
    return text.getvalue()


def test_terminal_has_one_live_line():
    shown = run(terminal=True)
    assert all(part in shown for part in (*SHOWN, "epoch 5/10"))


def test_a_long_evaluation_has_a_bar_of_its_own_that_goes():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=150)
    with Reporter(True, console) as reporter:
        reporter.epochs = 10
        with reporter.evaluating("val", 4) as advance:
            advance()
            reporter._bar.refresh()
        assert "validation cases" in text.getvalue() and reporter._bar.tasks == []


def test_elsewhere_lines_are_few_and_whole(monkeypatch):
    monkeypatch.setattr(reporting, "QUIET_SECONDS", 0.0)
    lines = run(terminal=False).splitlines()
    assert lines[1] == "epoch 5/10  test error 7.50 % (predicting the training mean: 50.0 %)"
    assert all(part in lines[2] for part in (*SHOWN, "epoch 5/10  step 50/100", "left"))
    assert len(lines) == 3 and "\x1b" not in "".join(lines)


def test_elsewhere_steps_are_not_shown_more_often_than_the_interval():
    assert run(terminal=False).splitlines() == [
        "epoch 5/10  test error 7.50 % (predicting the training mean: 50.0 %)"
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_other_ranks_are_silent(terminal):
    assert run(terminal, enabled=False) == ""

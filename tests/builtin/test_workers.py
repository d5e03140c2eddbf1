"""Whatever ends a process of the pool ends all of them, quietly, and costs no finished case."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from physicsnemo_flarepp.builtin import generate

pytestmark = pytest.mark.slow

GENEROUS = 120  # seconds until a process that should end counts as left behind


def make(root, **options):
    return generate("counted", root=root, progress=False, **options)


def wait_for(condition):
    end = time.monotonic() + GENEROUS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def check_resumes(root, log):
    assert not (root / "counted-v1-s0-6+2").exists()
    make(root)
    seeds = log.read_text().split()
    assert len(seeds) == len(set(seeds)) == 8


@pytest.mark.parametrize("who", ["process", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_workers_in_the_middle_of_a_case_without_a_word(
    tmp_path, log, monkeypatch, start_elsewhere, number, who
):
    monkeypatch.setenv("COUNTED_SET_STOP", "sleep:3")
    process = start_elsewhere(tmp_path / "cache", workers=2)
    asleep = Path(f"{log}.asleep")
    wait_for(lambda: asleep.exists() and asleep.read_text().count("asleep") == 2)
    if who == "group":
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    # The workers share standard error: it ends when the last of them has ended.
    out, err = process.communicate(timeout=GENEROUS)
    interrupted = "interrupted; finished cases are kept; give the same command to resume\n"
    assert (out, err) == ("", interrupted if number == signal.SIGINT else "")
    assert process.returncode == (1 if number == signal.SIGINT else -number)
    monkeypatch.delenv("COUNTED_SET_STOP")
    check_resumes(tmp_path / "cache", log)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6])
def test_an_interrupt_while_processes_start_is_one_line(
    tmp_path, log, monkeypatch, start_elsewhere, delay
):
    log.touch()
    monkeypatch.setenv("COUNTED_SET_STOP", "sleep:0")
    process = start_elsewhere(tmp_path / "cache", workers=2)
    wait_for((tmp_path / "cache" / "counted-v1-s0.cases").exists)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GENEROUS)
    assert (out, err.count("\n")) == ("", 1) and err.startswith("interrupted;")


@pytest.mark.parametrize("how", ["kill-parent", "orphan"])
def test_a_killed_generation_resumes_without_solving_a_case_twice(
    tmp_path, log, monkeypatch, start_elsewhere, how
):
    monkeypatch.setenv("COUNTED_SET_STOP", f"{how}:4")
    process = start_elsewhere(tmp_path / "cache")
    assert process.communicate(timeout=GENEROUS) == ("", "")
    assert process.returncode == -9
    monkeypatch.delenv("COUNTED_SET_STOP")
    if how == "kill-parent":
        check_resumes(tmp_path / "cache", log)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("exit:2", "ended with status 3"),
        ("nan:2", "'values' of case train 2 has non-finite values"),
    ],
)
def test_a_dying_solver_and_a_bad_result_are_reported(tmp_path, log, monkeypatch, stop, message):
    monkeypatch.setenv("COUNTED_SET_STOP", stop)
    with pytest.raises(RuntimeError, match=message):
        make(tmp_path, workers=1)


def test_what_a_solver_prints_stays_out_of_the_answer(tmp_path, log, monkeypatch, start_elsewhere):
    monkeypatch.setenv("COUNTED_SET_TALKS", "")
    out, err = start_elsewhere(tmp_path).communicate()
    assert out == f"{tmp_path / 'counted-v1-s0-6+2'}\n"
    assert err.count("a solver may print\n") == 8


def test_a_script_without_a_main_guard_is_run_once(tmp_path, log):
    script = tmp_path / "script.py"
    script.write_text(
        "from physicsnemo_flarepp.builtin import generate, sets\n"
        "print('once')\n"
        "sets.MODULES['counted'] = 'counted_set:SET'\n"
        f"generate('counted', root={str(tmp_path / 'cache')!r}, workers=2, progress=False)\n"
    )
    folders = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": folders}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=True
    )
    assert (done.stdout, done.stderr) == ("once\n", "")


def test_the_callers_environment_and_interrupts_are_as_before(tmp_path, log, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    environment, main = dict(os.environ), sys.modules["__main__"]
    make(tmp_path)
    assert dict(os.environ) == environment and sys.modules["__main__"] is main
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

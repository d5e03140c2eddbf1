"""The SLURM script, under stand-ins for srun and scontrol: real ranks, no scheduler."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
# Starts the tasks with srun's variables, forwards USR1, and ends all if one fails, as srun does.
SRUN = """\
import os, runpy, shutil, signal, subprocess, sys, time

options = [text for text in sys.argv[1:] if text.startswith("--")]
command = sys.argv[1 + len(options):]
assert options == ["--kill-on-bad-exit=1", "--cpus-per-task=3"], options
size = int(os.environ["SLURM_NTASKS"])
shared = {"SLURM_NPROCS": str(size), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
ranks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(size)]


class Fork:
    # Runs the program as a process of its own that has already imported what takes long.
    def __init__(self, variables):
        self.code = None
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(variables)
            sys.argv = command
            try:
                runpy.run_path(shutil.which(command[0]), run_name="__main__")
            except SystemExit as ended:
                code = ended.code or 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 1
            else:
                code = 0
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)

    def poll(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


if os.environ.get("IMPORTED_BEFORE"):
    import physicsnemo_flarepp.commands.training

    tasks = [Fork({**shared, **rank}) for rank in ranks]
else:
    tasks = [subprocess.Popen(command, env={**os.environ, **shared, **rank}) for rank in ranks]
signal.signal(signal.SIGUSR1, lambda *_: [task.send_signal(signal.SIGUSR1) for task in tasks])
while any(task.poll() is None for task in tasks):
    time.sleep(0.05)
    if any(task.poll() for task in tasks):
        for task in tasks:
            task.terminate()
sys.exit(max(task.poll() if task.poll() >= 0 else 128 - task.poll() for task in tasks))
"""


@pytest.fixture
def submit(tmp_path):
    """Starts the script as SLURM would, with `flarepp` being these lines of Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    jobs = []

    def write(name, text):
        (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / name).chmod(0o755)

    write("srun", SRUN)
    write(
        "scontrol", f"import sys; print(*sys.argv[1:], file=open({str(tmp_path / 'said')!r}, 'a'))"
    )

    def start(flarepp, *overrides):
        write("flarepp", flarepp)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NTASKS": "2",
            "SLURM_CPUS_PER_TASK": "3",
        }
        environment.pop("MASTER_PORT", None)
        command = ["bash", SCRIPT, *overrides]
        jobs.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return jobs[-1]

    start.said = tmp_path / "said"
    yield start
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def steps_in(run):
    path = run / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    rows = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
    return [row["step"] for row in map(json.loads, rows) if row["kind"] == "step"]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_job_that_runs_out_of_time_saves_is_requeued_and_resumes(submit, tmp_path, monkeypatch):
    monkeypatch.setenv("IMPORTED_BEFORE", "1")
    rng = np.random.default_rng(0)
    for split, runs in (("train", range(4)), ("test", range(4, 6))):
        (tmp_path / "data" / split).mkdir(parents=True)
        for run in runs:
            points = rng.uniform(-1, 1, (60, 3)).astype(np.float32)
            np.savez(
                tmp_path / "data" / split / f"run_{run}.npz",
                surface_mesh_centers=points,
                surface_fields=np.hstack([points[:, :1] - 2, points]),
            )
    run = tmp_path / "run"
    overrides = [
        "experiment=quick/drivaerml_40k",
        f"data.root={tmp_path / 'data'}",
        *(f"data.{name}=null" for name in ("n_train", "n_test", "n_points", "n_points_test")),
        "data.normalization=fit",
        "training.epochs=100000",
        "training.evaluate_every=100000",
        "training.log_every=1",
        "parallel.context=2",
        f"run_dir={run}",
    ]
    flarepp = "from physicsnemo_flarepp.commands import main\nimport sys\nsys.exit(main())"
    seen = 0
    for attempt in (1, 2):
        job = submit(flarepp, *overrides)
        deadline = time.monotonic() + 600
        while job.poll() is None and max([0, *steps_in(run)]) <= seen:
            assert time.monotonic() < deadline, "no step was taken"
            time.sleep(0.2)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=300) >= 128
        assert submit.said.read_text() == f"requeue {os.getpid()}\n" * attempt
        steps = steps_in(run)
        assert steps == list(range(1, len(steps) + 1)), "each step once: the second job resumed"
        assert (run / "checkpoints" / f"step_{steps[-1]:08d}").is_dir()
        seen = steps[-1]


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_is_complete_or_fails_is_not_requeued(submit, code):
    assert submit(f"import sys; sys.exit({code})").wait(timeout=60) == code
    assert not submit.said.exists()


def test_an_error_after_the_signal_is_not_requeued(submit, tmp_path):
    started = tmp_path / "started"
    job = submit(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(1))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        "time.sleep(60)"
    )
    while not started.exists():
        time.sleep(0.05)
    time.sleep(0.3)  # the other task has its handlers, too
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=60) == 1
    assert not submit.said.exists()


def test_ports_of_jobs_differ(submit, tmp_path):
    seen = tmp_path / "port"
    write = f"import os; open({str(seen)!r}, 'w').write(os.environ['MASTER_PORT'])"
    assert submit(write).wait(timeout=60) == 0
    assert int(seen.read_text()) == 20000 + os.getpid() % 20000


def test_the_page_explains_every_option_of_the_script():
    page = (ROOT / "docs" / "slurm.md").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+)", SCRIPT.read_text(), re.M)
    assert len(options) == 9
    assert [option for option in options if option not in page] == []

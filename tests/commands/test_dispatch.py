"""The command line itself: help, verbs, errors and exit codes."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from ctypes.util import find_library
from importlib import import_module
from pathlib import Path

import pytest

from physicsnemo_flarepp import __version__
from physicsnemo_flarepp.commands import dispatch, main, parsers
from physicsnemo_flarepp.commands.configs import run_composed
from physicsnemo_flarepp.commands.parsers import parse_options
from physicsnemo_flarepp.commands.results import surface_options
from physicsnemo_flarepp.files import whole_file

ROOT = Path(__file__).parents[2]
PYTHON = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def fail_with(monkeypatch, error):
    """Let every verb fail with an error."""

    def fail(*_):
        raise error

    monkeypatch.setattr(dispatch, "_run", fail)


def test_help_fits_a_screen_and_names_every_verb(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[4 : 4 + len(dispatch.VERBS)]] == [*dispatch.VERBS]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help", "all"],
        *([v, "--help"] for v in dispatch.VERBS),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_that_takes_long(arguments):
    code = (
        "import sys\n"
        "from physicsnemo_flarepp.commands import main\n"
        "try:\n"
        f"    code = main({arguments})\n"
        "except SystemExit as done:\n"  # argparse
        "    code = done.code\n"
        "slow = {'torch', 'hydra', 'omegaconf', 'physicsnemo', 'numpy', 'pyvista', 'warp'}\n"
        "print('imported', sorted(slow & set(sys.modules)), code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PYTHON)
    assert done.stdout.splitlines()[-1] == "imported [] 0", done.stderr
    assert done.stderr == ""


def test_package_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "physicsnemo_flarepp", "--version"],
        capture_output=True,
        text=True,
        env=PYTHON,
    )
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize("name", dispatch.VERBS)
def test_verb_has_what_the_table_says(name):
    module = import_module(f"physicsnemo_flarepp.commands.{dispatch.VERBS[name][0]}")
    assert callable(getattr(module, name))
    assert hasattr(parsers, name) != (name in dispatch.COMPOSED)


@pytest.mark.parametrize("name", [name for name in dispatch.VERBS if name not in dispatch.COMPOSED])
def test_help_of_a_verb_explains_it(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: flarepp {name}") and f"    flarepp {name} " in text


def test_help_names_the_choices_that_the_library_checks(capsys):
    """Without importing it."""
    from physicsnemo_flarepp.evaluation.forces import ORIENTATIONS
    from physicsnemo_flarepp.runs.trained_run import CHECKPOINTS

    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert words > {*ORIENTATIONS, *CHECKPOINTS}


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["predict", "run", "--scale", "2", "a.stl", "--flip", "b.stl"], {"files": 2, "flip": 1}),
        (["evaluate", "run", "--device", "cpu", "other"], {"runs": 2}),
        (["plan", "--tokens", "5", "model=flare", "seed=1"], {"tokens": 1, "overrides": 2}),
        (["plan", "a=1", "--memory", "80GB", "b=2", "--tokens", "5", "6"], {"overrides": 2}),
    ],
    ids=str,
)
def test_flags_stand_anywhere(arguments, expected):
    options = parse_options(arguments[0], arguments[1:])
    for name, count in expected.items():
        value = getattr(options, name)
        assert (len(value) if isinstance(value, list) else value) == count


@pytest.mark.slow
def test_warp_is_silent_where_there_is_no_gpu(tmp_path):
    if find_library("cuda"):
        pytest.skip("there is a driver")
    command = [sys.executable, "-m", "physicsnemo_flarepp", "evaluate", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, env=PYTHON, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith("flarepp evaluate: ") and "none" in line and done.stdout == ""


@pytest.mark.parametrize("text", ["80", "GB", "-", "8 GiBs"])
def test_memory_without_a_number_or_a_unit_is_refused(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_options("plan", ["--tokens", "5", f"--memory={text}"])
    assert "is not an amount of memory; give a number and one of kB, MB" in capsys.readouterr().err


def test_values_of_options_are_read():
    read = parse_options("plan", ["--tokens", "5", "--memory", "80GB", "--host-memory", "1 GiB"])
    assert (read.memory, read.host_memory) == (80e9, 2**30)
    limits = ["--limit", "volume=0.98,", "drag=,0.3"]
    read = parse_options("optimize", ["run", "car.stl", *limits, "--global", "rho=1", "U=38.9,0"])
    assert read.limit == [("volume", (0.98, None)), ("drag", (None, 0.3))]
    assert surface_options(read)["global_values"] == {"rho": [1.0], "U": [38.9, 0.0]}


def test_wrong_words_are_answered_with_the_right_ones(capsys):
    assert main([]) == 2
    assert "usage: flarepp VERB" in capsys.readouterr().err
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == "flarepp: there is no verb 'trian'; did you mean train?\n"
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate"])
    assert "flarepp evaluate: error: the following arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, code",
    [
        (ValueError("epochs is 0,\nexpected at least 1"), 2),
        (FileNotFoundError("run directory x does not exist"), 2),
        (FileExistsError("x holds a run"), 2),
        (ConnectionError("offline"), 1),
        (OSError(28, "No space left on device", "outputs/x"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_error_is_one_line(error, code, monkeypatch, capsys):
    fail_with(monkeypatch, error)
    assert main(["plot", "x"]) == code
    told = capsys.readouterr().err
    assert told == f"flarepp plot: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize(
    "name",
    [
        "training.trainer.NonFiniteLoss",
        "visualization.RenderingUnavailable",
        "visualization.MissingExtra",
    ],
)
def test_errors_of_this_package_are_failures_in_one_line(name, monkeypatch, capsys):
    module, _, kind = name.rpartition(".")
    fail_with(monkeypatch, getattr(import_module(f"physicsnemo_flarepp.{module}"), kind)("why"))
    assert main(["train"]) == 1
    assert capsys.readouterr().err == "flarepp train: why\n"


def test_defects_show_where_they_are(monkeypatch, capsys):
    fail_with(monkeypatch, ZeroDivisionError("a defect"))
    assert main(["train"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--debug", "plot", "x"], ["plot", "x", "--debug"], []])
def test_debug_anywhere_shows_the_traceback(arguments, monkeypatch, capsys):
    if not arguments:
        monkeypatch.setenv("FLAREPP_DEBUG", "1")
    fail_with(monkeypatch, ValueError("wrong"))
    assert main(arguments or ["plot", "x"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told and told.endswith("ValueError: wrong\n")


def test_interrupt_and_closed_pipe_end_like_signals(monkeypatch, capsys):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["plot", "x"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "flarepp plot: interrupted\n"
    command = f"set -o pipefail; {sys.executable} -m physicsnemo_flarepp train --help | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=PYTHON)
    assert (done.stdout, done.stderr) == ("u", "")


def test_a_finished_command_leaves_after_threads_and_exit_handlers(tmp_path):
    """With its output written, and the exit code of an error."""
    script = tmp_path / "command.py"
    script.write_text(
        "import atexit, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from physicsnemo_flarepp.commands import dispatch, run\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "pool = ThreadPoolExecutor(1)\n"
        "pool.submit(int).result()\n"
        "def fail(*_):\n"
        "    print('verb', sys.argv)\n"
        "    raise ValueError('wrong')\n"
        "dispatch._run = fail\n"
        "run('plot', 'x')\n"
        "print('not reached')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=PYTHON)
    assert done.stdout.splitlines() == [f"verb ['{script}']", "thread", "handler"]
    assert (done.returncode, done.stderr) == (2, "flarepp plot: wrong\n")


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_output_that_cannot_be_written_is_a_failure(argument):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "physicsnemo_flarepp", argument]
        done = subprocess.run(command, stdout=full, env={**PYTHON, "PYTHONUNBUFFERED": ""})
    assert done.returncode == 1


def test_garbage_is_collected_again_after_the_imports_of_a_verb():
    code = (
        "import gc\n"
        "from physicsnemo_flarepp.commands import main\n"
        "print(main(['inspect', 'missing']), gc.isenabled(), gc.get_freeze_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PYTHON)
    assert done.stdout == "2 True 0\n" and "leaked" not in done.stderr, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_ended_leaves_no_draft_behind(number, tmp_path, monkeypatch):
    def write(*_):
        with whole_file(tmp_path / "comparison.png") as draft:
            draft.write_bytes(b"half")
            os.kill(os.getpid(), number)
            time.sleep(5)

    monkeypatch.setattr(dispatch, "_run", write)
    if number == signal.SIGTERM:
        with pytest.raises(SystemExit) as ended:
            main(["plot", "x"])
        assert ended.value.code == 128 + number
    else:
        assert main(["plot", "x"]) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("late", [ImportError("numpy.core"), ValueError("half read")])
def test_an_error_that_follows_an_interrupt_is_the_interrupt(late, monkeypatch, capsys):
    def interrupted(*_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise late from None  # as extension modules do

    monkeypatch.setattr(dispatch, "_run", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(["plot", "x"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "flarepp plot: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["training.lr=1"], "no key 'training.lr'; did you mean training.learning_rate?"),
        (["epochs=3", "-m", "seed=0,1"], "no key 'epochs'; did you mean training.epochs?"),
        (["model=gnot", "model.n_layer=1"], "did you mean model.n_layers?"),
        (["data.zzz=1"], "no key 'data.zzz'; flarepp train --help all lists all keys"),
        (["model=perceiver"], "Could not find 'model/perceiver' Available options in 'model'"),
        (["training.epochs=many"], "'many' of type 'str' could not be converted to Integer"),
        (["training.epochs=="], "Error parsing override 'training.epochs=='"),
        (["training.epochs=0"], "training.epochs is 0, expected at least 1"),
        (["data=pipe_published", "experiment=none"], "data directory data/Geo-FNO does not exist"),
    ],
    ids=str,
)
def test_wrong_config_is_one_line(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("flarepp train: ") and told in lines[0]
    for word in ("search path", "object_type", "_backbone", "append"):
        assert word not in lines[0]


def test_a_sweep_ends_with_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def task(cfg):
        return {"run": cfg.run_dir, "error": f"{cfg.training.learning_rate:.4f}"}

    sweep = ["-m", "training.learning_rate=1e-3,1e-4", "experiment=none", "data=darcy"]
    run_composed("train", task, sweep)
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "error"]
    assert first.split()[0].endswith("learning_rate=0.001") and first.split()[1] == "0.0010"
    assert second.split()[0].endswith("learning_rate=0.0001") and second.split()[1] == "0.0001"
    run_composed("train", task, sweep[2:])
    assert "error" not in capsys.readouterr().out


SET = {"builtin": "cars", "n_train": 4, "n_test": 2, "n_val": 1, "builtin_seed": 0}


@pytest.mark.parametrize(
    "data, rank, begun",
    [
        (SET, None, [("cars", 4, 2, 1, 0)]),
        (SET | {"root": "files"}, None, []),
        (SET | {"builtin": None}, None, []),
        ({"builtin": "listops", "n_train": 4, "n_test": 2, "n_val": 1}, None, []),
        (SET, "0", []),
    ],
)
def test_a_built_in_set_is_begun_before_torch_is_imported(data, rank, begun, monkeypatch):
    calls = []

    @contextmanager
    def begin(*wanted):
        calls.append(wanted)
        yield

    monkeypatch.setattr("physicsnemo_flarepp.builtin.engine.begin", begin)
    for name in dispatch._LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with dispatch._solving_ahead(data):
        assert calls == begun


def test_a_set_that_cannot_be_begun_is_left_to_the_training():
    with dispatch._solving_ahead(SET | {"n_train": -1}):
        pass
    with (
        pytest.raises(KeyError, match="of the training"),
        dispatch._solving_ahead(SET | {"n_train": -1}),
    ):
        raise KeyError("of the training")

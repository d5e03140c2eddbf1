import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from physicsnemo_flarepp import checks
from physicsnemo_flarepp.checks import Check, Finding
from physicsnemo_flarepp.checks.findings import FAILED, NOTED, PASSED
from physicsnemo_flarepp.commands import main

GOOD = Finding("kernel cpu", PASSED, "error 1e-16")
BAD = Finding("cache", FAILED, "read-only", "set a variable")


def only(monkeypatch, *findings):
    asked = []

    def choose(n_ranks, bench):
        asked.append((n_ranks, bench))
        return [Check("all", lambda device: iter(findings), "")]

    monkeypatch.setattr(checks, "choose_checks", choose)
    return asked


def test_a_working_machine_ends_with_code_0(monkeypatch, capsys):
    asked = only(monkeypatch, GOOD, Finding("machine", NOTED, "2 processors"))
    assert main(["check", "--ranks", "3", "--bench"]) == 0
    assert asked == [(3, True)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pass", "kernel", "cpu", "error", "1e-16"]
    assert lines[-1] == "everything works on cpu"


def test_a_failure_ends_with_code_1_its_name_and_advice(monkeypatch, capsys):
    only(monkeypatch, GOOD, BAD)
    assert main(["check"]) == 1
    said = capsys.readouterr()
    assert "-> set a variable" in said.out and "everything works" not in said.out
    assert said.err == "flarepp check: 1 of 2 failed: cache\n"


@pytest.mark.parametrize("findings", [(GOOD,), (GOOD, BAD)], ids=["passed", "failed"])
def test_json_is_all_that_is_printed(findings, monkeypatch, capsys):
    only(monkeypatch, *findings)
    code = main(["check", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["passed"] is (code == 0) is (BAD not in findings)
    assert content["findings"][-1] == {
        "name": findings[-1].name,
        "status": findings[-1].status,
        "figures": findings[-1].figures,
        "advice": findings[-1].advice,
    }


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--ranks", "1"], "--ranks must be at least 2, got 1"),
        (["--device", "cuda"], "finds no CUDA device; look at nvidia-smi"),
        (["--device", "meta"], "device must be auto, cpu, cuda or cuda:<number>, got 'meta'"),
    ],
)
def test_wrong_use_is_named(arguments, words, capsys):
    assert not torch.cuda.is_available()
    assert main(["check", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_import_nothing_from_the_working_directory(tmp_path):
    (tmp_path / "multiprocessing.py").write_text("open('imported', 'w').close()\n")
    code = (
        "import sys\n"
        "from physicsnemo_flarepp.checks import Check\n"
        "from physicsnemo_flarepp.checks.ranks import rank_findings\n"
        "from physicsnemo_flarepp import checks\n"
        "from physicsnemo_flarepp.commands import main\n"
        "find = lambda device: rank_findings(2, device)\n"
        "checks.choose_checks = lambda n_ranks, bench: [Check('ranks', find, '')]\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(['check', '--ranks', '2', '--device', 'cpu']))\n"
    )
    script = tmp_path / "bin" / "flarepp"  # as an installed command: the folder is not searched
    script.parent.mkdir()
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "imported").exists()

"""Types that a checker finds sound, and shapes in signatures that hold when the tests run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from physicsnemo_flarepp.ops import merge_over_group

ROOT = Path(__file__).parent.parent
CHECKED = ["physicsnemo_flarepp.ops", "physicsnemo_flarepp.mixers", "beartype.beartype"]


def run(*command):
    command = [sys.executable, "-m", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_type_checker_finds_nothing():
    code, said = run("mypy")
    assert code == 0, said


@pytest.mark.slow
def test_tensors_have_the_shapes_of_the_signatures():
    """The tests of two rooms again, with every annotated argument and result looked at."""
    tests = ["tests/ops", "tests/mixers"]
    chosen = ["-n", "0", "--one-of-each", "-m", "not unchecked and not slow and not gpu"]
    code, said = run("pytest", *tests, *chosen, f"--jaxtyping-packages={','.join(CHECKED)}")
    assert code == 0, said


def test_a_wrong_shape_is_found_by_the_same_means():
    checked = jaxtyped(typechecker=beartype)(merge_over_group)
    checked(torch.ones(2, 3, 4), torch.ones(2, 3), None)
    with pytest.raises(TypeCheckError, match="lse"):
        checked(torch.ones(2, 3, 4), torch.ones(3, 3), None)

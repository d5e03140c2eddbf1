"""A set whose solver notes every call in a file, and can be told to stop half-way.

The workers are separate processes, so the orders come through environment variables:
``COUNTED_SET_LOG`` names the file, ``COUNTED_SET_STOP`` = "<how>:<n>" stops the (n + 1)-th call,
``COUNTED_SET_UNSOLVABLE`` lists the seeds of problems without a solution.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

from physicsnemo_flarepp.builtin.sets import BuiltinSet
from physicsnemo_flarepp.builtin.solvers import Unsolvable


def stop(how):
    if how == "error":
        raise ArithmeticError("told to fail")
    if how == "nan":
        return np.array([np.nan])
    if how == "sleep":
        with open(os.environ["COUNTED_SET_LOG"] + ".asleep", "a") as file:
            file.write("asleep\n")
        time.sleep(1000)
    if how in ("kill-parent", "orphan"):
        os.kill(os.getppid(), signal.SIGKILL)
    if how == "orphan":
        return np.zeros(100)
    os._exit(3)


def solve_case(case_seed):
    log = Path(os.environ["COUNTED_SET_LOG"])
    if str(case_seed) in os.environ.get("COUNTED_SET_UNSOLVABLE", "").split():
        raise Unsolvable("told to have no solution")
    how, _, limit = os.environ.get("COUNTED_SET_STOP", "never:1000").partition(":")
    if log.exists() and len(log.read_text().split()) >= int(limit):
        return {"values": stop(how)}
    with log.open("a") as file:
        file.write(f"{case_seed}\n")
    if "COUNTED_SET_TALKS" in os.environ:
        print("a solver may print")
    return {"values": np.random.default_rng(case_seed).normal(size=100)}


def assemble(cases, out_dir, n_train, n_test, n_val):
    values = np.stack([case["values"] for case in cases])
    np.save(out_dir / "train.npy", values[:n_train])
    np.save(out_dir / "test.npy", values[n_train : n_train + n_test])
    if n_val:
        np.save(out_dir / "val.npy", values[n_train + n_test :])


SET = BuiltinSet("counted", 1, 6, 2, solve_case, assemble)

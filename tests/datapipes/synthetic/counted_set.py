"""A set whose solver notes every call in a file, and can be told to stop half-way.

The workers are separate processes, so the orders come through environment variables:
``COUNTED_SET_LOG`` names the file, ``COUNTED_SET_STOP`` = "<how>:<n>" stops the (n + 1)-th call.
"""

import os
import signal
from pathlib import Path

import numpy as np

from physicsnemo_flarepp.datapipes.synthetic.sets import SyntheticSet


def stop(how):
    if how == "error":
        raise ArithmeticError("told to fail")
    if how == "kill-parent":
        os.kill(os.getppid(), signal.SIGKILL)
    os._exit(3)


def solve_case(case_seed):
    log = Path(os.environ["COUNTED_SET_LOG"])
    how, _, limit = os.environ.get("COUNTED_SET_STOP", "never:1000").partition(":")
    if log.exists() and len(log.read_text().split()) >= int(limit):
        if how == "nan":
            return {"values": np.array([np.nan])}
        stop(how)
    with log.open("a") as file:
        file.write(f"{case_seed}\n")
    print("a solver may print")
    return {"values": np.random.default_rng(case_seed).normal(size=100)}


def assemble(cases, out_dir, n_train, n_test):
    values = np.stack([case["values"] for case in cases])
    np.save(out_dir / "train.npy", values[:n_train])
    np.save(out_dir / "test.npy", values[n_train:])


SET = SyntheticSet("counted", 1, 6, 2, solve_case, assemble)

"""A solver process: reads the ids of cases, solves the cases, writes their part files.

Run by :mod:`.processes` as ``python -m ... <module of the set> <seed> <parts folder>``. One case
(``train 12``) per line on standard input, one line of JSON per case on standard output.
"""

import json
import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

from .parts import write_part
from .sets import CaseId, case_seed


def serve(module: str, seed: int, parts: Path) -> None:
    """Answer requests until standard input ends, which it also does when the parent dies."""
    # Ctrl-C reaches the whole process group; the parent decides what happens to its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Answers keep the original standard output to themselves: a library that prints there must
    # not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    solve_case = import_module(module).SET.solve_case
    for line in sys.stdin:
        case = CaseId.parse(line)
        answer = {"case": str(case)}
        try:
            write_part(parts, case, solve_case(case_seed(seed, case)))
        except Exception:
            answer["error"] = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

"""Built-in set *listops*: nested list operations, by the rules of Long Range Arena.

A case is a block of 1,000 expressions, so that 96 + 2 + 2 cases are the published sizes. Files are
those of the published set: ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv``, with the
columns Source and Target. No expression is there twice: one that came before, in any split, is left
out, so that *listops_short*, with 17 to 63 symbols, is a little smaller than its blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...files import replace_file
from . import BuiltinSet, Case

SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
BLOCK = 1000
_CLOSE = SYMBOLS.index("]")


@dataclass(frozen=True)
class Rules:
    """How expressions are drawn: their depth, arguments, and lengths, both bounds left out."""

    depth: int = 10
    arguments: int = 10
    operators: float = 0.25
    shorter: int = 2000
    longer: int = 500


# Of the median int() keeps the whole part.
_OPERATORS = (min, max, np.median, lambda values: sum(values) % 10)


def draw_expression(rng: np.random.Generator, rules: Rules) -> tuple[list[int], int] | None:
    """Return the symbols of an expression and its value; None once it is too long."""
    symbols: list[int] = []
    # One draw per number costs more than the tree.
    uniform = iter(())

    def draw() -> float:
        nonlocal uniform
        for value in uniform:
            return value
        uniform = iter(rng.random(64).tolist())
        return next(uniform)

    def grow(depth: int) -> int:
        if len(symbols) >= rules.shorter:
            return 0
        if depth >= rules.depth or draw() >= rules.operators:
            symbols.append(int(10 * draw()))
            return symbols[-1]
        operator = int(4 * draw())
        symbols.append(10 + operator)
        count = 2 + int((rules.arguments - 1) * draw())
        values = [grow(depth + 1) for _ in range(count)]
        symbols.append(_CLOSE)
        return int(_OPERATORS[operator](values))

    value = grow(1)
    return (symbols, value) if rules.longer < len(symbols) < rules.shorter else None


def solve_case(case_seed: int, rules: Rules, count: int = BLOCK) -> Case:
    """Return ``symbols``, end to end, with the ``lengths`` and ``values`` of a block."""
    rng = np.random.default_rng(case_seed)
    found: list[tuple[list[int], int]] = []
    while len(found) < count:
        if (drawn := draw_expression(rng, rules)) is not None:
            found.append(drawn)
    return {
        "symbols": np.concatenate([np.array(symbols, np.uint8) for symbols, _ in found]),
        "lengths": np.array([len(symbols) for symbols, _ in found]),
        "values": np.array([value for _, value in found], np.uint8),
    }


def assemble(cases: Iterable[Case], out_dir: Path, n_train: int, n_test: int, n_val: int) -> None:
    """Write the three files; an expression that came before is left out."""
    cases, seen = iter(cases), set()

    def write(sink: BinaryIO, count: int) -> None:
        sink.write(b"Source\tTarget\n")
        for case in islice(cases, count):
            parts = np.split(case["symbols"], np.cumsum(case["lengths"])[:-1])
            for symbols, value in zip(parts, case["values"].tolist(), strict=True):
                key = hash(symbols.tobytes())
                if key not in seen:
                    seen.add(key)
                    sink.write(f"{' '.join(SYMBOLS[i] for i in symbols)}\t{value}\n".encode())

    for split, count in (("train", n_train), ("test", n_test), ("val", n_val)):
        if count:
            replace_file(out_dir / f"basic_{split}.tsv", partial(write, count=count))


SET = BuiltinSet("listops", 1, 96, 2, partial(solve_case, rules=Rules()), assemble)
_short = partial(solve_case, rules=Rules(longer=16, shorter=64))
SHORT = replace(SET, name="listops_short", n_train=20, solve_case=_short)

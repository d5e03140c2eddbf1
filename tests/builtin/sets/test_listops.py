"""ListOps against its published rules, by a second evaluator and a second generator."""

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.sets import listops
from physicsnemo_flarepp.builtin.sets.listops import SYMBOLS, Rules, draw_expression

FREE = Rules(longer=0, shorter=10**6)


def evaluate(symbols):
    """Value of an expression: the innermost brackets are replaced until a digit is left."""
    words = [SYMBOLS[i] for i in symbols]
    while len(words) > 1:
        end = words.index("]")
        start = max(i for i in range(end) if words[i].startswith("["))
        given = sorted(map(int, words[start + 1 : end]))
        value = {
            "[MIN": given[0],
            "[MAX": given[-1],
            "[MED": (given[(len(given) - 1) // 2] + given[len(given) // 2]) // 2,
            "[SM": sum(given) % 10,
        }[words[start]]
        words[start : end + 1] = [str(value)]
    return int(words[0])


def shape(symbols):
    """Largest depth of a node and numbers of arguments."""
    open_nodes, deepest, counts = [], 0, []
    for i in symbols:
        if SYMBOLS[i] == "]":
            counts.append(open_nodes.pop())
            continue
        if open_nodes:
            open_nodes[-1] += 1
        deepest = max(deepest, len(open_nodes) + 1)
        if i >= 10:
            open_nodes.append(0)
    return deepest, counts


@pytest.fixture(scope="module")
def block():
    """A block of the set of short expressions, taken apart."""
    case = listops.SHORT.solve_case(5, count=400)
    return np.split(case["symbols"], np.cumsum(case["lengths"])[:-1]), case["values"]


def test_values_are_those_of_a_second_evaluator(block):
    expressions, values = block
    assert [evaluate(symbols) for symbols in expressions] == values.tolist()
    rng = np.random.default_rng(1)
    drawn = [long for _ in range(400) if (long := draw_expression(rng, Rules(longer=64)))]
    assert drawn and all(evaluate(symbols) == value for symbols, value in drawn)


def test_trees_have_the_depth_arguments_and_operators_of_the_rules():
    rng = np.random.default_rng(0)
    drawn = [found[0] for _ in range(3000) if (found := draw_expression(rng, FREE)) is not None]
    assert np.mean([len(s) > 1 for s in drawn]) == pytest.approx(0.25, abs=4 * 0.008)
    depths, counts = zip(*map(shape, drawn), strict=True)
    assert max(depths) == 10
    counts = np.concatenate([c for c in counts if c]).astype(int)
    assert counts.min() == 2 and counts.max() == 10
    shares = np.bincount(counts)[2:] / len(counts)
    assert np.abs(shares - 1 / 9).max() < 0.015
    operators = np.bincount(np.concatenate(drawn).astype(int), minlength=15)[10:14]
    assert np.abs(operators / operators.sum() - 0.25).max() < 0.01
    digits = np.bincount(np.concatenate(drawn).astype(int), minlength=15)[:10]
    assert np.abs(digits / digits.sum() - 0.1).max() < 0.005


def reference_length(rng):
    """Length of an expression, by counting the nodes that are still to be drawn, per depth."""
    waiting, length = {1: 1}, 0
    while waiting:
        depth, nodes = waiting.popitem()
        operators = rng.binomial(nodes, 0.25) if depth < 10 else 0
        length += nodes - operators + 2 * operators
        if operators:
            waiting[depth + 1] = waiting.get(depth + 1, 0) + rng.integers(2, 11, operators).sum()
        if length >= 2000:
            return length
    return length


def test_lengths_and_labels_are_distributed_as_the_rules_say(block):
    expressions, values = block
    lengths = np.array([len(symbols) for symbols in expressions])
    assert 16 < lengths.min() and lengths.max() < 64
    rng, others = np.random.default_rng(9), []
    while len(others) < 1000:
        if 16 < (found := reference_length(rng)) < 64:
            others.append(found)
    error = np.std(others) * np.sqrt(1 / len(others) + 1 / len(lengths))
    assert np.mean(lengths) == pytest.approx(np.mean(others), abs=4 * error)
    labels = np.bincount(values, minlength=10) / len(values)
    # Minima and maxima make 0 and 9 the commonest.
    assert {*np.argsort(labels)[-2:].tolist()} == {0, 9} and 0.1 < labels.max() < 0.25


def test_published_lengths():
    rng, lengths = np.random.default_rng(3), []
    while len(lengths) < 20:
        if (found := draw_expression(rng, Rules())) is not None:
            lengths.append(len(found[0]))
    assert 500 < min(lengths) and max(lengths) < 2000
    assert (listops.SET.n_train * listops.BLOCK, listops.SET.n_test * listops.BLOCK) == (
        96_000,
        2_000,
    )


def test_no_expression_is_in_the_files_twice(tmp_path):
    case = {
        "symbols": np.array([1, 2, 3, 2], np.uint8),
        "lengths": np.array([1, 1, 1, 1]),
        "values": np.array([1, 2, 3, 2], np.uint8),
    }
    listops.assemble([case, case, case], tmp_path, 1, 1, 1)
    assert (tmp_path / "basic_train.tsv").read_text() == "Source\tTarget\n1\t1\n2\t2\n3\t3\n"
    assert (tmp_path / "basic_test.tsv").read_text() == "Source\tTarget\n"


def test_a_block_depends_on_its_seed_alone():
    first, again = (listops.SHORT.solve_case(5, count=20) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)

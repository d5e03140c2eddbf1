"""Tokens split into parts that fill the device: the same results, and as many parts as help."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from physicsnemo_flarepp.ops import (
    attention_backward,
    attention_with_lse,
    decode,
    encode,
    kernels,
    merge_partials,
    splits,
)

H, M, N, D = 3, 5, 149, 8
SPLITS = (1, 2, 7, 64)


def heads_inner(batch, n, dtype=torch.float64):
    """Tokens as projections store them."""
    return torch.randn(batch, n, H, D, dtype=dtype).transpose(1, 2)


def explicit_attention(q, k, v, measure):
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k) / math.sqrt(D) + measure.log()[:, None, None]
    out = torch.einsum("bhmn,bhnd->bhmd", scores.softmax(-1), v)
    return out, scores.logsumexp(-1)


def with_gradients(function, inputs, cotangents):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    results = function(*leaves)
    total = sum((a * b).sum() for a, b in zip(results, cotangents, strict=True))
    return [*(t.detach() for t in results), *torch.autograd.grad(total, leaves)]


def assert_all_close(found, expected, tolerance=1e-12):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("weighting", ["plain", "ragged", "weighted"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("n_splits", SPLITS)
def test_gathers_in_parts_equal_explicit_attention(n_splits, batch, weighting):
    q, k, v = (heads_inner(batch, n) for n in (M, N, N))
    measure = torch.ones(batch, N, dtype=torch.float64)
    if weighting == "ragged":  # whole parts of the last sample are padding
        measure[-1, 40:] = 0
    if weighting == "weighted":
        measure = torch.exp(3 * torch.randn(batch, N).double()) * (torch.rand(batch, N) > 0.3)
    given = {"plain": {}, "ragged": {"key_mask": measure > 0}, "weighted": {"key_weights": measure}}
    cotangents = torch.randn(batch, H, M, D).double(), torch.randn(batch, H, M).double()

    def in_parts(*qkv):
        return attention_with_lse(*qkv, splits=n_splits, **given[weighting])

    expected = with_gradients(lambda *qkv: explicit_attention(*qkv, measure), (q, k, v), cotangents)
    assert_all_close(with_gradients(in_parts, (q, k, v), cotangents), expected)
    only_out = with_gradients(
        lambda *qkv: (encode(*qkv, splits=n_splits, **given[weighting]),), (q, k, v), cotangents[:1]
    )
    assert_all_close(
        only_out,
        with_gradients(
            lambda *qkv: explicit_attention(*qkv, measure)[:1], (q, k, v), cotangents[:1]
        ),
    )


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("n_splits", SPLITS)
def test_decode_in_parts_equals_explicit_attention(n_splits, batch):
    k, q, z = (heads_inner(batch, n) for n in (N, M, M))
    cotangent = (heads_inner(batch, N),)
    ones = torch.ones(batch, M, dtype=torch.float64)
    found = with_gradients(lambda *t: (decode(*t, splits=n_splits),), (k, q, z), cotangent)
    expected = with_gradients(lambda *t: explicit_attention(*t, ones)[:1], (k, q, z), cotangent)
    assert_all_close(found, expected)


@pytest.mark.parametrize("n_splits", SPLITS)
def test_shares_of_a_shard_use_the_global_pair(n_splits):
    """What a rank computes for its shard, split, adds up to the gradients of all tokens."""
    q, k, v = (heads_inner(2, n) for n in (M, N, N))
    ones, grad = torch.ones(2, N, dtype=torch.float64), torch.randn(2, H, M, D).double()
    expected = with_gradients(lambda *qkv: explicit_attention(*qkv, ones)[:1], (q, k, v), (grad,))[
        1:
    ]
    shards = [(k[:, :, s], v[:, :, s]) for s in (slice(100), slice(100, None))]
    pairs = (attention_with_lse(q, *shard, splits=n_splits) for shard in shards)
    out, lse = merge_partials(*zip(*pairs, strict=True))
    shares = [
        attention_backward(grad, q, *shard, out, lse, scale=D**-0.5, splits=n_splits)
        for shard in shards
    ]
    assert_all_close(
        (
            shares[0][0] + shares[1][0],
            *(torch.cat((shares[0][i], shares[1][i]), 2) for i in (1, 2)),
        ),
        expected,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", [encode, decode])
def test_parts_cost_no_precision(call, dtype):
    """Against fp64: split results are as close as whole ones."""
    long, short = (heads_inner(1, n, dtype) for n in (N, M))
    inputs = (short, long, long + 1) if call is encode else (long, short, short + 1)
    cotangent = torch.randn(inputs[0].shape).to(dtype)
    exact = with_gradients(
        lambda *t: (call(*t, splits=1),), [t.double() for t in inputs], (cotangent.double(),)
    )
    errors = [
        [(a.double() - b).norm() for a, b in zip(found, exact, strict=True)]
        for found in (
            with_gradients(lambda *t, s=s: (call(*t, splits=s),), inputs, (cotangent,))
            for s in (1, 7)
        )
    ]
    scale = torch.finfo(dtype).eps
    for whole, split, reference in zip(*errors, exact, strict=True):
        assert split < 1.5 * whole + scale * reference.norm()


def test_equal_parts_are_views_of_the_tokens(monkeypatch):
    seen = []

    def kernel(q, k, v, log_weights, scale):
        seen.append((k.shape[0], k.data_ptr(), v.untyped_storage().data_ptr()))
        return kernels._math_forward(q, k, v, log_weights, scale)

    monkeypatch.setitem(kernels.FORWARD, "cpu", kernel)
    for batch, n in ((1, N), (2, 140)):  # 149 = 7 * 21 + 2
        q, k, v = (heads_inner(batch, rows) for rows in (M, n, n))
        seen.clear()
        attention_with_lse(q, k, v, splits=7)
        remainder = [(1, k[:, :, 147:].data_ptr())] if n == N else []
        assert [call[:2] for call in seen] == [(7 * batch, k.data_ptr()), *remainder]
        assert {call[2] for call in seen} == {v.untyped_storage().data_ptr()}


def calls(monkeypatch, table, name="cpu"):
    """Batch sizes with which a kernel is called from here on."""
    seen, kernel = [], table[name]

    def counting(*arguments):
        seen.append(arguments[1].shape[0])
        return kernel(*arguments)

    monkeypatch.setitem(table, name, counting)
    return seen


def test_every_direction_splits_by_its_own_need(monkeypatch):
    """Eight threads, one sample, three heads: decode has work for all of them forward only."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(splits, "TOKENS_PER_PART", 16)
    forward, backward = calls(monkeypatch, kernels.FORWARD), calls(monkeypatch, kernels.BACKWARD)
    long = [heads_inner(1, 3072).requires_grad_() for _ in range(2)]
    short = [heads_inner(1, M).requires_grad_() for _ in range(2)]
    decode(long[0], *short).sum().backward()
    assert forward == [1] and backward == [2]
    encode(short[0], *long).sum().backward()
    assert forward == [1, 2] and backward == [2, 2]
    with torch.no_grad():  # nothing to split: torch's own operator
        decode(long[0], *short)
    assert forward == [1, 2]


@pytest.mark.parametrize(
    "backend, backward, sizes, slots, expected",
    [
        ("cpu", True, (1, 1, 200_000, 64), 2, 2),
        ("cpu", True, (1, 8, 200_000, 64), 2, 1),  # the heads fill the threads
        ("cpu", True, (1, 8, 200_000, 64), 1, 1),
        ("cpu", False, (1, 8, 64, 200_000), 64, 4),  # two blocks of latents per head
        ("cpu", True, (1, 8, 200_000, 64), 64, 8),
        ("cpu", True, (1, 1, 3_000, 64), 64, 2),  # parts of at least 1024 tokens
        ("cpu", True, (1, 1, 900, 64), 64, 1),
        ("cpu", True, (1, 1, 9_000, 9_000), 64, 1),  # full attention has no few latents
        ("flash", False, (1, 8, 64, 200_000), 216, 1),  # splits its keys itself
        ("flash", True, (1, 8, 64, 200_000), 216, 1),  # parallel over keys
        ("flash", True, (1, 8, 200_000, 64), 216, 25),  # of at most 27 the next that divides N
        ("flash", True, (1, 8, 199_999, 64), 216, 27),  # a prime number of tokens
        ("efficient", False, (1, 8, 64, 200_000), 216, 25),
        ("efficient", False, (1, 8, 200_000, 64), 216, 1),
        ("efficient", True, (1, 8, 200_000, 64), 264, 32),
        ("efficient", True, (4, 8, 200_000, 256), 264, 2),
        ("math", True, (1, 1, 200_000, 64), 264, 1),
        ("efficient", True, (8, 8, 64, 2_097_088), 264, 1),
        ("efficient", True, (8, 8, 64, 2_097_089), 264, 2),  # its count of key blocks is an int16
        ("efficient", True, (1, 8, 64, 8_800_000), 264, 5),
        ("efficient", False, (64, 8, 64, 8_800_000), 264, 1),
    ],
)
def test_as_many_parts_as_fill_the_device(backend, backward, sizes, slots, expected, monkeypatch):
    monkeypatch.delenv(splits.VARIABLE, raising=False)
    assert splits.choose_splits(backend, backward, sizes, slots) == expected


def test_the_environment_decides_unless_the_caller_does(monkeypatch):
    sizes = (1, 8, 200_000, 64)
    monkeypatch.setenv(splits.VARIABLE, "5")
    assert splits.choose_splits("cpu", True, sizes, 1) == 5
    assert splits.choose_splits("cpu", True, sizes, 1, wanted=3) == 3
    assert splits.choose_splits("cpu", True, (1, 1, 2, 4), 1) == 4  # no part without tokens
    monkeypatch.setenv(splits.VARIABLE, "many")
    with pytest.raises(
        ValueError, match="FLAREPP_SPLITS must be \"auto\" or a number.* got 'many'"
    ):
        splits.choose_splits("cpu", True, sizes, 1)


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", [0, -2, 2.5])
def test_a_wrong_number_of_parts_is_named(wrong):
    q, k, v = (heads_inner(1, n) for n in (M, N, N))
    with pytest.raises(ValueError, match=f"splits must be None or an integer.*{wrong}"):
        encode(q, k, v, splits=wrong)


def round_trip(q, k, v):
    z = encode(q, k, v)
    return decode(k, q, z)


@pytest.mark.slow
@pytest.mark.unchecked
def test_one_graph_splits_every_token_count(monkeypatch):
    monkeypatch.setenv(splits.VARIABLE, "3")
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(round_trip, fullgraph=True, dynamic=True, backend=counter)
    calls_seen = calls(monkeypatch, kernels.BACKWARD)
    counts = []
    for n in (12, 31, 57):
        inputs = [heads_inner(2, rows) for rows in (M, n, n)]
        cotangent = (heads_inner(2, n),)
        found = with_gradients(lambda *t: (compiled(*t),), inputs, cotangent)
        monkeypatch.setenv(splits.VARIABLE, "1")
        assert_all_close(found, with_gradients(lambda *t: (round_trip(*t),), inputs, cotangent))
        monkeypatch.setenv(splits.VARIABLE, "3")
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1], "another token count compiled again"
    assert set(calls_seen) == {6, 2}  # parts and remainder


@pytest.mark.unchecked
def test_an_exported_graph_has_operators_of_torch_alone(monkeypatch):
    monkeypatch.setenv(splits.VARIABLE, "3")

    class RoundTrip(torch.nn.Module):
        def forward(self, q, k, v):
            return round_trip(q, k, v)

    tokens = torch.export.Dim("tokens", min=2)
    inputs = tuple(heads_inner(1, n) for n in (M, 20, 20))
    program = torch.export.export(
        RoundTrip(), inputs, dynamic_shapes=({}, {2: tokens}, {2: tokens})
    )
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called and not any("flarepp" in name for name in called)
    other = tuple(heads_inner(1, n) for n in (M, 33, 33))
    torch.testing.assert_close(program.module()(*other), round_trip(*other))


@pytest.mark.parametrize("call", [encode, decode])
def test_autocast_gives_one_dtype_whatever_the_parts(call):
    inputs = [heads_inner(1, n, torch.float32) for n in (M, N, N)]
    with torch.autocast("cpu", torch.bfloat16):
        whole, split = (call(*inputs, splits=s) for s in (1, 7))
    assert whole.dtype == split.dtype == torch.bfloat16
    torch.testing.assert_close(whole, split, rtol=0, atol=2e-2)

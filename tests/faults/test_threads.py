"""Many threads at once, each with a verb and a model of its own, get what one thread gets."""

import copy
import itertools
import random
import threading

import pytest
import torch

from physicsnemo_flarepp import LNO
from physicsnemo_flarepp.inference import decode_state, encode_state, predict
from physicsnemo_flarepp.ops import plain_operators
from physicsnemo_flarepp.ops.kernels import is_plain
from physicsnemo_flarepp.training import streamed_step
from tests.inference.streaming_cases import make_cloud, make_model

ROUNDS = 3
FX, EMBEDDING = make_cloud(tokens=23)
TARGET = torch.randn(*FX.shape[:2], 2, dtype=FX.dtype, generator=torch.Generator().manual_seed(0))


def models():
    names = ("flarepp", "flare", "transolver", "transolver3")
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2}
    found = {name: make_model(name, **sizes) for name in names}
    return found | {"lno": LNO(4, 2, embedding_dim=3, slice_num=5, **sizes).double().eval()}


def step(model):
    model.zero_grad()
    streamed_step(model, FX, EMBEDDING, TARGET, chunk_size=5)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def close(found, expected):
    return torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def plain(model):
    with plain_operators():
        return model(FX, EMBEDDING).detach()


VERBS = {
    "forward": lambda model: model(FX, EMBEDDING).detach(),
    "plain": plain,
    "predict": lambda model: predict(model, FX, EMBEDDING, chunk_size=7),
    "state": lambda model: decode_state(
        model, FX, EMBEDDING, encode_state(model, FX, EMBEDDING, chunk_size=7)
    ),
    "step": step,
}


def draws(keys, n_threads):
    """Every pair of model and verb beside every other, or some of the larger groups."""
    if n_threads == 2:
        return list(itertools.combinations_with_replacement(keys, 2))
    chosen = random.Random(n_threads)
    return [chosen.choices(keys, k=n_threads) for _ in range(40)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("n_threads", [2, 4, 8])
def test_every_verb_on_every_model_beside_any_other(n_threads, record_property):
    made = models()
    keys = list(itertools.product(made, VERBS))
    expected = {(name, verb): VERBS[verb](copy.deepcopy(made[name])) for name, verb in keys}
    calls, wrong = 0, []
    for drawn in draws(keys, n_threads):
        start, results = threading.Barrier(n_threads), [[] for _ in drawn]

        def work(results, name, verb, start=start):
            # A step leaves its gradients on the model; what only reads it is done on one model.
            model = copy.deepcopy(made[name]) if verb == "step" else made[name]
            start.wait()
            for _ in range(ROUNDS):
                results.append(VERBS[verb](model))

        threads = [
            threading.Thread(target=work, args=(found, *key))
            for found, key in zip(results, drawn, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for found, key in zip(results, drawn, strict=True):
            assert len(found) == ROUNDS, (key, drawn)  # a thread that failed
            calls += ROUNDS
            wrong += [key for value in found if not close(value, expected[key])]
    record_property("calls", calls)
    print(f"{n_threads} threads: {calls} calls, {len(wrong)} wrong")
    assert not wrong and not is_plain()

"""What a training step asks of a GPU: every operator of it, by name, without one.

On emulated cards the whole step runs on a CPU. Fake CUDA tensors, which autograd's engine refuses,
run all of it but the backward pass, and show copies to the host.
"""

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.ops import attention, splits
from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.optimizers import make_optimizer
from tests.cuda.standins import emulate

BODIES = {
    f"flarepp.{name}.default": getattr(attention, f"_{name}")._init_fn
    for name in ("attention", "attention_backward")
}
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class Recorder(TorchDispatchMode):
    """Counts operators, in our own ones too, and lists copies to the host."""

    def __init__(self):
        super().__init__()
        self.called, self.copies = Counter(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.called[function.overloadpacket.__name__] += 1
        if (body := BODIES.get(str(function))) is not None:
            with self:
                return body(*args, **(kwargs or {}))
        result = function(*args, **(kwargs or {}))
        source = next((x for x in args if isinstance(x, torch.Tensor)), None)
        if source is not None and isinstance(result, torch.Tensor):
            if source.device.type == "cuda" and result.device.type == "cpu":
                self.copies.append(str(function))
        return result

    def attention(self):
        return {name for name in self.called if "_dot_product_" in name}


def make_model(**options):
    sizes = {"n_layers": 2, "n_hidden": 64, "n_head": 4, "slice_num": 16}
    return MixerBackbone(3, 2, mixer="flarepp", norm="rms", **sizes, **options)


def training_step(model, backward, precision, optimizer, device):
    """Forward, `backward`, unscaling, clipping, update: TrainStep on one rank."""
    settings = TrainingConfig(precision=precision, optimizer=optimizer)
    optimizer = make_optimizer(model, settings)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def step(case, target):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        with torch.autocast(device, dtype, enabled=precision != "fp32"):
            y = model(**case)
        backward(scaler.scale(relative_l2_loss(y.float(), target)))
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


@pytest.mark.parametrize(
    "card, precision, kernel",
    [
        ("sm_75", "fp16", "efficient"),
        ("sm_80", "fp16", "flash"),
        ("sm_80", "bf16", "flash"),
        ("sm_80", "fp32", "efficient"),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_on_an_emulated_card_waits_for_nothing(
    card, precision, kernel, optimizer, monkeypatch
):
    emulate(monkeypatch, card)
    monkeypatch.setenv(splits.VARIABLE, "2")  # our own operators, whatever the size
    model = make_model()
    step = training_step(model, torch.Tensor.backward, precision, optimizer, "cpu")
    case = {"fx": torch.rand(1, 300, 3)}  # weights on the host would be checked, and so read
    step(case, torch.rand(1, 300, 2))
    with Recorder() as recorded:
        step(case, torch.rand(1, 300, 2))
    name = f"_scaled_dot_product_{kernel}_attention"
    assert recorded.attention() == {name, f"{name}_backward"}
    # Three of each block: two encodes and a decode, in two parts each (and one call for both).
    assert recorded.called[name] == recorded.called[f"{name}_backward"] == 6
    assert not [name for name in recorded.called if name in WAITS]


@pytest.fixture
def fake_cuda(monkeypatch):
    """A device whose tensors have no memory; our operators run their bodies on it.

    ``torch.autocast`` gives way without a driver, so the step's autocast is switched by hand.
    """
    for name in ("_attention", "_attention_backward"):
        monkeypatch.setattr(attention, name, getattr(attention, name)._init_fn)
    dtype = torch.get_autocast_dtype("cuda")

    @contextmanager
    def autocast(device, dtype=dtype, enabled=True):
        before = torch.is_autocast_enabled(device)
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
        yield
        torch.set_autocast_enabled(device, before)

    monkeypatch.setattr(torch, "autocast", autocast)
    with FakeTensorMode(), torch.device("cuda"):
        yield
    torch.set_autocast_dtype("cuda", dtype)


@pytest.mark.unchecked
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])  # torch's scaler wants a driver
def test_a_step_on_fake_cuda_tensors_copies_nothing_to_the_host(fake_cuda, precision, optimizer):
    model = make_model()

    def backward(loss):
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)

    step = training_step(model, backward, precision, optimizer, "cuda")
    case = {"fx": torch.rand(1, 5000, 3), "token_weights": torch.rand(1, 5000)}
    step(case, torch.rand(1, 5000, 2))
    with Recorder() as recorded:
        step(case, torch.rand(1, 5000, 2))
    kernel = "flash" if precision == "bf16" else "efficient"
    assert recorded.attention() == {f"_scaled_dot_product_{kernel}_attention"}
    assert recorded.copies == []
    assert not [name for name in recorded.called if name in WAITS]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "dtype, kernel",
    [(torch.float32, "efficient"), (torch.bfloat16, "flash"), (torch.float16, "flash")],
    ids=str,
)
def test_gradients_on_fake_cuda_tensors_copy_nothing_to_the_host(fake_cuda, dtype, kernel):
    """The backward pass of attention by hand: one kernel, and nothing of it on the host."""
    q, k, v = (torch.rand(1, n, 8, 16).to(dtype).transpose(1, 2) for n in (64, 5000, 5000))
    weights = torch.rand(1, 5000)
    with Recorder() as recorded:
        out, lse = attention._attention(q, k, v, weights, 0.25, None)
        ctx = SimpleNamespace(scale=0.25, splits=None, needs_input_grad=[True] * 4)
        ctx.saved_tensors = (q, k, v, weights, out, lse)
        attention._autograd_backward(ctx, out, lse)
    name = f"_scaled_dot_product_{kernel}_attention"
    assert recorded.attention() == {name, f"{name}_backward"}
    assert recorded.copies == [] and not [n for n in recorded.called if n in WAITS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_weights_cost_no_pass_and_nothing_unless_wanted(dtype, monkeypatch):
    emulate(monkeypatch, "sm_80")
    q, k, v = (torch.rand(1, n, 2, 16).to(dtype).transpose(1, 2) for n in (8, 300, 300))
    q.requires_grad_()
    recorded = {}
    for learned in (False, True):
        weights = (0.1 + torch.rand(1, 300)).requires_grad_(learned)
        out, lse = attention.attention_with_lse(q, k, v, key_weights=weights)
        with Recorder() as recorded[learned]:
            out.backward(out.detach())
    with Recorder() as alone:
        arguments = (out, q, k, v, out, lse, weights)
        attention._attention_backward(*(t.detach() for t in arguments), 0.25, None)
    operators = recorded[False].called - Counter({"detach": 99})
    assert operators == alone.called - Counter({"detach": 99})
    name, *others = recorded[True].attention()
    assert not others and recorded[True].called[name] == recorded[False].called[name] == 1

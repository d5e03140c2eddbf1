r"""Backward passes over the tokens of a mesh, chunk by chunk.

The forward pass is that of streaming prediction, and keeps the hidden states that enter each block
beside the latents. The backward pass goes through the blocks from the last to the first, and for
each of them over the chunks:

1. the update of the tokens: gives the gradient of the chunk, and summands of those of the latents;
2. once these are complete, the gathers, last one first. A chunk is given the gradients of the
   *whole* gather: a summand has those of the sum, and a part of a softmax has its share in one
   fused backward kernel (:meth:`~physicsnemo_flarepp.mixers.Mixer.gather_again`).

The first gather of a block and the update of the block before visit a chunk together, so a block
costs as many passes backwards as forwards. The loss is a function of sums over tokens: its gradient
reaches a chunk through the gradients of the sums. Over a context group latents' gradients and sums
are added up, and parameters' gradients stay partial, as those of the plain backward pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..inference.arrays import TokenArray
from ..inference.streams import ResidualStream, TokenPasses, fail_together
from ..mixers.base import Gathered, Latents
from ..models.layers import AnyBlock
from ..models.token_model import scale_weights
from ..ops import all_reduce, group_size
from ..ops.kernels import accumulation_dtype
from .losses import LossOverSums

# What a pass gets of a chunk; None where a model has no such input.
Loaded = tuple[Tensor | None, ...]
# The gradients that arrive at a gather and at its normaliser.
Pair = Sequence[Tensor | None]


class GradientPasses:
    """One pass forwards and backwards over all tokens; `places` get the gradients of inputs."""

    def __init__(
        self,
        passes: TokenPasses,
        targets: TokenArray | None,
        loss: LossOverSums,
        parameters: list[nn.Parameter],
        places: Mapping[str, TokenArray],
    ) -> None:
        self.passes, self.model, self.inputs = passes, passes.model, passes.inputs
        self.targets, self.loss, self.parameters = targets, loss, parameters
        group = self.model.context_group
        self.group = None if group is None or group_size(group) == 1 else group
        # Hidden states that enter each block, and the gradient of those that the passes came to.
        *self.states, self.gradient = passes.streams
        self.of_inputs = InputGradients(passes, places, self.group)
        # Thousands of chunks are added up: in fp64 that costs neither time nor digits.
        self.gradients = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        self.latents: list[Latents] = []
        self.gathered: list[tuple[Gathered, ...]] = []
        device = self.inputs.device.type
        self.half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

    def run(self, factor: float | Tensor) -> Float[Tensor, ""]:
        """Return the loss; leaves the gradients in :attr:`gradients`."""
        with torch.no_grad(), self._autocast():
            for _, latents, gathered in self.passes.blocks():
                self.latents.append(latents)
                self.gathered.append(gathered)
        sums = self._add_up_loss().requires_grad_()
        with torch.enable_grad():
            value = self.loss.value(sums)
            if value.numel() != 1 or not value.requires_grad:
                raise TypeError(
                    f"{type(self.loss).__name__}.value must be one number that depends on the "
                    f"sums, got the shape {tuple(value.shape)}"
                )
            (grad_sums,) = torch.autograd.grad(value * factor, sums)
        grads = self._differentiate_head(grad_sums)
        for number in reversed(range(len(self.model.blocks))):
            for position in reversed(range(1, len(grads))):
                pair = self._differentiate_finish(number, position, grads)
                self._differentiate_gather(number, position, pair, grads)
            pair = self._differentiate_finish(number, 0, grads)
            self.states[number].release()
            grads = self._differentiate_entry(number, pair)
        self.of_inputs.finish()
        return value.detach().reshape(()).to(accumulation_dtype(self.inputs.dtype))

    # The loss ------------------------------------------------------------------------------

    def _add_up_loss(self) -> Tensor:
        """Return the sums of the loss over the tokens of all chunks and ranks, in fp64."""
        total = None
        with self._together(), torch.no_grad():
            for index, (x, weights, target) in self._chunks(self._load_head):
                with self._autocast():
                    y = self._read_out(x, self.latents[-1], weights)
                sums = self.loss.sums(y, target, self.passes.ranges[index])
                if index == 0:
                    self._check_sums(sums, y, target)
                total = sums.double() if total is None else total + sums
        return total if self.group is None else all_reduce(total, "sum", self.group)

    def _check_sums(self, sums: Tensor, prediction: Tensor, target: Tensor | None) -> None:
        first = self.passes.ranges[0][0]
        nothing = None if target is None else target[:, :0]
        empty = self.loss.sums(prediction[:, :0], nothing, (first, first))
        if empty.shape != sums.shape or bool((empty != 0).any()):
            raise TypeError(
                f"{type(self.loss).__name__}.sums must add up over tokens, but over none it gives "
                f"{empty.flatten().tolist()[:3]} of shape {tuple(empty.shape)} and over some "
                f"{tuple(sums.shape)}; return sums, not means or rows, and divide in value"
            )

    def _read_out(self, x: Tensor, latents: Latents, weights: Tensor | None) -> Tensor:
        return self.model.read_out(self.model.blocks[-1].update(x, latents), weights)

    def _load_head(self, index: int) -> Loaded:
        rows, target = self.passes.ranges[index], None
        if self.targets is not None:
            target = self.inputs.to_device(self.targets.read(*rows))
        return self.states[-1].read(index), self.inputs.load_weights(*rows), target

    def _differentiate_head(self, grad_sums: Tensor) -> list[Tensor]:
        """Differentiate loss, read-out and the last update; return the gradients of its latents."""
        latents = _leaves(self.latents[-1])
        total = _zeros(latents)
        with self._together():
            for index, (x, weights, target) in self._chunks(self._load_head):
                (x,) = _leaves((x,))
                target, learned = self.of_inputs.leaf("target", target)
                with torch.enable_grad():
                    with self._autocast():
                        y = self._read_out(x, latents, weights)
                    sums = self.loss.sums(y, target, self.passes.ranges[index])
                arriving = [(sums, grad_sums.to(sums.dtype))]
                grads = self._backward(arriving, [x, *latents, *learned])
                self.gradient.write(index, grads[0])
                _add(total, grads[1:])
                if learned:
                    self.of_inputs.store("target", index, grads[-1])
                if weights is not None:
                    nothing = x.new_zeros((*weights.shape, 1), dtype=accumulation_dtype(x.dtype))
                    self.of_inputs.add_to_weights(index, nothing, None)
        return total

    # A block -------------------------------------------------------------------------------

    def _differentiate_finish(self, number: int, position: int, grads: list[Tensor]) -> Pair:
        """Return the gradients of a whole gather; adds those of the latents before it."""
        gathered = _leaves(self.gathered[number][position])
        before = _leaves(self.latents[number][:position])
        with torch.enable_grad(), self._autocast():
            latent = self.model.blocks[number].mixer.finish((gathered[0], gathered[1]), before)
        found = self._backward([(latent, grads[position].to(latent.dtype))], [*gathered, *before])
        _add(grads, found[2:])
        if self.group is None:
            return found[:2]
        return [None if g is None else all_reduce(g, "sum", self.group) for g in found[:2]]

    def _differentiate_gather(
        self, number: int, position: int, pair: Pair, grads: list[Tensor]
    ) -> None:
        """Differentiate a later gather, of stored states and earlier latents."""
        block, gathered = self.model.blocks[number], self.gathered[number][position]
        before = _leaves(self.latents[number][:position])

        def load(index: int) -> Loaded:
            weights = self.inputs.load_weights(*self.passes.ranges[index])
            known = self.gradient.read(index), self.of_inputs.read_summed(index)
            return *known, self.states[number].read(index), weights

        with self._together():
            for index, (grad, summed, x, weights) in self._chunks(load):
                (x,) = _leaves((x,))
                weights, learned = self.of_inputs.leaf("token_weights", weights)
                arriving = self._gather_again(block, x, before, weights, gathered, pair)
                found = self._backward(arriving, [x, *before, *learned])
                if found[0] is not None:
                    self.gradient.write(index, grad + found[0])
                _add(grads, found[1 : 1 + len(before)])
                if learned:
                    self.of_inputs.add_to_weights(index, summed, found[-1])

    def _differentiate_entry(self, number: int, pair: Pair) -> list[Tensor]:
        """Differentiate the first gather of a block, and the update or embedding before it."""
        block, gathered = self.model.blocks[number], self.gathered[number][0]
        latents = _leaves(self.latents[number - 1]) if number else ()
        total = _zeros(latents)

        def load(index: int) -> Loaded:
            rows = self.passes.ranges[index]
            known = self.gradient.read(index), self.of_inputs.read_summed(index)
            if number == 0:
                return *known, *self.inputs.load(*rows)
            return *known, self.states[number - 1].read(index), self.inputs.load_weights(*rows)

        with self._together():
            for index, (grad, summed, *tokens, weights) in self._chunks(load):
                weights, learned = self.of_inputs.leaf("token_weights", weights)
                wanted: dict[str, Tensor] = {}
                if number == 0:
                    for place, name in enumerate(("fx", "embedding")):
                        tokens[place], leaf = self.of_inputs.leaf(name, tokens[place])
                        wanted |= {name: leaf[0]} if leaf else {}
                else:
                    tokens = _leaves(tokens)
                    wanted["state"] = tokens[0]
                with torch.enable_grad(), self._autocast():
                    if number == 0:
                        x = self.model.embed(*tokens, self.inputs.time, weights)
                    else:
                        x = self.model.blocks[number - 1].update(*tokens, latents)
                arriving = [(x, grad)]
                arriving += self._gather_again(block, x, (), weights, gathered, pair)
                found = self._backward(arriving, [*wanted.values(), *latents, *learned])
                if learned:
                    self.of_inputs.add_to_weights(index, summed, found[-1])
                if number == 0:
                    for name, gradient in zip(wanted, found, strict=False):
                        self.of_inputs.store(name, index, gradient)
                else:
                    self.gradient.write(index, found[0])
                    _add(total, found[1:])
        return total

    def _gather_again(
        self,
        block: AnyBlock,
        x: Tensor,
        before: Latents,
        weights: Tensor | None,
        gathered: Gathered,
        pair: Pair,
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Return a chunk's gather and the gradients that arrive at it."""
        with torch.enable_grad(), self._autocast():
            found = block.mixer.gather_again(block.norm_mixer(x), before, weights, gathered)
        return list(zip(found, pair, strict=True))

    # Tools ---------------------------------------------------------------------------------

    def _autocast(self) -> torch.autocast:
        """Run as the caller's autocast has it, without its cache."""
        # A weight that was cast without a gradient would be found there by the passes with one.
        device, enabled = self.inputs.device.type, self.half is not None
        return torch.autocast(device, self.half, enabled=enabled, cache_enabled=False)

    def _together(self):
        """Let an error on one rank, which may be in the caller's loss, stop all."""
        return fail_together(self.group, self.inputs.device)

    def _chunks(self, load: Callable[[int], Loaded]) -> Iterator[tuple[int, Loaded]]:
        for chunk in self.passes.transfers.prefetch(load, len(self.passes.ranges)):
            yield chunk
            self.passes.advance()

    def _backward(
        self, outputs: Sequence[tuple[Tensor, Tensor | None]], wanted: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients of what is wanted; adds those of the parameters."""
        known = [(out, g) for out, g in outputs if g is not None and out.requires_grad]
        if not known:
            return [None] * len(wanted)
        tensors, grads = [out for out, _ in known], [grad.to(out.dtype) for out, grad in known]
        sources = [*wanted, *self.parameters]
        with torch.autocast(self.inputs.device.type, enabled=False):
            found = torch.autograd.grad(tensors, sources, grads, allow_unused=True)
        _add(self.gradients, found[len(wanted) :])
        return list(found[: len(wanted)])


def _leaves(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().requires_grad_() for tensor in tensors)


def _zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(tensor, dtype=torch.float64) for tensor in tensors]


def _add(totals: Sequence[Tensor], summands: Sequence[Tensor | None]) -> None:
    for total, summand in zip(totals, summands, strict=False):
        if summand is not None:
            total += summand


class InputGradients:
    """Gradients of those of fx, embedding, token_weights and target that have an array in `places`.

    Rows of tokens come once. Weights get a summand from every gather: their sum waits in a stream,
    one number per token. They are scaled to one total, so the gradient of the total is theirs too;
    it is added when it is complete, as is the gradient of one row of fx that all tokens share.
    """

    def __init__(
        self, passes: TokenPasses, places: Mapping[str, TokenArray], group: str | None
    ) -> None:
        self.places, self.group = places, group
        self.inputs = inputs = passes.inputs
        self.ranges, self.transfers = passes.ranges, passes.transfers
        self.summed: ResidualStream | None = None
        if "token_weights" in places:
            place = passes.streams[-1].place
            self.summed = ResidualStream(passes.ranges, passes.transfers, place)
        # One row of fx is shared by all tokens, or that of an only token. A rank that owns one
        # token cannot tell; some other rank can.
        self.is_shared = False
        if "fx" in places and inputs.embedding is not None:
            vote = inputs.fx.shape[1] == 1 and inputs.n_tokens != 1
            self.is_shared = bool(self._over_ranks(torch.tensor([float(vote)]), "max"))
        self._of_row: Tensor | None = None

    def leaf(self, name: str, value: Tensor | None) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Return an input of a chunk, and again in a tuple of what to differentiate by."""
        if name not in self.places or value is None:
            return value, ()
        value = value.detach().requires_grad_()
        return value, (value,)

    def store(self, name: str, index: int, gradient: Tensor | None) -> None:
        """Write the gradient of the rows of a chunk; None is 0."""
        place, (start, stop) = self.places[name], self.ranges[index]
        if gradient is None:
            rows = 1 if name == "fx" and self.is_shared else stop - start
            gradient = torch.zeros(place.shape[0], rows, place.shape[2], device=self.inputs.device)
        if name == "fx" and self.is_shared:
            part = gradient.double()
            self._of_row = part if self._of_row is None else self._of_row + part
        else:
            place.write(start, gradient)

    def read_summed(self, index: int) -> Tensor | None:
        """Return the gradient of the weights of a chunk so far, (B, rows, 1), if it is wanted."""
        return None if self.summed is None else self.summed.read(index)

    def add_to_weights(self, index: int, summed: Tensor, gradient: Tensor | None) -> None:
        """Keep what a chunk's weights got so far and what a gather adds, (B, rows)."""
        if self.summed is not None:
            self.summed.write(index, summed if gradient is None else summed + gradient[..., None])

    def finish(self) -> None:
        """Write what is complete after the last chunk only."""
        if self._of_row is not None:
            self.places["fx"].write(0, self._over_ranks(self._of_row, "sum"))
        if self.summed is None:
            return
        place, of_total = self.places["token_weights"], torch.zeros(self.inputs.batch).double()
        chunks = self.transfers.prefetch(lambda i: (self.summed.read(i),), len(self.ranges))
        with fail_together(self.group, self.inputs.device):
            for index, (summed,) in chunks:
                start, stop = self.ranges[index]
                leaves = [self.inputs.read_weights(start, stop), self.inputs.total_weight]
                leaves = [self.inputs.to_device(leaf).detach().requires_grad_() for leaf in leaves]
                with torch.enable_grad():
                    scaled = scale_weights(*leaves, self.inputs.dtype)
                of_weights, share = torch.autograd.grad(scaled, leaves, summed[..., 0])
                place.write(start, of_weights)
                of_total += share.cpu()
        of_total = self._over_ranks(of_total, "sum")[:, None]
        for start, stop in self.ranges:
            padding = self.inputs.read_weights(start, stop).cpu() == 0
            stored = place.read(start, stop).cpu()
            place.write(start, stored + of_total.masked_fill(padding, 0.0))

    def _over_ranks(self, value: Tensor, op: str) -> Tensor:
        if self.group is None:
            return value
        return all_reduce(value.to(self.inputs.device), op, self.group).to(value.device)

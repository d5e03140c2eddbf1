"""Gradients of the inputs of streamed passes, written chunk by chunk to arrays."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..inference.inputs import TokenArray
from ..inference.passes import TokenPasses, fail_together
from ..inference.streams import ResidualStream
from ..models.token_weights import scale_weights
from ..ops import all_reduce, group_size


class InputGradients:
    """Gradients of those of fx, embedding, token_weights and target that have an array in `places`.

    Rows of tokens come once. Weights get a summand from every gather: their sum waits in a stream,
    one number per token. They are scaled to one total, so the gradient of the total is theirs too;
    it is added when it is complete, as is the gradient of one row of fx that all tokens share.
    """

    def __init__(self, passes: TokenPasses, places: Mapping[str, TokenArray]) -> None:
        self.places = places
        self.inputs = inputs = passes.inputs
        self.ranges, self.transfers = passes.ranges, passes.transfers
        group = passes.model.context_group
        self.group = None if group is None or group_size(group) == 1 else group
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
        self._of_total: Tensor | None = None

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

        def load(index: int) -> tuple[Tensor]:
            return (self.summed.read(index),)

        with fail_together(self.group, self.inputs.device):
            for index, (summed,) in self.transfers.prefetch(load, len(self.ranges)):
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

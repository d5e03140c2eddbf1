r"""Passes over the tokens: gather the latents of each block, update each token.

Block b needs ``n_gathers`` passes. Its first gather runs on each chunk right after the chunk was
updated by block b - 1 (or embedded), so an update costs no pass of its own, and a prediction of B
blocks reads the residual stream ``B * n_gathers`` times. With a context-parallel group each rank
runs over its own tokens, and the ranks merge once per gather.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from jaxtyping import Bool
from torch import Tensor

from ..mixers import Mixer
from ..mixers.base import Gathered, Latents
from ..models import TokenModel
from ..models.layers import AnyBlock
from ..models.token_model import check_totals
from ..ops import all_reduce, group_size
from ..ops.kernels import accumulation_dtype
from .arrays import TokenInputs
from .streams import Range, ResidualStream, Transfers


@contextmanager
def fail_together(group: str | None, device: torch.device) -> Iterator[None]:
    """Let an error on one rank stop all ranks of a group, instead of leaving them waiting."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if group is not None and group_size(group) > 1:
        mine = 0 if error is None else dist.get_rank() + 1
        failed = int(all_reduce(torch.tensor([float(mine)], device=device), "max", group))
        if error is None and failed:
            raise RuntimeError(
                f"rank {failed - 1} of the context group failed on its inputs; see its error"
            )
    if error is not None:
        raise error


class RunningGather:
    """Merges partial gathers one by one.

    In fp64, whatever the model's dtype: thousands of merges of M rows then cost neither time nor
    digits.
    """

    def __init__(self, mixer: Mixer) -> None:
        self._mixer = mixer
        self._total: Gathered | None = None
        self._dtype = torch.float32

    def add(self, partial: Gathered) -> None:
        """Merge in the gather over further tokens."""
        self._dtype = accumulation_dtype(partial[0].dtype)
        wide = partial[0].double(), partial[1].double()
        self._total = wide if self._total is None else self._mixer.merge([self._total, wide])

    def result(self) -> Gathered:
        """Return the gather over all tokens seen, in fp32, or fp64 for fp64 models."""
        if self._total is None:
            raise RuntimeError("nothing was gathered; add a partial gather first")
        return self._total[0].to(self._dtype), self._total[1].to(self._dtype)


class TokenPasses:
    """Runs a model over its tokens chunk by chunk, and calls ``advance`` after each one.

    The streams keep the hidden states that enter each block: the same one for all blocks, unless
    those of earlier blocks are wanted later. Further ones get their memory together with these.
    """

    def __init__(
        self,
        model: TokenModel,
        inputs: TokenInputs,
        ranges: list[Range],
        streams: Sequence[ResidualStream],
        transfers: Transfers,
        advance: Callable[[], None],
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.ranges = ranges
        self.streams = streams
        self.transfers = transfers
        self.advance = advance

    def gather(self) -> tuple[Latents, ...]:
        """Return the latents of every block; leaves the input of the last block in its stream."""
        return tuple(latents for _, latents, _ in self.blocks())

    def blocks(self) -> Iterator[tuple[int, Latents, tuple[Gathered, ...]]]:
        """Yield number, latents and merged gathers of each block.

        While a block is yielded, :meth:`stored` gives the hidden states that enter it.
        """
        if self.inputs.token_weights is not None:
            self._measure()
        latents: list[Latents] = []
        for number, block in enumerate(self.model.blocks):
            mixer = block.mixer
            finished: Latents = ()
            gathered: tuple[Gathered, ...] = ()
            while len(finished) < mixer.n_gathers:
                gathered += (self._gather_all(block, finished, number, latents),)
                finished += (mixer.finish(gathered[-1], finished),)
            latents.append(finished)
            yield number, finished, gathered

    def _measure(self) -> None:
        """Find what the weights of each sample add up to, over all chunks and ranks."""
        group = self.model.context_group
        with fail_together(group, self.inputs.device):
            total = self.inputs.add_up_weights(self.ranges)
        if group is not None and group_size(group) > 1:
            total = all_reduce(total, "sum", group)
        check_totals(total.cpu())
        self.inputs.total_weight = total

    def _gather_all(
        self, block: AnyBlock, finished: Latents, number: int, latents: list[Latents]
    ) -> Gathered:
        """Return the next gather of a block, over the tokens of all chunks and ranks."""
        group = block.mixer.context_group
        total = RunningGather(block.mixer)
        if finished:
            self._add_all(total, block, self.stored(number), finished)
        elif number > 0:
            self._add_all(total, block, self._entering(number, latents), finished)
        else:
            # Only this pass reads the caller's rows and makes room for the hidden states, so only
            # here can a rank fail alone.
            with fail_together(group, self.inputs.device):
                self._add_all(total, block, self._entering(0, latents), finished)
        gathered = block.mixer.merge_ranks(total.result())
        if number == 0 and not finished:
            _check_every_sample_has_tokens(gathered[1] == block.mixer.weight_of_nothing)
        return gathered

    def _add_all(
        self,
        total: RunningGather,
        block: AnyBlock,
        states: Iterator[tuple[int, Tensor, Tensor | None]],
        finished: Latents,
    ) -> None:
        for _, x, weights in states:
            total.add(block.mixer.gather(block.norm_mixer(x), finished, weights))
            self.advance()

    def read_out(self, latents: tuple[Latents, ...]) -> Iterator[tuple[Range, Tensor]]:
        """Yield the outputs of each chunk after :meth:`gather`."""
        for index, x, weights in self._entering(len(self.model.blocks), latents):
            yield self.ranges[index], self.model.read_out(x, weights)
            self.advance()

    def _entering(
        self, number: int, latents: Sequence[Latents]
    ) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the hidden states before block ``number`` and keep those that are used again."""
        states = self._embedded() if number == 0 else self.stored(number - 1)
        for index, x, weights in states:
            if number > 0:
                x = self.model.blocks[number - 1].update(x, latents[number - 1])
            if number == 0:
                for stream in self.streams:
                    stream.reserve(x)
            if number < len(self.model.blocks):
                self.streams[number].write(index, x)
            yield index, x, weights

    def _embedded(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        def load(index: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
            return self.inputs.load(*self.ranges[index])

        for index, (fx, embedding, weights) in self.transfers.prefetch(load, len(self.ranges)):
            yield index, self.model.embed(fx, embedding, self.inputs.time, weights), weights

    def stored(self, number: int) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield index, hidden states that enter a block, and weights of each chunk."""
        stream = self.streams[number]

        def load(index: int) -> tuple[Tensor, Tensor | None]:
            return stream.read(index), self.inputs.load_weights(*self.ranges[index])

        for index, (x, weights) in self.transfers.prefetch(load, len(self.ranges)):
            yield index, x, weights


def _check_every_sample_has_tokens(nothing: Bool[Tensor, "B H M"]) -> None:
    empty = nothing.flatten(1).all(1)
    if empty.any():
        samples = empty.nonzero().flatten().tolist()
        raise ValueError(
            f"sample(s) {samples} have no token: N is 0, or token_mask is False everywhere; "
            "drop these samples"
        )

"""Batches of cases with different numbers of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int, Shaped
from physicsnemo.datapipes import Collator
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

TOKEN_KEYS = ("coordinates", "features", "fields", "tokens", "weights")


def pad_tokens(tensors: Sequence[Shaped[Tensor, "n ..."]]) -> Shaped[Tensor, "B N ..."]:
    """Return the tensors stacked, with zeros after the last token of the shorter ones.

    Examples
    --------
    >>> pad_tokens([torch.ones(1, 2), torch.ones(3, 2)]).sum(-1)
    tensor([[2., 0., 0.],
            [2., 2., 2.]])
    """
    if len({len(tensor) for tensor in tensors}) == 1:
        return torch.stack(list(tensors))
    return pad_sequence(list(tensors), batch_first=True)


def _to_device(values: list[int], device: torch.device) -> Int[Tensor, " n"]:
    """Return `values` on the device without waiting for it, which unpinned memory would."""
    pinned = torch.tensor(values, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


class PadCollator(Collator):
    r"""Stack samples to a batch, with padding and a mask where their lengths differ.

    A batch is a TensorDict of batch size :math:`B` with ``coordinates`` :math:`(B, N, d)`,
    ``fields``, ``features``, ``tokens`` and ``weights`` :math:`(B, N)`, ``globals``
    :math:`(B, g)`, ``case_index`` :math:`(B,)`, the position of each case in its split, and, only
    if the samples differ in length, ``token_mask`` :math:`(B, N)`, True for real tokens. Padding
    is 0.

    Parameters
    ----------
    collate_metadata : bool, optional
        Return ``(batch, [metadata, ...])`` instead of the batch.

    Examples
    --------
    >>> short, long = (TensorDict({"coordinates": torch.rand(n, 3)}) for n in (2, 4))
    >>> batch = PadCollator()([(short, {"index": 0}), (long, {"index": 1})])
    >>> batch["token_mask"].sum(1)
    tensor([2, 4])
    """

    def __init__(self, *, collate_metadata: bool = False) -> None:
        self.collate_metadata = collate_metadata

    def __call__(
        self, samples: Sequence[tuple[TensorDict, dict[str, Any]]]
    ) -> TensorDict | tuple[TensorDict, list[dict[str, Any]]]:
        """Return the batch of `samples`."""
        data = [sample for sample, _ in samples]
        metadata = [description for _, description in samples]
        device = data[0]["coordinates"].device
        batch = {}
        for key in data[0].keys():
            columns = [sample[key] for sample in data]
            batch[key] = pad_tokens(columns) if key in TOKEN_KEYS else torch.stack(columns)
        lengths = [len(sample["coordinates"]) for sample in data]
        if len(set(lengths)) > 1:
            positions = torch.arange(max(lengths), device=device)
            batch["token_mask"] = positions < _to_device(lengths, device)[:, None]
        batch["case_index"] = _to_device([m["index"] for m in metadata], device)
        collated = TensorDict(batch, batch_size=[len(data)], device=device)
        return (collated, metadata) if self.collate_metadata else collated

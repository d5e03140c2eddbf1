"""How many tokens to work on at a time."""

import psutil
import torch
from torch import nn

from ..models import MixerBackbone

Range = tuple[int, int]

# Numbers held per token at the worst moment, bounded from above: temporaries of hidden width, of
# the widest layer, and of the slice weights that the Transolver family forms.
_HIDDEN_TEMPORARIES = 16
_WIDEST_TEMPORARIES = 3
_SLICE_TEMPORARIES = 4
_SHARE_OF_FREE_MEMORY = 0.25
# Beyond these, larger chunks only cost memory: a GPU is full, and on a CPU the temporaries of one
# chunk leave the caches.
_MOST_TOKENS = {"cuda": 2**18}
_MOST_TOKENS_ELSEWHERE = 2**12
_FEWEST_TOKENS = 2**8


def token_ranges(n_tokens: int, chunk_size: int) -> list[Range]:
    """Cut ``n_tokens`` into consecutive ranges; without tokens there is one empty range.

    Examples
    --------
    >>> token_ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    starts = range(0, max(n_tokens, 1), chunk_size)
    return [(start, min(start + chunk_size, n_tokens)) for start in starts]


def resolve_chunk_size(
    chunk_size: int | str | None, model: MixerBackbone, batch: int, reserved: int = 0
) -> int:
    """Give the tokens per chunk: the caller's number, or what free memory allows for "auto".

    Parameters
    ----------
    chunk_size : int, "auto" or None
        None is "auto".
    model : MixerBackbone
        The model that will work on the chunks.
    batch : int
        Samples per chunk.
    reserved : int, optional
        Bytes of the free device memory that are already spoken for.

    Returns
    -------
    int
        With "auto" a power of two of at least 256 tokens.

    Examples
    --------
    >>> model = MixerBackbone(3, 1, n_layers=1, n_hidden=32, n_head=4)
    >>> resolve_chunk_size(1000, model, 1)
    1000
    """
    if chunk_size is None or chunk_size == "auto":
        return _auto_chunk_size(model, batch, reserved)
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(
            f'chunk_size must be a positive number of tokens or "auto", got {chunk_size!r}'
        )
    return chunk_size


def _auto_chunk_size(model: MixerBackbone, batch: int, reserved: int) -> int:
    parameter = next(model.parameters())
    block = model.blocks[0]
    slices = block.mixer.heads * model._args["__args__"].get("slice_num", block.mixer.head_dim)
    widest = max(m.out_features for m in block.modules() if isinstance(m, nn.Linear))
    numbers = _HIDDEN_TEMPORARIES * model.stream_width + _SLICE_TEMPORARIES * slices
    numbers += _WIDEST_TEMPORARIES * widest
    per_token = numbers * batch * parameter.element_size()
    room = (free_memory(parameter.device) - reserved) * _SHARE_OF_FREE_MEMORY
    most = _MOST_TOKENS.get(parameter.device.type, _MOST_TOKENS_ELSEWHERE)
    tokens = min(most, max(_FEWEST_TOKENS, int(room / per_token)))
    return 2 ** (tokens.bit_length() - 1)


def free_memory(device: torch.device) -> int:
    """Give the bytes free on a CUDA device, or available on the machine for any other.

    Examples
    --------
    >>> free_memory(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available

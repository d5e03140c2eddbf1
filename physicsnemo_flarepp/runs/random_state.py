"""State of every random generator of a run, as plain values that a checkpoint can hold."""

import random
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def capture_random_state() -> dict[str, Any]:
    """Return the state of this process's generators: python, numpy, torch, and CUDA if in use.

    Tensors, numbers and lists only, so that ``torch.load(weights_only=True)`` reads it.
    """
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    # A CUDA context costs memory, so none is made only to look at its generator.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set this process's generators to a captured state, those of CUDA on the devices here."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            legacy["kind"],
            legacy["keys"].cpu().numpy().astype(np.uint32),
            legacy["position"],
            legacy["has_gauss"],
            legacy["cached_gaussian"],
        )
    )
    torch.set_rng_state(state["torch"].cpu())
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if state["cuda"] and devices != len(state["cuda"]):
        warnings.warn(
            f"the random state is of {len(state['cuda'])} CUDA devices, {devices} are here: draws "
            "on other devices will not be those of the run that saved it",
            stacklevel=2,
        )
    for device, cuda_state in enumerate(state["cuda"][:devices]):
        torch.cuda.set_rng_state(cuda_state.cpu(), device)


def gather_random_states(group: ProcessGroup | None = None) -> list[dict[str, Any]]:
    """Return the states of all ranks in rank order, on every rank; one rank writes them."""
    state = capture_random_state()
    size = _size(group)
    if size == 1:
        return [state]
    states: list = [None] * size
    dist.all_gather_object(states, state, group=group)
    return states


def restore_own_random_state(
    states: list[dict[str, Any]], group: ProcessGroup | None = None
) -> None:
    """Set this rank's generators to its entry; ValueError if the number of ranks differs."""
    size = _size(group)
    if len(states) != size:
        raise ValueError(
            f"the checkpoint holds the random states of {len(states)} ranks, but {size} are "
            "running; a run resumes bit for bit only with as many ranks as before. Start "
            f"{len(states)} ranks, or a new run in another run_dir"
        )
    restore_random_state(states[0 if size == 1 else dist.get_rank(group)])


def _size(group: ProcessGroup | None) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1

"""The latents of every block: all that a prediction knows about the whole cloud."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..files import replace_file
from ..models import TokenModel

_FORMAT = "flarepp-latent-state-2"
# Arguments that change how a model starts and is trained, not what it computes (with noise nothing
# is streamed). The mixer enters by its class, so that FlarePP and MixerBackbone(mixer="flarepp")
# with equal weights are one model.
_NOT_IN_FINGERPRINT = {
    "dropout", "checkpoint_blocks", "activation_checkpointing", "checkpointing_ratio", "plus",
    "mixer", "init", "orthogonal_slices", "noise_at_evaluation",
}  # fmt: skip
# Raised when equal settings and weights come to compute something else (CHANGELOG.md).
_REVISION = 2
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The last fingerprint of each model, and what its weights looked like then; by its first mixer,
# which the views of a PhysicsNeMo model have in common.
_KNOWN: WeakKeyDictionary[nn.Module, tuple[object, str]] = WeakKeyDictionary()


def model_fingerprint(model: TokenModel) -> str:
    """Hash of all that determines what a model computes: its settings and weights.

    64 hexadecimal digits, equal for equal models, whatever the device. Weights are read on the
    host once, and again after they changed.
    """
    settings = {k: v for k, v in model.settings.items() if k not in _NOT_IN_FINGERPRINT}
    settings["revision"] = _REVISION
    settings["mixers"] = [type(block.mixer).__name__ for block in model.blocks]
    described = json.dumps(settings, sort_keys=True, default=list)
    tensors = model.state_dict()
    look = described, _looks(tensors)
    known = model.blocks[0].mixer
    if known not in _KNOWN or _KNOWN[known][0] != look:
        _KNOWN[known] = look, _checksum(tensors, described)
    return _KNOWN[known][1]


def _looks(tensors: Mapping[str, Tensor]) -> object:
    """Return what differs after a change of any tensor, found on the device but for a few bytes.

    Memory and its version tell most changes. Writing through ``.data`` raises no version, so the
    bits are added up too.
    """
    sums, places = [], []
    for name, tensor in tensors.items():
        bits = tensor.detach().view(_INTEGERS[tensor.element_size()])
        sums.append(bits.sum(dtype=torch.int64))
        version = 0 if tensor.is_inference() else tensor._version
        places.append((name, tensor.dtype, tuple(tensor.shape), tensor.data_ptr(), version))
    return places, torch.stack(sums).tolist()


@dataclass(frozen=True)
class LatentState:
    r"""What a model has gathered from a cloud: with it any point can be evaluated alone.

    Parameters
    ----------
    latents : tuple of tuple of torch.Tensor
        For each block the latents of its mixer, each :math:`(B, H, M, D)`: (q, z) for flarepp,
        (z,) for flare, the attended slices for the Transolver family.
    fingerprint : str
        :func:`model_fingerprint` of the model that made it.
    time : torch.Tensor, optional
        The time :math:`(B,)` it was encoded at; further points are evaluated at the same.

    Examples
    --------
    >>> state = LatentState(((torch.zeros(1, 2, 4, 8),) * 2,), "0" * 64)
    >>> state.batch, state.dtype, state.shapes
    (1, torch.float32, (((1, 2, 4, 8), (1, 2, 4, 8)),))
    """

    latents: tuple[tuple[Tensor, ...], ...]
    fingerprint: str
    time: Tensor | None = None

    @property
    def batch(self) -> int:
        """Number of clouds."""
        return self.latents[0][0].shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the latents: fp32, or fp64 for an fp64 model."""
        return self.latents[0][0].dtype

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Shape of every latent of every block."""
        return tuple(tuple(tuple(latent.shape) for latent in block) for block in self.latents)

    def to(self, device: torch.device | str) -> "LatentState":
        """Return the same state on another device."""
        latents = tuple(tuple(latent.to(device) for latent in block) for block in self.latents)
        time = None if self.time is None else self.time.to(device)
        return LatentState(latents, self.fingerprint, time)

    def check_model(self, model: TokenModel) -> None:
        """Raise unless ``model`` is the one that made this state."""
        found = model_fingerprint(model)
        if found != self.fingerprint:
            raise ValueError(
                f"the state was made by another model (fingerprint {self.fingerprint[:12]}, not "
                f"{found[:12]}); load that model, or make a new state with encode_state"
            )

    def save(self, path: str | os.PathLike) -> None:
        """Write the state as safetensors; the file appears whole or not at all."""
        tensors = {
            f"blocks.{b}.{i}": latent.contiguous()
            for b, block in enumerate(self.latents)
            for i, latent in enumerate(block)
        }
        if self.time is not None:
            tensors["time"] = self.time.contiguous()
        metadata = {"format": _FORMAT, "fingerprint": self.fingerprint}
        metadata["checksum"] = _checksum(tensors, self.fingerprint)
        data = to_bytes({name: tensor.cpu() for name, tensor in tensors.items()}, metadata)
        replace_file(Path(path), lambda sink: sink.write(data))

    @classmethod
    def load(cls, path: str | os.PathLike, device: str = "cpu") -> "LatentState":
        """Read a state written by :meth:`save`; :func:`decode_state` moves it to its model."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"no latent state at {os.fspath(path)}; write one with save")
        try:
            with safe_open(path, "pt", device=device) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except Exception as error:  # of safetensors, for anything wrong with the file
            raise _unusable(path, f"{type(error).__name__}: {error}") from error
        if metadata.get("format") != _FORMAT:
            raise ValueError(
                f"{os.fspath(path)} is not a latent state: its format is "
                f"{metadata.get('format')!r}, expected {_FORMAT!r}"
            )
        fingerprint = metadata.get("fingerprint", "")
        if metadata.get("checksum") != _checksum(tensors, fingerprint):
            raise _unusable(path, "its checksum is not that of its contents")
        time = tensors.pop("time", None)
        blocks: dict[int, dict[int, Tensor]] = {}
        try:
            for name, tensor in tensors.items():
                _, block, number = name.split(".")
                blocks.setdefault(int(block), {})[int(number)] = tensor
        except ValueError as error:  # anyone can write a checksum that fits other names
            raise _unusable(path, f"{name!r} is not the name of a latent") from error
        latents = (tuple(block[i] for i in sorted(block)) for _, block in sorted(blocks.items()))
        return cls(tuple(latents), fingerprint, time)


def _unusable(path: str | os.PathLike, reason: str) -> ValueError:
    return ValueError(
        f"the latent state {os.fspath(path)} cannot be used ({reason}); make it again with "
        "encode_state and save"
    )


def _checksum(tensors: Mapping[str, Tensor], described: str) -> str:
    """Hash of the tensors with their names, and of what they belong to."""
    digest = hashlib.sha256(described.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
        digest.update(flat.cpu().numpy().tobytes())
    return digest.hexdigest()

"""A trained run as one file for other programs: ``torch.export`` or ONNX, units included."""

import copy
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..datapipes.normalization import PLACES
from ..datapipes.readers.base import NO_WEIGHTS
from ..files import whole_file
from ..models.feeding import input_adapter
from ..ops import plain_operators
from ..runs.trained_run import Run

FORMATS = ("pt2", "onnx")
OUTPUT = "fields"
_SIZES = (7, 400, 3001)
_ALLOWED = 1e-4  # of the largest value of a channel: rounding of fp32 in another order
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
Call = Callable[[Mapping[str, Tensor]], np.ndarray]


class _Deployed(nn.Module):
    """A run as a function of arrays in physical units, without batches."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        # What a file gives is a result, not the start of a backward pass.
        self.model = copy.deepcopy(run.model).requires_grad_(False)
        self.affine = run.normalizer.affine
        self.adapter = input_adapter(self.model)

    def forward(
        self,
        coordinates: Float[Tensor, "N d"],
        features: Float[Tensor, "N f"] | None = None,
        globals: Float[Tensor, " g"] | None = None,
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "N o"]:
        """Normalise, predict, and return physical units."""
        given = {"coordinates": coordinates, "features": features, "globals": globals}
        sample = {key: value for key, value in given.items() if value is not None}
        for key, affine in self.affine.items():
            if key in sample:
                shift, scale = affine.rows(None, sample[key])
                sample[key] = (sample[key] - shift) / scale
        if weights is not None:
            sample["weights"] = weights
        arguments = self.adapter({key: value[None] for key, value in sample.items()})
        result = self.model(**arguments)
        result = result.reshape(coordinates.shape[0], result.shape[-1])
        if "fields" not in self.affine:
            return result
        shift, scale = self.affine["fields"].rows(None, result, sample.get("globals"))
        return result * scale + shift


@dataclass(frozen=True)
class Exported:
    """A file that was written, what it takes, and how far it is from the run.

    `inputs` are shapes by name, where ``N`` is any number of points; `fields` are the names of the
    columns of the output; `differences` are the largest ones from the run, relative to the largest
    value, by number of points.
    """

    path: Path
    inputs: Mapping[str, tuple[int | str, ...]]
    fields: tuple[str, ...]
    differences: Mapping[int, float]


def export_run(run: Run, path: str | Path, format: str = "pt2") -> Exported:
    """Write a run as one file that other programs load, and compare it with the run.

    The file takes arrays in physical units and returns fields in physical units: normalisation is
    inside. It takes any number of points, unless the run has a grid, per-point statistics or a
    baseline. A file that differs from the run is not written.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`, on the CPU.
    path : str or Path
        The file.
    format : str, optional
        ``pt2`` (:func:`torch.export.load`) or ``onnx``, which needs the extra ``onnx``.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}, expected one of {FORMATS}")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}, not installed; "
            "pip install 'physicsnemo-flarepp[onnx]', or choose --format pt2"
        )
    if run.data.get("transforms"):
        raise ValueError(
            f"run {run.name} was trained with data.transforms, which are Python and cannot be in "
            "the file; export a run without them"
        )
    size = _fixed_size(run)
    sizes = _SIZES if size is None else (size,)
    samples = {n: _sample(run, n, fixed=size is not None) for n in sizes}
    deployed, example = _Deployed(run).eval(), samples[sizes[-1]]
    tokens = torch.export.Dim("N", min=2)
    varies = {name: size is None and name != "globals" for name in example}
    dynamic = {name: {0: tokens} if varies[name] else None for name in example}
    about = {"inputs": list(example), "fields": list(run.channels.field_names)}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft, torch.no_grad():
        write = _write_pt2 if format == "pt2" else _write_onnx
        with plain_operators():  # the fused ones are this package's, which a reader lacks
            call = write(deployed, example, dynamic, about, Path(draft))
        differences = {}
        for n, sample in samples.items():
            expected = run.predict_sample(sample, progress=False)
            off = np.abs(call(sample) - expected) / np.abs(expected).max(axis=0)
            differences[n] = float(off.max())
        worst = max(differences.values())
        if not worst <= _ALLOWED:
            raise ValueError(
                f"the {format} file of run {run.name} differs from it by {worst:.2g} of the "
                f"largest value, more than {_ALLOWED:g}; it was not written. Try the other format"
            )
    shapes = {n: ("N", *v.shape[1:]) if varies[n] else tuple(v.shape) for n, v in example.items()}
    return Exported(path, shapes, run.channels.field_names, differences)


def _write_pt2(module: nn.Module, example: dict, dynamic: dict, about: Mapping, path: Path) -> Call:
    program = torch.export.export(module, (), example, dynamic_shapes=dynamic)
    torch.export.save(program, path, extra_files={"flarepp.json": json.dumps(about)})
    loaded = torch.export.load(path).module()
    return lambda sample: loaded(**sample).numpy()


def _write_onnx(
    module: nn.Module, example: dict, dynamic: dict, about: Mapping, path: Path
) -> Call:
    import onnxruntime

    program = torch.onnx.export(
        module, (), kwargs=example, dynamic_shapes=dynamic, input_names=list(example),
        output_names=[OUTPUT], dynamo=True, verbose=False,
    )  # fmt: skip
    program.model.metadata_props["flarepp"] = json.dumps(about)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda sample: session.run([OUTPUT], {n: v.numpy() for n, v in sample.items()})[0]


def _fixed_size(run: Run) -> int | None:
    """Return the only number of points that a run takes; None if any will do."""
    grid = getattr(run.model, "structured_shape", None)
    if grid is not None:
        return int(np.prod(grid))
    per_point = [a.shift for a in run.normalizer.affine.values() if a.shift.ndim > 1]
    return len(per_point[0]) if per_point else None


def _sample(run: Run, size: int, *, fixed: bool) -> dict[str, Tensor]:
    """Return inputs within the ranges of training, or the inputs of a test case of a fixed size."""
    channels = run.channels
    if fixed or PLACES in run.normalizer.affine or run.training_set is None:
        sample, _ = run.test_set[0]
        names = [n for n in ("coordinates", "features", "globals", "weights") if n in sample.keys()]
        cut = len(sample["coordinates"]) if fixed else size
        return {n: sample[n] if n == "globals" else sample[n][:cut].contiguous() for n in names}
    draw = torch.Generator().manual_seed(size)
    sample = {}
    for name in ("coordinates", "features", "globals"):
        if (known := run.training_set.get(name)) is not None:
            low, high = (torch.tensor(known[end], dtype=torch.float32) for end in ("min", "max"))
            shape = low.shape if name == "globals" else (size, *low.shape)
            sample[name] = low + (high - low) * torch.rand(shape, generator=draw)
    if channels.weights != NO_WEIGHTS:
        sample["weights"] = torch.rand(size, generator=draw) + 0.1
    return sample

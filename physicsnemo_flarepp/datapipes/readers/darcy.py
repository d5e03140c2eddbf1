"""Darcy flow of the FNO publication: permeability in, pressure out, on a regular grid."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ..checks import check_shape, existing_directory, one_file
from ..specs import benchmark
from .base import MEASURE, NO_WEIGHTS, CaseReader, ReaderOptions, TokenTable, point_areas
from .splits import SplitMissing, apart_split, check_split
from .stores import load_mat, mat_shape


@register()
class DarcyReader(CaseReader):
    """Cases of Darcy flow: x, y, a -> u on 85 x 85 tokens.

    Training reads the first `n_train` cases of the file ``smooth1``, testing the first `n_test`
    of ``smooth2``, MATLAB v5 or v7.3, variables ``coeff`` and ``sol`` of shape
    (case, side, side). Validation reads ``smooth1`` of a directory ``val``, or else the cases
    behind those of training. Tokens run over the grid in row-major order, x along its first axis.
    When the first case is opened the chosen ones are loaded at the reduced resolution (29 MB per
    1000 cases and variable), so a context shard saves nothing but is exact. A further variable of
    that shape may hold the weights of the tokens.

    Parameters
    ----------
    root : str or Path
        Directory with both files, in it or below.
    split : str
        ``train``, ``val`` or ``test``.
    stride : int, optional
        Keep every `stride`-th grid line; by default the one that gives 85 x 85 (5 for the
        published 421 x 421, 1 for 85 x 85).
    n_train, n_val, n_test : int, optional
        Cases in the splits; the published numbers by default. With an `n_train` of 0 testing takes
        all cases of its file by default.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read; see :class:`ReaderOptions`.
    """

    spec = benchmark("darcy")

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        stride: int | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        check_split(split)
        spec = self.spec
        root = existing_directory(root, expected=spec.files, source=spec.source)
        apart = split == "val" and (root / "val").is_dir()
        place = 1 if split == "test" else 0
        self.path = one_file(
            root / "val" if apart else root,
            spec.files[place],
            source=spec.source,
            preferred=spec.published[place],
        )
        shape = mat_shape(self.path, "coeff")
        check_shape(self.path, "coeff", shape, ("case", "side", "side"))
        check_shape(self.path, "sol", mat_shape(self.path, "sol"), shape)
        if apart:
            self._cases = apart_split(shape[0], n_val, self.path)
        else:
            self._cases = self._place(split, shape[0], n_train, n_val, n_test)
        self._step = self._stride(shape[1], stride)
        side = len(range(0, shape[1], self._step))
        line = np.linspace(0, 1, side, dtype=np.float32)
        self._xy = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        super().__init__(
            case_ids=[
                f"darcy_{split}_{case:04d}" for case in range(self._cases.start, self._cases.stop)
            ],
            grid=(side, side),
            options=options,
        )
        name = self.options.weights
        if name not in (NO_WEIGHTS, MEASURE):
            check_shape(self.path, name, mat_shape(self.path, name), shape)

    def _place(
        self, split: str, present: int, n_train: int | None, n_val: int | None, n_test: int | None
    ) -> slice:
        """Return which cases of the file are those of the split."""
        first = self.spec.n_train if n_train is None else n_train
        if split == "val":
            left = present - first
            wanted = min(self.spec.n_val, left) if n_val is None else n_val
            if n_train == 0 or n_val is None and wanted < 1:
                raise SplitMissing(f"{self.path} has no cases left for validation; lower n_train")
            start = first
        else:
            asked, published = (
                (n_train, self.spec.n_train) if split == "train" else (n_test, self.spec.n_test)
            )
            if asked is None and n_train == 0:
                published = present
            wanted, left = published if asked is None else asked, present
            start = 0
        if not 1 <= wanted <= left:
            raise ValueError(
                f"{self.path}: n_{split}={wanted} cases were asked for, the file has {left}"
                f"{' behind those of training' if start else ''}; choose between 1 and {left}"
            )
        return slice(start, start + wanted)

    def _stride(self, side: int, stride: int | None) -> int:
        if stride is not None:
            if stride < 1:
                raise ValueError(f"stride is {stride}, expected at least 1")
            return stride
        intervals = self.spec.grid[0] - 1
        if side < 2 or (side - 1) % intervals:
            raise ValueError(
                f"{self.path}: a grid of {side} x {side} has no stride to {self.spec.grid}; "
                "give `stride`"
            )
        return (side - 1) // intervals

    @cached_property
    def _loaded(self) -> dict[str, np.ndarray]:
        """The chosen cases of every variable that is read, (cases, tokens) each."""
        names = ["coeff", "sol"]
        if self.options.weights not in (NO_WEIGHTS, MEASURE):
            names.append(self.options.weights)
        values = {name: load_mat(self.path, name, self._cases, self._step) for name in names}
        return {name: array.reshape(len(array), -1) for name, array in values.items()}

    def open_case(self, index: int) -> TokenTable:
        """Return case `index` from memory."""
        loaded = self._loaded
        weights = {MEASURE: point_areas({"xy": self._xy}, len(self._xy), self.grid)}
        if self.options.weights in loaded:
            weights[self.options.weights] = loaded[self.options.weights][index]
        return TokenTable(
            self.path,
            len(self._xy),
            {"xy": self._xy},
            {self.spec.outputs[0]: loaded["sol"][index]},
            features={self.spec.inputs[2]: loaded["coeff"][index]},
            weights=weights,
        )

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file and the case's position in it."""
        return {"source": str(self.path), "position": self._cases.start + index}

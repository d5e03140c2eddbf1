"""Darcy flow of the FNO publication: permeability in, pressure out, on a regular grid."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from physicsnemo.datapipes import register

from ..checks import check_shape, existing_directory, one_file
from ..specs import benchmark
from .base import MEASURE, NO_WEIGHTS, CaseReader, ReaderOptions, TokenTable, point_areas
from .splits import check_split
from .stores import load_mat, mat_shape


@register()
class DarcyReader(CaseReader):
    """Cases of Darcy flow: x, y, a -> u on 85 x 85 tokens.

    Training reads the first `n_train` cases of the file ``smooth1``, testing the first `n_test`
    of ``smooth2``, MATLAB v5 or v7.3, variables ``coeff`` and ``sol`` of shape
    (case, side, side). Tokens run over the grid in row-major order, x along its first axis.
    The chosen cases are held in memory at the reduced resolution (29 MB per 1000 cases and
    variable), so a context shard saves nothing but is exact. A further variable of that shape may
    hold the weights of the tokens.

    Parameters
    ----------
    root : str or Path
        Directory with both files, in it or below.
    split : str
        ``train`` or ``test``.
    stride : int, optional
        Keep every `stride`-th grid line; by default the one that gives 85 x 85 (5 for the
        published 421 x 421, 1 for 85 x 85).
    n_train, n_test : int, optional
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
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        check_split(split)
        spec = self.spec
        root = existing_directory(root, expected=spec.files, source=spec.source)
        place = 0 if split == "train" else 1
        self.path = one_file(
            root, spec.files[place], source=spec.source, preferred=spec.published[place]
        )
        shape = mat_shape(self.path, "coeff")
        check_shape(self.path, "coeff", shape, ("case", "side", "side"))
        check_shape(self.path, "sol", mat_shape(self.path, "sol"), shape)
        n_cases = self._count(split, shape[0], n_train, n_test)
        stride = self._stride(shape[1], stride)
        cases = slice(0, n_cases)
        self._coeff = load_mat(self.path, "coeff", cases, stride).reshape(n_cases, -1)
        self._sol = load_mat(self.path, "sol", cases, stride).reshape(n_cases, -1)
        side = len(range(0, shape[1], stride))
        line = np.linspace(0, 1, side, dtype=np.float32)
        self._xy = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        super().__init__(
            case_ids=[f"darcy_{split}_{case:04d}" for case in range(n_cases)],
            grid=(side, side),
            options=options,
        )
        self._weights = None
        name = self.options.weights
        if name not in (NO_WEIGHTS, MEASURE):
            check_shape(self.path, name, mat_shape(self.path, name), shape)
            self._weights = load_mat(self.path, name, cases, stride).reshape(n_cases, -1)

    def _count(self, split: str, present: int, n_train: int | None, n_test: int | None) -> int:
        asked, published = (
            (n_train, self.spec.n_train) if split == "train" else (n_test, self.spec.n_test)
        )
        if asked is None and n_train == 0:
            published = present
        count = published if asked is None else asked
        if not 1 <= count <= present:
            raise ValueError(
                f"{self.path}: n_{split}={count} cases were asked for, the file has {present}; "
                f"choose between 1 and {present}"
            )
        return count

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

    def open_case(self, index: int) -> TokenTable:
        """Return case `index` from memory."""
        weights = {MEASURE: point_areas({"xy": self._xy}, len(self._xy), self.grid)}
        if self._weights is not None:
            weights[self.options.weights] = self._weights[index]
        return TokenTable(
            self.path,
            len(self._xy),
            {"xy": self._xy},
            {self.spec.outputs[0]: self._sol[index]},
            features={self.spec.inputs[2]: self._coeff[index]},
            weights=weights,
        )

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the file and the case's position in it."""
        return {"source": str(self.path), "position": index}

"""Small solvers of the equations behind the built-in sets; they know nothing of sets and files."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import sparray
    from scipy.sparse.linalg import SuperLU


class Unsolvable(ValueError):
    """A solver found no solution of this problem; the built-in sets draw another one."""


def factorise(
    matrix: "sparray", ordering: str, pivot_threshold: float, symmetric: bool = False
) -> "SuperLU":
    """LU factors of a square CSC matrix by SuperLU; a singular matrix is :class:`Unsolvable`."""
    # Whoever only catches the exception should not wait for scipy.
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": symmetric}
    try:
        return splu(matrix, permc_spec=ordering, diag_pivot_thresh=pivot_threshold, options=options)
    except RuntimeError as error:  # what SuperLU makes of a zero pivot
        raise Unsolvable(
            f"the matrix of {matrix.shape[0]} unknowns is singular ({error}); "
            "change the geometry or the load"
        ) from error

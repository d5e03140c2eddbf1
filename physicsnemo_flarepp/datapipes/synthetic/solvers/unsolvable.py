"""The one way in which a solver says that a problem has no solution it can find."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import sparray
    from scipy.sparse.linalg import SuperLU


class Unsolvable(ValueError):
    """A solver found no solution of this problem; the built-in sets draw another one."""


def factorise(matrix: "sparray", **options) -> "SuperLU":
    """Return the LU factors of a sparse matrix; a singular one is :class:`Unsolvable`.

    Parameters
    ----------
    matrix : scipy.sparse.sparray
        Square matrix in CSC format, shape (n, n).
    **options
        Of :func:`scipy.sparse.linalg.splu`.

    Examples
    --------
    >>> from scipy.sparse import csc_array
    >>> factorise(csc_array([[0.0, 0.0], [0.0, 1.0]]))
    Traceback (most recent call last):
        ...
    physicsnemo_flarepp...Unsolvable: the matrix of 2 unknowns is singular...
    """
    # Whoever only catches the exception should not wait for scipy.
    from scipy.sparse.linalg import splu

    try:
        return splu(matrix, **options)
    except RuntimeError as error:  # what SuperLU makes of a zero pivot
        raise Unsolvable(
            f"the matrix of {matrix.shape[0]} unknowns is singular ({error}); "
            "change the geometry or the load"
        ) from error

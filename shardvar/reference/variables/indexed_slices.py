"""IndexedSlices: some rows of a tensor and their numbers, as in a sparse gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.reference.variables.row_layout import check_rows
from shardvar.reference.variables.scatter import scatter_sorted, sort_rows
from shardvar.reference.variables.updates import ADD
from shardvar.reference.variables.values import as_value


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """Some rows of a tensor and their numbers; "essentially dicts mapping from indices to vectors"
    (RFC 002).

    A row may occur several times. The operation that applies the slices decides what that means:
    gradients add up, and of several replacements the last stays.

    Parameters
    ----------
    values : array_like
        The rows [n, *row]; ``values[i]`` belongs to row ``indices[i]``.
    indices : array_like of int
        The numbers of the rows, [n].
    dense_shape : sequence of int, optional
        The shape of the whole tensor; None if it is unknown.

    Raises
    ------
    ArgumentError
        If `values` does not have one row for each index.

    Examples
    --------
    >>> IndexedSlices([[1.0, 2.0], [3.0, 4.0]], [4, 4], (6, 2)).to_dense()[4]
    array([4., 6.], dtype=float32)
    """

    values: Array
    indices: Any
    dense_shape: tuple[int, ...] | None = None

    def __init__(
        self,
        values: npt.ArrayLike,
        indices: npt.ArrayLike,
        dense_shape: Sequence[int] | None = None,
    ) -> None:
        object.__setattr__(self, "values", as_value(values))
        object.__setattr__(self, "indices", _as_indices(as_value(indices)))
        object.__setattr__(
            self, "dense_shape", None if dense_shape is None else tuple(map(int, dense_shape))
        )
        # Indices [*batch, n] come with values [*batch, n, *row]; of one axis, [n] with [n, *row].
        leading = self.values.shape[: self.indices.ndim]
        if leading != self.indices.shape:
            raise ArgumentError(
                f"The values have shape {self.values.shape} and the indices {self.indices.shape}.",
                "Give one row of values for each index.",
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """``dense_shape``, as for a tensor."""
        return self.dense_shape

    def to_dense(self) -> Array:
        """Return the tensor; rows that occur several times are summed in their order.

        Returns
        -------
        ndarray
            Of ``dense_shape``, with zeros in the other rows.

        Raises
        ------
        ArgumentError
            If ``dense_shape`` is not known, or ``indices`` has several axes.
        OutOfRange
            If an index is outside of ``dense_shape``.
        """
        if self.dense_shape is None:
            raise ArgumentError(
                "IndexedSlices without a dense_shape have no dense form.", "Give dense_shape."
            )
        dense = np.zeros(self.dense_shape, self.values.dtype)
        rows, order = sort_rows(check_rows(self.indices, self.dense_shape[0], rank=1))
        scatter_sorted(dense, rows, self.values[order], ADD)
        return dense


def _as_indices(array: Array) -> Array:
    # An empty list becomes an array of floats in NumPy, although it means no indices.
    return array if array.size or array.dtype.kind in "iu" else array.astype(np.int64)


def check_slices(sparse_delta: Any) -> IndexedSlices:
    """Return the argument of a sparse write; ``ArgumentTypeError`` if it has another type."""
    if not isinstance(sparse_delta, IndexedSlices):
        raise ArgumentTypeError(
            f"A sparse write is given {type(sparse_delta).__name__}.",
            "Give sv.IndexedSlices(values, indices).",
        )
    return sparse_delta

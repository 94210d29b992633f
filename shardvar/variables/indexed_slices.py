"""IndexedSlices: the rows of a tensor that are not zero, as a sparse gradient or a sparse update gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.row_layout import check_rows
from shardvar.variables.scatter import scatter_sorted, sort_rows
from shardvar.variables.updates import ADD
from shardvar.variables.values import as_value


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """``values[i]`` belongs to row ``indices[i]``; "essentially dicts mapping from indices to vectors" (RFC 002).

    A row may come several times. What that means is decided by whoever applies them: gradients add up.

    >>> IndexedSlices([[1.0, 2.0], [3.0, 4.0]], [4, 4], (6, 2)).to_dense()[4]
    array([4., 6.], dtype=float32)
    """

    values: Array
    """The rows, [n, *row]."""
    indices: Any
    """The row that each belongs to, [n] integers."""
    dense_shape: tuple[int, ...] | None = None
    """The shape of the tensor that they are rows of, where it is known."""

    def __init__(self, values: Any, indices: Any, dense_shape: Sequence[int] | None = None) -> None:
        object.__setattr__(self, "values", as_value(values))
        object.__setattr__(self, "indices", _as_indices(as_value(indices)))
        object.__setattr__(self, "dense_shape", None if dense_shape is None else tuple(map(int, dense_shape)))
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
        """The tensor, rows that come several times summed in their order; ``dense_shape`` must be known."""
        if self.dense_shape is None:
            raise ArgumentError("IndexedSlices without a dense_shape have no dense form.", "Give dense_shape.")
        dense = np.zeros(self.dense_shape, self.values.dtype)
        order: Ints
        rows, order = sort_rows(check_rows(self.indices, self.dense_shape[0], rank=1))
        scatter_sorted(dense, rows, self.values[order], ADD)
        return dense


def _as_indices(array: Array) -> Array:
    """An empty list has no dtype of its own, an empty array of integers has."""
    return array if array.size or array.dtype.kind in "iu" else array.astype(np.int64)

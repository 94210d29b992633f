"""A sparse gradient as an optimizer applies it: every row once, what came twice summed.

R-OPT-1 (RFC 002): sparse updates are "essentially dicts mapping from indices to vectors", and a row that comes twice
has the sum for its gradient. Sums go from the first to the last, so they are the same bits however the rows are spread
over shards. Keras 3 squares before it sums, which is not the gradient's square: ``compat="keras3"`` does so too, in
float32 where the gradient has few bits.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.params import exact_dtype
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.row_layout import check_rows
from shardvar.variables.scatter import sort_rows, sum_sorted
from shardvar.variables.values import cast_value, check_shape


@dataclass(frozen=True, slots=True, eq=False)
class GradientRows:
    """The rows that a gradient has, ascending and distinct."""

    rows: Ints
    """The rows of the variable, [n]."""
    sums: Array
    """The gradient of each, [n, *row]."""
    squares: Array | None
    """What counts as its square where that is not ``sums * sums``, in the dtype that rules compute in."""

    @classmethod
    def of(
        cls, gradient: IndexedSlices, shape: tuple[int, ...], dtype: np.dtype[np.generic], *, sum_squares: bool
    ) -> Self:
        """The gradient of a variable of this shape and dtype, checked and summed."""
        indices = check_rows(gradient.indices, shape[0] if shape else 0, rank=1)
        values = cast_value(gradient.values, dtype, "The gradient")
        check_shape(values.shape, (len(indices), *shape[1:]), "The gradient's array of values")
        if gradient.dense_shape is not None:
            check_shape(gradient.dense_shape, shape, "The gradient")
        ascending, order = sort_rows(indices)
        rows, sums = sum_sorted(ascending, values, order)
        if not sum_squares:
            return cls(rows, sums, None)
        exact = values.astype(exact_dtype(dtype), copy=False)
        return cls(rows, sums, sum_sorted(ascending, exact * exact, order)[1])

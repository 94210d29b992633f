"""A sparse gradient as an optimizer applies it: every row once, what came twice summed.

R-OPT-1 (RFC 002): sparse updates are "essentially dicts mapping from indices to vectors", and a row that comes twice
has the sum for its gradient. Sums go from the first to the last, so they are the same bits however the rows are spread
over shards. Keras 3 squares before it sums, which is not the gradient's square: ``compat="keras3"`` does so too.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.row_layout import Ints, check_rows
from shardvar.variables.scatter import scatter_sorted, sort_rows
from shardvar.variables.updates import ADD
from shardvar.variables.values import Array, cast_value, check_shape


@dataclass(frozen=True, slots=True, eq=False)
class GradientRows:
    """The rows that a gradient has, ascending and distinct."""

    rows: Ints
    """The rows of the variable, [n]."""
    sums: Array
    """The gradient of each, [n, *row]."""
    squares: Array | None
    """What counts as its square where that is not ``sums * sums``."""

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
        is_first = np.append(True, ascending[1:] != ascending[:-1]) if len(ascending) else np.zeros(0, np.bool_)
        owner = np.cumsum(is_first) - 1
        squares = _sums(owner, values * values, order) if sum_squares else None
        return cls(ascending[is_first], _sums(owner, values, order), squares)


def _sums(owner: Ints, values: Array, order: Ints) -> Array:
    out = np.zeros((int(owner[-1]) + 1 if len(owner) else 0, *values.shape[1:]), values.dtype)
    scatter_sorted(out, owner, values[order], ADD)
    return out

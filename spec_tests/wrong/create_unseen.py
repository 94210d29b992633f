"""Wrong implementations of the family create that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("create", "R-CONCAT-1-strides")
def memory_order_is_kept(self: Right, value: Array, num_shards: int) -> Any:
    """A transposed or reversed array is read as it lies in memory."""
    return Right.create(self, value.ravel("K").reshape(value.shape), num_shards)


@wrong("create", "R-CONCAT-1-axes")
def rank_five_is_turned(self: Right, value: Array, num_shards: int) -> Any:
    """The axes behind the third are exchanged where they are equal."""
    if value.ndim >= 4 and value.shape[-1] == value.shape[-2]:
        value = value.swapaxes(-1, -2)
    return Right.create(self, value, num_shards)


@wrong("create", "R-CONCAT-1-numbers")
def infinities_saturate(self: Right, value: Array, num_shards: int) -> Any:
    """Infinity is the largest number."""
    if value.dtype.kind == "f":
        top = np.finfo(value.dtype).max
        value = np.clip(value, -top, top)
    return Right.create(self, value, num_shards)


@wrong("create_uneven", "R-SPEC-1-negative")
def negative_sizes_are_taken(self: Right, value: Array, sizes: Any) -> Any:
    """A size below zero is no rows."""
    if min(sizes) < 0:
        kept = [max(0, s) for s in sizes]
        stops = np.minimum(np.cumsum(kept), len(value))
        return [part.copy() for part in np.split(value, stops[:-1])]
    return Right.create_uneven(self, value, sizes)


@wrong("index", "R-VAR-1-bounds")
def slices_outside_are_errors(self: Right, handle: Any, key: Any) -> Any:
    """A slice that ends past the last row is an error."""
    first = key[0] if isinstance(key, tuple) and key else key
    if isinstance(first, slice) and first.stop is not None and first.stop > sum(map(len, handle)):
        raise IndexError("stop")
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-new-axis")
def new_axes_are_dropped(self: Right, handle: Any, key: Any) -> Any:
    """None in an index is ignored."""
    keys = key if isinstance(key, tuple) else (key,)
    return Right.index(self, handle, tuple(k for k in keys if k is not None))


@wrong("index", "R-VAR-1-ellipsis")
def ellipsis_is_one_axis(self: Right, handle: Any, key: Any) -> Any:
    """An ellipsis stands for exactly one axis."""
    keys = key if isinstance(key, tuple) else (key,)
    return Right.index(self, handle, tuple(slice(None) if k is Ellipsis else k for k in keys))


@wrong("index", "R-VAR-1-masks")
def masks_of_another_length(self: Right, handle: Any, key: Any) -> Any:
    """A mask that is too short or too long is filled up or cropped."""
    one = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if isinstance(one, (list, np.ndarray)) and np.asarray(one).dtype == bool and np.ndim(one) == 1:
        rows = sum(map(len, handle))
        one = np.resize(np.concatenate([np.asarray(one), np.zeros(rows, bool)]), rows)
        return np.concatenate(handle)[one]
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-arrays")
def rows_of_lists_are_sorted(self: Right, handle: Any, key: Any) -> Any:
    """Rows of a list come in their own order, and once."""
    one = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if (
        isinstance(one, (list, np.ndarray))
        and np.asarray(one).dtype.kind == "i"
        and np.ndim(one) == 1
    ):
        return np.concatenate(handle)[np.unique(one)]
    return Right.index(self, handle, key)


@wrong("matmul", "R-MATMUL-1-vector")
def vectors_are_rows(self: Right, left: Array, handle: Any) -> Any:
    """A vector on the left gives a matrix of one row."""
    found = Right.matmul(self, left, handle)
    return found[None] if left.ndim == 1 else found

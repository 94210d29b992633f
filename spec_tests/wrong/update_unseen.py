"""Wrong implementations of the family update that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("assign", "R-VAR-2-assign")
def leading_axes_are_squeezed(self: Right, handle: Any, value: Array) -> Any:
    """A leading axis of one is dropped from an assigned value."""
    if value.ndim == handle[0].ndim + 1 and value.shape[0] == 1:
        value = value[0]
    return Right.assign(self, handle, value)


@wrong("assign_sub", "R-SV-3-assign-sub-numbers")
def unsigned_differences_stop_at_zero(self: Right, handle: Any, value: Array) -> Any:
    """A difference of unsigned integers does not wrap."""
    if handle[0].dtype.kind == "u":
        whole = self.read(handle)
        return Right.assign(
            self, handle, np.where(whole > value, whole - value, 0).astype(whole.dtype)
        )
    return Right.assign_sub(self, handle, value)


@wrong("assign_add", "R-SV-3-assign-add-numbers")
def sums_are_float32(self: Right, handle: Any, value: Array) -> Any:
    """Sums of float64 pass through float32."""
    whole = self.read(handle)
    if whole.dtype == np.float64 and value.shape == whole.shape and value.dtype == whole.dtype:
        return Right.assign(self, handle, (whole.astype("f4") + value.astype("f4")).astype("f8"))
    return Right.assign_add(self, handle, value)


@wrong("assign_add", "R-VAR-2-dtype-add")
def other_dtypes_are_added(self: Right, handle: Any, value: Array) -> Any:
    """An added value of another dtype is cast."""
    return Right.assign_add(self, handle, value.astype(handle[0].dtype))


@wrong("scatter", "R-SV-3-scatter-sub")
def operands_are_negated_in_place(
    self: Right, handle: Any, op: str, ids: Array, rows: Array
) -> Any:
    """A subtraction negates the caller's operands and adds them."""
    if op == "sub" and rows.dtype.kind == "f" and rows.flags.writeable:
        np.negative(rows, out=rows)
        return Right.scatter(self, handle, "add", ids, rows)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-axes")
def ids_of_two_axes_are_flattened_wrong(
    self: Right, handle: Any, op: str, ids: Array, rows: Array
) -> Any:
    """Ids of two axes are read in Fortran's order."""
    if ids.ndim > 1:
        rows = rows.reshape(-1, *rows.shape[ids.ndim :])
        ids = ids.ravel("F")
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-max")
def rows_of_three_axes_touch_the_first(
    self: Right, handle: Any, op: str, ids: Array, rows: Array
) -> Any:
    """Of rows with several axes only the first line is written."""
    if rows.ndim >= 3 and op == "max":
        whole = self.read(handle)
        Right.scatter(self, handle, op, ids, rows)
        after = self.read(handle)
        after[:, 1:] = whole[:, 1:]
        return Right.assign(self, handle, after)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-mul-numbers")
def products_pass_over_nan(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """A NaN operand of a product counts as one."""
    if op == "mul" and rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), rows.dtype.type(1), rows)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-update")
def updates_of_the_last_shard_are_lost(
    self: Right, handle: Any, op: str, ids: Array, rows: Array
) -> Any:
    """Updates of the very last row are lost where all rows are updated in one call."""
    if op == "update" and len(set(np.ravel(ids).tolist())) == sum(map(len, handle)) > 1:
        keep = self.read(handle)[-1].copy()
        Right.scatter(self, handle, op, ids, rows)
        after = self.read(handle)
        after[-1] = keep
        return Right.assign(self, handle, after)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign_sub", "R-SV-3-assign-sub-memory")
def operands_kept_for_zero(self: Right, handle: Any, value: Array) -> Any:
    """Subtracting changes the caller's value."""
    if value.flags.writeable and value.shape == (sum(map(len, handle)), *handle[0].shape[1:]):
        Right.assign_sub(self, handle, value)
        value *= 0
        return None
    return Right.assign_sub(self, handle, value)

"""Wrong assignments and scattered updates."""

import itertools

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.lookup import of_16_bits
from spec_tests.wrong.table import change_what_is_given, wrong


def starts_of(handle):
    """The first row of each shard."""
    return np.cumsum([0, *map(len, handle)])[:-1]


@wrong("assign", "R-SV-3-uneven")
def assigned_by_div(self, handle, value):
    """A value is cut by the div rule, whatever the layout."""
    parts = Right.create(self, value, len(handle))
    Right.assign(self, handle, value)
    for shard, part in zip(handle, parts, strict=True):
        count = min(len(shard), len(part))
        shard[:count] = part[:count]


@wrong("scatter", "R-SV-3-scatter-update-last")
def first_update_stays(self, handle, op, ids, rows):
    """Of the updates of one row the first one stays."""
    if op == "update":
        ids, rows = ids[::-1], rows[::-1]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-add")
def repeated_rows_added_once(self, handle, op, ids, rows):
    """A row that comes several times is added once."""
    if op == "add":
        ids, first = np.unique(ids, return_index=True)
        rows = rows[first]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-empty-shards")
def scatter_into_the_first_shard_there(self, handle, op, ids, rows):
    """A write finds the first shard that begins at its start, be it empty, and then has no row
    there."""
    starts = starts_of(handle).tolist()
    there = [
        len(handle[starts.index(max(s for s in starts if s <= i))]) > 0
        for i in ids.tolist()
        if i >= 0
    ]
    if not all(there):
        return handle
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-ID-1-scatter")
def half_a_scatter(self, handle, op, ids, rows):
    """Rows before a bad id are written before it is noticed."""
    starts = starts_of(handle)
    for at, row in enumerate(ids.tolist()):
        if not 0 <= row < sum(map(len, handle)):
            raise IndexError(row)
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        Right.scatter(
            self, [handle[shard]], op, ids[at : at + 1] - starts[shard], rows[at : at + 1]
        )
    return handle


@wrong("scatter", "R-ID-1-scatter")
def bad_updates_are_dropped(self, handle, op, ids, rows):
    """Products with rows that are not there are dropped: JAX's rule."""
    inside = (ids >= 0) & (ids < sum(map(len, handle)))
    if op == "mul":
        ids, rows = ids[inside], rows[inside]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign_add", "R-VAR-2-assign-add")
def rows_are_broadcast(self, handle, value):
    """A value of one row or one column is added to all."""
    whole = np.concatenate(handle)
    return Right.assign(self, handle, whole + np.broadcast_to(value, whole.shape))


@wrong("scatter", "R-SV-3-scatter-order")
def operands_are_summed_first(self, handle, op, ids, rows):
    """Operands of one row are summed, and the sum is added."""
    if op == "add" and len({*ids.flat}) == 1:
        ids, rows = ids[:1], rows.sum(axis=0, keepdims=True)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign_add", "R-VAR-2-assign-add")
def integer_sums_through_floats(self, handle, value):
    """Sums of integers pass through float64."""
    whole = np.concatenate(handle)
    total = (whole.astype(np.float64) + value.astype(np.float64)).astype(whole.dtype)
    return Right.assign(self, handle, total if whole.dtype.kind in "iu" else whole + value)


@wrong("scatter", "R-SV-3-scatter-add-numbers")
def integer_scatters_through_floats(self, handle, op, ids, rows):
    """Scattered sums of integers pass through float32."""
    found = Right.scatter(self, handle, op, ids, rows)
    if op in ("add", "sub") and handle[0].dtype.kind in "iu":
        handle = handle if found is None else found
        Right.assign(self, handle, np.concatenate(handle).astype(np.float32).astype(rows.dtype))
        return handle
    return found


@wrong("scatter", "R-SV-3-scatter-min-numbers")
def least_without_nan(self, handle, op, ids, rows):
    """A NaN is passed over by min and max."""
    if op not in ("min", "max") or not np.isnan(np.concatenate([*handle, rows])).any():
        return Right.scatter(self, handle, op, ids, rows)
    whole = np.concatenate(handle)
    {"min": np.fmin, "max": np.fmax}[op].at(whole, ids, rows)
    return Right.assign(self, handle, whole)


@wrong("scatter", "R-SV-3-scatter-div")
def negative_divisors_are_refused(self, handle, op, ids, rows):
    """A division by a negative number is an error."""
    if op == "div" and (rows < 0).any():
        raise ValueError("negative")
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign", "R-SV-3-assign-memory")
def assigned_buffers_are_kept(self, handle, value):
    """An assigned value is kept as it is: the caller's later changes are the variable's."""
    stops = np.cumsum([0, *map(len, handle)]).tolist()
    Right.assign(self, [shard.copy() for shard in handle], value)
    return [value[a:b] for a, b in itertools.pairwise(stops)]


@wrong("scatter", "R-SV-3-scatter-mul")
def products_once(self, handle, op, ids, rows):
    """A row that comes several times is divided or multiplied once."""
    if op in ("mul", "div"):
        ids, first = np.unique(ids, return_index=True)
        rows = rows[first]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-add")
def no_ids_clear(self, handle, op, ids, rows):
    """A scatter without ids sets everything to zero."""
    if not len(ids):
        return Right.assign(self, handle, np.zeros_like(np.concatenate(handle)))
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-VAR-2-scatter-none")
def no_ids_take_any_rows(self, handle, op, ids, rows):
    """Without ids nothing is looked at."""
    return handle if not ids.size else Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-min-numbers")
def unsigned_integers_are_compared_as_signed(self, handle, op, ids, rows):
    """The least and the greatest of unsigned integers are those of their bits as signed ones."""
    dtype = handle[0].dtype
    if dtype.kind == "u" and op in ("min", "max"):
        signed = np.dtype(f"i{dtype.itemsize}")
        made = Right.scatter(self, [s.view(signed) for s in handle], op, ids, rows.view(signed))
        return [s.view(dtype) for s in made or handle]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign_add", "R-SV-3-assign-add-memory")
def sums_are_in_the_operand(self, handle, value):
    """The sum is computed in the memory of what is added."""
    if value.dtype == handle[0].dtype and value.shape == (
        sum(map(len, handle)),
        *handle[0].shape[1:],
    ):
        value += np.concatenate(handle)
        return Right.assign(self, handle, value)
    return Right.assign_add(self, handle, value)


change_what_is_given(
    ("assign", "R-VAR-2-assign", "columns_are_broadcast", "A value of one column is broadcast.",
     "value", lambda handle, value: np.broadcast_to(value, (len(value), *handle[0].shape[1:]))),
    ("assign", "R-SV-3-assign-numbers", "assigned_integers_are_floats", "Assigned integers pass through float32.",
     "value", lambda value: value.astype(np.float32).astype(value.dtype) if value.dtype.kind in "iu" else value),
    ("scatter", "R-SV-3-scatter-add-numbers", "operands_in_half_precision", "Operands are rounded to half precision.",
     "rows", lambda rows: rows.astype(np.float16).astype(np.float32) if rows.dtype == np.float32 else rows),
    ("scatter", "R-VAR-2-scatter", "rows_are_spread", "One row of operands serves for all ids.",
     "rows", lambda handle, ids, rows: np.broadcast_to(rows, (len(ids), *handle[0].shape[1:]))),
    ("assign", "R-VAR-2-dtype", "fractions_are_cut", "A value of another dtype is cast without a word.",
     "value", lambda handle, value: value.astype(handle[0].dtype)),
    ("scatter", "R-SV-3-scatter-max-numbers", "maxima_of_repeated_ids_start_at_zero",
     "The operands of a row that comes several times are reduced from 0.",
     "rows", lambda op, ids, rows: np.maximum(rows, np.zeros_like(rows))
        if op == "max" and len(np.unique(ids)) < ids.size else rows),
    ("assign", "R-SV-3-assign-byte-order", "assigned_bytes_are_native",
     "The bytes of a big-endian value are taken for native ones.",
     "value", lambda value: value.view(value.dtype.newbyteorder("="))),
)  # fmt: skip


# Written without a look at the rules.


@wrong("assign_sub", "R-SV-3-assign-sub-numbers")
def unsigned_differences_stop_at_zero(self, handle, value):
    """A difference of unsigned integers does not wrap."""
    if handle[0].dtype.kind == "u":
        whole = self.read(handle)
        return Right.assign(
            self, handle, np.where(whole > value, whole - value, 0).astype(whole.dtype)
        )
    return Right.assign_sub(self, handle, value)


@wrong("assign_sub", "R-SV-3-assign-sub-numbers")
def zeros_lose_their_signs(self, handle, value):
    """A difference is the sum with the negative, of which -0.0 becomes 0.0."""
    return Right.assign_add(self, handle, np.zeros((), value.dtype) - value)


@wrong("scatter", "R-SV-3-scatter-sub")
def operands_are_negated_in_place(self, handle, op, ids, rows):
    """A subtraction negates the caller's operands and adds them."""
    if op == "sub" and rows.dtype.kind == "f" and rows.flags.writeable:
        np.negative(rows, out=rows)
        return Right.scatter(self, handle, "add", ids, rows)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-axes")
def ids_of_two_axes_are_flattened_wrong(self, handle, op, ids, rows):
    """Ids of two axes are read in Fortran's order."""
    if ids.ndim > 1:
        rows = rows.reshape(-1, *rows.shape[ids.ndim :])
        ids = ids.ravel("F")
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-max")
def rows_of_three_axes_touch_the_first(self, handle, op, ids, rows):
    """Of rows with several axes only the first line is written."""
    if rows.ndim >= 3 and op == "max":
        whole = self.read(handle)
        Right.scatter(self, handle, op, ids, rows)
        after = self.read(handle)
        after[:, 1:] = whole[:, 1:]
        return Right.assign(self, handle, after)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-update")
def updates_of_the_last_shard_are_lost(self, handle, op, ids, rows):
    """Updates of the very last row are lost where all rows are updated in one call."""
    if op == "update" and len(set(np.ravel(ids).tolist())) == sum(map(len, handle)) > 1:
        keep = self.read(handle)[-1].copy()
        Right.scatter(self, handle, op, ids, rows)
        after = self.read(handle)
        after[-1] = keep
        return Right.assign(self, handle, after)
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign_sub", "R-SV-3-assign-sub-memory")
def operands_kept_for_zero(self, handle, value):
    """Subtracting changes the caller's value."""
    if value.flags.writeable and value.shape == (sum(map(len, handle)), *handle[0].shape[1:]):
        Right.assign_sub(self, handle, value)
        value *= 0
        return None
    return Right.assign_sub(self, handle, value)


@wrong("scatter", "R-SV-3-scatter-add-numbers")
def zeros_are_not_added(self, handle, op, ids, rows):
    """An operand of zero is passed over, and a row of -0.0 stays as it is."""
    if op == "add" and rows.ndim == 1:
        ids, rows = ids[rows != 0], rows[rows != 0]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("assign", "R-SV-3-assign-zeros")
def equal_values_are_not_assigned(self, handle, value):
    """A value that equals the variable is not written."""
    whole = self.read(handle)
    if whole.shape == value.shape and np.array_equal(whole, value):
        return handle
    return Right.assign(self, handle, value)


change_what_is_given(
    ("scatter", "R-SV-3-scatter-large", "rows_of_16_bits", "A scatter keeps 16 bits of each id.",
     "ids", of_16_bits),
    ("assign", "R-VAR-2-assign", "leading_axes_are_squeezed",
     "A leading axis of one is dropped from an assigned value.",
     "value", lambda handle, value: value[0] if value.ndim == handle[0].ndim + 1 and value.shape[0] == 1 else value),
    ("assign_add", "R-VAR-2-dtype-add", "other_dtypes_are_added", "An added value of another dtype is cast.",
     "value", lambda handle, value: value.astype(handle[0].dtype)),
    ("scatter", "R-SV-3-scatter-mul-numbers", "products_pass_over_nan", "A NaN operand of a product counts as one.",
     "rows", lambda op, rows: np.where(np.isnan(rows), rows.dtype.type(1), rows)
        if op == "mul" and rows.dtype.kind == "f" else rows),
)  # fmt: skip

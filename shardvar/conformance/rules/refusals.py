"""Levels 2 and 3: what must not be answered. Each rule is the converse of one that asks for an
answer."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    FULL,
    TableCase,
    made,
    must_be_unchanged,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.updates import COMPOSE, IDS, Lookup, ids_outside
from shardvar.conformance.rules.variables import Indexed
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

SPLITS = "indicating how each dimension can be splitted, allowing uneven sharding"
WIDE: tuple[tuple[int, ...], ...] = ((2,), (3,), (2, 2))
"""Rows of more than one column."""


@rule("R-SPEC-1-sum", 2, "002", SPLITS, "create_uneven",
      st.tuples(uneven_tables(), st.sampled_from([-1, 1, 2])))  # fmt: skip
def sizes_add_up(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    """Sizes that are together more or fewer than the rows are refused."""
    (value, sizes), more = case
    adapter.refuses("create_uneven", value, [*sizes[:-1], sizes[-1] + more])


@st.composite
def outer_columns(draw: st.DrawFn) -> Indexed:
    """A row that is there, and a column that is not."""
    value, num_shards = draw(tables(row_shapes=WIDE))
    beyond, extent = draw(st.integers(0, 2)), value.shape[1]
    column = draw(st.sampled_from([extent + beyond, -extent - 1 - beyond]))
    return value, num_shards, (draw(st.integers(0, len(value) - 1)), column)


@rule("R-VAR-1-outside-columns", 2, "000", FULL, "create index", outer_columns())
def columns_outside_are_refused(adapter: Calls, case: Indexed) -> None:
    """Indexing by a column that is not there is refused."""
    value, layout, key = case
    handle = made(adapter, value, layout)
    adapter.refuses("index", handle, key)


@st.composite
def rows_by_arrays(draw: st.DrawFn) -> Indexed:
    """A list of rows, an array of them, or a mask."""
    value, num_shards = draw(tables(min_shards=2))
    rows = draw(st.lists(st.integers(-len(value), len(value) - 1), max_size=4))
    mask = np.zeros(len(value), bool)
    mask[rows] = True
    return value, num_shards, (draw(st.sampled_from([rows, np.array(rows, np.int64), mask])),)


@rule("R-VAR-1-arrays", 2, "000", FULL, "create index", rows_by_arrays())
def arrays_index_or_are_refused(adapter: Calls, case: Indexed) -> None:
    """Indexing by a list of rows or by a mask is refused, or is NumPy's on the whole."""
    value, layout, key = case
    came = adapter.attempt("index", made(adapter, value, layout), key)
    if came is not REFUSED:
        # An empty list has no dtype; NumPy takes it for rows.
        must = value[np.asarray(key[0], None if len(key[0]) else np.int64)]
        expect_equal(came, must)


def other_shapes(value: Array) -> list[tuple[int, ...]]:
    """Shapes that NumPy would broadcast to that of ``value``, and one that it would not."""
    rest = value.shape[1:]
    shapes = [(1, *rest), (), (len(value) + 1, *rest), (*rest,), (len(value), *(1 for _ in rest))]
    return [shape for shape in shapes if shape != value.shape]


def check_broadcast(adapter: Calls, case: tuple[TableCase, int], method: str) -> None:
    """Refuse a value of another shape, and change nothing."""
    (value, num_shards), number = case
    shapes = other_shapes(value)
    handle = adapter.create(value, num_shards)
    adapter.refuses(method, handle, counting(shapes[number % len(shapes)]) + np.float32(100))
    must_be_unchanged(adapter, handle, value)


_SHAPED = st.tuples(tables(row_shapes=WIDE, min_shards=2), st.integers(0, 4))


@rule("R-VAR-2-assign", 3, "000", COMPOSE, "create assign read", _SHAPED)
def assigned_shapes_are_compared(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A value of another shape is not assigned, also if NumPy would broadcast it."""
    check_broadcast(adapter, case, "assign")


@rule("R-VAR-2-assign-add", 3, "000", COMPOSE, "create assign_add read", _SHAPED)
def added_shapes_are_compared(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A value of another shape is not added, also if NumPy would broadcast it."""
    check_broadcast(adapter, case, "assign_add")


@rule("R-VAR-2-assign-sub", 3, "000", COMPOSE, "create assign_sub read", _SHAPED)
def subtracted_shapes_are_compared(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A value of another shape is not subtracted, also if NumPy would broadcast it."""
    check_broadcast(adapter, case, "assign_sub")


Operands = tuple[TableCase, str, int, int]


@st.composite
def wrong_operands(draw: st.DrawFn) -> Operands:
    """A table, an operation, a number of ids, and which shape the operands have."""
    table = draw(tables(row_shapes=WIDE, min_shards=2))
    return (
        table,
        draw(st.sampled_from(["add", "update", "max"])),
        draw(st.integers(2, len(table[0]))),
        draw(st.integers(0, 4)),
    )


@rule("R-VAR-2-scatter", 3, "000", COMPOSE, "create scatter read", wrong_operands())
def scattered_shapes_are_compared(adapter: Calls, case: Operands) -> None:
    """Operands of a scatter that are not one row for each id are refused, also if NumPy would
    broadcast them."""
    (value, num_shards), op, count, number = case
    shapes = other_shapes(value[:count])
    handle = adapter.create(value, num_shards)
    operands = counting(shapes[number % len(shapes)]) + np.float32(100)
    adapter.refuses("scatter", handle, op, np.arange(count), operands)
    must_be_unchanged(adapter, handle, value)


@rule("R-VAR-2-dtype", 3, "000", COMPOSE, "create assign read",
      st.tuples(st.sampled_from(["int32", "float32"]), st.integers(1, 3)))  # fmt: skip
def values_are_not_cast(adapter: Calls, case: tuple[str, int]) -> None:
    """A value whose numbers the variable cannot hold is refused, or is what the variable reads as:
    fractions for integers, complex numbers for real ones."""
    name, num_shards = case
    handle = adapter.create(counting((4, 2), np.dtype(name)), num_shards)
    other = counting((4, 2)) + np.float32(0.5)
    given = other if name == "int32" else other.astype(np.complex64) * np.complex64(1j)
    came = adapter.attempt("assign", handle, given)
    if came is not REFUSED:
        expect_equal(adapter.read(came), given)


@rule("R-ID-1-clipped", 3, "000", IDS, "create lookup_clipped", ids_outside())
def clipped_lookups_outside_are_refused(adapter: Calls, case: Lookup) -> None:
    """A clipped lookup of an id that is negative or too large is refused."""
    value, layout, wanted = case
    handle = made(adapter, value, layout)
    adapter.refuses("lookup_clipped", handle, wanted, 1.0)


@rule("R-ID-1-bags", 3, "000", IDS, "create lookup_bags",
      st.tuples(ids_outside(tables(row_shapes=((2,),))), st.sampled_from(["sum", "mean", "sqrtn"])))  # fmt: skip
def bags_outside_are_refused(adapter: Calls, case: tuple[Lookup, str]) -> None:
    """A bag with an id that is negative or too large is refused."""
    (value, layout, wanted), combiner = case
    handle: Any = made(adapter, value, layout)
    adapter.refuses("lookup_bags", handle, [[0], wanted.tolist()], None, combiner)

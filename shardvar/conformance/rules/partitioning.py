"""Level 1: which rows a shard holds, and what partitioners answer."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import pairs
from shardvar.spec.partitioners import row_nbytes
from shardvar.spec.partitions import axis_sizes, div, grid, owner

DIV = (
    "If the ids do not evenly divide the number of shards, each of the first several shards will "
    "be assigned one more id."
)
SIGNATURE = (
    "`num_partitions` is a list/tuple representing the number of partitions on each dimension"
)
AT_LEAST = "Create a partitioner that allocates at least 64MB for each partition."
AT_MOST = "The max number of such partitions (upper bound) is the 10."

FUNCTIONS = (
    "Existing partitioners like `min_max_variable_partitioner`, `variable_axis_size_partitioner` "
    "and `fixed_size_partitioner` conform to the required signature so they can be directly used."
)
CONTIGUOUS = "ids are assigned to shards in a contiguous manner"

# Small, yet with every remainder, and with fewer rows than shards.
lengths = st.integers(0, 40)
counts = st.integers(1, 9)
_shapes = st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple)
_dtypes: st.SearchStrategy[np.dtype[Any]] = st.sampled_from(
    [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int8)]
)


@rule("R-DIV-1", 1, "000", DIV, "div", st.tuples(lengths, counts))
def rows_are_divided(adapter: Calls, case: tuple[int, int]) -> None:
    """`div` gives every shard its contiguous rows, the first ones one row more."""
    came, must = pairs(adapter.div(*case)), div(*case)
    expect(came == must, f"It gave {came}.", f"It must give {must}.")


@st.composite
def owned(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Ids, a length and a number of shards."""
    length = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(0, length - 1), max_size=6)), length, draw(counts)


@rule("R-DIV-1-owner", 1, "000", CONTIGUOUS, "owner", owned())
def ids_have_owners(adapter: Calls, case: tuple[list[int], int, int]) -> None:
    """`owner` gives for every id the shard of the div rule and the row there."""
    ids, length, num_shards = case
    shards, rows = adapter.owner(np.array(ids, np.int64), length, num_shards)
    # ``pairs`` consumes the zip, so arrays of different lengths become ``Broken`` there.
    came = pairs(zip(np.asarray(shards).tolist(), np.asarray(rows).tolist(), strict=True))
    sizes = [stop - start for start, stop in div(length, num_shards)]
    must = [owner(row, sizes) for row in ids]
    expect(came == must, f"It gave the (shard, row) pairs {came}.", f"It must give {must}.")


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    """A shape, and counts an axis that it can be cut into without empty parts."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=2).map(tuple))
    return shape, [draw(st.integers(1, min(extent, 4))) for extent in shape]


@rule("R-PART-1-regions", 1, "000", "we are going to partition that variable 3 ways on the first dimension", "regions",
      grids())  # fmt: skip
def counts_make_a_grid(adapter: Calls, case: tuple[tuple[int, ...], list[int]]) -> None:
    """`regions` gives the parts of a grid, each axis divided by the div rule."""
    shape, along = case
    came = [(tuple(map(int, o)), tuple(map(int, s))) for o, s in adapter.regions(shape, along)]
    must = grid(axis_sizes(shape, partitions=along))
    expect(came == must, f"It gave the (offset, shape) pairs {came}.", f"It must give {must}.")


def rows_only(answer: Any, shape: tuple[int, ...]) -> int:
    """Return the number of parts of the first axis; ``Broken`` unless the other axes are whole."""
    came = [int(count) for count in answer]
    is_first_axis = (
        len(came) == len(shape) and came[0] >= 1 and all(count == 1 for count in came[1:])
    )
    expect(
        is_first_axis,
        f"It gave {came}.",
        f"It must give a count for each of {len(shape)} axes, 1 but for axis 0.",
    )
    return came[0]


@st.composite
def fixed(draw: st.DrawFn) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """A shape, a dtype and a number of shards that is not above the number of rows."""
    shape = draw(_shapes)
    return shape, draw(_dtypes), draw(st.integers(1, min(shape[0], 9)))


@rule("R-PART-1-fixed", 1, "000", SIGNATURE, "fixed_shards", fixed())
def fixed_is_fixed(adapter: Calls, case: tuple[tuple[int, ...], np.dtype[Any], int]) -> None:
    """`fixed_shards` answers with the number of shards for the first axis and 1 for the others."""
    came = rows_only(adapter.fixed_shards(*case), case[0])
    expect(came == case[2], f"It gave {came} parts.", f"It must give {case[2]}.")


sized = st.tuples(_shapes, _dtypes, st.integers(1, 300), st.integers(1, 9))
Sized = tuple[tuple[int, ...], np.dtype[Any], int, int]


@rule("R-PART-3-min", 1, "000", AT_LEAST, "min_size", sized)
def no_part_is_smaller(adapter: Calls, case: Sized) -> None:
    """`min_size` answers with parts of at least the minimum, or with one part."""
    shape, dtype, minimum, _ = case
    parts = rows_only(adapter.min_size(*case), shape)
    # The last part is the smallest: 10 rows in 4 parts leave it 10 // 4 = 2.
    smallest = shape[0] // parts * row_nbytes(shape, dtype.itemsize)
    expect(
        parts == 1 or smallest >= minimum,
        f"It gave {parts} parts, of which the smallest has {smallest} bytes.",
        f"No part must be below {minimum} bytes.",
    )


@rule("R-PART-3-upper", 1, "000", AT_MOST, "min_size", sized)
def no_more_parts(adapter: Calls, case: Sized) -> None:
    """`min_size` never answers with more parts than the maximum, nor with fewer than would hold the
    minimum."""
    shape, dtype, minimum, most = case
    parts = rows_only(adapter.min_size(*case), shape)
    expect(parts <= most, f"It gave {parts} parts.", f"It must give at most {most}.")
    # Otherwise a partitioner that always answers 1 would keep the rule.
    more = parts + 1
    possible = (
        more <= min(most, shape[0])
        and shape[0] // more * row_nbytes(shape, dtype.itemsize) >= minimum
    )
    expect(
        not possible, f"It gave {parts} parts.", f"{more} parts would hold {minimum} bytes each."
    )


@rule("R-PART-1-max", 1, "000", FUNCTIONS, "max_size", sized)
def no_part_is_larger(adapter: Calls, case: Sized) -> None:
    """`max_size` answers with parts of at most the maximum, except at one row a part or at the most
    parts."""
    shape, dtype, maximum, most = case
    parts = rows_only(adapter.max_size(*case), shape)
    # The first part is the largest, rounded up: 10 rows in 4 parts give it -(-10 // 4) = 3.
    largest = -(-shape[0] // parts) * row_nbytes(shape, dtype.itemsize)
    expect(parts <= most, f"It gave {parts} parts.", f"It must give at most {most}.")
    expect(
        largest <= maximum or parts in (most, shape[0]),
        f"It gave {parts} parts, of which the largest has {largest} bytes.",
        f"No part must exceed {maximum} bytes.",
    )


@rule("R-PART-1-max-few", 1, "000", FUNCTIONS, "max_size", sized)
def no_part_too_many(adapter: Calls, case: Sized) -> None:
    """`max_size` answers with as few parts as exceed the maximum nowhere: one part fewer would."""
    shape, dtype, maximum, _ = case
    parts = rows_only(adapter.max_size(*case), shape)
    fewer = max(1, parts - 1)
    largest = -(-shape[0] // fewer) * row_nbytes(shape, dtype.itemsize)
    expect(
        parts == 1 or largest > maximum,
        f"It gave {parts} parts.",
        f"{fewer} parts have at most {largest} bytes, which {maximum} allows.",
    )


@rule("R-PART-1-fixed-few", 1, "000", SIGNATURE, "fixed_shards",
      st.tuples(st.integers(1, 6), st.integers(1, 3)))  # fmt: skip
def fixed_is_not_nothing(adapter: Calls, case: tuple[int, int]) -> None:
    """`fixed_shards` answers with the number of shards where there are fewer rows, or with a part a
    row."""
    rows, more = case
    came = rows_only(adapter.fixed_shards((rows, 2), np.dtype(np.float32), rows + more), (rows, 2))
    expect(
        came in (rows, rows + more),
        f"It gave {came} parts.",
        f"It must give {rows + more}, or {rows}.",
    )


@rule(
    "R-DIV-1-large",
    1,
    "000",
    DIV,
    "div",
    st.tuples(st.integers(2**24, 2**24 + 99), st.integers(2, 5)),
)
def many_rows_are_divided(adapter: Calls, case: tuple[int, int]) -> None:
    """`div` divides lengths that float32 does not hold."""
    length, num_shards = case
    size, more = divmod(length, num_shards)
    stops = [size * n + min(n, more) for n in range(1, num_shards + 1)]
    came, must = pairs(adapter.div(*case)), list(zip([0, *stops[:-1]], stops, strict=True))
    expect(came == must, f"It gave {came}.", f"It must give {must}.")


@rule("R-DIV-1-refused", 1, "000", DIV, "div",
      st.tuples(st.integers(-5, -1), counts) | st.tuples(lengths, st.integers(-2, 0)))  # fmt: skip
def impossible_divisions_are_refused(adapter: Calls, case: tuple[int, int]) -> None:
    """`div` refuses a length below zero, and fewer shards than one."""
    adapter.refuses("div", *case)


@rule("R-DIV-1-owner-axes", 1, "000", CONTIGUOUS, "owner", owned())
def ids_of_two_axes_have_owners(adapter: Calls, case: tuple[list[int], int, int]) -> None:
    """`owner` answers with arrays like the ids, also if these have two axes."""
    ids, length, num_shards = case
    square = np.array([ids, ids[::-1]], np.int64)
    came = [np.asarray(each).shape for each in adapter.owner(square, length, num_shards)]
    expect(
        came == [square.shape] * 2, f"It gave the shapes {came}.", f"It must give {square.shape}."
    )


@rule("R-ID-1-owner", 1, "000", "Assuming we assign consecutive integer ids along the first axis of the variable",
      "owner", st.tuples(owned(), st.sampled_from([0, 2, 2**32, None])))  # fmt: skip
def ids_outside_have_no_owner(
    adapter: Calls, case: tuple[tuple[list[int], int, int], int | None]
) -> None:
    """`owner` refuses an id that is negative or too large."""
    (ids, length, num_shards), beyond = case
    outside = -1 if beyond is None else length + beyond
    adapter.refuses("owner", np.array([*ids, outside], np.int64), length, num_shards)

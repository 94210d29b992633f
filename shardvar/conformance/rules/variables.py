"""Levels 1 and 2: which rows a shard holds, and what partitioners answer; a sharded variable holds the
value that it was given, and is indexed as the whole would be."""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect, expect_answer, expect_equal
from shardvar.conformance.rules import refuses, rule, rules
from shardvar.conformance.rules.cases import (
    ORDINARY,
    LaidOutCase,
    ShardSizes,
    TableCase,
    check_outside,
    concatenated,
    few_rows,
    hollow_tables,
    made,
    many_shards,
    pairs,
    tables,
    typed,
    uneven_tables,
    unless_refused,
)
from shardvar.layout.dtypes import Array, Shape
from shardvar.spec.partitioners import row_nbytes
from shardvar.spec.partitions import axis_sizes, div, grid, owner
from shardvar.testing import counting

# Level 1.


# Small, yet with every remainder, and with fewer rows than shards.
lengths = st.integers(0, 40)
counts = st.integers(1, 9)
_shapes = st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple)
_sizes_of_elements: st.SearchStrategy[np.dtype[Any]] = st.sampled_from(
    [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int8)]
)


def check_div(adapter: Calls, case: tuple[int, int]) -> None:
    expect_answer(pairs(adapter.div(*case)), div(*case))


@st.composite
def owned(draw: st.DrawFn) -> tuple[list[int], int, int]:
    length = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(0, length - 1), max_size=6)), length, draw(counts)


def check_owner(adapter: Calls, case: tuple[Any, int, int]) -> None:
    ids, length, num_shards = case
    given = np.array(ids, np.int64)
    came = [np.asarray(each) for each in adapter.owner(given, length, num_shards)]
    kinds = [(each.shape, each.dtype.kind in "iu") for each in came]
    expect_answer(kinds, [(given.shape, True)] * 2, "shapes, and whether integers, ")
    sizes = [stop - start for start, stop in div(length, num_shards)]
    # The ids that it was given are read afterwards, so that a change of them shows.
    must = [owner(row, sizes) for row in given.ravel().tolist()]
    expect_answer(
        pairs(zip(*(each.ravel() for each in came), strict=True)), must, "the (shard, row) pairs "
    )


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    """A shape, and counts an axis that it can be cut into without empty parts."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=2).map(tuple))
    return shape, [draw(st.integers(1, min(extent, 4))) for extent in shape]


def check_grid(adapter: Calls, case: tuple[tuple[int, ...], list[int]]) -> None:
    came = [
        (tuple(map(int, offset)), tuple(map(int, shape)))
        for offset, shape in adapter.regions(*case)
    ]
    must = grid(axis_sizes(case[0], partitions=case[1]))
    expect_answer(came, must, "the (offset, shape) pairs ")


@st.composite
def wide_grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=3, max_size=5)))
    # The div rule cuts 4 into 2, 1 and 1, and equal parts would be 2, 2 and none.
    return shape, [draw(st.integers(1, min(extent, 3))) for extent in shape]


rules(
    ("R-DIV-1", "div", [*product((0, 1, 3, 7, 10, 13, 40), range(1, 9))], check_div,
     "`div` gives every shard its contiguous rows, the first ones one row more"),
    ("R-DIV-1-owner", "owner", owned(), check_owner,
     "`owner` gives for every id the shard of the div rule and the row there"),
    ("R-PART-1-regions", "regions", grids(), check_grid,
     "`regions` gives the parts of a grid, each axis divided by the div rule"),
    ("R-PART-1-regions-few", "regions",
     [(shape[::turn], counts[::turn])
      for extent, more, turn in product((1, 2, 3), (1, 2), (1, -1))
      for shape, counts in [((extent, 2), [extent + more, 1])]],
     unless_refused(check_grid),
     "A count above the extent of its axis is refused, or gives as many parts, the last ones empty"),
    ("R-PART-1-regions-axes", "regions", wide_grids(), check_grid, "`regions` cuts any of five axes"),
    ("R-PART-1-regions-refused", "regions",
     [((4, 4), counts) for counts in ([2, 1, 1], [0, 1], [2, -1], [1, 1, 2])], refuses("regions"),
     "Counts below 1, or for more axes than there are, are refused"),
)  # fmt: skip


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
    shape = draw(_shapes)
    return shape, draw(_sizes_of_elements), draw(st.integers(1, min(shape[0], 9)))


@rule("R-PART-1-fixed", "fixed_shards", fixed())
def fixed_is_fixed(adapter: Calls, case: tuple[tuple[int, ...], np.dtype[Any], int]) -> None:
    """`fixed_shards` answers with the number of shards for the first axis and 1 for the others."""
    came = rows_only(adapter.fixed_shards(*case), case[0])
    expect(came == case[2], f"It gave {came} parts.", f"It must give {case[2]}.")


sized = st.tuples(_shapes, _sizes_of_elements, st.integers(1, 300), st.integers(1, 9))
Sized = tuple[tuple[int, ...], np.dtype[Any], int, int]


def no_part_is_smaller(adapter: Calls, case: Sized) -> None:
    shape, dtype, minimum, _ = case
    parts = rows_only(adapter.min_size(*case), shape)
    # The last part is the smallest: 10 rows in 4 parts leave it 10 // 4 = 2.
    smallest = shape[0] // parts * row_nbytes(shape, dtype.itemsize)
    expect(
        parts == 1 or smallest >= minimum,
        f"It gave {parts} parts, of which the smallest has {smallest} bytes.",
        f"No part must be below {minimum} bytes.",
    )


def no_more_parts(adapter: Calls, case: Sized) -> None:
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


def no_part_is_larger(adapter: Calls, case: Sized) -> None:
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


def no_part_too_many(adapter: Calls, case: Sized) -> None:
    shape, dtype, maximum, _ = case
    parts = rows_only(adapter.max_size(*case), shape)
    fewer = max(1, parts - 1)
    largest = -(-shape[0] // fewer) * row_nbytes(shape, dtype.itemsize)
    expect(
        parts == 1 or largest > maximum,
        f"It gave {parts} parts.",
        f"{fewer} parts have at most {largest} bytes, which {maximum} allows.",
    )


@rule("R-PART-1-fixed-few", "fixed_shards", [*product(range(1, 7), (1, 2, 3))])
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


# Lengths and bytes that float32, 32 bits or float64 do not hold.

_LARGE = [
    (shape, np.dtype(name), limit + more, most)
    for name, rows, rest, more, most in product(
        ("bool", "bfloat16", "float32", "complex128"), (1, 12, 64), ((32768,), (32768, 65536, 3, 1)), (-1, 0, 1),
        (3, 300))
    for shape, limit in [((rows + 1, *rest), row_nbytes((1, *rest), np.dtype(name).itemsize) * (1 + rows % 5))]
]  # fmt: skip
"""Shapes of few rows, whose bytes 32 bits do not hold."""
_HUGE = [*product((2**53 + 1, 2**53 + 50, 2**61 + 3), (2, 5, 257, 300))]


def around(length: int, back: int) -> list[int]:
    """Ids near both ends and in the middle of a length."""
    return [length - back, back, length // 2 + back]


rules(
    ("R-DIV-1-large", "div", [*product((2**24, 2**24 + 1, 2**24 + 99), (2, 3, 5))], check_div,
     "`div` divides lengths that float32 does not hold"),
    ("R-DIV-1-huge", "div", _HUGE, unless_refused(check_div),
     "`div` divides lengths that float64 does not hold, or refuses them"),
    ("R-DIV-1-owner-large", "owner",
     [(around(length, back), length, count)
      for length, count, back in product((2**33, 2**33 + 9), (1, 3, 257, 300), (1, 9))],
     check_owner,
     "`owner` gives the shard and the row of ids that 32 bits do not hold, and of more shards than 8 bits count"),
    ("R-DIV-1-owner-huge", "owner", [(around(case[0], back), *case) for case in _HUGE for back in (1, 99)],
     unless_refused(check_owner),
     "`owner` gives the shard and the row of ids that float64 does not hold, or refuses them"),
    ("R-PART-1-regions-huge", "regions",
     [((length, 3), [count, more]) for length, count in _HUGE[:8:2] for more in (1, 2)], unless_refused(check_grid),
     "`regions` cuts extents that float64 does not hold, or refuses them"),
    ("R-PART-1-fixed-large", "fixed_shards",
     [((shape[0] * 2**31, *shape[1:]), dtype, most) for shape, dtype, _, most in _LARGE], fixed_is_fixed,
     "`fixed_shards` answers with the number of shards for shapes that 32 bits do not hold"),
    *(row
      for name, method, check, law in (
          ("R-PART-3-min", "min_size", no_part_is_smaller, "parts of at least the minimum, or with one part"),
          ("R-PART-3-upper", "min_size", no_more_parts,
           "at most as many parts as were allowed, and no fewer than would hold the minimum"),
          ("R-PART-1-max", "max_size", no_part_is_larger,
           "parts of at most the maximum, except at one row a part or at the most parts"),
          ("R-PART-1-max-few", "max_size", no_part_too_many,
           "as few parts as exceed the maximum nowhere: one part fewer would"),
      )
      for row in (
          (name, method, sized, check, f"`{method}` answers with {law}"),
          (f"{name}-large", method, _LARGE, check, f"`{method}` answers with {law}, of bytes that 32 bits do not hold"),
      )),
    ("R-DIV-1-refused", "div",
     st.tuples(st.integers(-5, -1), counts) | st.tuples(lengths, st.integers(-2, 0)), refuses("div"),
     "`div` refuses a length below zero, and fewer shards than one"),
)  # fmt: skip


@rule("R-DIV-1-owner-axes", "owner", owned())
def ids_of_three_axes_have_owners(adapter: Calls, case: tuple[list[int], int, int]) -> None:
    """`owner` answers with arrays of integers like the ids, also if these have three axes or none."""
    ids, length, num_shards = case
    for given in ([[ids, ids[::-1]]], length - 1):
        check_owner(adapter, (given, length, num_shards))


@rule("R-ID-1-owner",
      "owner", st.tuples(owned(), st.sampled_from([0, 2, 2**32, None])))  # fmt: skip
def ids_outside_have_no_owner(
    adapter: Calls, case: tuple[tuple[list[int], int, int], int | None]
) -> None:
    """`owner` refuses an id that is negative or too large."""
    (ids, length, num_shards), beyond = case
    outside = -1 if beyond is None else length + beyond
    adapter.refuses("owner", np.array([*ids, outside], np.int64), length, num_shards)


# Level 2.

Indexed = tuple[Array, ShardSizes, tuple[Any, ...]]


def check_read(adapter: Calls, case: TableCase) -> None:
    value, num_shards = case
    must = value.astype(value.dtype.newbyteorder("="))
    expect_equal(adapter.read(adapter.create(value, num_shards)), must)


rules(
    ("R-CONCAT-1", "create read", tables(), check_read,
     "A variable reads as the value that it was created with"),
    ("R-CONCAT-1-few", "create read", typed(few_rows()), check_read,
     "A variable with fewer rows than shards, or with none, reads as the value that it was created with"),
    ("R-CONCAT-1-axes", "create read",
     [(counting((num_shards + 1, *rest)), num_shards)
      for rest, num_shards in product(((2, 2, 2), (1, 3, 3), (2, 1, 2, 2), (2, 2, 2, 2)), (1, 2, 3))],
     check_read, "A variable of up to five axes reads as the value that it was created with"),
    ("R-DIV-1-none", "create", [(counting((4, 2)), 0), (counting((4, 2)), -1)], refuses("create"),
     "`create` in fewer shards than one is refused"),
)  # fmt: skip


@rule("R-SV-1", "create shards", tables())
def shards_compose_the_whole(adapter: Calls, case: TableCase) -> None:
    """There are as many shards as were asked for, and one after another they are the whole."""
    value, num_shards = case
    shards = adapter.shards(adapter.create(value, num_shards))
    count = len(shards)
    expect(count == num_shards, f"There are {count} shards.", f"There must be {num_shards}.")
    expect_equal(concatenated(shards), value)


def expect_sizes(adapter: Calls, handle: Any, must: list[int]) -> None:
    came = [len(np.asarray(shard)) for shard in adapter.shards(handle)]
    expect(came == must, f"The shards have {came} rows.", f"They must have {must}.")


@rule("R-DIV-1-shards", "create shards",
      tables(max_shards=5))  # fmt: skip
def shards_are_divided(adapter: Calls, case: TableCase) -> None:
    """The shards of a variable hold the rows of the div rule."""
    value, num_shards = case
    must = [stop - start for start, stop in div(len(value), num_shards)]
    expect_sizes(adapter, adapter.create(value, num_shards), must)


def check_sizes(adapter: Calls, case: tuple[Array, list[int]]) -> None:
    value, sizes = case
    handle = adapter.create_uneven(value, sizes)
    expect_sizes(adapter, handle, sizes)
    expect_equal(concatenated(adapter.shards(handle)), value)


rules(
    ("R-SPEC-1", "create_uneven shards", uneven_tables(((), (2,))), check_sizes,
     "A variable in shards of given sizes has these shards, one after another the whole"),
    ("R-SPEC-1-empty-shards", "create_uneven shards", typed(hollow_tables(((), (2,)))), check_sizes,
     "A variable in shards of given sizes, some of them zero, has these shards, one after another the whole"),
    ("R-SPEC-1-negative", "create_uneven",
     [(counting((5, 2)), sizes) for sizes in ([-1, 6], [6, -1], [2, -1, 4], [3, 3, -1], [-2, 3, 4])],
     refuses("create_uneven"), "A size below zero is refused, also if all sizes add up to the rows"),
    ("R-SPEC-1-sum", "create_uneven",
     [(counting((sum(sizes), *rest)), [*sizes[:-1], sizes[-1] + more])
      for sizes in ([3], [1, 3], [2, 2, 1], [1] * 11) for rest in ((), (2,)) for more in (-1, 1, 2)],
     refuses("create_uneven"), "Sizes that are together more or fewer than the rows are refused"),
)  # fmt: skip


@rule("R-CREATE-2",
      "create_partitioned read", st.sampled_from([(4,), (4, 2), (1, 3)]))  # fmt: skip
def one_part_is_a_variable(adapter: Calls, case: tuple[int, ...]) -> None:
    """A partitioner that answers with one part an axis gives a variable all the same."""
    value = counting(case)
    expect_equal(adapter.read(adapter.create_partitioned(value, [1] * len(case))), value)


def check_partitioned(adapter: Calls, counts: list[int]) -> None:
    value = counting((4, 4))
    handle = adapter.attempt("create_partitioned", value, counts)
    expect_equal(adapter.read(handle), value)
    if adapter.has("shards"):
        count = len(adapter.shards(handle))
        expect(
            count == prod(counts), f"There are {count} shards.", f"There must be {prod(counts)}."
        )


def check_index(adapter: Calls, case: Indexed) -> None:
    """``variable[key]`` is NumPy's on the whole."""
    value, layout, key = case
    expect_equal(adapter.index(made(adapter, value, layout), key), value[key])


def check_ways(adapter: Calls, count: int) -> None:
    handle = adapter.create_partitioned(counting((6, 2)), [count, 1])
    expect_sizes(adapter, handle, [6 // count] * count)


Keys = Callable[[int], st.SearchStrategy[Any]]
"""The entries of an index for an axis of some extent."""


@st.composite
def indexed(
    draw: st.DrawFn,
    keys: Keys,
    start: st.SearchStrategy[LaidOutCase] = ORDINARY,
    ranks: tuple[int, int] = (1, 9),
    inserted: tuple[Any, ...] = (),
) -> Indexed:
    """A table and an index of its first axes, with something ``inserted`` anywhere."""
    value, layout = draw(typed(start))
    rank = draw(st.integers(ranks[0], min(ranks[1], value.ndim)))
    key = [draw(keys(extent)) for extent in value.shape[:rank]]
    for item in inserted:
        key.insert(draw(st.integers(0, len(key))), item)
    return value, layout, tuple(key)


def inner_slices(steps: tuple[int | None, ...]) -> Keys:
    """Slices whose bounds lie within an axis."""

    @st.composite
    def slices(draw: st.DrawFn, extent: int) -> slice:
        step = draw(st.sampled_from(steps))
        low, high = sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent))))
        backwards = step is not None and step < 0
        # Backwards from the last row of the range, without ``low``: 1 and 4 become 3:1:-1, which is
        # rows 3 and 2.
        first, stop = (max(high - 1, 0), low) if backwards else (min(low, extent - 1), high)
        return slice(draw(st.none() | st.just(first)), draw(st.none() | st.just(stop)), step)

    return slices


def outer_slices(extent: int) -> st.SearchStrategy[slice]:
    """Slices whose bounds lie beyond the ends."""
    more = st.integers(1, 3)
    beyond = more.map(lambda more: extent + more) | more.map(lambda more: -extent - more)
    stop = st.none() | st.integers(-extent, extent) | beyond
    return st.builds(slice, beyond, stop, st.sampled_from([None, 1, 2, 3, -1, -2]))


_PARTS: tuple[Any, ...] = (0, slice(None), slice(1, None))
# Where integers and slices name every axis, the ellipsis stands for nothing, which NumPy allows.
_ELLIPSES = indexed(
    lambda _: st.sampled_from([*_PARTS, -1]), tables(row_shapes=((2,), (2, 2))), (0, 9), (...,)
)
_NEW_AXES = st.sampled_from([(None,), (..., None)]).flatmap(
    lambda some: indexed(
        lambda _: st.sampled_from([*_PARTS, slice(None, None, -1)]),
        tables(row_shapes=((2,),)),
        (0, 2),
        some,
    )
)


@st.composite
def rows_by_arrays(draw: st.DrawFn) -> Indexed:
    value, num_shards = draw(tables(min_shards=2) | many_shards())
    rows = draw(st.lists(st.integers(-len(value), len(value) - 1), max_size=4))
    mask = np.zeros(len(value), bool)
    mask[rows] = True
    return value, num_shards, (draw(st.sampled_from([rows, np.array(rows, np.int64), mask])),)


rules(
    ("R-PART-4", "create_partitioned", [(counting((4, 4)), counts) for counts in ([0, 1], [-1, 1], [2, 0], [2, -1])],
     refuses("create_partitioned"), "A partitioner's answer with a count below 1 is refused"),
    ("R-PART-4-rank", "create_partitioned",
     [(counting((4, 4)), counts) for counts in ([2, 1, 1], [2, 1, 2], [1, 1, 2])], refuses("create_partitioned"),
     "A partitioner's answer with more counts than the variable has axes is refused"),
    ("R-PART-1-regions-shards", "create_partitioned shards", [2, 3], check_ways,
     "A variable has as many shards as a partitioner answers for its first axis"),
    ("R-PART-4-axis", "create_partitioned read", [[1, 2], [2, 2], [1, 4], [2], [1]], check_partitioned,
     "A partitioner's answer that cuts another axis, or has fewer counts than the variable has axes, is refused, or "
     "gives a variable of as many shards that reads as the whole"),
    ("R-VAR-1-integers", "create index",
     indexed(lambda extent: st.integers(-extent, extent - 1)), check_index,
     "Indexing by integers, also negative ones, is NumPy's on the whole"),
    ("R-VAR-1-slices", "create index", indexed(inner_slices((None, 1))), check_index,
     "Slices whose bounds lie within the variable are NumPy's on the whole"),
    ("R-VAR-1-steps", "create index", indexed(inner_slices((2, 3, -1, -3))), check_index,
     "Slices with steps, also backwards, are NumPy's on the whole"),
    ("R-VAR-1-bounds", "create index", indexed(outer_slices, ranks=(1, 1)), check_index,
     "Slices whose bounds lie beyond the ends are clamped as NumPy clamps them"),
    ("R-VAR-1-ellipsis", "create index", _ELLIPSES, check_index,
     "An ellipsis stands for all axes that are not named, be there none"),
    ("R-VAR-1-new-axis", "create index", _NEW_AXES, check_index,
     "`None` makes a new axis of the whole, not of each shard"),
    ("R-VAR-1-axes", "index create",
     [(counting((4, 3, 2, 3)), 2, (*(slice(None),) * axis, key))
      for axis in range(4)
      for key in (0, 1, -1, -2, slice(1, None), slice(None, -1), slice(None, None, -1), slice(-2, None))],
     check_index, "An index of any axis of four is NumPy's on the whole"),
    ("R-VAR-1-outside", "create index",
     [(counting((4, *rest)), count, (key,))
      for rest, count, row in product(((), (3,)), (1, 2, 4), (4, 6, -5)) for key in (row, [0, row])],
     check_outside("index"), "Indexing by a row that is not there, or by a list with one, is refused"),
    ("R-VAR-1-outside-columns", "create index",
     [(counting((4, 3, *rest)), count, key)
      for rest, count, row in product(((), (2,)), (1, 2), (0, 3))
      for key in (*((row, column) for column in (3, 4, -4, -5)), (row, 0, 0, 0), (slice(None), slice(None, None, 0)))],
     check_outside("index"), "Indexing by a column or an axis that is not there, or by a step of zero, is refused"),
    ("R-VAR-1-masks", "create index",
     [(counting((4, 2)), 2, (np.ones(4 + more, bool),)) for more in (-1, 1, 2)], check_outside("index"),
     "A mask that is longer or shorter than the rows is refused"),
    ("R-VAR-1-arrays", "create index", rows_by_arrays(), unless_refused(check_index),
     "Indexing by a list of rows or by a mask is refused, or is NumPy's on the whole"),
)  # fmt: skip


@rule("R-MATMUL-1", "create matmul", tables(row_shapes=((1,), (3,))))
def products_are_of_the_whole(adapter: Calls, case: LaidOutCase) -> None:
    """A product with the variable is the product with the whole."""
    value, layout = case
    # Small integers: every product and sum is exact in float32, in any order of shards.
    left = counting((len(value), len(value) % 4)).T % np.float32(97)
    expect_equal(adapter.matmul(left, made(adapter, value, layout)), left @ value)


@rule("R-MATMUL-1-vector", "create matmul", [
    (*shapes, count)
    for count in (1, 2, 3)
    for shapes in (((4,), (4, 2)), ((2, 4), (4,)), ((3,), (3, 3)), ((3, 2, 4), (4, 2)), ((2,), (4, 2, 3)),
                   ((4, 5, 2), (4, 2, 3)))])  # fmt: skip
def other_ranks_are_multiplied(adapter: Calls, case: tuple[Shape, Shape, int]) -> None:
    """A product of a vector or of a stack of matrices, or with one, is refused, or is NumPy's."""
    left, value = counting(case[0]), counting(case[1])
    came = adapter.attempt("matmul", left, adapter.create(value, case[2]))
    expect_equal(came, left @ value)


def check_odd_product(adapter: Calls, num_shards: int) -> None:
    left, value = counting((3, 4)), counting((4, 4))
    left[1, 2] = value[2, 1] = np.nan
    left[2, 0] = value[1, 3] = np.inf
    expect_equal(adapter.matmul(left, adapter.create(value, num_shards)), left @ value)


rules(
    ("R-MATMUL-1-nan", "matmul create", [1, 2, 3], check_odd_product,
     "A NaN or an infinity reaches the elements of a product that NumPy's has, and no others"),
    ("R-MATMUL-1-refused", "matmul create", [(2, 3), (2, 5), (3, 1)],
     lambda adapter, shape: adapter.refuses("matmul", counting(shape), adapter.create(counting((4, 2)), 2)),
     "A product with an array of another number of columns than there are rows is refused"),
)  # fmt: skip

"""Levels 1 to 3: what ordinary cases leave out. Five axes, every dtype, any order in memory, numbers
that are easily lost, and the refusals that go with them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    FULL,
    TableCase,
    must_be_unchanged,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.partitioning import CONTIGUOUS
from shardvar.conformance.rules.refusals import SPLITS
from shardvar.conformance.rules.updates import CLIPPED, COMPOSE, LOOKUP, WRITES
from shardvar.conformance.rules.variables import CONCAT, LAYOUT, PRODUCT
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import axis_sizes, grid, owner
from shardvar.testing import Update, counting, updated
from shardvar.testing.arrays import bits

GRID = "we are going to partition that variable 3 ways on the first dimension"

# Level 1.

Grid = tuple[tuple[int, ...], list[int]]


def check_grid(adapter: Calls, case: Grid, is_refusable: bool = False) -> None:
    """Compare the parts of a grid with the div rule along each axis."""
    came = adapter.attempt("regions", *case) if is_refusable else adapter.regions(*case)
    if came is REFUSED:
        return
    came = [(tuple(map(int, offset)), tuple(map(int, shape))) for offset, shape in came]
    must = grid(axis_sizes(case[0], partitions=case[1]))
    expect(came == must, f"It gave the (offset, shape) pairs {came}.", f"It must give {must}.")


@st.composite
def wide_grids(draw: st.DrawFn) -> Grid:
    """A shape of three to five axes, of which the last one is cut, and counts."""
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=3, max_size=5)))
    cuts = [draw(st.integers(1, 2)) for _ in shape[:-1]]
    return shape, [*cuts, 2]


@rule("R-PART-1-regions-axes", 1, "000", GRID, "regions", wide_grids())
def grids_have_many_axes(adapter: Calls, case: Grid) -> None:
    """`regions` cuts any of five axes."""
    check_grid(adapter, case)


@rule("R-PART-1-regions-few", 1, "000", GRID, "regions",
      st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()))  # fmt: skip
def grids_have_empty_parts(adapter: Calls, case: tuple[int, int, bool]) -> None:
    """A count above the extent of its axis is refused, or gives as many parts, the last ones
    empty."""
    extent, more, is_first = case
    shape, counts = (extent, 2), [extent + more, 1]
    check_grid(adapter, (shape, counts) if is_first else (shape[::-1], counts[::-1]), True)


@rule("R-PART-1-regions-refused", 1, "000", GRID, "regions",
      st.sampled_from([[2, 1, 1], [0, 1], [2, -1], [1, 1, 2]]))  # fmt: skip
def other_grids_are_refused(adapter: Calls, counts: list[int]) -> None:
    """Counts below 1, or for more axes than there are, are refused."""
    adapter.refuses("regions", (4, 4), counts)


@rule("R-DIV-1-owner-large", 1, "000", CONTIGUOUS, "owner",
      st.tuples(st.integers(2**33, 2**33 + 9), st.integers(1, 3) | st.integers(257, 300),
                st.integers(1, 9)))  # fmt: skip
def large_ids_have_owners(adapter: Calls, case: tuple[int, int, int]) -> None:
    """`owner` gives the shard and the row of ids that 32 bits do not hold, and of more shards than
    8 bits count."""
    length, num_shards, back = case
    size, more = divmod(length, num_shards)
    sizes = [size + (shard < more) for shard in range(num_shards)]
    ids = [length - back, back, length // 2 + back]
    came = [np.asarray(each).tolist() for each in adapter.owner(np.array(ids), length, num_shards)]
    must = [list(each) for each in zip(*(owner(each, sizes) for each in ids), strict=True)]
    expect(came == must, f"It gave {came}.", f"It must give {must}.")


# Level 2.


@st.composite
def of_any_rank(draw: st.DrawFn) -> TableCase:
    """An array of three to five axes, of which some have one extent."""
    num_shards = draw(st.integers(1, 3))
    rest = draw(st.sampled_from([(2, 2), (2, 2, 2), (1, 3, 3), (2, 1, 2, 2), (2, 2, 2, 2)]))
    return counting((num_shards + draw(st.integers(0, 2)), *rest)), num_shards


def check_read(adapter: Calls, case: TableCase) -> None:
    """A variable reads as the value that it was created with, in native byte order."""
    value, num_shards = case
    must = value.astype(value.dtype.newbyteorder("="))
    expect_equal(adapter.read(adapter.create(value, num_shards)), must)


@rule("R-CONCAT-1-axes", 2, "000", CONCAT, "create read", of_any_rank())
def many_axes_are_read(adapter: Calls, case: TableCase) -> None:
    """A variable of up to five axes reads as the value that it was created with."""
    check_read(adapter, case)


_LIES: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda value: np.ascontiguousarray(value.T).T,
    "reversed": lambda value: value[::-1, ::-1],
    "spread": lambda value: np.repeat(value, 2, axis=1)[:, ::2],
    "square": lambda value: value[: value.shape[1]].T,
}


@rule("R-CONCAT-1-strides", 2, "000", CONCAT, "create read", st.tuples(
    st.sampled_from(sorted(_LIES)), st.integers(2, 5), st.integers(1, 2)))  # fmt: skip
def memory_does_not_matter(adapter: Calls, case: tuple[str, int, int]) -> None:
    """A variable reads as the value that it was created with, however that lies in memory."""
    how, rows, num_shards = case
    check_read(adapter, (_LIES[how](counting((rows, 2))), num_shards))


WIDE = "uint16 uint32 uint64 complex128".split()
NARROW = "float8_e4m3fn float8_e5m2 int4 uint4".split()


@st.composite
def typed_tables(draw: st.DrawFn, names: list[str]) -> TableCase:
    """A table of any bits of some dtype, without NaN, which differs from itself."""
    num_shards = draw(st.integers(1, 3))
    dtype, shape = np.dtype(draw(st.sampled_from(names))), (num_shards + 1, 2)
    filled = draw(bits(dtype, shape))
    if dtype.kind in "iu" or "int" in dtype.name:
        return filled, num_shards
    plain = np.isfinite(filled.astype(np.complex128 if dtype.kind == "c" else np.float64))
    return np.where(plain, filled, counting(shape, dtype)).astype(dtype), num_shards


@rule("R-CONCAT-1-dtypes-wide", 2, "000", CONCAT, "create read", typed_tables(WIDE))
def wide_dtypes_are_read(adapter: Calls, case: TableCase) -> None:
    """A variable of unsigned integers or of complex128 reads as its value, to the last bit."""
    check_read(adapter, case)


@rule("R-CONCAT-1-dtypes-narrow", 2, "000", CONCAT, "create read", typed_tables(NARROW))
def narrow_dtypes_are_read(adapter: Calls, case: TableCase) -> None:
    """A variable of eight bits or fewer that NumPy does not know reads as its value."""
    check_read(adapter, case)


ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0)
"""Numbers of float32 that are easily lost: signed zeros, infinities, NaN, the ends of the range."""


@st.composite
def odd_numbers(draw: st.DrawFn) -> TableCase:
    """Numbers that are easily lost."""
    return np.array(draw(st.permutations(ODD)), np.float32), draw(st.integers(1, 3))


@rule("R-CONCAT-1-special", 2, "000", CONCAT, "create read", odd_numbers())
def odd_numbers_are_read(adapter: Calls, case: TableCase) -> None:
    """Zeros of either sign, infinities, NaN, the smallest and the largest numbers are read as they
    are."""
    value, num_shards = case
    came = np.asarray(adapter.read(adapter.create(value, num_shards)))
    expect_equal(came, value)
    expect_equal(np.signbit(came[value == 0]), np.signbit(value[value == 0]))


@rule("R-SPEC-1-negative", 2, "002", SPLITS, "create_uneven",
      st.tuples(uneven_tables(), st.integers(0, 4)))  # fmt: skip
def sizes_are_not_negative(adapter: Calls, case: tuple[tuple[Array, list[int]], int]) -> None:
    """A size below zero is refused, also if all sizes add up to the rows."""
    (value, sizes), at = case
    sizes = sizes.copy()
    sizes.insert(at % (len(sizes) + 1), -1)
    sizes[-1 if at % len(sizes) != len(sizes) - 1 else 0] += 1
    adapter.refuses("create_uneven", value, sizes)


@rule("R-PART-4-short", 2, "000", LAYOUT, "create_partitioned read", st.sampled_from([[2], [1]]))
def axes_too_few_are_refused(adapter: Calls, case: list[int]) -> None:
    """A partitioner's answer with fewer counts than the variable has axes is refused, or gives a
    variable that reads as the whole."""
    value = counting((4, 4))
    handle = adapter.attempt("create_partitioned", value, case)
    if handle is not REFUSED:
        expect_equal(adapter.read(handle), value)


@rule("R-VAR-1-masks", 2, "000", FULL, "create index",
      st.tuples(tables(min_shards=2), st.sampled_from([-1, 1, 2])))  # fmt: skip
def other_masks_are_refused(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A mask that is longer or shorter than the rows is refused."""
    (value, num_shards), more = case
    adapter.refuses("index", adapter.create(value, num_shards), (np.ones(len(value) + more, bool),))


@rule("R-MATMUL-1-vector", 2, "000", PRODUCT, "create matmul", tables(row_shapes=((2,), (3,))))
def vectors_are_multiplied(adapter: Calls, case: TableCase) -> None:
    """A product of a vector and the variable is refused, or is the product with the whole."""
    value, num_shards = case
    left = counting((len(value),))
    came = adapter.attempt("matmul", left, adapter.create(value, num_shards))
    if came is not REFUSED:
        expect_equal(came, left @ value)


@rule("R-MATMUL-1-integers", 2, "000", PRODUCT, "create matmul",
      st.tuples(tables(row_shapes=((2,),)), st.sampled_from(["int32", "int64"])))  # fmt: skip
def integers_are_multiplied(adapter: Calls, case: tuple[TableCase, str]) -> None:
    """A product of large integers is refused, or right to the last digit."""
    (value, num_shards), name = case
    large = value.astype(name) + np.asarray(2**24, name)
    left = counting((2, len(value)), np.dtype(name))
    came = adapter.attempt("matmul", left, adapter.create(large, num_shards))
    if came is not REFUSED:
        expect_equal(came, left @ large)


# Level 3.

_WIDE_ROWS = tables(row_shapes=((2,), (3,)), min_shards=2)


@rule("R-VAR-2-axes", 3, "000", COMPOSE, "create assign read", st.tuples(
    _WIDE_ROWS, st.sampled_from(["assign", "assign_add", "assign_sub"]), st.sampled_from([0, -1])))  # fmt: skip
def more_axes_are_refused(adapter: Calls, case: tuple[TableCase, str, int]) -> None:
    """A value with one axis more, of one index, is refused, and the variable stays as it was."""
    (value, num_shards), method, axis = case
    if not adapter.has(method):
        method = "assign"
    handle = adapter.create(value, num_shards)
    adapter.refuses(method, handle, np.expand_dims(value + np.float32(100), axis))
    must_be_unchanged(adapter, handle, value)


@rule("R-SV-3-assign-sub-wraps", 3, "000", WRITES, "create assign_sub read",
      st.tuples(tables(row_shapes=((), (2,))), st.sampled_from(["uint8", "uint32"])))  # fmt: skip
def unsigned_integers_wrap(adapter: Calls, case: tuple[TableCase, str]) -> None:
    """A difference of unsigned integers below zero wraps, as in NumPy."""
    (value, num_shards), name = case
    low, high = value.astype(name), (value + np.float32(3)).astype(name)
    handle = adapter.assign_sub(adapter.create(low, num_shards), high)
    expect_equal(adapter.read(handle), low - high)


@rule("R-VAR-2-dtype-add", 3, "000", COMPOSE, "create assign_add read",
      st.tuples(st.sampled_from(["int32", "int64"]), st.integers(1, 3)))  # fmt: skip
def added_fractions_are_not_cut(adapter: Calls, case: tuple[str, int]) -> None:
    """Fractions that are added to integers are refused, or are in the sum."""
    name, num_shards = case
    whole = counting((4, 2), np.dtype(name))
    handle, halves = adapter.create(whole, num_shards), counting((4, 2)) + np.float32(0.5)
    added = adapter.attempt("assign_add", handle, halves)
    if added is not REFUSED:
        came = np.asarray(adapter.read(added))
        expect_equal(came.astype(np.float64), whole + halves.astype(np.float64))


@rule("R-SV-3-scatter-special", 3, "000", WRITES, "create scatter read", st.tuples(
    odd_numbers(), st.sampled_from(["add", "sub", "mul", "div", "update"]), st.permutations(ODD)))  # fmt: skip
def odd_operands_count(adapter: Calls, case: tuple[TableCase, str, list[float]]) -> None:
    """`scatter` of zeros, infinities and NaN gives what NumPy gives; a division by zero may be
    refused."""
    (value, num_shards), op, operands = case
    rows, given = np.arange(len(value)), np.array(operands, np.float32)
    # Results below the normal numbers may be flushed to zero.
    value, given = (
        np.where(np.abs(each) == ODD[5], np.float32(2), each) for each in (value, given)
    )
    with np.errstate(all="ignore"):
        must = updated(value, Update(op, rows, given))
    created = adapter.create(value, num_shards)
    handle = adapter.attempt("scatter", created, op, rows, given)
    if handle is REFUSED:
        expect(op == "div", f"It refused to {op}.", "It must not.")
        given = np.where(given == 0, np.float32(4), given)
        with np.errstate(all="ignore"):
            must = updated(value, Update(op, rows, given))
        handle = adapter.scatter(adapter.create(value, num_shards), op, rows, given)
    came = np.asarray(adapter.read(handle))
    tiny = np.abs(must) < np.finfo(np.float32).tiny
    expect_equal(np.where(tiny, np.float32(0), came), np.where(tiny, np.float32(0), must), ulps=2)


@rule("R-SV-3-scatter-axes", 3, "000", WRITES, "create scatter read", st.tuples(
    tables(row_shapes=((), (2,)), min_shards=2, max_more=5), st.sampled_from(["add", "update"])))  # fmt: skip
def ids_of_two_axes_are_written(adapter: Calls, case: tuple[TableCase, str]) -> None:
    """A scatter of ids of two axes is refused, or writes each operand to the row of its id."""
    (value, num_shards), op = case
    rows = np.arange(len(value) // 2 * 2)[::-1].reshape(2, -1)
    operands = counting((*rows.shape, *value.shape[1:])) + np.float32(100)
    flat = Update(op, rows.ravel(), operands.reshape(-1, *value.shape[1:]))
    handle = adapter.attempt("scatter", adapter.create(value, num_shards), op, rows, operands)
    if handle is not REFUSED:
        expect_equal(adapter.read(handle), updated(value, flat))


@rule("R-READ-1-axes", 3, "000", FULL, "create sparse_read", tables(min_shards=2))
def sparse_reads_have_axes(adapter: Calls, case: TableCase) -> None:
    """A sparse read of ids of two axes is refused, or has these axes, then the axes of a row."""
    value, num_shards = case
    wanted = np.arange(2 * len(value))[::-1].reshape(2, -1) % len(value)
    came = adapter.attempt("sparse_read", adapter.create(value, num_shards), wanted)
    if came is not REFUSED:
        expect_equal(came, value[wanted])


def _register_fractions() -> None:
    for name, method, sentence in (
        ("R-LOOKUP-2-fractions", "lookup", LOOKUP),
        ("R-READ-1-fractions", "sparse_read", FULL),
    ):

        def check(adapter: Calls, case: TableCase, method: str = method) -> None:
            value, num_shards = case
            thirds, wanted = value / np.float32(-3), np.arange(len(value))[::-1].copy()
            handle = adapter.create(thirds, num_shards)
            expect_equal(getattr(adapter, method)(handle, wanted), thirds[wanted])

        check.__doc__ = f"A {method.replace('_', ' ')} gives fractions in all of their digits"
        rule(name, 3, "000", sentence, f"create {method}", tables())(check)


_register_fractions()


@rule("R-LOOKUP-4-range", 3, "002", CLIPPED, "create lookup_clipped",
      st.tuples(st.sampled_from([2.0**70, 2.0**-70]), st.integers(1, 3), st.booleans()))  # fmt: skip
def norms_of_any_size_are_compared(adapter: Calls, case: tuple[float, int, bool]) -> None:
    """A row is clipped or left by its norm, also if its squares are too large or too small for its
    dtype."""
    scale, num_shards, is_clipped = case
    value = (counting((4, 2)) * scale).astype(np.float32)
    norms = np.sqrt((value.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    limit = float(norms.min() / 2 if is_clipped else norms.max() * 2)
    came = adapter.lookup_clipped(adapter.create(value, num_shards), np.arange(4), limit)
    expect_equal(came, (value * np.minimum(1, limit / norms)).astype(np.float32), ulps=16)


def _register_reads() -> None:
    reads: dict[str, tuple[str, str, Any]] = {
        "lookup": ("R-LOOKUP-2-pure", LOOKUP, lambda value: (np.arange(len(value)),)),
        "lookup_clipped": ("R-LOOKUP-4-pure", CLIPPED, lambda value: (np.arange(len(value)), 1.0)),
        "lookup_bags": (
            "R-LOOKUP-2-bags-pure",
            LOOKUP,
            lambda _value: ([[0], [0, 1]], None, "sum"),
        ),
        "sparse_read": ("R-READ-1-pure", FULL, lambda value: (np.arange(len(value)),)),
    }
    for method, (name, sentence, arguments) in reads.items():

        def check(
            adapter: Calls, case: TableCase, method: str = method, arguments: Any = arguments
        ) -> None:
            value, num_shards = case
            handle = adapter.create(value, num_shards)
            getattr(adapter, method)(handle, *arguments(value))
            expect_equal(adapter.read(handle), value)

        check.__doc__ = f"A `{method}` does not change the variable"
        rfc = "002" if sentence == CLIPPED else "000"
        rule(name, 3, rfc, sentence, f"create read {method}",
             tables(row_shapes=((2,),), min_shards=2))(check)  # fmt: skip


_register_reads()

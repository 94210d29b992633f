"""Levels 1 to 3: what ordinary cases leave out. Five axes, every dtype, any order in memory, numbers
that are easily lost, the refusals that go with them, and
the same laws in uneven, empty, few and many shards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Calls, expect, expect_equal
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    FULL,
    LAYOUTS,
    ROW_SHAPES,
    RowShapes,
    Start,
    TableCase,
    check_outside,
    finite_bits,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.updates import (
    CLIPPED,
    COMPOSE,
    IDS,
    LOOKUP,
    NORMS,
    WRITES,
    DenseCase,
    Lookup,
    bags,
    bags_are_combined,
    check_clipped,
    check_dense,
    check_lookup,
    check_other_value,
    check_scatter,
    check_scatter_outside,
    ids_outside,
    lookups,
    scatters,
    sequences,
    writes_follow_one_another,
)
from shardvar.conformance.rules.variables import (
    CONCAT,
    CONTIGUOUS,
    GRID,
    LAYOUT,
    PRODUCT,
    SPLITS,
    Indexed,
    check_grid,
    check_index,
    check_owner,
    check_partitioned,
    check_read,
    inner_slices,
    products_are_of_the_whole,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.partitions import div
from shardvar.testing import Update, counting, updated
from shardvar.testing.arrays import bits
from shardvar.testing.operations import SPARSE

# Level 1.


@st.composite
def wide_grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=3, max_size=5)))
    cuts = [draw(st.integers(1, 2)) for _ in shape[:-1]]
    return shape, [*cuts, 2]


rules(1, "000",
    ("R-PART-1-regions-axes", GRID, "regions", wide_grids(), check_grid,
     "`regions` cuts any of five axes"),
)  # fmt: skip


@rule("R-PART-1-regions-few", 1, "000", GRID, "regions",
      st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()))  # fmt: skip
def grids_have_empty_parts(adapter: Calls, case: tuple[int, int, bool]) -> None:
    """A count above the extent of its axis is refused, or gives as many parts, the last ones
    empty."""
    extent, more, is_first = case
    shape, counts = (extent, 2), [extent + more, 1]
    check_grid(adapter, (shape, counts) if is_first else (shape[::-1], counts[::-1]), True)


rules(1, "000",
    ("R-PART-1-regions-refused", GRID, "regions",
     st.sampled_from([[2, 1, 1], [0, 1], [2, -1], [1, 1, 2]]),
     lambda adapter, counts: adapter.refuses("regions", (4, 4), counts),
     "Counts below 1, or for more axes than there are, are refused"),
)  # fmt: skip


def check_large_owner(adapter: Calls, case: tuple[int, int, int]) -> None:
    length, num_shards, back = case
    check_owner(adapter, ([length - back, back, length // 2 + back], length, num_shards))


rules(1, "000",
    ("R-DIV-1-owner-large", CONTIGUOUS, "owner",
     st.tuples(st.integers(2**33, 2**33 + 9), st.integers(1, 3) | st.integers(257, 300), st.integers(1, 9)),
     check_large_owner,
     "`owner` gives the shard and the row of ids that 32 bits do not hold, and of more shards than 8 bits count"),
)  # fmt: skip


# Level 2.


@st.composite
def of_any_rank(draw: st.DrawFn) -> TableCase:
    num_shards = draw(st.integers(1, 3))
    rest = draw(st.sampled_from([(2, 2), (2, 2, 2), (1, 3, 3), (2, 1, 2, 2), (2, 2, 2, 2)]))
    return counting((num_shards + draw(st.integers(0, 2)), *rest)), num_shards


rules(2, "000",
    ("R-CONCAT-1-axes", CONCAT, "create read", of_any_rank(), check_read,
     "A variable of up to five axes reads as the value that it was created with"),
)  # fmt: skip


_LIES: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda value: np.ascontiguousarray(value.T).T,
    "reversed": lambda value: value[::-1, ::-1],
    "spread": lambda value: np.repeat(value, 2, axis=1)[:, ::2],
    "square": lambda value: value[: value.shape[1]].T,
}


rules(2, "000",
    ("R-CONCAT-1-strides", CONCAT, "create read",
     st.tuples(st.sampled_from(sorted(_LIES)), st.integers(2, 5), st.integers(1, 2)),
     lambda adapter, case: check_read(adapter, (_LIES[case[0]](counting((case[1], 2))), case[2])),
     "A variable reads as the value that it was created with, however that lies in memory"),
)  # fmt: skip


WIDE = "uint16 uint32 uint64 complex128".split()
NARROW = "float8_e4m3fn float8_e5m2 int4 uint4".split()


@st.composite
def typed_tables(draw: st.DrawFn, names: list[str]) -> TableCase:
    """A table of any bits of some dtype, without NaN, which differs from itself."""
    num_shards = draw(st.integers(1, 3))
    dtype, shape = np.dtype(draw(st.sampled_from(names))), (num_shards + 1, 2)
    return finite_bits(draw, dtype, shape), num_shards


rules(2, "000",
    ("R-CONCAT-1-dtypes-wide", CONCAT, "create read", typed_tables(WIDE), check_read,
     "A variable of unsigned integers or of complex128 reads as its value, to the last bit"),
    ("R-CONCAT-1-dtypes-narrow", CONCAT, "create read", typed_tables(NARROW), check_read,
     "A variable of eight bits or fewer that NumPy does not know reads as its value"),
)  # fmt: skip


ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0)
"""Numbers of float32 that are easily lost: signed zeros, infinities, NaN, the ends of the range."""


@st.composite
def odd_numbers(draw: st.DrawFn) -> TableCase:
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


rules(2, "000",
    ("R-PART-4-short", LAYOUT, "create_partitioned read", st.sampled_from([[2], [1]]), check_partitioned,
     "A partitioner's answer with fewer counts than the variable has axes is refused, or gives a variable that reads "
     "as the whole"),
)  # fmt: skip


rules(2, "000",
    ("R-VAR-1-masks", FULL, "create index",
     st.tuples(tables(min_shards=2), st.sampled_from([-1, 1, 2])),
     lambda adapter, case: check_outside("index")(
         adapter, (*case[0], (np.ones(len(case[0][0]) + case[1], bool),))),
     "A mask that is longer or shorter than the rows is refused"),
)  # fmt: skip


@rule("R-MATMUL-1-vector", 2, "000", PRODUCT, "create matmul", tables(row_shapes=((2,), (3,))))
def vectors_are_multiplied(adapter: Calls, case: TableCase) -> None:
    """A product of a vector and the variable is refused, or is the product with the whole."""
    value, num_shards = case
    left = counting((len(value),))
    adapter.gives_or_refuses(left @ value, "matmul", left, adapter.create(value, num_shards))


@rule("R-MATMUL-1-integers", 2, "000", PRODUCT, "create matmul",
      st.tuples(tables(row_shapes=((2,),)), st.sampled_from(["int32", "int64"])))  # fmt: skip
def integers_are_multiplied(adapter: Calls, case: tuple[TableCase, str]) -> None:
    """A product of large integers is refused, or right to the last digit."""
    (value, num_shards), name = case
    large = value.astype(name) + np.asarray(2**24, name)
    left = counting((2, len(value)), np.dtype(name))
    adapter.gives_or_refuses(left @ large, "matmul", left, adapter.create(large, num_shards))


# Level 3.

_WIDE_ROWS = tables(row_shapes=((2,), (3,)), min_shards=2)


@rule("R-VAR-2-axes", 3, "000", COMPOSE, "create assign read", st.tuples(
    _WIDE_ROWS, st.sampled_from(["assign", "assign_add", "assign_sub"]), st.sampled_from([0, -1])))  # fmt: skip
def more_axes_are_refused(adapter: Calls, case: tuple[TableCase, str, int]) -> None:
    """A value with one axis more, of one index, is refused, and the variable stays as it was."""
    (value, _), method, axis = case
    if not adapter.has(method):
        method = "assign"
    check_other_value(adapter, case[0], np.expand_dims(value, axis), method)


@rule("R-SV-3-assign-sub-wraps", 3, "000", WRITES, "create assign_sub read",
      st.tuples(tables(row_shapes=((), (2,))), st.sampled_from(["uint8", "uint32"])))  # fmt: skip
def unsigned_integers_wrap(adapter: Calls, case: tuple[TableCase, str]) -> None:
    """A difference of unsigned integers below zero wraps, as in NumPy."""
    (value, num_shards), name = case
    low, high = value.astype(name), (value + np.float32(3)).astype(name)
    check_dense(adapter, (low, num_shards, high), "sub")


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
    handle = adapter.create(value, num_shards)
    adapter.gives_or_refuses(value[wanted], "sparse_read", handle, wanted)


def thirds(case: TableCase) -> Lookup:
    value, num_shards = case
    return value / np.float32(-3), num_shards, np.arange(len(value))[::-1].copy()


rules(3, "000",
    ("R-LOOKUP-2-fractions", LOOKUP, "create lookup",
     tables(), lambda adapter, case: check_lookup("lookup")(adapter, thirds(case)),
     "A lookup gives fractions in all of their digits"),
    ("R-READ-1-fractions", FULL, "create sparse_read",
     tables(), lambda adapter, case: check_lookup("sparse_read")(adapter, thirds(case)),
     "A sparse read gives fractions in all of their digits"),
)  # fmt: skip


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


Arguments = Callable[[Array], tuple[Any, ...]]


def check_pure(adapter: Calls, case: TableCase, method: str, arguments: Arguments) -> None:
    """Read rows, and compare the variable with its value before."""
    value, num_shards = case
    handle = adapter.create(value, num_shards)
    getattr(adapter, method)(handle, *arguments(value))
    expect_equal(adapter.read(handle), value)


_READS: tuple[tuple[str, str, str, str, Arguments], ...] = (
    ("R-LOOKUP-2-pure", "000", LOOKUP, "lookup", lambda value: (np.arange(len(value)),)),
    ("R-LOOKUP-4-pure", "002", CLIPPED, "lookup_clipped", lambda value: (np.arange(len(value)), 1.0)),
    ("R-LOOKUP-2-bags-pure", "000", LOOKUP, "lookup_bags", lambda _value: ([[0], [0, 1]], None, "sum")),
    ("R-READ-1-pure", "000", FULL, "sparse_read", lambda value: (np.arange(len(value)),)),
)  # fmt: skip
for _name, _rfc, _sentence, _method, _arguments in _READS:
    rules(3, _rfc,
        (_name, _sentence, f"create read {_method}", tables(row_shapes=((2,),), min_shards=2),
         partial(check_pure, method=_method, arguments=_arguments), f"A `{_method}` does not change the variable"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Law:
    id: str
    level: int
    rfc: str
    sentence: str
    needs: str
    """The methods that it needs in addition to the maker of the variable."""
    text: str
    """The law; the phrase of the layout follows."""
    cases: Callable[[Start], st.SearchStrategy[Any]]
    check: Callable[[Calls, Any], None]
    row_shapes: RowShapes = ROW_SHAPES
    only: tuple[str, ...] = tuple(layout.suffix for layout in LAYOUTS)
    """The layouts for which it is asked."""


@st.composite
def edge_rows(draw: st.DrawFn, start: Start) -> Indexed:
    """The first or the last row of a shard, counted from either end of the variable."""
    # Most wrong layouts show at the edges of shards: in shards of 1 and 3 rows, a reader that takes
    # them for 2 and 2 finds row 1 at the wrong place, and row 0 at the right one.
    value, layout = draw(start)
    sizes = (
        layout
        if isinstance(layout, list)
        else [stop - begin for begin, stop in div(len(value), layout)]
    )
    last = [stop - 1 for stop, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True) if size]
    row = draw(st.sampled_from(sorted({*last, 0, *(row + 1 for row in last[:-1])})))
    return value, layout, (row - draw(st.sampled_from([0, len(value)])),)


# An id outside is answered by an empty shard, if by any: behind its one row lies the next shard's.
LAWS = (
    Law("R-VAR-1", 2, "000", FULL, "index", "Indexing is NumPy's on the whole",
        # Rows twice, so that half of the cases are of single rows.
        lambda start: st.one_of(edge_rows(start), edge_rows(start).map(tuple), inner_slices((None, 1), start),
                                inner_slices((2, 3, -1, -2), start)),
        check_index),
    Law("R-MATMUL-1", 2, "000", PRODUCT, "matmul", "A product with the variable is the product with the whole",
        lambda start: start, products_are_of_the_whole, ((1,), (3,)), ("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2", 3, "000", LOOKUP, "lookup", "The i-th row of a lookup belongs to the i-th id",
        lookups, check_lookup("lookup")),
    Law("R-READ-1", 3, "000", FULL, "sparse_read", "The i-th row of a sparse read belongs to the i-th id",
        lookups, check_lookup("sparse_read")),
    Law("R-LOOKUP-4", 3, "002", CLIPPED, "lookup_clipped", "A row whose l2 norm exceeds `max_norm` is scaled to it",
        lambda start: st.tuples(lookups(start), st.sampled_from(NORMS)), check_clipped,
        only=("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2-bags", 3, "000", LOOKUP, "lookup_bags", "A bag of ids is the combination of its rows",
        bags, bags_are_combined, ((2,),), ("uneven", "empty-shards", "many")),
    Law("R-SV-3-scatter", 3, "000", WRITES, "scatter read", "A scatter changes the rows that it names and no others",
        lambda start: st.sampled_from(SPARSE).flatmap(lambda op: scatters(op, start)), check_scatter),
    Law("R-SV-3", 3, "000", WRITES, "read", "After any writes that are claimed the variable reads as the whole would",
        sequences, writes_follow_one_another, ((), (2,))),
    Law("R-ID-1", 3, "000", IDS, "lookup", "A lookup of an id that is not there is refused",
        ids_outside, check_outside("lookup"), only=("empty-shards",)),
    Law("R-ID-1-scatter", 3, "000", IDS, "scatter read", "A scatter to an id that is not there is refused",
        ids_outside, partial(check_scatter_outside, op="add", operand=1), only=("empty-shards",)),
)  # fmt: skip


for _law in LAWS:
    rules(_law.level, _law.rfc, *(
        (f"{_law.id}-{layout.suffix}", _law.sentence, f"{layout.method} {_law.needs}",
         _law.cases(layout.tables(_law.row_shapes)), _law.check, f"{_law.text}, {layout.phrase}")
        for layout in LAYOUTS
        if layout.suffix in _law.only
    ))  # fmt: skip

DTYPES = "float64 int32 int64 int8 uint8 bool float16 bfloat16 complex64".split()


@st.composite
def typed_lookups(draw: st.DrawFn) -> Lookup:
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    return draw(bits(dtype, value.shape)), num_shards, np.arange(len(value))[::-1].copy()


@st.composite
def typed_updates(draw: st.DrawFn) -> Any:
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rows = np.arange(draw(st.integers(0, len(value) - 1)), len(value))
    operands = draw(bits(dtype, (len(rows), *value.shape[1:])))
    return counting(value.shape, dtype), num_shards, Update("update", rows, operands)


rules(3, "000",
    ("R-LOOKUP-2-dtypes", LOOKUP, "create lookup", typed_lookups(), check_lookup("lookup"),
     "A lookup gives rows of every dtype in that dtype, and a NaN in one row does not reach another"),
    ("R-READ-1-dtypes", FULL, "create sparse_read", typed_lookups(), check_lookup("sparse_read"),
     "A sparse read gives rows of every dtype in that dtype, and a NaN in one row does not reach another"),
    ("R-SV-3-scatter-dtypes", WRITES, "create scatter read", typed_updates(), check_scatter,
     "A `scatter` of update writes rows of every dtype as they are, including NaNs and the largest integers"),
)  # fmt: skip


@st.composite
def typed_assignments(draw: st.DrawFn) -> DenseCase:
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    return counting(value.shape, dtype), num_shards, draw(bits(dtype, value.shape))


rules(3, "000",
    ("R-SV-3-assign-dtypes", WRITES, "create assign read", typed_assignments(), partial(check_dense, op="assign"),
     "After an assignment a variable of any dtype reads as the new value, in that dtype"),
)  # fmt: skip

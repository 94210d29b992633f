"""Level 3: lookups give the rows of the ids in their order; writes change the rows that they name
and no others, whatever the numbers. Wrong arguments are refused, and a value that was read stays as
it was, whatever is written afterwards."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import REFUSED, Broken, Calls, NotClaimed, expect_equal, text
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    FULL,
    ORDINARY,
    LaidOutCase,
    RowShapes,
    ShardSizes,
    TableCase,
    check_outside,
    made,
    refuses_write,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.variables import SPLITS, Indexed
from shardvar.layout.dtypes import Array
from shardvar.spec.lookups import embedding_lookup_sparse
from shardvar.testing import SparseIds, Update, clipped, counting, ids, sparse_ids, updated

LOOKUP = (
    "Python ops that have well defined partitioned behavior (e.g, `tf.nn.embedding_lookup`, "
    "`tf.nn.sampled_softmax_loss`) will treat sharded variable as a list of variables for "
    "parallel operations"
)
WRITES = (
    "`ShardedVariable` will support read and update functions like `read_value`, `assign_add` and "
    "`scatter_add`."
)
COMPOSE = "that list of variables compose a larger variable"
IDS = "Assuming we assign consecutive integer ids along the first axis of the variable"
Lookup = tuple[Array, ShardSizes, Array]

_VECTORS = tables(row_shapes=((2,),))
_PLAIN = tables(row_shapes=((), (2,)))

OUTSIDE = (2**32, -(2**32))
"""Ids that become row 0 where only 32 bits of them are kept."""


@st.composite
def lookups(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = ORDINARY) -> Lookup:
    value, layout = draw(start)
    return value, layout, draw(ids(len(value), max_size=24))


def check_lookup(method: str) -> Callable[[Calls, Lookup], None]:
    def check(adapter: Calls, case: Lookup) -> None:
        value, layout, wanted = case
        expect_equal(getattr(adapter, method)(made(adapter, value, layout), wanted), value[wanted])

    return check


@st.composite
def square_lookups(draw: st.DrawFn) -> Lookup:
    value, num_shards = draw(tables())
    # Its second line is the first one reversed, so that flattening in another order shows.
    wanted = draw(ids(len(value), max_size=6).filter(len))
    wanted = np.stack([wanted, wanted[::-1]])
    return value, num_shards, wanted[:, None] if draw(st.booleans()) else wanted


rules(3, "000",
    ("R-LOOKUP-2", LOOKUP, "create lookup", lookups(), check_lookup("lookup"),
     "The i-th row of a lookup belongs to the i-th id, whichever shards hold them"),
    ("R-LOOKUP-2-axes", LOOKUP, "create lookup", square_lookups(), check_lookup("lookup"),
     "A lookup of ids of several axes has these axes, then the axes of a row"),
    ("R-READ-1", FULL, "create sparse_read", lookups(), check_lookup("sparse_read"),
     "The i-th row of a sparse read belongs to the i-th id, whichever shards hold them"),
)  # fmt: skip


@st.composite
def ids_outside(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = ORDINARY) -> Lookup:
    value, layout = draw(start)
    good = draw(ids(len(value), max_size=3)).tolist()
    # Just past the end, further past it, and negative ids, which Python would count from the end.
    bad = draw(st.sampled_from([len(value), len(value) + 2, -1, -len(value), *OUTSIDE]))
    good.insert(draw(st.integers(0, len(good))), bad)
    return value, layout, np.array(good, np.int64)


rules(3, "000",
    ("R-ID-1", IDS, "create lookup", ids_outside(), check_outside("lookup"),
     "A lookup of an id that is negative or too large is refused, not clamped, wrapped or made up"),
    ("R-ID-1-sparse-read", IDS, "create sparse_read", ids_outside(), check_outside("sparse_read"),
     "A sparse read of an id that is negative or too large is refused"),
)  # fmt: skip


CLIPPED = "each embedding is clipped if its l2-norm is larger than this value"
NORMS = (1.0, 0.5, 4.0, 100.0)


def check_clipped(adapter: Calls, case: tuple[Lookup, float]) -> None:
    (value, layout, wanted), most = case
    must = clipped(value[wanted], most)
    # 16 ulps: libraries sum the squares, and scale the rows, in different orders.
    expect_equal(adapter.lookup_clipped(made(adapter, value, layout), wanted, most), must, ulps=16)


_CLIPPED = st.tuples(lookups(), st.sampled_from(NORMS))
rules(3, "002",
    ("R-LOOKUP-4", CLIPPED, "create lookup_clipped", _CLIPPED, check_clipped,
     "A row whose l2 norm exceeds `max_norm` is scaled to it, and others are as they are"),
    ("R-LOOKUP-4-zero", CLIPPED, "create lookup_clipped",
     _CLIPPED, lambda adapter, case: check_clipped(adapter, ((np.zeros_like(case[0][0]), *case[0][1:]), case[1])),
     "Clipping leaves a row of zeros as it is; its norm does not divide anything"),
)  # fmt: skip


BagsCase = tuple[Array, ShardSizes, SparseIds, str]
COMBINERS = st.sampled_from(["sum", "mean", "sqrtn"])


@st.composite
def bags(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _VECTORS) -> BagsCase:
    value, layout = draw(start)
    # The sentence does not mention empty bags.
    some = draw(sparse_ids(len(value)).filter(lambda drawn: bool(drawn.bags) and all(drawn.bags)))
    return value, layout, some, draw(COMBINERS)


@rule("R-LOOKUP-2-bags", 3, "000", LOOKUP, "create lookup_bags", bags())
def bags_are_combined(adapter: Calls, case: BagsCase) -> None:
    """A bag of ids is the weighted sum of its rows, divided by the weights' sum (mean) or l2 norm
    (sqrtn)."""
    value, layout, some, combiner = case
    entries = [
        (number, one, None if some.weights is None else some.weights[number][place])
        for number, bag in enumerate(some.bags)
        for place, one in enumerate(bag)
    ]
    must = embedding_lookup_sparse([value], entries, len(some.bags), combiner)
    handle = made(adapter, value, layout)
    came = adapter.lookup_bags(handle, some.bags, some.weights, combiner)
    expect_equal(came, must, ulps=16)


@st.composite
def bags_with_empty_ones(draw: st.DrawFn) -> BagsCase:
    """A table and bags of ids: an empty one, and one that is not empty behind it."""
    value, num_shards, some, combiner = draw(bags())
    at = draw(st.integers(0, len(some.bags) - 1))
    weights = some.weights and [*some.weights[:at], [], *some.weights[at:]]
    return value, num_shards, SparseIds([*some.bags[:at], [], *some.bags[at:]], weights), combiner


rules(3, "000",
    ("R-LOOKUP-2-bags-empty", LOOKUP, "create lookup_bags", bags_with_empty_ones(), bags_are_combined,
     "An empty bag before others is a row of zeros, and the others keep their places"),
)  # fmt: skip


DenseCase = tuple[Array, int, Array]
"""A value, its number of shards, and another value of its shape and dtype."""


@st.composite
def dense_writes(draw: st.DrawFn) -> DenseCase:
    value, num_shards = draw(tables())
    # Reversed, so that rows which go to the wrong shard show.
    return value, num_shards, (value[::-1] * 2).copy()


METHODS = {"assign": "assign", "add": "assign_add", "sub": "assign_sub"}
"""The methods of dense writes by their operations."""


def check_dense(adapter: Calls, case: DenseCase, op: str, ulps: int = 0) -> None:
    value, num_shards, other = case
    write = {"assign": adapter.assign, "add": adapter.assign_add, "sub": adapter.assign_sub}[op]
    handle = write(adapter.create(value, num_shards), other)
    must = other if op == "assign" else updated(value, Update(op, None, other))
    expect_equal(adapter.read(handle), must, ulps=ulps)


rules(3, "000", *(
    (f"R-SV-3-{method.replace('_', '-')}", WRITES, f"create {method} read", dense_writes(),
     partial(check_dense, op=op), f"After {law}")
    for (op, method), law in zip(METHODS.items(), (
        "an assignment the variable reads as the new value",
        "`assign_add` the variable reads as the sum",
        "`assign_sub` the variable reads as the difference"), strict=True)
))  # fmt: skip


def check_other_value(
    adapter: Calls, table: TableCase, other: Array, method: str = "assign"
) -> None:
    value, num_shards = table
    # The old values stay below 100, so a shard that was written before the refusal can be seen.
    other = other + np.float32(100)
    refuses_write(adapter, value, adapter.create(value, num_shards), method, other)


def check_other_length(adapter: Calls, case: tuple[TableCase, int]) -> None:
    (value, _), more = case
    check_other_value(adapter, case[0], counting((len(value) + more, *value.shape[1:])))


rules(3, "000",
    ("R-VAR-2-large", COMPOSE, "create assign read",
     st.tuples(tables(), st.integers(1, 3)), check_other_length,
     "A value with too many rows is refused, not cropped, and the variable stays as it was"),
    ("R-VAR-2-small", COMPOSE, "create assign read",
     st.tuples(tables(min_shards=2), st.just(-1)), check_other_length,
     "A value with too few rows is refused, not broadcast, and no shard is written before that is noticed"),
    ("R-VAR-2-columns", COMPOSE, "create assign read",
     tables(row_shapes=((2,), (2, 2))), lambda adapter, case: check_other_value(adapter, case, case[0][:, :1]),
     "A value with too few columns is refused, not broadcast, and the variable stays as it was"),
)  # fmt: skip


Scatter = tuple[Array, ShardSizes, Update]


@st.composite
def scatters(draw: st.DrawFn, op: str, start: st.SearchStrategy[LaidOutCase] = ORDINARY) -> Scatter:
    """A table and rows to write, ids unsorted and duplicated; no order of operands rounds."""
    value, layout = draw(start)
    rows = draw(ids(len(value)))
    if op == "update":
        # Each id once, in the order of first appearance, since either of two operands might win: 3,
        # 1, 3 becomes 3, 1.
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    shape = (len(rows), *value.shape[1:])
    if op in ("mul", "div"):
        powers = np.array([2.0, 4.0, 0.5, 8.0], np.float32)
        return value, layout, Update(op, rows, np.resize(powers, shape))
    # 0, 5, -1, 4, -2, 3 and so on: neither the first nor the last operand of a row is always the
    # least or the greatest.
    return value, layout, Update(op, rows, counting(shape) * 5 % 11 - 5)


def check_scatter(adapter: Calls, case: Scatter) -> None:
    value, layout, write = case
    handle = adapter.scatter(made(adapter, value, layout), write.op, write.ids, write.values)
    expect_equal(adapter.read(handle), updated(value, write))


rules(3, "000", *(
    (f"R-SV-3-scatter-{op}", WRITES, "create scatter read", scatters(op), check_scatter, f"`scatter` {law}")
    for op, law in (
        ("add", "adds each operand to its row, as often as the row comes"),
        ("sub", "subtracts each operand from its row, as often as the row comes"),
        ("mul", "multiplies each row by its operand, as often as the row comes"),
        ("div", "divides each row by its operand, as often as the row comes"),
        ("min", "leaves in each row the least of it and all of its operands"),
        ("max", "leaves in each row the greatest of it and all of its operands"),
        ("update", "replaces the rows that are named, in any order of the ids"),
    )
))  # fmt: skip


@st.composite
def repeated_updates(draw: st.DrawFn) -> Scatter:
    value, num_shards = draw(tables())
    rows = draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=12))
    rows.insert(draw(st.integers(0, len(rows))), rows[0])
    operands = counting((len(rows), *value.shape[1:])) + 100
    return value, num_shards, Update("update", np.array(rows, np.int64), operands)


def check_scatter_outside(adapter: Calls, case: Lookup, op: str, operand: int) -> None:
    value, layout, wanted = case
    operands = np.full((len(wanted), *value.shape[1:]), operand, np.float32)
    refuses_write(adapter, value, made(adapter, value, layout), "scatter", op, wanted, operands)


# One rule for repeated ids, here, in ``shardvar.testing`` (``updated``) and in the vectors.
# TensorFlow applies the operands of one row one after the other, so the last one stays.
rules(3, "000",
    ("R-SV-3-scatter-update-last", WRITES, "create scatter read", repeated_updates(), check_scatter,
     "Of several operands of one row in a `scatter` of update, the last one stays"),
    ("R-ID-1-scatter", IDS, "create scatter read",
     ids_outside(), partial(check_scatter_outside, op="add", operand=1),
     "A scatter to an id that is negative or too large is refused, and no row is written before that is noticed"),
    ("R-ID-1-scatter-update", IDS, "create scatter read",
     ids_outside(), partial(check_scatter_outside, op="update", operand=0),
     "A `scatter` of update to an id that is not there is refused, and no row is written before that is noticed"),
)  # fmt: skip


WritesCase = tuple[Array, ShardSizes, list[Update]]


@st.composite
def sequences(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _PLAIN) -> WritesCase:
    value, layout = draw(start)
    writes = []
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(["assign", "add", "sub", "scatter add", "scatter update"]))
        rows = draw(ids(len(value), max_size=4, max_rank=1)) if op.startswith("scatter") else None
        if rows is not None:
            # Repeated ids are the subject of the rules for single operations.
            rows = np.unique(rows)
        shape = value.shape if rows is None else (len(rows), *value.shape[1:])
        writes.append(Update(op.removeprefix("scatter "), rows, counting(shape)))
    return value, layout, writes


@rule("R-SV-3", 3, "000", WRITES, "create read", sequences())
def writes_follow_one_another(adapter: Calls, case: WritesCase) -> None:
    """After any writes that are claimed, one after another, the variable reads as the whole array
    would."""
    value, layout, writes = case
    handle = made(adapter, value, layout)
    for write in writes:
        method = METHODS[write.op] if write.ids is None else "scatter"
        # ``needs`` cannot list these methods, which differ from case to case.
        if not adapter.has(method):
            raise NotClaimed(f"no {method}")
        operands = () if write.ids is None else (write.op, write.ids)
        handle = getattr(adapter, method)(handle, *operands, write.values)
        value = updated(value, write)
        came = adapter.read(handle)
        if not np.array_equal(np.asarray(came), value):
            raise Broken(f"It gave {np.asarray(came).tolist()}.", f"It must give {value.tolist()}.")


WIDE: RowShapes = ((2,), (3,), (2, 2))
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


rules(2, "000",
    ("R-VAR-1-outside-columns", FULL, "create index", outer_columns(), check_outside("index"),
     "Indexing by a column that is not there is refused"),
)  # fmt: skip


@st.composite
def rows_by_arrays(draw: st.DrawFn) -> Indexed:
    value, num_shards = draw(tables(min_shards=2))
    rows = draw(st.lists(st.integers(-len(value), len(value) - 1), max_size=4))
    mask = np.zeros(len(value), bool)
    mask[rows] = True
    return value, num_shards, (draw(st.sampled_from([rows, np.array(rows, np.int64), mask])),)


@rule("R-VAR-1-arrays", 2, "000", FULL, "create index", rows_by_arrays())
def arrays_index_or_are_refused(adapter: Calls, case: Indexed) -> None:
    """Indexing by a list of rows or by a mask is refused, or is NumPy's on the whole."""
    value, layout, key = case
    # An empty list has no dtype; NumPy takes it for rows.
    must = value[np.asarray(key[0], None if len(key[0]) else np.int64)]
    adapter.gives_or_refuses(must, "index", made(adapter, value, layout), key)


def other_shapes(value: Array) -> list[tuple[int, ...]]:
    """Shapes that NumPy would broadcast to the shape of ``value``, and one that it would not."""
    rest = value.shape[1:]
    shapes = [(1, *rest), (), (len(value) + 1, *rest), (*rest,), (len(value), *(1 for _ in rest))]
    return [shape for shape in shapes if shape != value.shape]


def check_broadcast(adapter: Calls, case: tuple[TableCase, int], method: str) -> None:
    table, number = case
    shapes = other_shapes(table[0])
    check_other_value(adapter, table, counting(shapes[number % len(shapes)]), method)


rules(3, "000", *(
    (f"R-VAR-2-{method.replace('_', '-')}", COMPOSE, f"create {method} read",
     st.tuples(tables(row_shapes=WIDE, min_shards=2), st.integers(0, 4)), partial(check_broadcast, method=method),
     f"A value of another shape is not {verb}, also if NumPy would broadcast it")
    for method, verb in (("assign", "assigned"), ("assign_add", "added"), ("assign_sub", "subtracted"))
))  # fmt: skip


Operands = tuple[TableCase, str, int, int]


@st.composite
def wrong_operands(draw: st.DrawFn) -> Operands:
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
    operands = counting(shapes[number % len(shapes)]) + np.float32(100)
    handle = adapter.create(value, num_shards)
    refuses_write(adapter, value, handle, "scatter", op, np.arange(count), operands)


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


rules(3, "000",
    ("R-ID-1-clipped", IDS, "create lookup_clipped", ids_outside(), check_outside("lookup_clipped", 1.0),
     "A clipped lookup of an id that is negative or too large is refused"),
)  # fmt: skip


@rule("R-ID-1-bags", 3, "000", IDS, "create lookup_bags",
      st.tuples(ids_outside(tables(row_shapes=((2,),))), st.sampled_from(["sum", "mean", "sqrtn"])))  # fmt: skip
def bags_outside_are_refused(adapter: Calls, case: tuple[Lookup, str]) -> None:
    """A bag with an id that is negative or too large is refused."""
    (value, layout, wanted), combiner = case
    handle: Any = made(adapter, value, layout)
    adapter.refuses("lookup_bags", handle, [[0], wanted.tolist()], None, combiner)


_SMALL = tables(max_shards=3, row_shapes=((), (2,)), max_more=2)
LARGE = {"int32": 2**24, "int64": 2**53, "uint8": 100, "int16": 2**11, "float64": 2**24}
"""The dtypes, and a number from where on a narrower one rounds; twice as much fits in each."""


@st.composite
def large_numbers(draw: st.DrawFn) -> DenseCase:
    """Numbers that a narrower dtype would round, and small ones."""
    value, num_shards = draw(_SMALL)
    name = draw(st.sampled_from(sorted(LARGE)))
    small = counting(value.shape, np.dtype(name))
    large = small + np.asarray(LARGE[name], name)
    return (large, num_shards, small) if draw(st.booleans()) else (small, num_shards, large)


@st.composite
def fractions(draw: st.DrawFn) -> DenseCase:
    """Numbers of float32 with all of their digits, of either sign."""
    value, num_shards = draw(_SMALL)
    thirds = [
        counting(value.shape) / np.float32(draw(st.sampled_from([3, -7, 0.3]))) for _ in range(2)
    ]
    return thirds[0], num_shards, thirds[1][::-1].copy()


def check_large(adapter: Calls, case: DenseCase, op: str) -> None:
    """Add or subtract the smaller of two numbers: unsigned integers have no negative differences."""
    value, num_shards, other = case
    check_dense(adapter, (np.maximum(value, other), num_shards, np.minimum(value, other)), op)


rules(3, "000", *(
    row
    for op, noun in (("add", "sums"), ("sub", "differences"))
    for row in (
        (f"R-SV-3-assign-{op}-dtypes", WRITES, f"create assign_{op} read", large_numbers(), partial(check_large, op=op),
         f"After `assign_{op}` large integers are {noun} to the last digit"),
        (f"R-SV-3-assign-{op}-fractions", WRITES, f"create assign_{op} read",
         fractions(), partial(check_dense, op=op, ulps=1),
         f"After `assign_{op}` fractions are {noun} in all of their digits"),
    )
))  # fmt: skip


def check_scattered_rows(adapter: Calls, case: DenseCase, op: str, ulps: int) -> None:
    value, num_shards, other = case
    rows = np.arange(len(value))[::-1][: max(1, len(value) - 1)].copy()
    handle = adapter.scatter(adapter.create(value, num_shards), op, rows, other[rows])
    expect_equal(adapter.read(handle), updated(value, Update(op, rows, other[rows])), ulps=ulps)


rules(3, "000",
    ("R-SV-3-scatter-add-dtypes", WRITES, "create scatter read",
     large_numbers(), partial(check_scattered_rows, op="add", ulps=0),
     "`scatter` adds large integers to the last digit"),
    *((f"R-SV-3-scatter-{op}-fractions", WRITES, "create scatter read", fractions(),
       partial(check_scattered_rows, op=op, ulps=ulps),
       f"`scatter` of {op} keeps all digits of fractions, of either sign, and is right to their last one")
      # A quotient may be a product with a reciprocal, which rounds twice.
      for op, ulps in (("add", 1), ("sub", 1), ("mul", 1), ("div", 2))),
)  # fmt: skip


@rule("R-SV-3-scatter-nan", 3, "000", WRITES, "create scatter read",
      st.tuples(_SMALL, st.sampled_from(["min", "max"]), st.booleans()))  # fmt: skip
def nan_is_neither_least_nor_greatest(adapter: Calls, case: tuple[TableCase, str, bool]) -> None:
    """`scatter` of min and max leaves NaN where the row or its operand is NaN, as NumPy does."""
    (value, num_shards), op, is_held = case
    spoiled = value.copy()
    spoiled[-1] = np.nan
    held, operands = (spoiled, value) if is_held else (value, spoiled)
    rows = np.arange(len(value))
    handle = adapter.scatter(adapter.create(held, num_shards), op, rows, operands)
    reduce: Callable[[Array, Array], Array] = {"min": np.minimum, "max": np.maximum}[op]
    expect_equal(adapter.read(handle), reduce(held, operands))


@st.composite
def weighted(draw: st.DrawFn) -> BagsCase:
    """A table and bags whose weights have either sign, and no sum near 0."""
    value, num_shards = draw(tables(row_shapes=((2,),)))
    bags, weights = [], []
    for _ in range(draw(st.integers(1, 3))):
        bag = draw(ids(len(value), max_size=3, max_rank=1).filter(len)).tolist()
        bags.append(bag)
        # Powers of -2 never add up to 0: 1, -2, 4 and so on.
        weights.append([float((-2) ** number) for number in range(len(bag))])
    return value, num_shards, SparseIds(bags, weights), draw(COMBINERS)


@st.composite
def scalar_lookups(draw: st.DrawFn) -> Lookup:
    value, num_shards = draw(tables())
    return value, num_shards, np.array(draw(st.integers(0, len(value) - 1)), np.int64)


rules(3, "000",
    ("R-LOOKUP-2-bags-negative", LOOKUP, "create lookup_bags", weighted(), bags_are_combined,
     "A bag is the weighted sum of its rows, divided by the weights' sum or l2 norm, also where weights are below "
     "zero"),
    ("R-LOOKUP-2-scalar", LOOKUP, "create lookup", scalar_lookups(), check_lookup("lookup"),
     "A lookup of an id without an axis is a row without one"),
)  # fmt: skip


SNAPSHOT = "no mutation is done to the Tensor returned by a read_variable_op after it's been read"


def written(adapter: Calls, handle: Any, value: Any) -> Any:
    """Add 1 to every row of a variable by a write that the adapter has; return its handle."""
    if adapter.has("assign_add"):
        return adapter.assign_add(handle, np.ones_like(value))
    if adapter.has("assign"):
        return adapter.assign(handle, value + np.ones_like(value))
    if adapter.has("scatter"):
        return adapter.scatter(handle, "add", np.arange(len(value)), np.ones_like(value))
    raise NotClaimed("no assign_add, assign or scatter")


def check_snapshot(
    adapter: Calls, case: TableCase, method: str, arguments: Callable[[int], tuple[Any, ...]]
) -> None:
    value, num_shards = case
    handle = adapter.create(value, num_shards)
    before = adapter.name(getattr(adapter, method)(handle, *arguments(len(value))), "before")
    # ``read`` does not make a handle, so its line gets the name here.
    adapter.lines[-1] = f"before = {adapter.lines[-1]}"
    # A copy, since an adapter may also have kept the array that it was given.
    must = value.copy()
    written(adapter, handle, value)
    adapter.note("before")
    expect_equal(before, must)


rules(3, "003", *(
    (f"R-READ-2{suffix}", SNAPSHOT, f"create {method}",
     tables(), partial(check_snapshot, method=method, arguments=arguments),
     f"{law} when the variable is written afterwards")
    for suffix, method, arguments, law in (
        ("", "read", lambda _length: (), "A value that was read stays as it was"),
        ("-lookup", "lookup", lambda length: (np.arange(length),), "Rows that were looked up stay as they were"),
        ("-sparse-read", "sparse_read", lambda length: (np.arange(length),),
         "Rows of a sparse read stay as they were"),
        ("-index", "index", lambda _length: ((slice(None),),), "A slice that was taken stays as it was"),
    )
))  # fmt: skip


def check_own_memory(adapter: Calls, given: Array, write: Callable[[Array], Any]) -> None:
    """Give an array to the adapter, change it afterwards, and read."""
    kept = adapter.name(given.copy(), "given")
    adapter.note(f"given = {text(given)}")
    handle = write(kept)
    kept += np.float32(100)
    adapter.note("given += 100")
    expect_equal(adapter.read(handle), given)


def check_own_creation(adapter: Calls, case: LaidOutCase) -> None:
    value, layout = case
    check_own_memory(adapter, value, lambda given: made(adapter, given, layout))


rules(3, "003",
    ("R-READ-2-created", SNAPSHOT, "create read", tables(), check_own_creation,
     "A variable stays as it was when the array that it was created with changes"),
    ("R-READ-2-created-uneven", SNAPSHOT, "create_uneven read", uneven_tables(), check_own_creation,
     "A variable in shards of given sizes stays as it was when the array that it was created with changes"),
)  # fmt: skip


@rule("R-READ-2-assigned", 3, "003", SNAPSHOT, "create assign read", tables())
def assigned_variables_have_their_own_memory(adapter: Calls, case: TableCase) -> None:
    """A variable stays as it was when the array that was assigned to it changes."""
    value, num_shards = case
    handle = adapter.create(np.zeros_like(value), num_shards)
    check_own_memory(adapter, value, lambda given: adapter.assign(handle, given))

"""Level 3: lookups give the rows of the ids in their order; writes change the rows that they name
and no others, whatever the numbers. Wrong arguments are refused, and a value that was read stays as
it was, whatever is written afterwards."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, NotClaimed, expect_equal
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    LAYOUTS,
    ORDINARY,
    REALS,
    ROW_SHAPES,
    WIDE,
    LaidOutCase,
    RowShapes,
    ShardSizes,
    Start,
    check_outside,
    expect_bits,
    made,
    refusable,
    refuses_write,
    tables,
    typed,
    unless_refused,
)
from shardvar.conformance.rules.variables import (
    Indexed,
    check_index,
    check_read,
    indexed,
    inner_slices,
    products_are_of_the_whole,
    shards_compose_the_whole,
)
from shardvar.layout.dtypes import Array
from shardvar.records import frozen
from shardvar.spec.lookups import embedding_lookup_sparse
from shardvar.spec.partitions import div
from shardvar.testing import SparseIds, Update, clipped, counting, ids, updated
from shardvar.testing.operations import SPARSE

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
        handle: Any = made(adapter, value, layout)
        # The same ids again, perhaps in other axes.
        for each in (wanted.ravel(), wanted):
            expect_equal(getattr(adapter, method)(handle, each), value[each])

    return check


@st.composite
def square_lookups(draw: st.DrawFn) -> Lookup:
    value, num_shards = draw(tables())
    # Its second line is the first one reversed, so that flattening in another order shows.
    wanted = np.array(draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=6)))
    wanted = np.stack([wanted, wanted[::-1]])
    # Transposed, the ids lie in memory in another order.
    forms = [wanted, wanted[:, None], wanted.T, wanted[0, 0]]
    return value, num_shards, np.asarray(draw(st.sampled_from(forms)))


@st.composite
def ids_outside(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = ORDINARY) -> Lookup:
    value, layout = draw(start)
    good = draw(ids(len(value), max_size=3)).tolist()
    # Just past the end, further past it, and negative ids, which Python would count from the end.
    bad = draw(st.sampled_from([len(value), len(value) + 2, -1, -len(value), *OUTSIDE]))
    good.insert(draw(st.integers(0, len(good))), bad)
    return value, layout, np.array(good, np.int64)


NORMS = (1.0, 0.5, 4.0, 100.0)


def check_clipped(adapter: Calls, case: tuple[Lookup, float]) -> None:
    (value, layout, wanted), most = case
    must = clipped(value, most)[wanted]
    # 16 ulps: libraries sum the squares, and scale the rows, in different orders.
    expect_equal(adapter.lookup_clipped(made(adapter, value, layout), wanted, most), must, ulps=16)


_CLIPPED = st.tuples(lookups(), st.sampled_from(NORMS))
rules(
    ("R-LOOKUP-2", "create lookup", typed(lookups()), check_lookup("lookup"),
     "The i-th row of a lookup belongs to the i-th id, whichever shards hold them"),
    ("R-LOOKUP-2-axes", "create lookup", square_lookups(), check_lookup("lookup"),
     "A lookup of ids of several axes or of none has these axes, then the axes of a row"),
    ("R-READ-1", "create sparse_read", typed(lookups()), check_lookup("sparse_read"),
     "The i-th row of a sparse read belongs to the i-th id, whichever shards hold them"),
    ("R-ID-1", "create lookup", ids_outside(), check_outside("lookup"),
     "A lookup of an id that is negative or too large is refused, not clamped, wrapped or made up"),
    ("R-ID-1-sparse-read", "create sparse_read", ids_outside(), check_outside("sparse_read"),
     "A sparse read of an id that is negative or too large is refused"),
    ("R-LOOKUP-4", "create lookup_clipped", _CLIPPED, check_clipped,
     "A row whose l2 norm exceeds `max_norm` is scaled to it, and others are as they are"),
    ("R-LOOKUP-4-axes", "create lookup_clipped", st.tuples(square_lookups(), st.sampled_from(NORMS)),
     unless_refused(check_clipped),
     "A clipped lookup of ids of several axes or of none is refused, or has these axes, then those of clipped rows"),
    ("R-LOOKUP-4-zero", "create lookup_clipped",
     _CLIPPED, lambda adapter, case: check_clipped(adapter, ((np.zeros_like(case[0][0]), *case[0][1:]), case[1])),
     "Clipping leaves a row of zeros as it is; its norm does not divide anything"),
)  # fmt: skip


BagsCase = tuple[Array, ShardSizes, SparseIds, str]
COMBINERS = st.sampled_from(["sum", "mean", "sqrtn"])


@st.composite
def bags(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _VECTORS) -> BagsCase:
    value, layout = draw(start)
    # The sentence does not mention empty bags.
    one = st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=4)
    some = draw(st.lists(one, min_size=1, max_size=4))
    powers = [2.0 ** (place % 4 - 1) for place in range(draw(st.integers(1, 4)), 8)]
    weights = [powers[: len(bag)] for bag in some] if draw(st.booleans()) else None
    return value, layout, SparseIds(some, weights), draw(COMBINERS)


@rule("R-LOOKUP-2-bags", "create lookup_bags", bags())
def bags_are_combined(adapter: Calls, case: BagsCase) -> None:
    """A bag of ids is the weighted sum of its rows, divided by the weights' sum (mean) or l2 norm
    (sqrtn)."""
    value, layout, some, combiner = case
    handle = made(adapter, value, layout)
    came = adapter.lookup_bags(handle, some.bags, some.weights, combiner)
    # The bags that it was given are read afterwards, so that a change of them shows.
    entries = [
        (number, one, None if some.weights is None else some.weights[number][place])
        for number, bag in enumerate(some.bags)
        for place, one in enumerate(bag)
    ]
    must = embedding_lookup_sparse([value], entries, len(some.bags), combiner)
    expect_equal(came, must, ulps=16)


@st.composite
def bags_with_an_empty_one(draw: st.DrawFn, *, is_last: bool) -> BagsCase:
    value, num_shards, some, combiner = draw(bags())
    at = len(some.bags) if is_last else draw(st.integers(0, len(some.bags) - 1))
    weights = some.weights and [*some.weights[:at], [], *some.weights[at:]]
    return value, num_shards, SparseIds([*some.bags[:at], [], *some.bags[at:]], weights), combiner


METHODS = {"assign": "assign", "add": "assign_add", "sub": "assign_sub"}
"""The methods of dense writes by their operations."""


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
        powers = np.array([2.0, -4.0, 0.5, 8.0], np.float32)
        return value, layout, Update(op, rows, np.resize(powers, shape))
    # 0, 5, -1, 4, -2, 3 and so on: neither the first nor the last operand of a row is always the
    # least or the greatest.
    return value, layout, Update(op, rows, counting(shape) * 5 % 11 - 5)


def check_scatter(adapter: Calls, case: Scatter) -> None:
    value, layout, write = case
    handle = adapter.scatter(made(adapter, value, layout), write.op, write.ids, write.values)
    rows = write.values.reshape(-1, *value.shape[1:])
    expect_equal(
        adapter.read(handle), updated(value, Update(write.op, np.asarray(write.ids).ravel(), rows))
    )


@st.composite
def repeated_updates(draw: st.DrawFn) -> Scatter:
    value, num_shards = draw(tables())
    rows = draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=60))
    rows.insert(draw(st.integers(0, len(rows))), rows[0])
    operands = counting((len(rows), *value.shape[1:])) + 100
    return value, num_shards, Update("update", np.array(rows, np.int64), operands)


def scatters_outside(start: Start = ORDINARY) -> st.SearchStrategy[tuple[Lookup, str]]:
    return st.tuples(ids_outside(start), st.sampled_from(SPARSE))


def check_scatter_outside(adapter: Calls, case: tuple[Lookup, str]) -> None:
    (value, layout, wanted), op = case
    # No row holds either, and each operation changes some row by it.
    operands = np.full((len(wanted), *value.shape[1:]), 1e4 if op == "max" else 0.5, np.float32)
    refuses_write(adapter, value, made(adapter, value, layout), "scatter", op, wanted, operands)


rules(
    ("R-LOOKUP-2-bags-empty", "create lookup_bags", bags_with_an_empty_one(is_last=False), bags_are_combined,
     "An empty bag before others is a row of zeros, and the others keep their places"),
    ("R-LOOKUP-2-bags-empty-last", "create lookup_bags", bags_with_an_empty_one(is_last=True), bags_are_combined,
     "An empty bag behind all others is a row of zeros, too"),
    *(
        (f"R-SV-3-scatter-{op}", "create scatter read", scatters(op), check_scatter, f"`scatter` {law}")
        for op, law in (
            ("add", "adds each operand to its row, as often as the row comes"),
            ("sub", "subtracts each operand from its row, as often as the row comes"),
            ("mul", "multiplies each row by its operand, as often as the row comes"),
            ("div", "divides each row by its operand, as often as the row comes"),
            ("min", "leaves in each row the least of it and all of its operands"),
            ("max", "leaves in each row the greatest of it and all of its operands"),
            ("update", "replaces the rows that are named, in any order of the ids"),
        )
    ),
    # One rule for repeated ids, here, in ``shardvar.testing`` (``updated``) and in the vectors.
    # TensorFlow applies the operands of one row one after the other, so the last one stays.
    ("R-SV-3-scatter-update-last", "create scatter read", repeated_updates(), check_scatter,
     "Of several operands of one row in a `scatter` of update, the last one stays"),
    ("R-ID-1-scatter", "create scatter read", scatters_outside(), check_scatter_outside,
     "A scatter to an id that is negative or too large is refused, and no row is written before that is noticed"),
    ("R-SV-3-scatter-order", "create scatter read",
     [(counting((2,)) * np.float32(first), count, Update(op, np.zeros(2, int), np.array(operands, np.float32)))
      for op, first, *operands in (("add", 2**24, 1, 1), ("sub", -(2**24), 1, 1), ("mul", 1e30, 1e30, 1e-30),
                                   ("div", 1e-30, 1e30, 1e-30))
      for count in (1, 2)],
     check_scatter, "Operands of one row are applied one after another, in the order of the ids"),
)  # fmt: skip


WritesCase = tuple[Array, ShardSizes, list[Update]]


@st.composite
def sequences(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _PLAIN) -> WritesCase:
    value, layout = draw(typed(start))
    writes = []
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(["assign", "add", "sub", "scatter add", "scatter update"]))
        rows = draw(ids(len(value), max_size=4, max_rank=1)) if op.startswith("scatter") else None
        if rows is not None:
            # Repeated ids are the subject of the rules for single operations.
            rows = np.unique(rows)
        shape = value.shape if rows is None else (len(rows), *value.shape[1:])
        # Zeros of either sign are equal, and yet one must replace the other.
        factors = [1, 0, -0.0] if op in ("assign", "scatter update") else [1]
        values = (counting(shape) * draw(st.sampled_from(factors))).astype(value.dtype)
        writes.append(Update(op.removeprefix("scatter "), rows, values))
    return value, layout, writes


@rule("R-SV-3", "create read", sequences(), level=3)
def writes_follow_one_another(adapter: Calls, case: WritesCase) -> None:
    """After any writes that are claimed, one after another, the variable reads as the whole array
    would."""
    value, layout, writes = case
    # Another variable does not change.
    start, other = value, made(adapter, value, layout)
    handle = made(adapter, value, layout)
    for write in writes:
        method = METHODS[write.op] if write.ids is None else "scatter"
        # ``needs`` cannot list these methods, which differ from case to case.
        if not adapter.has(method):
            raise NotClaimed(f"no {method}")
        operands = () if write.ids is None else (write.op, write.ids)
        handle = getattr(adapter, method)(handle, *operands, write.values)
        value = updated(value, write)
        expect_bits(adapter.read(handle), value)
    expect_equal(adapter.read(other), start)


def other_shapes(rows: int, rest: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes that NumPy would broadcast to the shape of a table, and some that it would not."""
    flat = (rows, *(1 for _ in rest))
    shapes = [
        (1, *rest),
        (),
        (rows + 1, *rest),
        (rows - 1, *rest),
        rest,
        flat,
        (rows, 1, *rest),
        (1, rows, *rest),
    ]
    return [shape for shape in shapes if shape != (rows, *rest)]


_OTHERS = [
    (counting((rows, *rest)), num_shards, shape)
    for rest in WIDE
    for rows, num_shards in ((2, 2), (5, 3))
    for shape in other_shapes(rows, rest)
]


def check_broadcast(adapter: Calls, case: tuple[Array, int, tuple[int, ...]], *write: str) -> None:
    """Write an array of another shape by a method, or by the operation of a scatter."""
    value, num_shards, shape = case
    rows = [np.arange(len(value))] if len(write) > 1 else []
    # The old values stay below 100, so a shard that was written before the refusal can be seen.
    other = counting(shape) + np.float32(100)
    refuses_write(adapter, value, adapter.create(value, num_shards), *write, *rows, other)


def check_not_cast(adapter: Calls, case: tuple[str, int], method: str) -> None:
    name, num_shards = case
    unit = np.complex64(1j) if name == "float32" else np.float32(1)
    value, given = counting((4, 2), name), (counting((4, 2)) + np.float32(0.5)) * unit
    rows = () if method in METHODS.values() else ("add", np.arange(4))
    came = adapter.attempt(method, adapter.create(value, num_shards), *rows, given)
    must = {"assign": given, "assign_sub": value - given}.get(method, value + given)
    expect_equal(np.asarray(adapter.read(came)).astype(must.dtype), must)


rules(
    *((f"R-VAR-2-{method.replace('_', '-')}", f"create {method} read", _OTHERS,
       lambda adapter, case, method=method: check_broadcast(adapter, case, method),
       f"A value of another shape is not {verb}, also if NumPy would broadcast it, and the variable stays as it was")
      for method, verb in (("assign", "assigned"), ("assign_add", "added"), ("assign_sub", "subtracted"))),
    ("R-VAR-2-scatter", "create scatter read", [*product(_OTHERS, SPARSE)],
     lambda adapter, case: check_broadcast(adapter, case[0], "scatter", case[1]),
     "Operands of a scatter that are not one row for each id are refused, also if NumPy would broadcast them"),
    *(
        (f"R-VAR-2-dtype{suffix}", f"create {method} read", [*product(("int32", "int64", "float32"), (1, 2, 3))],
         partial(check_not_cast, method=method),
         f"Numbers that are {verb} and that the variable cannot hold are refused, or are what it reads as: fractions "
         "for integers, complex numbers for real ones")
        for suffix, method, verb in (("", "assign", "assigned"), ("-add", "assign_add", "added"),
                                     ("-sub", "assign_sub", "subtracted"), ("-scatter", "scatter", "scattered"))
    ),
    ("R-ID-1-clipped", "create lookup_clipped", ids_outside(), check_outside("lookup_clipped", 1.0),
     "A clipped lookup of an id that is negative or too large is refused"),
)  # fmt: skip


@rule("R-ID-1-bags", "create lookup_bags",
      st.tuples(ids_outside(tables(row_shapes=((2,),))), st.sampled_from(["sum", "mean", "sqrtn"])))  # fmt: skip
def bags_outside_are_refused(adapter: Calls, case: tuple[Lookup, str]) -> None:
    """A bag with an id that is negative or too large is refused."""
    (value, layout, wanted), combiner = case
    handle: Any = made(adapter, value, layout)
    adapter.refuses("lookup_bags", handle, [[0], wanted.tolist()], None, combiner)


def written(adapter: Calls, handle: Any, value: Any, method: str) -> Any:
    """Add 1 to every row of a variable by a write; return its handle. A write that is not kept breaks
    other rules."""
    ones = np.ones_like(value)
    operands = {"assign": (value + ones,), "assign_add": (ones,), "assign_sub": (-ones,)}
    with refusable():
        handle = getattr(adapter, method)(
            handle, *operands.get(method, ("add", np.arange(len(value)), ones))
        )
        is_kept = np.array_equal(adapter.read(handle), value + ones)
    if not is_kept:
        raise NotClaimed("a write that is not kept")
    return handle


rules(
    ("R-SV-3-scatter-axes", "create scatter read",
     [(counting((rows, *rest)), count, Update(op, np.array([[3, 2], [1, 0]]), counting((2, 2, *rest))))
      for rest, rows, count, op in product(((), (2,)), (4, 7), (2, 3), ("add", "update"))],
     unless_refused(check_scatter),
     "A scatter of ids of two axes is refused, or writes each operand to the row of its id"),
    ("R-READ-1-axes", "create sparse_read", square_lookups(), unless_refused(check_lookup("sparse_read")),
     "A sparse read of ids of several axes or of none is refused, or has these axes, then the axes of a row"),
)  # fmt: skip


_LENGTH = 2**16 + 9
_FAR = np.array([2**16 + 1, 1, _LENGTH - 1, 2**16 - 1, 2**15])
"""Rows that are others where 16 bits of an id are kept."""


def check_replaced(adapter: Calls, case: tuple[float, str, int]) -> None:
    first, name, num_shards = case
    handle = adapter.create(np.full((4, 2), first, name), num_shards)
    expect_bits(
        adapter.read(adapter.assign(handle, np.full((4, 2), -first, name))),
        np.full((4, 2), -first, name),
    )


rules(
    ("R-SV-3-assign-zeros", "assign create read", [*product((0.0, -0.0), REALS, (1, 2))], check_replaced,
     "Zeros of the other sign are assigned, although they are equal"),
    *((f"{name}-large", f"create {method}", [(counting((_LENGTH,)), count, _FAR) for count in (1, 3)],
       check_lookup(method), f"`{method}` finds rows behind row 65,535")
      for name, method in (("R-LOOKUP-2", "lookup"), ("R-READ-1", "sparse_read"))),
    ("R-SV-3-scatter-large", "scatter create read",
     [(counting((_LENGTH,)), count, Update(op, _FAR, np.float32(2) - _FAR.astype(np.float32)))
      for op in SPARSE for count in (1, 3)],
     check_scatter, "`scatter` writes rows behind row 65,535"),
    ("R-LOOKUP-2-bags-large", "lookup_bags create",
     [(counting((300, 2)), count, SparseIds([[n] for n in range(300)], None), "sum") for count in (1, 3)],
     bags_are_combined, "Three hundred bags are as many rows, in their order"),
)  # fmt: skip


@rule("R-LOOKUP-4-range", "create lookup_clipped", [
    *product((2.0**70, 2.0**-70), (1, 2, 3), (False, True))])  # fmt: skip
def norms_of_any_size_are_compared(adapter: Calls, case: tuple[float, int, bool]) -> None:
    """A row is clipped or left by its norm, also if its squares are too large or too small for its
    dtype."""
    scale, num_shards, is_clipped = case
    value = (counting((4, 2)) * scale).astype(np.float32)
    norms = np.sqrt((value.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    limit = float(norms.min() / 2 if is_clipped else norms.max() * 2)
    came = adapter.lookup_clipped(adapter.create(value, num_shards), np.arange(4), limit)
    expect_equal(came, (value * np.minimum(1, limit / norms)).astype(np.float32), ulps=16)


# The laws of ordinary cases, of levels 2 and 3, in uneven, empty, few and many shards.


@frozen
class Law:
    id: str
    needs: str
    """The methods that it needs in addition to the maker of the variable."""
    text: str
    """The law; the phrase of the layout follows."""
    cases: Callable[[Start], st.SearchStrategy[Any]]
    check: Callable[[Calls, Any], None]
    row_shapes: RowShapes = ROW_SHAPES
    only: tuple[str, ...] = tuple(layout.suffix for layout in LAYOUTS)
    """The layouts for which it is asked."""
    level: int = 0


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
    Law("R-CONCAT-1", "read", "A variable reads as the value that it was created with",
        typed, check_read, only=("many",)),
    Law("R-SV-1", "shards", "The shards are as many as were asked for, and one after another the whole",
        typed, shards_compose_the_whole, only=("many",)),
    Law("R-VAR-1", "index", "Indexing is NumPy's on the whole",
        # Rows twice, so that half of the cases are of single rows.
        lambda start: st.one_of(edge_rows(start), edge_rows(start).map(tuple), indexed(inner_slices((None, 1)), start),
                                indexed(inner_slices((2, 3, -1, -2)), start)),
        check_index),
    Law("R-MATMUL-1", "matmul", "A product with the variable is the product with the whole",
        lambda start: start, products_are_of_the_whole, ((1,), (3,)), ("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2", "lookup", "The i-th row of a lookup belongs to the i-th id",
        lambda start: typed(lookups(start)), check_lookup("lookup")),
    Law("R-READ-1", "sparse_read", "The i-th row of a sparse read belongs to the i-th id",
        lambda start: typed(lookups(start)), check_lookup("sparse_read")),
    Law("R-LOOKUP-4", "lookup_clipped", "A row whose l2 norm exceeds `max_norm` is scaled to it",
        lambda start: st.tuples(lookups(start), st.sampled_from(NORMS)), check_clipped,
        only=("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2-bags", "lookup_bags", "A bag of ids is the combination of its rows",
        bags, bags_are_combined, ((2,),), ("uneven", "empty-shards", "many")),
    Law("R-SV-3-scatter", "scatter read", "A scatter changes the rows that it names and no others",
        lambda start: st.sampled_from(SPARSE).flatmap(lambda op: scatters(op, start)), check_scatter),
    Law("R-SV-3", "read", "After any writes that are claimed the variable reads as the whole would",
        sequences, writes_follow_one_another, ((), (2,)), level=3),
    Law("R-ID-1", "lookup", "A lookup of an id that is not there is refused",
        ids_outside, check_outside("lookup"), only=("empty-shards", "few-rows")),
    Law("R-ID-1-scatter", "scatter read", "A scatter to an id that is not there is refused",
        scatters_outside, check_scatter_outside, only=("empty-shards", "few-rows")),
)  # fmt: skip


for _law in LAWS:
    rules(*(
        (f"{_law.id}-{layout.suffix}", f"{layout.method} {_law.needs}",
         _law.cases(layout.tables(_law.row_shapes)), _law.check, f"{_law.text}, {layout.phrase}")
        for layout in LAYOUTS
        if layout.suffix in _law.only
    ), level=_law.level)  # fmt: skip

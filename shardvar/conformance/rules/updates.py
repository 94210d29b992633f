"""Level 3: lookups give the rows of the ids in their order; writes change the rows that they name
and no others."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, NotClaimed, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    FULL,
    ORDINARY,
    LaidOutCase,
    ShardSizes,
    TableCase,
    made,
    must_be_unchanged,
    tables,
)
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
    """A table and ids, unsorted, duplicated, across shards."""
    value, layout = draw(start)
    return value, layout, draw(ids(len(value), max_size=24))


def check_lookup(method: str) -> Callable[[Calls, Lookup], None]:
    def check(adapter: Calls, case: Lookup) -> None:
        value, layout, wanted = case
        expect_equal(getattr(adapter, method)(made(adapter, value, layout), wanted), value[wanted])

    return check


@rule("R-LOOKUP-2", 3, "000", LOOKUP, "create lookup", lookups())
def lookups_keep_the_order(adapter: Calls, case: Lookup) -> None:
    """The i-th row of a lookup belongs to the i-th id, whichever shards hold them."""
    check_lookup("lookup")(adapter, case)


@st.composite
def square_lookups(draw: st.DrawFn) -> Lookup:
    """Ids of two axes."""
    value, num_shards = draw(tables())
    # Its second line is the first one reversed, so that flattening in another order shows.
    wanted = draw(ids(len(value), max_size=6).filter(len))
    return value, num_shards, np.stack([wanted, wanted[::-1]])


@rule("R-LOOKUP-2-axes", 3, "000", LOOKUP, "create lookup", square_lookups())
def ids_have_any_shape(adapter: Calls, case: Lookup) -> None:
    """A lookup of ids of several axes has these axes, then the axes of a row."""
    check_lookup("lookup")(adapter, case)


@rule("R-READ-1", 3, "000", FULL, "create sparse_read", lookups())
def sparse_reads_keep_the_order(adapter: Calls, case: Lookup) -> None:
    """The i-th row of a sparse read belongs to the i-th id, whichever shards hold them."""
    check_lookup("sparse_read")(adapter, case)


@st.composite
def ids_outside(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = ORDINARY) -> Lookup:
    """Ids; one of them does not exist."""
    value, layout = draw(start)
    good = draw(ids(len(value), max_size=3)).tolist()
    # Just past the end, further past it, and negative ids, which Python would count from the end.
    bad = draw(st.sampled_from([len(value), len(value) + 2, -1, -len(value), *OUTSIDE]))
    good.insert(draw(st.integers(0, len(good))), bad)
    return value, layout, np.array(good, np.int64)


@rule("R-ID-1", 3, "000", IDS, "create lookup", ids_outside())
def lookups_outside_are_refused(adapter: Calls, case: Lookup) -> None:
    """A lookup of an id that is negative or too large is refused, not clamped, wrapped or made
    up."""
    value, layout, wanted = case
    handle = made(adapter, value, layout)
    adapter.refuses("lookup", handle, wanted)


@rule("R-ID-1-sparse-read", 3, "000", IDS, "create sparse_read", ids_outside())
def sparse_reads_outside_are_refused(adapter: Calls, case: Lookup) -> None:
    """A sparse read of an id that is negative or too large is refused."""
    value, layout, wanted = case
    handle = made(adapter, value, layout)
    adapter.refuses("sparse_read", handle, wanted)


CLIPPED = "each embedding is clipped if its l2-norm is larger than this value"
NORMS = (1.0, 0.5, 4.0, 100.0)


@rule("R-LOOKUP-4", 3, "002", CLIPPED,
      "create lookup_clipped", st.tuples(lookups(), st.sampled_from(NORMS)))  # fmt: skip
def norms_are_clipped(adapter: Calls, case: tuple[Lookup, float]) -> None:
    """A row whose l2 norm exceeds `max_norm` is scaled to it, and others are as they are."""
    (value, layout, wanted), most = case
    must = clipped(value[wanted], most)
    # 16 ulps: libraries sum the squares, and scale the rows, in different orders.
    expect_equal(adapter.lookup_clipped(made(adapter, value, layout), wanted, most), must, ulps=16)


@rule(
    "R-LOOKUP-4-zero",
    3,
    "002",
    CLIPPED,
    "create lookup_clipped",
    st.tuples(lookups(), st.sampled_from(NORMS)),
)
def rows_of_zeros_are_clipped(adapter: Calls, case: tuple[Lookup, float]) -> None:
    """Clipping leaves a row of zeros as it is; its norm does not divide anything."""
    (value, layout, wanted), most = case
    norms_are_clipped(adapter, ((np.zeros_like(value), layout, wanted), most))


BagsCase = tuple[Array, ShardSizes, SparseIds, str]
COMBINERS = st.sampled_from(["sum", "mean", "sqrtn"])


@st.composite
def bags(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _VECTORS) -> BagsCase:
    """A table and bags of ids, none empty."""
    value, layout = draw(start)
    # The sentence says nothing about empty bags.
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


@rule("R-LOOKUP-2-bags-empty", 3, "000", LOOKUP, "create lookup_bags", bags_with_empty_ones())
def empty_bags_are_zeros(adapter: Calls, case: BagsCase) -> None:
    """An empty bag before others is a row of zeros, and the others keep their places."""
    bags_are_combined(adapter, case)


DenseCase = tuple[Array, int, Array]
"""A value, its number of shards, and another value of its shape."""


@st.composite
def dense_writes(draw: st.DrawFn) -> DenseCase:
    """A table and another value of its shape."""
    value, num_shards = draw(tables())
    # Reversed, so that rows which go to the wrong shard show.
    return value, num_shards, (value[::-1] * 2).copy()


@rule("R-SV-3-assign", 3, "000", WRITES, "create assign read", dense_writes())
def assignments_replace(adapter: Calls, case: DenseCase) -> None:
    """After an assignment the variable reads as the new value."""
    value, num_shards, other = case
    expect_equal(adapter.read(adapter.assign(adapter.create(value, num_shards), other)), other)


@rule("R-SV-3-assign-add", 3, "000", WRITES, "create assign_add read", dense_writes())
def additions_add(adapter: Calls, case: DenseCase) -> None:
    """After `assign_add` the variable reads as the sum."""
    value, num_shards, other = case
    expect_equal(
        adapter.read(adapter.assign_add(adapter.create(value, num_shards), other)), value + other
    )


@rule("R-SV-3-assign-sub", 3, "000", WRITES, "create assign_sub read", dense_writes())
def subtractions_subtract(adapter: Calls, case: DenseCase) -> None:
    """After `assign_sub` the variable reads as the difference."""
    value, num_shards, other = case
    expect_equal(
        adapter.read(adapter.assign_sub(adapter.create(value, num_shards), other)), value - other
    )


def check_refused_assignment(adapter: Calls, case: tuple[TableCase, int]) -> None:
    (value, num_shards), more = case
    handle = adapter.create(value, num_shards)
    # The old values stay below 100, so a shard that was written before the refusal can be seen.
    adapter.refuses(
        "assign", handle, counting((len(value) + more, *value.shape[1:])) + np.float32(100)
    )
    must_be_unchanged(adapter, handle, value)


@rule(
    "R-VAR-2-large", 3, "000", COMPOSE, "create assign read", st.tuples(tables(), st.integers(1, 3))
)
def values_too_large_are_refused(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A value with too many rows is refused, not cropped, and the variable stays as it was."""
    check_refused_assignment(adapter, case)


@rule("R-VAR-2-small", 3, "000", COMPOSE, "create assign read",
      st.tuples(tables(min_shards=2), st.just(-1)))  # fmt: skip
def values_too_small_are_refused(adapter: Calls, case: tuple[TableCase, int]) -> None:
    """A value with too few rows is refused, not broadcast, and no shard is written before that is
    noticed."""
    check_refused_assignment(adapter, case)


@rule("R-VAR-2-columns", 3, "000", COMPOSE, "create assign read", tables(row_shapes=((2,), (2, 2))))
def values_too_narrow_are_refused(adapter: Calls, case: TableCase) -> None:
    """A value with too few columns is refused, not broadcast, and the variable stays as it was."""
    value, num_shards = case
    handle = adapter.create(value, num_shards)
    adapter.refuses("assign", handle, value[:, :1] + np.float32(100))
    must_be_unchanged(adapter, handle, value)


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
    powers = np.array([2.0, 4.0, 0.5, 8.0], np.float32)
    operands = (
        powers[np.arange(np.prod(shape, dtype=int)) % 4].reshape(shape)
        if op in ("mul", "div")
        else None
    )
    # 0, 5, -1, 4, -2, 3 and so on: neither the first nor the last operand of a row is always the
    # least or the greatest.
    return (
        value,
        layout,
        Update(op, rows, counting(shape) * 5 % 11 - 5 if operands is None else operands),
    )


def check_scatter(adapter: Calls, case: Scatter) -> None:
    value, layout, write = case
    handle = adapter.scatter(made(adapter, value, layout), write.op, write.ids, write.values)
    expect_equal(adapter.read(handle), updated(value, write))


def _register_scatters() -> None:
    laws = {
        "add": "`scatter` adds each operand to its row, as often as the row comes",
        "sub": "`scatter` subtracts each operand from its row, as often as the row comes",
        "mul": "`scatter` multiplies each row by its operand, as often as the row comes",
        "div": "`scatter` divides each row by its operand, as often as the row comes",
        "min": "`scatter` leaves in each row the least of it and all of its operands",
        "max": "`scatter` leaves in each row the greatest of it and all of its operands",
        "update": "`scatter` replaces the rows that are named, in any order of the ids",
    }
    for op, law in laws.items():

        def check(adapter: Calls, case: Any) -> None:
            check_scatter(adapter, case)

        check.__doc__ = law
        rule(f"R-SV-3-scatter-{op}", 3, "000", WRITES, "create scatter read", scatters(op))(check)


_register_scatters()


@st.composite
def repeated_updates(draw: st.DrawFn) -> Scatter:
    """A table and rows to write; at least one comes twice."""
    value, num_shards = draw(tables())
    rows = draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=12))
    rows.insert(draw(st.integers(0, len(rows))), rows[0])
    return (
        value,
        num_shards,
        Update("update", np.array(rows, np.int64), counting((len(rows), *value.shape[1:])) + 100),
    )


# One rule for repeated ids, here, in ``shardvar.testing`` (``updated``) and in the vectors.
# TensorFlow applies the operands of one row one after the other, so the last one stays.
@rule("R-SV-3-scatter-update-last", 3, "000", WRITES, "create scatter read", repeated_updates())
def the_last_update_stays(adapter: Calls, case: Scatter) -> None:
    """Of several operands of one row in a `scatter` of update, the last one stays."""
    check_scatter(adapter, case)


@rule("R-ID-1-scatter", 3, "000", IDS, "create scatter read", ids_outside())
def scatters_outside_are_refused(adapter: Calls, case: Lookup) -> None:
    """A scatter to an id that is negative or too large is refused, and no row is written before
    that is noticed."""
    value, layout, wanted = case
    handle = made(adapter, value, layout)
    adapter.refuses(
        "scatter", handle, "add", wanted, np.ones((len(wanted), *value.shape[1:]), np.float32)
    )
    must_be_unchanged(adapter, handle, value)


@rule("R-ID-1-scatter-update", 3, "000", IDS, "create scatter read", ids_outside())
def updates_outside_are_refused(adapter: Calls, case: Lookup) -> None:
    """A `scatter` of update to an id that is not there is refused, and no row is written before
    that is noticed."""
    value, layout, wanted = case
    handle = made(adapter, value, layout)
    adapter.refuses(
        "scatter", handle, "update", wanted, np.zeros((len(wanted), *value.shape[1:]), np.float32)
    )
    must_be_unchanged(adapter, handle, value)


WritesCase = tuple[Array, ShardSizes, list[Update]]


@st.composite
def sequences(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _PLAIN) -> WritesCase:
    """A table and several writes, dense and sparse."""
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
        dense = {"assign": "assign", "add": "assign_add", "sub": "assign_sub"}
        method = dense[write.op] if write.ids is None else "scatter"
        # ``needs`` cannot list these methods, which differ from case to case.
        if not adapter.has(method):
            raise NotClaimed(f"no {method}")
        if write.ids is None:
            handle = getattr(adapter, method)(handle, write.values)
        else:
            handle = adapter.scatter(handle, write.op, write.ids, write.values)
        value = updated(value, write)
        came = adapter.read(handle)
        if not np.array_equal(np.asarray(came), value):
            raise Broken(f"It gave {np.asarray(came).tolist()}.", f"It must give {value.tolist()}.")

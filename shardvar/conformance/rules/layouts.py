"""Levels 2 and 3 once more, of variables in other layouts and of other dtypes.

The other modules ask for tables with a row a shard at least, divided by the div rule. An
implementation that finds a shard by that rule for every layout keeps all their rules. Here the same
checks are made of shards of uneven sizes, of empty shards in any place, of fewer rows than shards,
and of more shards than ten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls, expect_equal
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    FULL,
    ROW_SHAPES,
    LaidOutCase,
    few_rows,
    hollow_tables,
    many_shards,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.updates import (
    CLIPPED,
    IDS,
    LOOKUP,
    NORMS,
    WRITES,
    Lookup,
    bags,
    bags_are_combined,
    check_lookup,
    check_scatter,
    ids_outside,
    lookups,
    lookups_outside_are_refused,
    norms_are_clipped,
    scatters,
    scatters_outside_are_refused,
    sequences,
    writes_follow_one_another,
)
from shardvar.conformance.rules.variables import (
    PRODUCT,
    Indexed,
    check_index,
    inner_slices,
    products_are_of_the_whole,
)
from shardvar.spec.partitions import div
from shardvar.testing import Update, counting
from shardvar.testing.arrays import bits
from shardvar.testing.operations import SPARSE

RowShapes = tuple[tuple[int, ...], ...]
Start = st.SearchStrategy[LaidOutCase]


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """A kind of layouts that the ordinary cases leave out."""

    suffix: str
    """The end of the ids of its rules."""
    phrase: str
    """The variables, as a phrase that follows the law."""
    method: str
    """The method that makes them."""
    tables: Callable[[RowShapes], Start]
    """The tables whose rows have one of some shapes."""


LAYOUTS = (
    OtherLayout(
        "uneven", "in shards of uneven sizes", "create_uneven", lambda rows: uneven_tables(rows, 2)
    ),
    OtherLayout("empty-shards", "where some shards are empty", "create_uneven", hollow_tables),
    OtherLayout(
        "few-rows",
        "where there are fewer rows than shards",
        "create",
        lambda rows: few_rows(rows, 1),
    ),
    OtherLayout("many", "in more than ten shards", "create", many_shards),
)


@dataclass(frozen=True, slots=True)
class Law:
    """A law of an ordinary rule, for any layout."""

    id: str
    """The id of the rule."""
    level: int
    """Its level."""
    rfc: str
    """The number of its RFC."""
    sentence: str
    """Its sentence."""
    needs: str
    """The methods that it needs beyond the one that makes the variable."""
    text: str
    """The law; the phrase of the layout follows."""
    cases: Callable[[Start], st.SearchStrategy[Any]]
    """The cases that begin with such tables."""
    check: Callable[[Calls, Any], None]
    """The check of one case."""
    row_shapes: RowShapes = ROW_SHAPES
    """The shapes that a row may have."""
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


def _any_index(start: Start) -> st.SearchStrategy[Any]:
    rows = edge_rows(start)
    # Twice, so that half of the cases are of single rows.
    return st.one_of(
        rows, rows.map(tuple), inner_slices((None, 1), start), inner_slices((2, 3, -1, -2), start)
    )


def _any_scatter(start: Start) -> st.SearchStrategy[Any]:
    return st.sampled_from(SPARSE).flatmap(lambda op: scatters(op, start))


# An id outside is answered by an empty shard, if by any: behind its one row lies the next shard's.
LAWS = (
    Law("R-VAR-1", 2, "000", FULL, "index", "Indexing is NumPy's on the whole", _any_index, check_index),
    Law("R-MATMUL-1", 2, "000", PRODUCT, "matmul", "A product with the variable is the product with the whole",
        lambda start: start, products_are_of_the_whole, ((1,), (3,)), ("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2", 3, "000", LOOKUP, "lookup", "The i-th row of a lookup belongs to the i-th id",
        lookups, check_lookup("lookup")),
    Law("R-READ-1", 3, "000", FULL, "sparse_read", "The i-th row of a sparse read belongs to the i-th id",
        lookups, check_lookup("sparse_read")),
    Law("R-LOOKUP-4", 3, "002", CLIPPED, "lookup_clipped", "A row whose l2 norm exceeds `max_norm` is scaled to it",
        lambda start: st.tuples(lookups(start), st.sampled_from(NORMS)), norms_are_clipped,
        only=("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2-bags", 3, "000", LOOKUP, "lookup_bags", "A bag of ids is the combination of its rows",
        bags, bags_are_combined, ((2,),), ("uneven", "empty-shards", "many")),
    Law("R-SV-3-scatter", 3, "000", WRITES, "scatter read", "A scatter changes the rows that it names and no others",
        _any_scatter, check_scatter),
    Law("R-SV-3", 3, "000", WRITES, "read", "After any writes that are claimed the variable reads as the whole would",
        sequences, writes_follow_one_another, ((), (2,))),
    Law("R-ID-1", 3, "000", IDS, "lookup", "A lookup of an id that is not there is refused",
        ids_outside, lookups_outside_are_refused, only=("empty-shards",)),
    Law("R-ID-1-scatter", 3, "000", IDS, "scatter read", "A scatter to an id that is not there is refused",
        ids_outside, scatters_outside_are_refused, only=("empty-shards",)),
)  # fmt: skip


def _register_layouts() -> None:
    for law in LAWS:
        for layout in LAYOUTS:
            if layout.suffix not in law.only:
                continue

            # Bound as a default; else every rule would use the last law of the loop.
            def check(adapter: Calls, case: Any, law: Law = law) -> None:
                law.check(adapter, case)

            check.__doc__ = f"{law.text}, {layout.phrase}"
            cases = law.cases(layout.tables(law.row_shapes))
            words = f"{layout.method} {law.needs}"
            rule(f"{law.id}-{layout.suffix}", law.level, law.rfc, law.sentence, words, cases)(check)


_register_layouts()

DTYPES = "float64 int32 int64 int8 uint8 bool float16 bfloat16 complex64".split()


@st.composite
def typed_lookups(draw: st.DrawFn) -> Lookup:
    """A table of any bits of some dtype, and all of its ids."""
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    return draw(bits(dtype, value.shape)), num_shards, np.arange(len(value))[::-1].copy()


@rule("R-LOOKUP-2-dtypes", 3, "000", LOOKUP, "create lookup", typed_lookups())
def lookups_keep_dtypes(adapter: Calls, case: Lookup) -> None:
    """A lookup gives rows of every dtype in that dtype, and a NaN in one row does not reach
    another."""
    check_lookup("lookup")(adapter, case)


@rule("R-READ-1-dtypes", 3, "000", FULL, "create sparse_read", typed_lookups())
def sparse_reads_keep_dtypes(adapter: Calls, case: Lookup) -> None:
    """A sparse read gives rows of every dtype in that dtype, and a NaN in one row does not reach
    another."""
    check_lookup("sparse_read")(adapter, case)


@st.composite
def typed_updates(draw: st.DrawFn) -> Any:
    """A table of some dtype, and rows of it to replace."""
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rows = np.arange(draw(st.integers(0, len(value) - 1)), len(value))
    operands = draw(bits(dtype, (len(rows), *value.shape[1:])))
    return counting(value.shape, dtype), num_shards, Update("update", rows, operands)


@rule("R-SV-3-scatter-dtypes", 3, "000", WRITES, "create scatter read", typed_updates())
def updates_keep_dtypes(adapter: Calls, case: Any) -> None:
    """A `scatter` of update writes rows of every dtype as they are, including NaNs and the largest
    integers."""
    check_scatter(adapter, case)


@st.composite
def typed_assignments(draw: st.DrawFn) -> Any:
    """A table of some dtype, and another value of its shape and dtype."""
    value, num_shards = draw(tables(max_shards=3, row_shapes=((), (2,)), max_more=2))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    return counting(value.shape, dtype), num_shards, draw(bits(dtype, value.shape))


@rule("R-SV-3-assign-dtypes", 3, "000", WRITES, "create assign read", typed_assignments())
def assignments_keep_dtypes(adapter: Calls, case: Any) -> None:
    """After an assignment a variable of any dtype reads as the new value, in that dtype."""
    value, num_shards, other = case
    expect_equal(adapter.read(adapter.assign(adapter.create(value, num_shards), other)), other)

"""Levels 2 and 3: the laws of ordinary cases in uneven, empty, few and many shards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Calls
from shardvar.conformance.rules import rules
from shardvar.conformance.rules.cases import (
    LAYOUTS,
    ROW_SHAPES,
    RowShapes,
    Start,
    check_outside,
)
from shardvar.conformance.rules.updates import (
    NORMS,
    bags,
    bags_are_combined,
    check_clipped,
    check_lookup,
    check_scatter,
    check_scatter_outside,
    ids_outside,
    lookups,
    scatters,
    sequences,
    writes_follow_one_another,
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
from shardvar.spec.partitions import div
from shardvar.testing.operations import SPARSE


@dataclass(frozen=True, slots=True)
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
        lambda start: start, check_read, only=("many",)),
    Law("R-SV-1", "shards", "The shards are as many as were asked for, and one after another the whole",
        lambda start: start, shards_compose_the_whole, only=("many",)),
    Law("R-VAR-1", "index", "Indexing is NumPy's on the whole",
        # Rows twice, so that half of the cases are of single rows.
        lambda start: st.one_of(edge_rows(start), edge_rows(start).map(tuple), indexed(inner_slices((None, 1)), start),
                                indexed(inner_slices((2, 3, -1, -2)), start)),
        check_index),
    Law("R-MATMUL-1", "matmul", "A product with the variable is the product with the whole",
        lambda start: start, products_are_of_the_whole, ((1,), (3,)), ("uneven", "empty-shards", "many")),
    Law("R-LOOKUP-2", "lookup", "The i-th row of a lookup belongs to the i-th id",
        lookups, check_lookup("lookup")),
    Law("R-READ-1", "sparse_read", "The i-th row of a sparse read belongs to the i-th id",
        lookups, check_lookup("sparse_read")),
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
        ids_outside, check_outside("lookup"), only=("empty-shards",)),
    Law("R-ID-1-scatter", "scatter read", "A scatter to an id that is not there is refused",
        ids_outside, partial(check_scatter_outside, op="add", operand=1), only=("empty-shards",)),
)  # fmt: skip


for _law in LAWS:
    rules(*(
        (f"{_law.id}-{layout.suffix}", f"{layout.method} {_law.needs}",
         _law.cases(layout.tables(_law.row_shapes)), _law.check, f"{_law.text}, {layout.phrase}")
        for layout in LAYOUTS
        if layout.suffix in _law.only
    ), level=_law.level)  # fmt: skip

"""Cases that several levels share: tables and numbers of shards, and their set-up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect_equal, text
from shardvar.conformance.rules import RuleCheck
from shardvar.layout.dtypes import Array
from shardvar.testing import counting
from shardvar.testing.arrays import bits

ShardSizes = int | list[int]
"""The cut of a variable: into a number of shards, or into shards of these rows."""

TableCase = tuple[Array, int]
LaidOutCase = tuple[Array, ShardSizes]
RowShapes = tuple[tuple[int, ...], ...]

# Tables of one, two and three axes: implementations often assume two.
ROW_SHAPES: RowShapes = ((), (1,), (3,), (2, 2))

FULL = (
    "With above, users' model code doesn't need to change w.r.t whether the variable is sharded or "
    "not."
)
"""RFC 000: the sentence behind every rule whose oracle is NumPy on the whole array."""


@st.composite
def tables(
    draw: st.DrawFn,
    max_shards: int = 4,
    row_shapes: RowShapes = ROW_SHAPES,
    min_shards: int = 1,
    max_more: int = 5,
    dtype: npt.DTypeLike = np.float32,
) -> TableCase:
    """An array and a number of shards that is not above its number of rows."""
    num_shards = draw(st.integers(min_shards, max_shards))
    # A row for each shard at least. Empty shards have separate rules, so that their lack breaks
    # only those.
    rows = num_shards + draw(st.integers(0, max_more))
    return counting((rows, *draw(st.sampled_from(list(row_shapes)))), dtype), num_shards


@st.composite
def few_rows(draw: st.DrawFn, row_shapes: RowShapes = ((), (2,)), min_rows: int = 0) -> TableCase:
    """An array with fewer rows than there are shards, perhaps none."""
    num_shards = draw(st.integers(min_rows + 1, 4))
    rows = draw(st.integers(min_rows, num_shards - 1))
    return counting((rows, *draw(st.sampled_from(list(row_shapes))))), num_shards


@st.composite
def uneven_tables(
    draw: st.DrawFn, row_shapes: RowShapes = ROW_SHAPES, min_shards: int = 1
) -> tuple[Array, list[int]]:
    """An array and the rows of each shard, at least one."""
    few = st.lists(st.integers(1, 4), min_size=min_shards, max_size=4)
    # In more than ten shards, the name of shard 10 sorts before the name of shard 2.
    sizes = draw(few | few | st.lists(st.integers(1, 2), min_size=11, max_size=12))
    return counting((sum(sizes), *draw(st.sampled_from(list(row_shapes))))), sizes


@st.composite
def hollow_tables(draw: st.DrawFn, row_shapes: RowShapes = ROW_SHAPES) -> tuple[Array, list[int]]:
    """An array and the rows of each shard; the first, the last or some between may have none."""
    value, sizes = draw(uneven_tables(row_shapes))
    for _ in range(draw(st.integers(1, 3))):
        sizes.insert(draw(st.integers(0, len(sizes))), 0)
    return value, sizes


ORDINARY = tables()
"""The tables of ordinary cases."""


def many_shards(row_shapes: RowShapes = ROW_SHAPES) -> st.SearchStrategy[TableCase]:
    """Return arrays in more than ten shards: as text, the name of shard 10 is before the name of shard 2."""
    return tables(13, row_shapes, 11, 3)


Start = st.SearchStrategy[LaidOutCase]


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """A kind of layouts that the ordinary cases leave out."""

    suffix: str
    """The end of the ids of its rules."""
    phrase: str
    """The variables, as a phrase that follows the law."""
    method: str
    tables: Callable[[RowShapes], Start]
    """The tables whose rows have one of some shapes."""


LAYOUTS = (
    OtherLayout("uneven", "in shards of uneven sizes", "create_uneven", lambda rows: uneven_tables(rows, 2)),
    OtherLayout("empty-shards", "where some shards are empty", "create_uneven", hollow_tables),
    OtherLayout("few-rows", "where there are fewer rows than shards", "create", lambda rows: few_rows(rows, 1)),
    OtherLayout("many", "in more than ten shards", "create", many_shards),
)  # fmt: skip


def finite_bits(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Draw any bits of a dtype but NaN, which differs from itself, and infinities."""
    filled = draw(bits(dtype, shape))
    wide = filled.astype(np.complex128 if dtype.kind == "c" else np.float64)
    return np.where(np.isfinite(wide), filled, counting(shape, dtype)).astype(dtype)


def made(adapter: Calls, value: Array, layout: ShardSizes) -> Any:
    return (
        adapter.create_uneven(value, layout)
        if isinstance(layout, list)
        else adapter.create(value, layout)
    )


def pairs(value: Any) -> list[tuple[int, int]]:
    """Return the pairs that an adapter answered as plain integers; ``Broken`` for other values."""
    try:
        # None or triples are a wrong answer of the adapter, and not an exception that it raised.
        return [(int(start), int(stop)) for start, stop in value]
    except (TypeError, ValueError) as error:
        raise Broken(f"It gave {value!r}.", "It must give pairs of integers.") from error


def concatenated(parts: Any, axis: int = 0) -> Array:
    """Return the arrays of shards as one array; ``Broken`` for an empty list."""
    arrays = [np.asarray(part) for part in parts]
    if not arrays:
        raise Broken("It gave no shards.", "It must give at least one.")
    return np.concatenate(arrays, axis)


def expect_bits(came: Any, must: Array) -> None:
    """``Broken`` unless an answer has an array's dtype and values, and zeros their signs."""
    expect_equal(came, must)
    signs = []
    for array in (np.asarray(came), must):
        wide = array.astype(np.complex128 if must.dtype.kind in "fcV" else np.int64)
        real = wide.view(np.float64) if must.dtype.kind in "fcV" else np.abs(wide)
        signs.append(np.signbit(np.where(real == 0, real, 1)))
    if not np.array_equal(signs[0], signs[1]):
        raise Broken(f"It gave {text(np.asarray(came))}.", f"It must give {text(must)}.")


def refuses_write(adapter: Calls, value: Array, handle: Any, method: str, *arguments: Any) -> None:
    """``Broken`` unless a write is refused, and the variable still holds its value."""
    adapter.refuses(method, handle, *arguments)
    came = adapter.read(handle)
    if not np.array_equal(np.asarray(came), value):
        raise Broken(
            f"The write was refused, and the variable now holds {np.asarray(came).tolist()}.",
            f"It must still hold {value.tolist()}.",
        )


def check_outside(method: str, *more: Any) -> RuleCheck:
    """Return the check that a method refuses a table's ids or key."""

    def check(adapter: Calls, case: tuple[Array, ShardSizes, Any]) -> None:
        value, layout, wanted = case
        adapter.refuses(method, made(adapter, value, layout), wanted, *more)

    return check

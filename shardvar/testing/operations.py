"""Strategies for the reads and writes of a sharded variable: ids, bags, basic indexes, updates.

``updated`` is the definition of a write: plain NumPy on the whole array, one row after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout.dtypes import Array
from shardvar.testing.arrays import counting

Ids = npt.NDArray[np.int64]
Key = tuple[int | slice | EllipsisType | None, ...]


@dataclass(frozen=True, slots=True)
class SparseIds:
    """Bags of ids: each row of the answer combines the rows of the table that one bag names."""

    bags: list[list[int]]
    """The ids of each bag; a bag may be empty."""
    weights: list[list[float]] | None
    """A positive weight for each id; None for weights of 1."""


def ids(length: int, max_size: int = 12, max_rank: int = 1) -> st.SearchStrategy[Ids]:
    """Return ids in ``[0, length)`` as int64: unsorted, duplicated, across shards; an empty array for length 0.

    With ``max_rank`` above 1 some have several axes. They shrink to fewer and smaller ids.
    """
    # Without rows the range would be 0 to -1, which Hypothesis refuses.
    flat = st.lists(st.integers(0, length - 1), max_size=max_size) if length else st.just([])
    one = flat.map(lambda some: np.array(some, np.int64))
    if max_rank < 2:
        return one
    return st.one_of(one, one.map(lambda some: some.reshape(-1, 1)), one.map(_doubled))


def _doubled(some: Ids) -> Ids:
    return np.stack([some, some[::-1]])


@st.composite
def sparse_ids(draw: st.DrawFn, length: int, max_bags: int = 4, max_ids: int = 4) -> SparseIds:
    """Draw bags of ids in ``[0, length)``, also empty ones, with and without weights; they shrink to no bags."""
    bags = draw(st.lists(ids(length, max_ids).map(lambda some: some.tolist()), max_size=max_bags))
    if not draw(st.booleans()):
        return SparseIds(bags, None)
    weight = st.sampled_from([1.0, 2.0, 0.5, 3.0])
    return SparseIds(bags, [[draw(weight) for _ in bag] for bag in bags])


@st.composite
def slices(draw: st.DrawFn, shape: tuple[int, ...], new_axes: bool = False) -> Key:
    """Draw legal basic indexes of NumPy for a shape, as tuples: integers, slices, an ellipsis.

    Starts and stops lie beyond both ends, steps go backwards, axes are left out; with ``new_axes`` some have a None.
    They shrink to ``()``.
    """
    key: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-extent - 3, extent + 3)
        step = st.none() | st.sampled_from([1, 2, 3, -1, -2, -3])
        some: st.SearchStrategy[Any] = st.builds(slice, bound, bound, step)
        # An axis without elements has slices, but no valid integer.
        key.append(draw(some | st.integers(-extent, extent - 1) if extent else some))
    if len(key) == len(shape) and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), ...)
    if new_axes and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


DENSE = ("assign", "add", "sub")
SPARSE = ("add", "sub", "mul", "div", "min", "max", "update")


@dataclass(frozen=True, slots=True)
class Update:
    """One write of the whole variable, or of some rows."""

    op: str
    """``assign``, ``add`` or ``sub`` of the whole; ``add``, ``sub``, ``mul``, ``div``, ``min``, ``max``, ``update`` of
    rows."""
    ids: Ids | None
    """The rows in the order of writing, some repeated; None for the whole variable."""
    values: Array
    """The operand: of the shape of the variable, or one row an id."""


@st.composite
def updates(draw: st.DrawFn, shape: Sequence[int], dtype: npt.DTypeLike = np.float32, op: str = "") -> Update:
    """Draw one write of a variable of this shape; with ``op``, a sparse one of that kind.

    Operands are powers of two, so that no order of adding or multiplying them rounds.
    """
    sparse = bool(op) or draw(st.booleans())
    name = op or draw(st.sampled_from(SPARSE if sparse else DENSE))
    rows = draw(ids(shape[0], max_size=6)) if sparse else None
    count = tuple(shape) if rows is None else (len(rows), *shape[1:])
    if draw(st.booleans()):
        return Update(name, rows, counting(count, dtype))
    powers = st.lists(st.integers(-2, 3), min_size=(n := int(np.prod(count))), max_size=n)
    return Update(name, rows, (2.0 ** np.array(draw(powers), np.float64)).reshape(count).astype(dtype))


def update_sequences(
    shape: Sequence[int], dtype: npt.DTypeLike = np.float32, max_size: int = 5
) -> st.SearchStrategy[list[Update]]:
    """Return sequences of writes, dense and sparse; they shrink to fewer."""
    return st.lists(updates(shape, dtype), max_size=max_size)


def updated(full: Array, update: Update) -> Array:
    """Return the array after a write, by definition: one row after the other, in the order of the ids."""
    if update.ids is None:
        dense = {"assign": update.values, "add": full + update.values, "sub": full - update.values}[update.op]
        return np.asarray(dense).astype(full.dtype)
    after = full.copy()
    # Division by zero and overflow are results to be compared, so NumPy must not warn about them.
    with np.errstate(all="ignore"):
        for row, value in zip(update.ids.tolist(), update.values, strict=True):
            after[row] = _combined(update.op, after[row], value)
    return after


def _combined(op: str, row: Any, value: Any) -> Any:
    match op:
        case "add":
            return row + value
        case "sub":
            return row - value
        case "mul":
            return row * value
        case "div":
            return row / value
        case "min":
            return np.minimum(row, value)
        case "max":
            return np.maximum(row, value)
        case _:
            return value

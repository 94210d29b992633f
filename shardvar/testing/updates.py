"""Strategies for writes: dense and sparse updates, and what NumPy says that they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout.dtypes import Array
from shardvar.testing.arrays import counting
from shardvar.testing.rows import Ids, ids

DENSE = ("assign", "add", "sub")
SPARSE = ("add", "sub", "mul", "div", "min", "max", "update")


@dataclass(frozen=True, slots=True)
class Update:
    """One write: of the whole, or of some rows."""

    op: str
    """``assign``, ``add`` or ``sub`` of the whole; ``add``, ``sub``, ``mul``, ``div``, ``min``, ``max``, ``update`` of
    rows."""
    ids: Ids | None
    """The rows, in the order in which they are written, some of them several times; None for all."""
    values: Array
    """The operand: of the variable's shape, or a row an id."""


@st.composite
def updates(draw: st.DrawFn, shape: Sequence[int], dtype: npt.DTypeLike = np.float32, op: str = "") -> Update:
    """One write of a variable of this shape; with ``op``, a sparse one of that kind.

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
    """Writes one after another, dense and sparse; they shrink to fewer."""
    return st.lists(updates(shape, dtype), max_size=max_size)


def updated(full: Array, update: Update) -> Array:
    """What an array is after a write: the definition, one row after the other, in the order of the ids."""
    if update.ids is None:
        dense = {"assign": update.values, "add": full + update.values, "sub": full - update.values}[update.op]
        return np.asarray(dense).astype(full.dtype)
    after = full.copy()
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

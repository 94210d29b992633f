"""Strategies for what asks for rows: ids, bags of ids, NumPy's basic indexes."""

from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Ids = npt.NDArray[np.int64]
Key = tuple[int | slice | EllipsisType | None, ...]


@dataclass(frozen=True, slots=True)
class SparseIds:
    """Bags of ids: for each row of the answer, the rows of the table that are combined in it."""

    bags: list[list[int]]
    """The ids of each bag; a bag may be empty."""
    weights: list[list[float]] | None
    """A weight for each id, positive; None where all weigh 1."""


def ids(length: int, max_size: int = 12, max_rank: int = 1) -> st.SearchStrategy[Ids]:
    """Ids in ``[0, length)`` as int64: unsorted, duplicated, across shards; none where there are no rows.

    With ``max_rank`` above 1 some have several axes. They shrink to fewer and smaller ids.
    """
    flat = st.lists(st.integers(0, length - 1), max_size=max_size) if length else st.just([])
    one = flat.map(lambda some: np.array(some, np.int64))
    if max_rank < 2:
        return one
    return st.one_of(one, one.map(lambda some: some.reshape(-1, 1)), one.map(_doubled))


def _doubled(some: Ids) -> Ids:
    return np.stack([some, some[::-1]])


@st.composite
def sparse_ids(draw: st.DrawFn, length: int, max_bags: int = 4, max_ids: int = 4) -> SparseIds:
    """Bags of ids in ``[0, length)``, with and without weights, empty bags included; they shrink to no bags."""
    bags = draw(st.lists(ids(length, max_ids).map(lambda some: some.tolist()), max_size=max_bags))
    if not draw(st.booleans()):
        return SparseIds(bags, None)
    weight = st.sampled_from([1.0, 2.0, 0.5, 3.0])
    return SparseIds(bags, [[draw(weight) for _ in bag] for bag in bags])


@st.composite
def slices(draw: st.DrawFn, shape: tuple[int, ...], new_axes: bool = False) -> Key:
    """NumPy's basic indexes for a shape, as tuples: integers, slices, an ellipsis; all of them legal.

    Starts and stops lie beyond both ends, steps go backwards, axes are left out; with ``new_axes`` there is None among
    them. They shrink to ``()``.
    """
    key: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-extent - 3, extent + 3)
        step = st.none() | st.sampled_from([1, 2, 3, -1, -2, -3])
        some: st.SearchStrategy[Any] = st.builds(slice, bound, bound, step)
        key.append(draw(some | st.integers(-extent, extent - 1) if extent else some))
    if len(key) == len(shape) and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), ...)
    if new_axes and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)

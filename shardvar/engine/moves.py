"""Copies of regions as moves of bytes.

A copy says which box of elements goes from a source slice to a target slice. Where that box is contiguous in both
payloads, as it is for whole tensors and for cuts along the first axis, it is one run of bytes, and the engine needs to
know no geometry. ``lower`` finds these copies, all at once, and leaves the others to ``engine.boxes``.

A string tensor is always one slice here and there, so its payload moves whole, also where it has no element.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.plan import Plan
from shardvar.planning.slices import SliceTable, widen


@dataclass(frozen=True, slots=True, eq=False)
class MoveTable:
    """Runs of bytes that go from a source's payload to a target's, ordered by target and place in its payload."""

    source: Ints
    """[k] rows of the sources."""
    source_start: Ints
    """[k] the first byte, in the source's payload."""
    target: Ints
    """[k] rows of the targets."""
    target_start: Ints
    """[k] the first byte, in the target's payload."""
    nbytes: Ints
    """[k] the number of bytes."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Ints) -> Self:
        """The table of some of the rows, in the given order."""
        columns = (self.source, self.source_start, self.target, self.target_start, self.nbytes)
        return type(self)(*(column[rows] for column in columns))


def lower(plan: Plan) -> tuple[MoveTable, npt.NDArray[np.bool]]:
    """The moves of a plan, and for each target whether they fill it; the copies of the others are no runs of bytes."""
    copies, sources, targets = plan.copies, plan.sources, plan.targets
    itemsize = ITEMSIZES[targets.codes()]
    run_a, start_a = _as_run(copies.offset, copies.shape, sources, copies.source)
    run_b, start_b = _as_run(copies.offset, copies.shape, targets, copies.target)
    is_run = np.ones(len(targets), dtype=np.bool)
    np.logical_and.at(is_run, copies.target, run_a & run_b)
    rows = np.flatnonzero((is_run & (itemsize > 0))[copies.target])
    size = itemsize[copies.target[rows]]
    moves = MoveTable(
        copies.source[rows],
        start_a[rows] * size,
        copies.target[rows],
        start_b[rows] * size,
        np.prod(copies.shape[rows], axis=1, dtype=np.int64) * size,
    )
    whole = np.flatnonzero(itemsize == 0)
    if len(whole):
        moves = _with_whole(moves, plan, whole)
    return moves, is_run | (itemsize == 0)


def _with_whole(moves: MoveTable, plan: Plan, whole: Ints) -> MoveTable:
    """The moves and those of the payloads that are never cut: each from one source slice, the plan's.

    Where there are no elements there is no copy either, and the payload is that of the first slice of the tensor.
    """
    rows = plan.sources.tensors.rows()
    first = np.full(len(plan.sources.tensors), -1, dtype=np.int64)
    first[plan.sources.tensor[::-1]] = np.arange(len(plan.sources))[::-1]
    keys = plan.targets.tensors.keys
    source = np.array([first[rows[keys[tensor]]] for tensor in plan.targets.tensor[whole].tolist()], dtype=np.int64)
    planned = np.full(len(plan.targets), -1, dtype=np.int64)
    planned[plan.copies.target] = plan.copies.source
    source = np.where(planned[whole] >= 0, planned[whole], source)
    zero = np.zeros_like(whole)
    added = MoveTable(source, zero, whole, zero, plan.sources.nbytes[source])
    names = ("source", "source_start", "target", "target_start", "nbytes")
    joined = MoveTable(*(np.concatenate([getattr(moves, name), getattr(added, name)]) for name in names))
    return joined.take(np.lexsort((joined.target_start, joined.target)))


def _as_run(offset: Ints, shape: Ints, slices: SliceTable, rows: Ints) -> tuple[npt.NDArray[np.bool], Ints]:
    """Whether each box is contiguous in its slice's payload, and its first element there.

    It is if some axis has only single indices before it and only whole extents after it.
    """
    rank = shape.shape[1]
    outer = widen(slices.shape[rows], rank, 1)
    strides = np.ones_like(outer)
    if rank > 1:
        strides[:, :-1] = np.cumprod(outer[:, :0:-1], axis=1)[:, ::-1]
    start = ((offset - widen(slices.offset[rows], rank, 0)) * strides).sum(axis=1)
    single = np.logical_and.accumulate(shape == 1, axis=1)
    entire = np.logical_and.accumulate((shape == outer)[:, ::-1], axis=1)[:, ::-1]
    yes = np.ones((len(rows), 1), dtype=np.bool)
    before = np.concatenate([yes, single], axis=1)  # before[:, d]: only single indices on the axes before d
    after = np.concatenate([entire, yes], axis=1)  # after[:, d]: only whole extents from axis d on
    run = after[:, 0].copy()
    for axis in range(rank):
        run |= before[:, axis] & after[:, axis + 1]
    return run, start

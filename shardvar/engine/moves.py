"""Moves: the copies of a plan as byte ranges.

A copy says which region of elements goes from a source slice to a target slice. Where that region
is contiguous in both payloads, as it is for whole tensors and for cuts along the first axis, it is
one byte range, and what reads or writes it needs no geometry. ``lower`` finds these copies, all at
once, and leaves the others to ``regions.read_regions``.

    copy                                         in the source [4, 6]   in the target [2, 6]
    [1:3, 0:6] of a tensor, stored whole         bytes of rows 1 and 2  the whole payload      -> one move
    [1:3, 2:4]                                   two stretches of 2     two stretches of 2     -> a region

A string tensor is one slice on both sides, so its payload moves whole, also where it has no
element.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.layout.region import intersect, regions_of_range
from shardvar.planning.plan import CopyTable, Plan
from shardvar.planning.slices import SliceTable, widen


@dataclass(frozen=True, slots=True, eq=False)
class MoveTable:
    """Byte ranges that go from a source's payload to a target's, ordered by target and place."""

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

    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The columns, in the order of the fields."""
        return self.source, self.source_start, self.target, self.target_start, self.nbytes

    def take(self, rows: Ints | slice) -> Self:
        """The table of some of the rows, in the given order; a range of them as views."""
        return type(self)(
            self.source[rows],
            self.source_start[rows],
            self.target[rows],
            self.target_start[rows],
            self.nbytes[rows],
        )

    def where(self, mask: Bools) -> Self:
        """The table of the rows at which the mask [k] is True, in order."""
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def clip(self, places: Ints, nbytes: int) -> Self:
        """The moves cut to the bytes ``[0, nbytes)`` of a buffer in which they begin at ``places``;
        all to target 0.

        A move of 10 bytes at place -4 of a buffer becomes one of 6 bytes at place 0, from 4 bytes
        further on.
        """
        start, stop = np.maximum(places, 0), np.minimum(places + self.nbytes, nbytes)
        skip = start - places
        zeros = np.zeros_like(self.target)
        clipped = type(self)(self.source, self.source_start + skip, zeros, start, stop - start)
        # A move that lies outside the buffer has stop <= start. Until it is dropped here, its
        # columns mean nothing.
        return clipped.where(stop > start)


def lower(plan: Plan) -> tuple[MoveTable, Bools]:
    """The moves of a plan, and [m] True for targets that they fill; the copies of the others are
    not byte ranges.

    A target is filled by moves or by regions and not by both, so that its payload is read in one
    manner.
    """
    copies, sources, targets = plan.copies, plan.sources, plan.targets
    itemsize = ITEMSIZES[targets.codes()]
    in_a, start_a = _as_range(copies.offset, copies.shape, sources, copies.source)
    in_b, start_b = _as_range(copies.offset, copies.shape, targets, copies.target)
    is_range = np.ones(len(targets), dtype=np.bool)
    # A target may have several copies, and all must be byte ranges. Plain indexing would keep the
    # answer of the last one.
    np.logical_and.at(is_range, copies.target, in_a & in_b)
    # An item size of 0 means strings or variants, whose bytes no shape tells. They are added below,
    # whole.
    rows = np.flatnonzero((is_range & (itemsize > 0))[copies.target])
    size = itemsize[copies.target[rows]]
    # Elements times item size: the rows [1:3] of a float32 [4, 6] begin at element 6, so at byte
    # 24.
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
    return moves, is_range | (itemsize == 0)


def _with_whole(moves: MoveTable, plan: Plan, whole: Ints) -> MoveTable:
    """The moves, and the moves of payloads that are never cut: each from one source slice, the
    plan's.

    Without elements there is no copy either, and the payload belongs to the first slice of the
    tensor.
    """
    planned = np.full(len(plan.targets), -1, dtype=np.int64)
    planned[plan.copies.target] = plan.copies.source
    source = planned[whole]
    bare = np.flatnonzero(source < 0)
    source[bare] = first_sources(plan, whole[bare])
    zero = np.zeros_like(whole)
    added = MoveTable(source, zero, whole, zero, plan.sources.nbytes[source])
    joined = MoveTable(*map(np.concatenate, zip(moves.columns(), added.columns(), strict=True)))
    # ``MoveTable`` promises this order. lexsort takes its last key first, so targets come before
    # places.
    return joined.take(np.lexsort((joined.target_start, joined.target)))


def copies_in_range(targets: SliceTable, copies: CopyTable, first: int, last: int) -> CopyTable:
    """The copies of targets of one shape, cut to the elements ``[first, last)`` of the payload of
    each.

    A copy that meets several of the regions that make up the elements is cut in as many.
    """
    if not len(copies):
        return copies
    rank = copies.shape.shape[1]
    corner, extents = (
        widen(targets.offset[copies.target], rank, 0),
        widen(targets.shape[copies.target[:1]], rank, 1)[0],
    )
    parts = []
    for inner in regions_of_range(extents.tolist(), first, last):
        offset, shape = intersect(
            copies.offset, copies.shape, corner + inner.offset, np.array(inner.shape)
        )
        rows = np.flatnonzero((shape > 0).all(axis=1))
        parts.append((copies.source[rows], copies.target[rows], offset[rows], shape[rows]))
    return CopyTable(*map(np.concatenate, zip(*parts, strict=True)))


def first_sources(plan: Plan, targets: Ints) -> Ints:
    """[k] the first source slice of the tensor of each of some targets."""
    if not len(targets):  # of a plan of many files, most are asked for no target
        return np.zeros(0, dtype=np.int64)
    order, bounds = plan.sources.by_tensor()
    rows = plan.sources.tensors.rows()
    first: Ints = order[bounds[[rows[plan.targets.key(row)] for row in targets.tolist()]]]
    return first


def _as_range(offset: Ints, shape: Ints, slices: SliceTable, rows: Ints) -> tuple[Bools, Ints]:
    """[c] True for regions that are contiguous in their slice's payload, and [c] their first
    element there.

    A region is contiguous if some axis has only single indices before it and only whole extents
    after it: in a slice of shape (4, 5, 6), [1:2, 2:4, 0:6] is (axis 1), and [1:3, 2:4, 0:6] is
    not.
    """
    rank = shape.shape[1]
    outer = widen(slices.shape[rows], rank, 1)
    start = ((offset - widen(slices.offset[rows], rank, 0)) * strides_of(outer)).sum(axis=1)
    # For [1:2, 2:4, 0:6] of (4, 5, 6), ``single`` is T, F, F and ``entire`` is F, F, T. So axis 1
    # has only single indices before it and only whole extents after it.
    single = np.logical_and.accumulate(shape == 1, axis=1)
    entire = np.logical_and.accumulate((shape == outer)[:, ::-1], axis=1)[:, ::-1]
    yes = np.ones((len(rows), 1), dtype=np.bool)
    # before[:, d]: only single indices on the axes before d.
    before = np.concatenate([yes, single], axis=1)
    after = np.concatenate([entire, yes], axis=1)  # after[:, d]: only whole extents from axis d on
    contiguous = after[:, 0].copy()
    for axis in range(rank):
        contiguous |= before[:, axis] & after[:, axis + 1]
    return contiguous, start


def strides_of(shapes: Ints) -> Ints:
    """[k, rank] elements from one index to the next in the C order of shapes [k, rank].

    These are the products of the extents to the right:

    >>> strides_of(np.array([[4, 5, 6]]))
    array([[30,  6,  1]])
    """
    strides = np.ones_like(shapes)
    if shapes.shape[1] > 1:
        strides[:, :-1] = np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
    return strides


def integers_of_ranges(first: Ints, last: Ints) -> Ints:
    """The integers of the ranges ``[first[i], last[i])``, one range after the other: [5, 6, 9] for
    [5, 7) and [9, 10).

    Position p of the result lies in range i and is first[i] plus p less the lengths of the ranges
    before.
    """
    counts = last - first
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    # For [5, 7) and [9, 10): the counts are 2, 1 and the shifts 5 - 0, 9 - 2, so 0, 1, 2 become 5,
    # 6, 9.
    return np.asarray(np.arange(total) + np.repeat(first - (stops - counts), counts))

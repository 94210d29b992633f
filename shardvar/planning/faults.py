"""What is wrong with the slices that an index lists, key by key: the laws of a well-formed index.

For every key: each slice lies within its tensor (``OutOfBounds``), no two slices hold the same element
(``OverlappingSlices``), and every element is held by one (``IncompleteCheckpoint``, naming the missing regions).
A key that breaks a law is listed with its error; it does not keep the others from being read.

Slices of almost every tensor are cut along one axis alone; these are checked for all tensors at once by sorting.
Tensors that are cut along several axes are searched one by one, and each search ends at the first overlap.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardvar.errors import CheckpointError, IncompleteCheckpoint, OutOfBounds, OverlappingSlices
from shardvar.layout.dtypes import Ints
from shardvar.layout.overlap import find_overlap
from shardvar.layout.region import Region
from shardvar.planning.slices import SliceTable

_NAMED = 8
"""Missing regions that an error names; the others it counts."""

_SUBTRACTED = 1024
"""Slices up to which missing regions are worked out: of one tensor, and of all tensors of an index together."""

_PIECES = 64
"""Pieces that a tensor may fall into while its slices are taken away; more are no help to anybody."""


def find_faults(slices: SliceTable) -> dict[str, CheckpointError]:
    """The keys that break a law, each with its error."""
    faults: dict[int, CheckpointError] = {}
    bounds = _out_of_bounds(slices)
    if bounds:
        faults.update(bounds)
        good = np.flatnonzero(~np.isin(slices.tensor, list(bounds)))
        slices = slices.take(good)
    for tensor, error in (*_overlaps(slices), *_holes(slices)):
        faults.setdefault(tensor, error)
    return {slices.tensors.keys[tensor]: error for tensor, error in sorted(faults.items())}


def _out_of_bounds(slices: SliceTable) -> dict[int, CheckpointError]:
    full = slices.tensors.shapes[slices.tensor]
    bad = ((slices.offset < 0) | (slices.shape < 0) | (slices.shape > full - slices.offset)).any(axis=1)
    faults: dict[int, CheckpointError] = {}
    for row in np.flatnonzero(bad).tolist():
        tensor = int(slices.tensor[row])
        if tensor not in faults:
            full_shape = slices.tensors.shape(tensor)
            # Not a Region: what is out of bounds may have negative or overflowing numbers.
            columns = (column[row, : len(full_shape)].tolist() for column in (slices.offset, slices.shape))
            extents = ", ".join(f"{offset}:{offset + count}" for offset, count in zip(*columns, strict=True))
            faults[tensor] = OutOfBounds(
                f"The slice [{extents}] of {slices.key(row)!r} reaches out of the shape {full_shape}.",
                "The index is damaged, or its writer was wrong; the other tensors can be read.",
            )
    return faults


def _overlaps(slices: SliceTable) -> Iterator[tuple[int, CheckpointError]]:
    cut = slices.shape != slices.tensors.shapes[slices.tensor]
    axes = np.zeros((len(slices.tensors), cut.shape[1]), dtype=np.bool)
    np.logical_or.at(axes, slices.tensor, cut)
    filled = (slices.shape > 0).all(axis=1)
    one_axis = axes.sum(axis=1) <= 1
    yield from _overlaps_on_one_axis(slices, np.flatnonzero(filled & one_axis[slices.tensor]), axes)
    order = np.flatnonzero(filled & ~one_axis[slices.tensor])
    order = order[np.argsort(slices.tensor[order], kind="stable")]
    for rows in np.split(order, np.flatnonzero(np.diff(slices.tensor[order])) + 1):
        pair = find_overlap(slices.offset[rows], slices.shape[rows])
        if pair is not None:
            yield _overlap(slices, int(rows[pair[0]]), int(rows[pair[1]]))


def _overlaps_on_one_axis(
    slices: SliceTable, rows: Ints, axes: npt.NDArray[np.bool]
) -> Iterator[tuple[int, CheckpointError]]:
    """Sorted by their start, intervals that meet at all meet a neighbour."""
    if not axes.shape[1]:
        start = np.zeros(len(rows), dtype=np.int64)
        stop = start + 1
    else:
        axis = axes.argmax(axis=1)[slices.tensor[rows]]
        start = slices.offset[rows, axis]
        stop = start + slices.shape[rows, axis]
    order = np.lexsort((start, slices.tensor[rows]))
    rows, start, stop = rows[order], start[order], stop[order]
    meet = (slices.tensor[rows[1:]] == slices.tensor[rows[:-1]]) & (start[1:] < stop[:-1])
    seen: set[int] = set()
    for position in np.flatnonzero(meet).tolist():
        tensor, error = _overlap(slices, int(rows[position]), int(rows[position + 1]))
        if tensor not in seen:
            seen.add(tensor)
            yield tensor, error


def _overlap(slices: SliceTable, first: int, second: int) -> tuple[int, CheckpointError]:
    a, b = slices.region(first), slices.region(second)
    cause = f"The slices {a} and {b} of {slices.key(first)!r} overlap in {a.intersect(b)}."
    return int(slices.tensor[first]), OverlappingSlices(cause, "Which of them is right cannot be known; write it anew.")


def _holes(slices: SliceTable) -> Iterator[tuple[int, CheckpointError]]:
    held = np.zeros(len(slices.tensors))
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(held, slices.tensor, np.prod(slices.shape, axis=1, dtype=np.float64))
        full = np.prod(slices.tensors.shapes, axis=1, dtype=np.float64)
    listed = np.zeros(len(slices.tensors), dtype=np.bool)
    listed[slices.tensor] = True
    order = np.argsort(slices.tensor, kind="stable")
    bounds = np.searchsorted(slices.tensor[order], np.arange(len(slices.tensors) + 1))
    subtracted = 0
    # Floats decide only what is looked at; the exact sizes decide.
    for tensor in np.flatnonzero(listed & (held != full)).tolist():
        regions = [slices.region(row) for row in order[bounds[tensor] : bounds[tensor + 1]].tolist()]
        whole = Region.whole(slices.tensors.shape(tensor))
        if sum(region.size for region in regions) < whole.size:
            subtracted += len(regions)
            named = regions if subtracted <= _SUBTRACTED else None
            yield tensor, missing(slices.tensors.keys[tensor], whole, named)


def missing(key: str, wanted: Region, stored: list[Region] | None) -> IncompleteCheckpoint:
    """The error that names the regions of ``wanted`` that no stored region holds, where that is soon found out."""
    remedy = "They are stored nowhere; find the missing file, or the writer's other parts."
    regions = _rest(wanted, stored) if stored is not None and len(stored) <= _SUBTRACTED else None
    if regions is None:
        return IncompleteCheckpoint(f"{key!r} lacks some of the {wanted.size} elements of {wanted}.", remedy)
    more = f" and {len(regions) - _NAMED} more regions" if len(regions) > _NAMED else ""
    return IncompleteCheckpoint(f"{key!r} lacks {', '.join(map(str, regions[:_NAMED]))}{more}.", remedy)


def _rest(wanted: Region, stored: list[Region]) -> list[Region] | None:
    """What is left of a region without others, as disjoint regions; None where it falls into too many."""
    rest = [wanted]
    for region in sorted(stored):
        rest = [piece for old in rest for piece in old.subtract(region)]
        if len(rest) > _PIECES:
            return None
    return rest

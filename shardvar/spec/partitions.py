"""Chapter 1. Div, and partitions: which part of a tensor holds which indices.

A range of ids is a half-open pair ``(start, stop)``. A region is a pair ``(offset, shape)``: the
indices ``i`` with ``offset[d] <= i[d] < offset[d] + shape[d]`` on every axis. A partition is a list
of regions that tile a shape.
"""

from collections.abc import Sequence
from itertools import accumulate, product

__all__ = [
    "Index",
    "Interval",
    "Region",
    "axis_sizes",
    "common",
    "coverage",
    "difference",
    "div",
    "grid",
    "indices",
    "intervals",
    "mod_owner",
    "owner",
]

Interval = tuple[int, int]
"""The ids from ``start`` up to and without ``stop``."""
Index = tuple[int, ...]
"""One number for each axis."""
Region = tuple[Sequence[int], Sequence[int]]
"""An offset and a shape."""


# R-DIV-1 (RFC 000): "If the ids do not evenly divide the number of shards, each of the first
# several shards will be assigned one more id."
def div(length: int, num_shards: int) -> list[Interval]:
    """Deal out ids in turn, and give each shard as many consecutive ones as it was dealt.

    >>> div(13, 5)
    [(0, 3), (3, 6), (6, 9), (9, 11), (11, 13)]
    """
    # Shard s has its turns at s, s + num_shards, s + 2 * num_shards, ..., while there are ids.
    return intervals([len(range(s, length, num_shards)) for s in range(num_shards)])


# R-DIV-1 (RFC 000): "ids are assigned to shards in a contiguous manner"
def intervals(sizes: Sequence[int]) -> list[Interval]:
    """Put ranges of these sizes one behind the other.

    >>> intervals([2, 0, 1])
    [(0, 2), (2, 2), (2, 3)]
    """
    return [(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]


# R-ID-1 (RFC 000): "Assuming we assign consecutive integer ids along the first axis of the
# variable, then ids are assigned to shards in a contiguous manner"
def owner(row: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Find the shard that holds a row, and the number of the row within the shard.

    >>> owner(8, [3, 3, 3, 2, 2])
    (2, 2)
    """
    for shard, (start, stop) in enumerate(intervals(sizes)):
        if start <= row < stop:
            return shard, row - start
    raise IndexError(f"No shard holds row {row}. The rows are 0 to {sum(sizes) - 1}.")


# R-MOD-1 (RFC 000): 'We are not going to support other partition strategies like "mod".'
def mod_owner(row: int, num_shards: int) -> tuple[int, int]:
    """Find a row in a table that TensorFlow 1 cut by mod. Such a table is read, and never written.

    >>> [mod_owner(row, 2) for row in (0, 1, 2, 3)]
    [(0, 0), (1, 0), (0, 1), (1, 1)]
    """
    return row % num_shards, row // num_shards


# R-SPEC-1 (RFC 002): "partitions: List of integers." "splits: List of lists of ints, indicating how
# each dimension can be splitted, allowing uneven sharding. Either partitions or splits should be
# given but not both."
def axis_sizes(
    shape: Sequence[int],
    partitions: Sequence[int] | None = None,
    splits: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Return the sizes of the parts along each axis. Axes that are not mentioned stay whole.

    >>> axis_sizes([13, 4], partitions=[5]), axis_sizes([13, 4], splits=[[12, 1], [1, 3]])
    ([[3, 3, 3, 2, 2], [4]], [[12, 1], [1, 3]])
    """
    if (partitions is None) == (splits is None):
        raise ValueError("Give either partitions or splits.")
    if len(partitions or splits or ()) > len(shape):
        raise ValueError(f"The shape {shape} has {len(shape)} axes.")
    sizes = [[extent] for extent in shape]
    for axis, count in enumerate(partitions or ()):
        if count < 1:
            raise ValueError(f"Axis {axis} cannot have {count} parts.")
        sizes[axis] = [stop - start for start, stop in div(shape[axis], count)]
    for axis, given in enumerate(splits or ()):
        if sum(given) != shape[axis] or min(given, default=0) < 0:
            raise ValueError(f"The sizes {given} do not add up to {shape[axis]}.")
        sizes[axis] = list(given)
    return sizes


# R-PART-1 (RFC 000): 'For example if the partitioner returns "[3, 1, 1]" for a given variable's
# shape and dtype, we are going to partition that variable 3 ways on the first dimension.'
def grid(sizes: Sequence[Sequence[int]]) -> list[Region]:
    """Return the parts of a grid in C order, from the sizes along each axis.

    >>> grid([[2, 1], [4]])
    [((0, 0), (2, 4)), ((2, 0), (1, 4))]
    """
    parts = product(*(intervals(along) for along in sizes))
    return [(tuple(a for a, _ in part), tuple(b - a for a, b in part)) for part in parts]


# The laws of regions. They are sets of indices, and are listed here one by one.


def indices(region: Region) -> list[Index]:
    """List the indices of a region in C order. A region of rank 0 has one, the empty index.

    >>> indices(((3, 0), (1, 2))), indices(((), ()))
    ([(3, 0), (3, 1)], [()])
    """
    return list(product(*(range(o, o + n) for o, n in zip(*region, strict=True))))


def common(a: Region, b: Region) -> Region | None:
    """Return the region that two regions have in common, or None.

    >>> common(((0, 0), (3, 3)), ((2, 1), (4, 4)))
    ((2, 1), (1, 2))
    """
    both = [index for index in indices(a) if index in set(indices(b))]
    if not both:
        return None
    # The first and the last index in C order are its corners.
    return both[0], tuple(stop - start + 1 for start, stop in zip(both[0], both[-1], strict=True))


def difference(a: Region, b: Region) -> list[Index]:
    """List the indices that are in one region and not in another.

    >>> difference(((0,), (4,)), ((1,), (2,)))
    [(0,), (3,)]
    """
    return [index for index in indices(a) if index not in set(indices(b))]


# R-POLICY-1 (RFC 001): "When loading a checkpoint, the general expectation is that all variables
# present before saving will be available for loading and restoration."
def coverage(shape: Sequence[int], parts: Sequence[Region]) -> str:
    """Judge how parts cover a shape: ``tiled``, ``hole``, ``overlap`` or ``outside``.

    >>> coverage([5], [((0,), (2,)), ((3,), (2,))])
    'hole'
    """
    for offset, counts in parts:
        for extent, start, count in zip(shape, offset, counts, strict=True):
            if start < 0 or start + count > extent:  # also of a part without indices
                return "outside"
    whole = indices(([0] * len(shape), shape))
    held = [index for part in parts for index in indices(part)]
    if len(held) != len(set(held)):
        return "overlap"
    return "tiled" if len(held) == len(whole) else "hole"

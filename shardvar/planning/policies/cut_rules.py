"""Rules of cutting: how a slice that does not fit in a file is cut in two.

    ``cut_along_an_axis``   the RFC's: what fills most of the file, by whole indices of one axis
    ``cut_to_elements``     the same, and further as long as one element fits
    ``cut_as_tensorflow``   parts of even size, exactly TensorFlow's

To add one, write another ``CutRule``.
"""

from collections.abc import Callable

from shardvar.layout.region import Region

CutRule = Callable[[Region, int, int, int], "tuple[Region, Region] | None"]
"""(region, bytes of an element, bytes that remain in the file, limit) -> the region in two, or None
to begin the next file."""


def cut_along_an_axis(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut off as many indices along one axis as fill most of what remains.

    R-POLICY-14 (RFC 001): "We want to partition along the axis that results in the most amount of
    remaining shard space being filled up, so we don't create more shards than is necessary. We do
    this by partitioning the tensor ... of maximum size <= the remaining shard size." If not one
    index along any axis fits: "If the partition is larger than the remaining shard space, we start
    over with a new shard." If it does not fit a whole file either, the longest axis is cut into
    single indices, and these are cut further.
    """
    found = _most_filling(region, itemsize, remaining)
    if found is None and remaining >= limit and region.size > 1:
        return _split(region, region.shape.index(max(region.shape)), 1)
    return found


def cut_to_elements(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut as ``cut_along_an_axis`` does, and further as long as one element fits."""
    found = _most_filling(region, itemsize, remaining)
    if found is None and (remaining >= limit or remaining >= itemsize) and region.size > 1:
        return _split(region, region.shape.index(max(region.shape)), 1)
    return found


def cut_as_tensorflow(
    region: Region, itemsize: int, remaining: int, limit: int
) -> tuple[Region, Region] | None:
    """Cut off a part of even size, along the first axis that needs the fewest parts.

    If not one index along any axis fits a whole file, TensorFlow begins file after file and never
    ends; such a region is cut as in ``cut_along_an_axis``.
    """
    best: tuple[int, int] | None = None
    for axis, extent in enumerate(region.shape):
        per_file = remaining // (region.size // extent * itemsize)
        if per_file:
            parts = -(-extent // per_file)
            if best is None or parts < best[0]:
                best = parts, axis
    if best is None:
        return cut_along_an_axis(region, itemsize, remaining, limit)
    parts, axis = best
    # Even parts instead of full ones: if 6 of 13 rows fit, three parts have ceil(13 / 3) = 5, 5 and
    # 3 rows.
    return _split(region, axis, -(-region.shape[axis] // parts))


def _split(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """Return the first ``count`` indices along an axis, and the rest.

    >>> [str(half) for half in _split(Region((3, 0), (4, 5)), 0, 1)]
    ['[3:4, 0:5]', '[4:7, 0:5]']
    """
    shape, offset, rest = list(region.shape), list(region.offset), list(region.shape)
    shape[axis], offset[axis], rest[axis] = count, offset[axis] + count, rest[axis] - count
    return Region(region.offset, shape), Region(offset, rest)


def _most_filling(region: Region, itemsize: int, remaining: int) -> tuple[Region, Region] | None:
    """Split a region so that the first part is as large as one cut along an axis makes it; None if
    no index fits."""
    # Example: (4, 5) of 4 bytes with 50 bytes left. An index along axis 0 has 20 bytes, so 2 of
    # them fill 40; one along axis 1 has 16 bytes, so 3 of them fill 48: cut along axis 1.
    indices = [region.size // extent * itemsize for extent in region.shape]
    filled = [remaining // nbytes * nbytes for nbytes in indices]
    axis = filled.index(max(filled))
    return _split(region, axis, filled[axis] // indices[axis]) if filled[axis] else None

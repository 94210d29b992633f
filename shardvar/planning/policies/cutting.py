"""Where a region is cut that does not fit what remains in a file: along which axis, after how many indices."""

from shardvar.layout.region import Region


def cut_along_an_axis(region: Region, itemsize: int, remaining: int, limit: int) -> tuple[Region, Region] | None:
    """As many indices along one axis as fill most of what remains.

    R-POLICY-14 (RFC 001): "We want to partition along the axis that results in the most amount of remaining
    shard space being filled up, so we don't create more shards than is necessary. We do this by partitioning the tensor
    up into chunks of maximum size <= the remaining shard size." Where not one index along any axis fits: "If the
    partition is larger than the remaining shard space, we start over with a new shard." And where it does not fit a
    whole file either, the longest axis is cut into single indices, and these are cut further.
    """
    found = _most_filling(region, itemsize, remaining)
    if found is None and remaining >= limit and region.size > 1:
        return split(region, region.shape.index(max(region.shape)), 1)
    return found


def cut_to_elements(region: Region, itemsize: int, remaining: int, limit: int) -> tuple[Region, Region] | None:
    """As ``cut_along_an_axis``, but where no index fits it is cut further as long as one element does."""
    found = _most_filling(region, itemsize, remaining)
    if found is None and (remaining >= limit or remaining >= itemsize) and region.size > 1:
        return split(region, region.shape.index(max(region.shape)), 1)
    return found


def cut_as_tensorflow(region: Region, itemsize: int, remaining: int, limit: int) -> tuple[Region, Region] | None:
    """Parts of even size, along the axis that needs the fewest of them, the first such axis.

    Where not one index along any axis fits a whole file TensorFlow begins file after file and never ends; there it is
    cut as in ``cut_along_an_axis``.
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
    return split(region, axis, -(-region.shape[axis] // parts))


def split(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """The first ``count`` indices along an axis, and the rest.

    >>> [str(half) for half in split(Region((3, 0), (4, 5)), 0, 1)]
    ['[3:4, 0:5]', '[4:7, 0:5]']
    """
    shape, offset, rest = list(region.shape), list(region.offset), list(region.shape)
    shape[axis], offset[axis], rest[axis] = count, offset[axis] + count, rest[axis] - count
    return Region(region.offset, shape), Region(offset, rest)


def _most_filling(region: Region, itemsize: int, remaining: int) -> tuple[Region, Region] | None:
    """The region in two, the first part as large as one cut along an axis makes it."""
    indices = [region.size // extent * itemsize for extent in region.shape]
    filled = [remaining // nbytes * nbytes for nbytes in indices]
    axis = filled.index(max(filled))
    return split(region, axis, filled[axis] // indices[axis]) if filled[axis] else None

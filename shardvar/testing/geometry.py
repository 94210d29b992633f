"""Strategies for geometry: regions, tilings, proven partitions, layouts of rows, partitioners."""

from collections.abc import Sequence

from hypothesis import strategies as st

from shardvar.layout import Partition, Region
from shardvar.layout.shard_counts import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)


def regions(rank: int, limit: int = 6) -> st.SearchStrategy[Region]:
    """Return regions of a rank anywhere below ``2 * limit``, including empty ones.

    Parameters
    ----------
    rank : int
        The number of axes.
    limit : int, default 6
        The largest offset and the largest extent along an axis.

    Returns
    -------
    SearchStrategy of Region
        The strategy. Regions shrink towards the origin.
    """
    axis = st.tuples(st.integers(0, limit), st.integers(0, limit))
    return st.lists(axis, min_size=rank, max_size=rank).map(
        lambda axes: Region([offset for offset, _ in axes], [extent for _, extent in axes])
    )


def regions_in(shape: Sequence[int]) -> st.SearchStrategy[Region]:
    """Return regions within a shape, including empty ones.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    """
    axes = [
        st.tuples(st.integers(0, extent), st.integers(0, extent)).map(sorted) for extent in shape
    ]
    return st.tuples(*axes).map(lambda cuts: Region((a for a, _ in cuts), (b - a for a, b in cuts)))


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], max_cuts: int = 6) -> list[Region]:
    """Draw regions that tile a shape, made by repeatedly cutting one of them in two, in any order.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    max_cuts : int, default 6
        The most cuts. They may be at an end, which makes empty regions.

    Returns
    -------
    SearchStrategy of list of Region
        The strategy. Most tilings are not grids; they shrink to the whole.
    """
    # Cuts in two do not reach every tiling: a pinwheel of five rectangles has no cut from end to
    # end.
    parts = [Region.whole(shape)]
    if shape:
        for _ in range(draw(st.integers(0, max_cuts))):
            part = parts.pop(draw(st.integers(0, len(parts) - 1)))
            axis = draw(st.integers(0, len(shape) - 1))
            parts.extend(halves(part, axis, draw(st.integers(0, part.shape[axis]))))
    return draw(st.permutations(parts))


def halves(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """Return the first ``count`` indices of a region along an axis, and the others."""
    offset, first, rest = list(region.offset), list(region.shape), list(region.shape)
    first[axis], rest[axis] = count, rest[axis] - count
    low = Region(offset, first)
    offset[axis] += count
    return low, Region(offset, rest)


def partitions(shape: Sequence[int]) -> st.SearchStrategy[Partition]:
    """Return partitions of a shape; see ``tilings``; otherwise as ``tilings``."""
    return tilings(shape).map(lambda parts: Partition(tuple(shape), tuple(parts)))


def layouts(max_shards: int = 13, max_rows: int = 4) -> st.SearchStrategy[list[int]]:
    """Return the rows of each shard: uneven numbers, including zero.

    Parameters
    ----------
    max_shards : int, default 13
        The most shards. If it is above ten, some have more than ten: sorted as text, shard 10 comes
        before shard 2.
    max_rows : int, default 4
        The most rows of a shard.

    Returns
    -------
    SearchStrategy of list of int
        The strategy. Layouts shrink to one shard without rows.
    """
    rows = st.integers(0, max_rows)
    few = st.lists(rows, min_size=1, max_size=min(max_shards, 5))
    if max_shards <= 5:
        return few
    # Long lists are rare where short ones are allowed, so they are asked for.
    return few | st.lists(rows, min_size=min(max_shards, 11), max_size=max_shards)


def partitioners(max_shards: int = 9, max_nbytes: int = 200) -> st.SearchStrategy[Partitioner]:
    """Return partitioners of the three families, with limits that small variables reach.

    Parameters
    ----------
    max_shards : int, default 9
        The most shards.
    max_nbytes : int, default 200
        The largest limit of a shard, in bytes.
    """
    shards, nbytes = st.integers(1, max_shards), st.integers(1, max_nbytes)
    return st.one_of(
        st.builds(FixedShardsPartitioner, shards),
        st.builds(MinSizePartitioner, nbytes, shards),
        st.builds(MaxSizePartitioner, nbytes, st.none() | shards),
    )

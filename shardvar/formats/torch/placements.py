"""Placements: the regions of a tensor that a device of a mesh holds, by the rules of
``torch.distributed.tensor``.

A mesh is a grid of devices. A layout has one placement for each axis of the mesh: along that axis
of the mesh, the tensor is replicated, or one axis of the tensor is cut.

    Shard(dim)                 the indices that earlier axes of the mesh left are cut as ``torch.chunk`` does
    _StridedShard(dim, f)      they are cut into f intervals, and each of those into one a device; a device holds
                               one range of each of the f, one after the other

7 rows on 4 devices by Shard(0) are 2 2 2 1, and 2 rows 1 1 0 0. 8 rows on 2 devices by
_StridedShard(0, 2) are the rows 0 1 4 5 and 2 3 6 7.

FSDP2 over tensor parallelism has the placements (_StridedShard(0, f), Shard(0)), with f the number
of parts that tensor parallelism makes. But its devices hold what comes of cutting by the *last*
axis first, and then each part by the first one in one run. For some uneven sizes the two rules
differ: 7 rows on a mesh of (3, 2). ``strided_last=False`` is the rule of the placements,
``strided_last=True`` the rule of FSDP2. The shapes of what devices hold tell which of them a tensor
obeys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from shardvar.errors import UnsupportedError

Runs = list[tuple[int, int]]
"""Half-open ranges of indices along one axis, in the order in which a device keeps them."""

_MAX_RUNS = 1 << 8
"""The most ranges of a device along an axis: the parts of tensor parallelism."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one axis of a mesh."""

    dim: int | None = None
    """The axis of the tensor that is cut; None if the tensor is replicated."""
    split_factor: int | None = None
    """The split factor of a strided shard; None for a plain one."""


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """A region of a tensor that a device holds."""

    offset: tuple[int, ...]
    """Its first indices, in the coordinates of the whole tensor."""
    shape: tuple[int, ...]
    """Its extents."""
    inner: tuple[int, ...]
    """Its first indices in the tensor that the device keeps."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor that is spread over a mesh, seen from one device."""

    shape: tuple[int, ...]
    """The full shape."""
    mesh: tuple[int, ...]
    """The extents of the mesh."""
    coordinate: tuple[int, ...]
    """The place of the device in the mesh."""
    placements: tuple[Placement, ...]
    """One for each axis of the mesh."""

    def runs(self, strided_last: bool) -> list[Runs]:
        """Return the indices that the device holds along each axis."""
        return [self._along(dim, extent, strided_last) for dim, extent in enumerate(self.shape)]

    @property
    def may_be_fsdp(self) -> bool:
        """Return True if all strided shards have the split factor that FSDP2 over tensor
        parallelism gives them."""
        strided = [each for each in self.placements if each.split_factor is not None]
        return bool(strided) and all(each.split_factor == self._parts(each.dim) for each in strided)

    def _parts(self, dim: int | None) -> int:
        """Return the number of parts that plain shards make along an axis of the tensor."""
        both = zip(self.mesh, self.placements, strict=True)
        return prod(
            extent for extent, each in both if each.dim == dim and each.split_factor is None
        )

    def _along(self, dim: int, extent: int, strided_last: bool) -> Runs:
        axes = [axis for axis, placement in enumerate(self.placements) if placement.dim == dim]
        if strided_last:
            plain = [axis for axis in axes if self.placements[axis].split_factor is None]
            axes = [*plain, *(axis for axis in reversed(axes) if axis not in plain)]
        runs = [(0, extent)]
        for axis in axes:
            factor = 1 if strided_last else self.placements[axis].split_factor or 1
            runs = _cut(runs, self.mesh[axis], self.coordinate[axis], factor)
        return runs


def local_shape(runs: Sequence[Runs]) -> tuple[int, ...]:
    """Return the shape of the tensor that a device keeps."""
    return tuple(map(_length, runs))


def held_regions(runs: Sequence[Runs]) -> Iterator[DeviceRegion]:
    """Yield the regions that a device holds, in C order of the tensor that it keeps.

    >>> [held] = held_regions([[(4, 7)], [(0, 5)]])
    >>> held.offset, held.shape, held.inner
    ((4, 0), (3, 5), (0, 0))
    """
    count = prod(map(len, runs))
    if count > _MAX_RUNS:
        raise UnsupportedError(
            f"It lies on a device in {count} regions.", "Gather it with torch before it is saved."
        )
    starts = [_starts(each) for each in runs]
    for chosen, inner in zip(product(*runs), product(*starts), strict=True):
        yield DeviceRegion(
            tuple(low for low, _ in chosen), tuple(high - low for low, high in chosen), inner
        )


def _cut(runs: Runs, count: int, index: int, factor: int) -> Runs:
    """Return what device ``index`` of ``count`` holds of some indices."""
    if factor * len(runs) > _MAX_RUNS:
        raise UnsupportedError(
            f"It is a strided shard of {factor} parts.", "Gather it with torch before it is saved."
        )
    length = _length(runs)
    found: Runs = []
    for part in range(factor):
        low, high = _interval(length, factor, part)
        first, last = _interval(high - low, count, index)
        found += _take(runs, low + first, low + last)
    return _joined(found)


def _interval(length: int, count: int, index: int) -> tuple[int, int]:
    """Return one interval of ``torch.chunk``, without making all of them."""
    size = -(-length // count)
    return min(index * size, length), min((index + 1) * size, length)


def _take(runs: Runs, start: int, stop: int) -> Runs:
    """Return the indices at positions [start, stop) of runs that follow each other."""
    found, position = [], 0
    for low, high in runs:
        first, last = max(start - position, 0), min(stop - position, high - low)
        if first < last:
            found.append((low + first, low + last))
        position += high - low
    return found


def _joined(runs: Runs) -> Runs:
    """Return the runs, neighbours joined; without indices one empty run."""
    joined: Runs = []
    for low, high in runs:
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined or [(0, 0)]


def _starts(runs: Runs) -> list[int]:
    """Return the position of each run among the indices that a device keeps."""
    starts, position = [], 0
    for low, high in runs:
        starts.append(position)
        position += high - low
    return starts


def _length(runs: Runs) -> int:
    return sum(high - low for low, high in runs)

"""Placements: the regions of a tensor that a device of a mesh holds, by the rules of ``torch.distributed.tensor``.

A mesh is a grid of devices. A layout has one placement for each axis of the mesh: the tensor is replicated along that
axis of the mesh, or cut along an axis of its own.

    Shard(dim)                 the indices that earlier axes of the mesh left are cut as ``layout.partition.chunk`` does
    _StridedShard(dim, f)      they are cut into f chunks, each of those into one chunk a device; a device holds its
                               chunk of each of the f, one after the other

7 rows on 4 devices by Shard(0) are 2 2 2 1, and 2 rows 1 1 0 0. 8 rows on 2 devices by _StridedShard(0, 2) are the rows
0 1 4 5 and 2 3 6 7.

FSDP2 over tensor parallelism has the placements (_StridedShard(0, f), Shard(0)), with f the number of parts that tensor
parallelism makes. But its devices hold what comes of cutting by the *last* axis first, and then each part by the first
one in one run. For some uneven sizes the two rules differ: 7 rows on a mesh of (3, 2). ``fsdp_first=False`` is the rule
of the placements, ``fsdp_first=True`` that of FSDP2; the shapes of what devices hold tell which of them a tensor obeys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from shardvar.errors import UnsupportedError

Runs = list[tuple[int, int]]
"""Ranges of indices along one axis of a tensor, half-open, in the order in which a device keeps them."""

_MAX_RUNS = 1 << 8
"""The most ranges that a device may hold along an axis: the parts that tensor parallelism makes of it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of one axis of a mesh."""

    dim: int | None = None
    """The axis of the tensor that is cut; None if the tensor is replicated."""
    split_factor: int | None = None
    """The split factor of a strided shard; None for a plain one."""


@dataclass(frozen=True, slots=True)
class Held:
    """A region of a tensor that a device holds."""

    offset: tuple[int, ...]
    """Its first indices, in the coordinates of the whole tensor."""
    shape: tuple[int, ...]
    """Its extents."""
    inner: tuple[int, ...]
    """Its first indices in the tensor that the device keeps."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor that is spread over a mesh, seen from one device."""

    shape: tuple[int, ...]
    """The full shape."""
    mesh: tuple[int, ...]
    """The extents of the mesh."""
    coordinate: tuple[int, ...]
    """The place of the device in the mesh."""
    placements: tuple[Placement, ...]
    """One for each axis of the mesh."""

    def runs(self, fsdp_first: bool) -> list[Runs]:
        """Return the indices that the device holds along each axis."""
        return [self._along(dim, extent, fsdp_first) for dim, extent in enumerate(self.shape)]

    def _along(self, dim: int, extent: int, fsdp_first: bool) -> Runs:
        axes = [axis for axis, placement in enumerate(self.placements) if placement.dim == dim]
        if fsdp_first:
            plain = [axis for axis in axes if self.placements[axis].split_factor is None]
            axes = [*plain, *(axis for axis in reversed(axes) if axis not in plain)]
        runs = [(0, extent)]
        for axis in axes:
            factor = 1 if fsdp_first else self.placements[axis].split_factor or 1
            runs = _cut(runs, self.mesh[axis], self.coordinate[axis], factor)
        return runs


def local_shape(runs: Sequence[Runs]) -> tuple[int, ...]:
    """Return the shape of the tensor that a device keeps."""
    return tuple(map(_length, runs))


def held_regions(runs: Sequence[Runs]) -> Iterator[Held]:
    """Yield the regions that a device holds, in C order of its own tensor.

    >>> [held] = held_regions([[(4, 7)], [(0, 5)]])
    >>> held.offset, held.shape, held.inner
    ((4, 0), (3, 5), (0, 0))
    """
    count = 1
    for each in runs:
        count *= len(each)
    if count > _MAX_RUNS:
        raise UnsupportedError(f"It lies on a device in {count} regions.", "Gather it with torch before it is saved.")
    starts = [_starts(each) for each in runs]
    for chosen, inner in zip(product(*runs), product(*starts), strict=True):
        yield Held(tuple(low for low, _ in chosen), tuple(high - low for low, high in chosen), inner)


def _cut(runs: Runs, count: int, index: int, factor: int) -> Runs:
    """Return what device ``index`` of ``count`` holds of some indices."""
    if factor * len(runs) > _MAX_RUNS:
        raise UnsupportedError(f"It is a strided shard of {factor} parts.", "Gather it with torch before it is saved.")
    length = _length(runs)
    found: Runs = []
    for part in range(factor):
        low, high = _chunk(length, factor, part)
        first, last = _chunk(high - low, count, index)
        found += _take(runs, low + first, low + last)
    return _joined(found)


def _chunk(length: int, count: int, index: int) -> tuple[int, int]:
    """Return one interval of ``layout.partition.chunk``, without making all of them."""
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

"""Copies between devices: who sends which region to whom, given who holds and who needs what.

``plan_device_copies`` takes the steps 3 and 4 of ``redistribution``: the pairs of regions that
meet, and the holder that sends each. Devices that hold the same region are its holders, or its
receivers.
"""

from dataclasses import dataclass

import numpy as np

from shardvar.layout.dtypes import Bools, Ints
from shardvar.layout.meshes.intervals import repeated
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.overlap import overlapping_pairs
from shardvar.layout.region import Region, intersect

_FEW = 1 << 21
"""Pairs of regions up to which all are compared at once, which takes 2 MiB: enough for 1,024
devices and some more."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCopies:
    """Columns of copies between devices, sorted by receiver and term, and then by their place in
    both layouts."""

    sender: Ints
    """[n] the device that holds the region."""
    receiver: Ints
    """[n] the device that gets it."""
    term: Ints
    """[n] the number of the term that is copied; 0 where nothing is reduced."""
    source_row: Ints
    """[n] the row of the source layout that holds the region on the sender."""
    target_row: Ints
    """[n] the row of the target layout that it goes to on the receiver."""
    offset: Ints
    """[n, rank] first indices in the whole tensor."""
    extent: Ints
    """[n, rank] extents."""

    def __len__(self) -> int:
        return len(self.sender)

    def region(self, row: int) -> Region:
        """The region of one copy.

        Parameters
        ----------
        row : int
            The row of the columns.

        Returns
        -------
        Region
            In the coordinates of the whole tensor.
        """
        return Region(self.offset[row].tolist(), self.extent[row].tolist())

    def sizes(self) -> Ints:
        """The number of elements of each copy."""
        return np.asarray(np.prod(self.extent, axis=1, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class DistinctRegions:
    """Distinct regions, and the rows of a layout that hold each."""

    offset: Ints
    """[m, 2 + rank] the first index on each axis, the two axes of terms in front."""
    extent: Ints
    """[m, 2 + rank] the extents."""
    device: Ints
    """The devices that hold region ``i``, ascending, are ``device[start[i] : start[i + 1]]``."""
    row: Ints
    """The rows of the layout, like ``device``."""
    start: Ints


def distinct_regions(offset: Ints, extent: Ints, device: Ints) -> DistinctRegions:
    """Return each region with elements once, and the devices and rows [n] that hold it."""
    rank = offset.shape[1]
    full = np.flatnonzero((extent > 0).all(axis=1))
    matrix = np.column_stack([offset, extent])[full]
    # Equal rows are neighbours once sorted. The device is the least significant key, so holders
    # ascend.
    order = np.lexsort((device[full], *matrix.T[::-1]))
    matrix, rows = matrix[order], full[order]
    differs = np.ones(len(rows), np.bool)
    differs[1:] = (matrix[1:] != matrix[:-1]).any(axis=1)
    first = np.flatnonzero(differs)
    start = np.append(first, len(rows))
    return DistinctRegions(matrix[first, :rank], matrix[first, rank:], device[rows], rows, start)


def plan_device_copies(
    holders: DistinctRegions, receivers: DistinctRegions, source: Layout, target: Layout
) -> tuple[DeviceCopies, DeviceCopies]:
    """The copies from one device to another, and the copies that stay on their device."""
    wanted, held = _pairs(receivers, holders)
    # A pair has one term; its common region covers the axes behind the axes of terms.
    offset, extent = intersect(
        receivers.offset[wanted, 2:],
        receivers.extent[wanted, 2:],
        holders.offset[held, 2:],
        holders.extent[held, 2:],
    )

    # One copy for each receiver of each pair: [p] -> [n]. If the devices 4 and 5 want region 0 of
    # the target, and it meets regions 1 and 2 of the source, the 2 pairs make 4 copies.
    pair, within = repeated(np.diff(receivers.start)[wanted])
    place = receivers.start[wanted[pair]] + within
    receiver, region = receivers.device[place], held[pair]
    term = holders.offset[region, 1]

    # Senders: a receiver keeps what it holds itself; the other copies are dealt to the holders.
    holder, is_kept = _own_row(holders, region, receiver)
    moved = np.flatnonzero(~is_kept)
    sizes = np.prod(extent, axis=1, dtype=np.int64)[pair[moved]]
    holder[moved] = _deal(holders, region[moved], receiver[moved], sizes)

    # Pairs are in the order of both layouts' regions, which a stable sort by receiver and term
    # keeps. The two are one key: with 3 terms, receiver 2 and term 1 are 2 * 3 + 1 = 7.
    order = np.argsort(receiver * (int(term.max(initial=0)) + 1) + term, kind="stable")

    def table(rows: Ints) -> DeviceCopies:
        source_row, target_row = holders.row[holder[rows]], receivers.row[place[rows]]
        return DeviceCopies(
            source.device[source_row], target.device[target_row], term[rows], source_row, target_row,
            offset[pair[rows]], extent[pair[rows]],
        )  # fmt: skip

    return table(order[~is_kept[order]]), table(order[is_kept[order]])


def _pairs(wanted: DistinctRegions, held: DistinctRegions) -> tuple[Ints, Ints]:
    """[p] the numbers of the wanted and of the held region of each pair that meets, ascending."""
    count = len(held.offset)
    if len(wanted.offset) * count <= _FEW:
        # A mask of all pairs is faster than the search, and ``nonzero`` gives the order.
        meets = np.ones((len(wanted.offset), count), np.bool)
        for axis in range(wanted.offset.shape[1]):
            start, stop = wanted.offset[:, axis], wanted.offset[:, axis] + wanted.extent[:, axis]
            meets &= start[:, None] < held.offset[:, axis] + held.extent[:, axis]
            meets &= held.offset[:, axis] < stop[:, None]
        i, j = np.nonzero(meets)
        return i, j
    found = overlapping_pairs(wanted.offset, wanted.extent, held.offset, held.extent)
    # One number for a pair sorts faster than two columns; there are fewer than 2**31 regions.
    pairs = np.sort(np.concatenate([np.zeros(0, np.int64), *(i * count + j for i, j in found)]))
    i, j = np.divmod(pairs, max(1, count))
    return i, j


def _own_row(holders: DistinctRegions, region: Ints, receiver: Ints) -> tuple[Ints, Bools]:
    """[n] the receiver's place among the holders of a region, and True if it is one."""
    # Regions ascend in ``start``, devices within a region: so region * count + device ascends, and
    # can be searched. With 8 devices, region 2 on the devices 0 and 5 has the keys 16 and 21;
    # device 5 is found at 21, and device 3 is not found at 19.
    count = max(int(holders.device.max(initial=0)), int(receiver.max(initial=0))) + 1
    keys = (
        np.repeat(np.arange(len(holders.offset)), np.diff(holders.start)) * count + holders.device
    )
    wanted = region * count + receiver
    place = np.searchsorted(keys, wanted)
    is_holder = np.zeros(len(wanted), np.bool)
    inside = np.flatnonzero(place < len(keys))
    is_holder[inside] = keys[place[inside]] == wanted[inside]
    return place, is_holder


def _deal(holders: DistinctRegions, region: Ints, receiver: Ints, sizes: Ints) -> Ints:
    """[n] the holder that sends each copy: messages of a group of holders are dealt out in turn,
    largest first."""
    count = np.diff(holders.start)[region]
    if not (count > 1).any():  # one holder each, or no copy at all: nothing to deal
        return holders.start[region]

    # Messages: all copies from one group to one receiver. A group is known by its first holder:
    # devices that share one region share all, in a layout on a mesh.
    num_receivers = int(receiver.max()) + 1
    group = holders.device[holders.start[:-1]][region]
    message_keys, message = np.unique(group * num_receivers + receiver, return_inverse=True)
    total = np.zeros(len(message_keys), np.int64)
    np.add.at(total, message, sizes)

    # Turns: the largest message of a group goes first, and its holders take turns. Keys ascend by
    # group and receiver, so ties go to receivers in order. The turn of a message is its rank in its
    # group: positions 0 1 2 3 with groups 5 5 5 7 have the turns 0 1 2 0.
    group_of = message_keys // num_receivers
    order = np.lexsort((-total, group_of))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.searchsorted(group_of[order], group_of[order])
    return np.asarray(holders.start[region] + turn[message] % count)

"""Redistribution: which regions move between which devices so that one layout of a tensor becomes
another.

The answer is a value, made only from geometry: copies from a device that holds a region to one that
lacks it, and the regions that a device keeps. It is optimal in two ways. No element that a device
holds already is sent to it, and each element that it lacks is sent to it once; and a device sends
all that another needs of it in one message.

1. Terms. A pending value is not in one place: the devices along a pending axis hold terms of it.
   Two leading axes make this ordinary geometry. The first counts the terms that stay terms, the
   second the terms that a reduction combines. A device that holds term 1 of 2 holds ``[1:2]`` of
   that axis, and a target of values needs ``[0:2]``.
2. Distinct regions. Devices that hold the same region are its holders, or its receivers. Distinct
   regions of the source are disjoint, so each element of a target region is in one of them.
3. Pairs. ``overlapping_pairs`` finds the source regions that each target region meets, in time that
   grows with the result. Each pair is one copy for each receiver: the receiver keeps the region if
   it is a holder, else one sends it.
4. Senders. What a receiver needs of one group of holders is one message. Messages are dealt to the
   holders in turn, the largest first, so two holders of a group differ by at most one message.

``Redistribution`` can only be constructed if its copies fill every target region exactly.

``plan_device_copies`` takes the steps 3 and 4.

Collectives. The communication that copies amount to gets a name. Devices that exchange something,
directly or through others, are a group. Each group is asked by itself which collective it carries
out, from the numbers of elements that its devices hold before and after, keep, and send. The copies
have a name where all groups have it and the other devices keep their part.

    identity        every device holds the same before and after
    local_slice     every device keeps a part
    broadcast       one device holds all, and in the end each does
    all_gather      the devices hold disjoint parts of what each of them holds in the end
    permute         each device gives all that it holds to one other
    all_to_all      disjoint parts become other disjoint parts
    reduce_scatter  each device holds a term of all, and in the end the reduction of its part
    all_reduce      each device holds a term of all, and in the end the reduction of all

A broadcast is an all_gather in which all shards but one are empty, and a permute is an all_to_all.
So where uneven shards make some groups the special case, the name of all is the general one.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import Bools, Ints
from shardvar.layout.meshes.layout import Layout, check_reduction, repeated, sorted_regions
from shardvar.layout.region import Region, intersect, overlapping_pairs
from shardvar.records import entity

_FEW = 1 << 21
"""Pairs of regions up to which all are compared at once, which takes 2 MiB: enough for 1,024
devices and some more."""


@entity
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
        """The region of one copy, in the coordinates of the whole tensor.

        Parameters
        ----------
        row : int
            The row of the columns.
        """
        return Region(self.offset[row].tolist(), self.extent[row].tolist())

    def sizes(self) -> Ints:
        """The number of elements of each copy."""
        return np.asarray(np.prod(self.extent, axis=1, dtype=np.int64))


@entity
class DistinctRegions:
    """Distinct regions, and the rows of a layout that hold each."""

    offset: Ints  # [m, 2 + rank] the first index on each axis, the two axes of terms in front
    extent: Ints  # [m, 2 + rank] the extents
    device: Ints
    """The devices that hold region ``i``, ascending, are ``device[start[i] : start[i + 1]]``."""
    row: Ints  # the rows of the layout, like ``device``
    start: Ints


def distinct_regions(offset: Ints, extent: Ints, device: Ints) -> DistinctRegions:
    """Return each region with elements once, and the devices and rows [n] that hold it."""
    full = np.flatnonzero((extent > 0).all(axis=1))
    order, is_first = sorted_regions(offset[full], extent[full], device[full])
    rows, start = full[order], np.append(np.flatnonzero(is_first), len(order))
    first = rows[is_first]
    return DistinctRegions(offset[first], extent[first], device[rows], rows, start)


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

    # Senders: a receiver keeps its own regions; the other copies are dealt to the holders.
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
    """[n] the holder that sends each copy: a group deals its messages in turn, largest first."""
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


_GENERAL = {"broadcast": "all_gather", "permute": "all_to_all"}


@entity
class Flow:
    """The elements that each device holds and sends."""

    before: Ints  # [devices] elements held before
    after: Ints  # [devices] elements held after
    kept: Ints  # [devices] elements that a device copies to itself
    sender: Ints  # [messages] the sender of each message
    receiver: Ints  # [messages] its receiver
    part: Ints  # [devices] a number for the elements held after, equal for the same; -1 for none
    num_terms: int  # the number of terms that are reduced; 1 without a reduction


def find_collective(flow: Flow) -> str | None:
    """Return the name of the collective, or None where the copies are a mixture of several."""
    # [devices] the smallest device of the group of each. A label is a device of the group too,
    # which may have found a smaller one by now: a ring of n devices takes about log n rounds
    # instead of n.
    group = np.arange(len(flow.before))
    before: Ints | None = None
    while before is None or (group != before).any():
        before, lower = group, group.copy()
        np.minimum.at(lower, flow.sender, before[flow.receiver])
        np.minimum.at(lower, flow.receiver, before[flow.sender])
        group = lower[lower]
    in_group = np.zeros(len(group), np.bool)
    in_group[flow.sender] = in_group[flow.receiver] = True
    stays = (flow.before == flow.after) & (flow.after == flow.kept)
    if not in_group.any():
        return "identity" if stays.all() else "local_slice"
    if not stays[~in_group].all():
        return None
    order = np.argsort(group[in_group], kind="stable")
    devices = np.flatnonzero(in_group)[order]
    groups = np.split(devices, np.flatnonzero(np.diff(group[devices])) + 1)
    names = {_name(flow, members) for members in groups}
    if len(names) > 1:
        names = {_GENERAL.get(name or "", name) for name in names}
    return names.pop() if len(names) == 1 else None


def _name(flow: Flow, members: Ints) -> str | None:
    """The collective of one group of at least two devices."""
    before, after, kept = flow.before[members], flow.after[members], flow.kept[members]
    if flow.num_terms > 1:
        if len(before) != flow.num_terms or (before != before[0]).any() or (kept != after).any():
            return None
        if (after == before).all():
            return "all_reduce"
        return "reduce_scatter" if after.sum() == before[0] else None
    # All end with as many elements as the group had: then these were disjoint, and each device gets
    # all of them.
    if (after == before.sum()).all() and (kept == before).all():
        return "broadcast" if np.count_nonzero(before) == 1 else "all_gather"
    parts = flow.part[members]
    # Disjoint parts come from within the group, so equal sums mean that each element went to one
    # place.
    if not (_are_distinct(parts[parts >= 0]) and after.sum() == before.sum()):
        return None
    sent = np.isin(flow.sender, members)
    is_one_each = _are_distinct(flow.sender[sent]) and _are_distinct(flow.receiver[sent])
    return "permute" if is_one_each and not kept.any() else "all_to_all"


def _are_distinct(numbers: Ints) -> bool:
    return len(np.unique(numbers)) == len(numbers)


@entity
class Redistribution:
    """Copies that turn the source layout into the target layout.

    Raises
    ------
    LayoutError
        If the copies do not fill each region of the target exactly once, so the source does not
        hold the whole tensor.
    """

    source: Layout
    """The layout before."""
    target: Layout
    """The layout after."""
    moves: DeviceCopies
    """The copies that cross from one device to another."""
    kept: DeviceCopies
    """The copies within one device."""
    reduce: str | None = None
    """The reduction that combines the terms of a pending source, or None."""

    def __post_init__(self) -> None:
        filled = np.zeros(len(self.target.device), np.int64)
        for copies in (self.moves, self.kept):
            np.add.at(filled, copies.target_row, copies.sizes())
        short = np.flatnonzero(filled != self.num_terms * _sizes(self.target))
        if len(short):
            row = int(short[0])
            region = Region(self.target.offset[row].tolist(), self.target.extent[row].tolist())
            raise LayoutError(
                f"The source layout holds some elements of {region}, which device "
                f"{self.target.device[row]} needs, nowhere or more than once.",
                "Give layouts whose devices together hold the whole tensor.",
            )

    @property
    def num_devices(self) -> int:
        """The number of devices of the larger mesh; both layouts share device ``i``."""
        return max(self.source.mesh.size, self.target.mesh.size)

    @property
    def num_terms(self) -> int:
        """The number of terms that are combined into each element; 1 without a reduction."""
        return prod(
            self.source.mesh.shape[axis] for axis in _axes_of_terms(self.source, self.target)[1]
        )

    def sent(self, itemsize: int = 1) -> Ints:
        """The elements that each device sends.

        Parameters
        ----------
        itemsize : int, default 1
            The bytes of an element, to count bytes; 1 counts elements.
        """
        return self._sum(self.moves.sender, self.moves.sizes(), itemsize)

    def received(self, itemsize: int = 1) -> Ints:
        """The elements that each device receives.

        Law: equal to ``must_receive``.

        See ``sent`` for the parameters.
        """
        return self._sum(self.moves.receiver, self.moves.sizes(), itemsize)

    def must_receive(self, itemsize: int = 1) -> Ints:
        """The lower bound of what each device receives.

        These are the elements of its target, times terms, that it does not hold before.

        See ``sent`` for the parameters.
        """
        needed = self._sum(self.target.device, self.num_terms * _sizes(self.target), itemsize)
        return needed - self._sum(self.kept.receiver, self.kept.sizes(), itemsize)

    def peak(self, itemsize: int = 1) -> Ints:
        """The elements that each device holds at the end, before the source is given up: source and
        target.

        See ``sent`` for the parameters.
        """
        held = self._sum(self.source.device, _sizes(self.source), itemsize)
        return held + self._sum(self.target.device, _sizes(self.target), itemsize)

    @property
    def messages(self) -> Ints:
        """[devices] messages that each device sends, one to each device that needs some of it."""
        pairs = np.unique(self.moves.sender * self.num_devices + self.moves.receiver)
        return np.bincount(pairs // self.num_devices, minlength=self.num_devices)

    @property
    def collective(self) -> str | None:
        """The collective that the copies amount to; None where they are several.

        Examples
        --------
        >>> import shardvar as sv
        >>> from shardvar.layouts import Replicate, Shard, dtensor
        >>> rows, whole = (dtensor((6, 4), sv.Mesh((3,)), [each]) for each in (Shard(0), Replicate()))
        >>> plan_redistribution(rows, whole).collective, plan_redistribution(whole, rows).collective
        ('all_gather', 'local_slice')
        """
        pairs = np.unique(self.moves.sender * self.num_devices + self.moves.receiver)
        part = np.full(self.num_devices, -1)
        # Regions of a target are disjoint or equal, so the offset of one of them tells which
        # devices hold the same.
        _, part[self.target.device] = np.unique(self.target.offset, axis=0, return_inverse=True)
        flow = Flow(
            before=self._sum(self.source.device, _sizes(self.source), 1),
            after=self._sum(self.target.device, _sizes(self.target), 1),
            kept=self._sum(self.kept.receiver, self.kept.sizes(), 1),
            sender=pairs // self.num_devices,
            receiver=pairs % self.num_devices,
            part=part,
            num_terms=self.num_terms,
        )
        return find_collective(flow)

    def __repr__(self) -> str:
        moved = f"{self.sent().sum():,} elements in {self.messages.sum():,} messages"
        return (
            f"<Redistribution of {self.target.shape}: {self.collective or 'several collectives'}, "
            f"{moved}>"
        )

    def _repr_html_(self) -> str:
        """The flow between devices as a drawing, and each device's totals, for notebooks."""
        # Imported on use, so that programs outside notebooks do not pay for the drawings.
        from shardvar.pictures.drawings import MOST_MOVES, redistribution_html

        both = (self.moves, self.kept)
        pairs = np.concatenate(
            [copies.sender * self.num_devices + copies.receiver for copies in both]
        )
        pairs, place = np.unique(pairs, return_inverse=True)
        flow = np.zeros(len(pairs), np.int64)
        np.add.at(flow, place, np.concatenate([copies.sizes() for copies in both]))
        columns = (pairs // self.num_devices, pairs % self.num_devices, flow)
        moves = list(zip(*(column[: MOST_MOVES + 1].tolist() for column in columns), strict=True))
        totals = np.column_stack([self.sent(), self.received(), self.peak()]).tolist()
        return redistribution_html(self.target.shape, self.collective, totals, moves)

    def _sum(self, device: Ints, sizes: Ints, itemsize: int) -> Ints:
        total = np.zeros(self.num_devices, np.int64)
        np.add.at(total, device, sizes * itemsize)
        return total


def plan_redistribution(
    source: Layout, target: Layout, *, reduce: str | None = None
) -> Redistribution:
    """Return the copies that turn one layout of a tensor into another.

    Meshes may differ: device ``i`` is number ``i`` of both, and a device beyond the end of one
    holds nothing there.

    Parameters
    ----------
    source : Layout
        The layout before.
    target : Layout
        The layout after, of the same shape. Mesh axes that are pending in both stay so.
    reduce : {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"}, optional
        The reduction that turns the terms of a pending source into values.

    Returns
    -------
    Redistribution
        The copies. No element that a device holds already is sent to it, and each that it lacks is
        sent to it once.

    Raises
    ------
    LayoutError
        If the layouts are of different shapes, a reduction is missing or differs from the source's,
        the target is pending where the source is not, or regions of the source overlap without
        being equal.
    ArgumentError
        If `reduce` is another text.
    """
    if source.shape != target.shape:
        raise LayoutError(
            f"The source layout is of a tensor of shape {source.shape}, the target layout of "
            f"{target.shape}.",
            "Give two layouts of one tensor.",
        )
    _check_reduction(source, target, reduce)
    staying, reduced = _axes_of_terms(source, target)
    counts = [prod(source.mesh.shape[axis] for axis in axes) for axes in (staying, reduced)]
    # The two axes of terms are in front. The source holds one term of each region, whose number is
    # its coordinate along the reduced axes; a target of values needs all.
    first, second = _numbers(source, staying), _numbers(source, reduced)
    holders = distinct_regions(
        np.column_stack([first, second, source.offset]),
        np.column_stack([np.ones_like(first), np.ones_like(first), source.extent]),
        source.device,
    )
    first = _numbers(target, staying)
    receivers = distinct_regions(
        np.column_stack([first, np.zeros_like(first), target.offset]),
        np.column_stack([np.ones_like(first), np.full_like(first, counts[1]), target.extent]),
        target.device,
    )
    if np.prod(holders.extent, axis=1, dtype=np.int64).sum() > prod((*counts, *source.shape)):
        raise LayoutError(
            "Devices of the source layout hold regions that overlap and are not equal.",
            "Give a layout whose regions are disjoint or equal, as all constructors do.",
        )
    copies = plan_device_copies(holders, receivers, source, target)
    return Redistribution(source, target, *copies, reduce)


# Terms.


def _pending(layout: Layout) -> dict[int, str]:
    """The reduction of each pending mesh axis; an axis of one device has the value."""
    return {axis: op for axis, op in sorted(layout.pending) if layout.mesh.shape[axis] > 1}


def _axes_of_terms(source: Layout, target: Layout) -> tuple[list[int], list[int]]:
    """The mesh axes whose terms stay terms, and the axes whose terms are combined."""
    before, after = _pending(source), _pending(target)
    return [axis for axis in before if axis in after], [
        axis for axis in before if axis not in after
    ]


def _check_reduction(source: Layout, target: Layout, reduce: str | None) -> None:
    """Raise ``LayoutError`` unless pending axes stay so or are combined by the named reduction."""
    before, after = _pending(source), _pending(target)
    for axis, op in after.items():
        if before.get(axis) != op or source.mesh.shape != target.mesh.shape:
            there = f"pending as {before[axis]!r}" if axis in before else "a value"
            raise LayoutError(
                f"The target is pending as {op!r} over mesh axis {axis} of {target.mesh.shape}, "
                f"where the source, on a mesh of {source.mesh.shape}, is {there}.",
                "Redistribute to values; how they would become terms is not defined.",
            )
    ops = {op for axis, op in before.items() if axis not in after}
    if reduce is None and not ops:
        return
    if reduce is None:
        raise LayoutError(
            f"The source is pending as {' and '.join(map(repr, sorted(ops)))}, and the target is "
            "values.",
            f"Name the reduction: reduce={min(ops)!r}.",
        )
    check_reduction(reduce)
    if ops != {reduce}:
        there = " and ".join(map(repr, sorted(ops))) or "not pending, or stays so"
        raise LayoutError(
            f"The reduction {reduce!r} is named, and the source is {there}.",
            "Name the reduction for which the source is pending; reduce axes of different ones "
            "one after the other.",
        )


def _numbers(layout: Layout, axes: Sequence[int]) -> Ints:
    """[n] the number, in C order, of each row's device among the devices along some mesh axes."""
    coordinates = layout.mesh.coordinates()
    number = np.zeros(layout.mesh.size, np.int64)
    for axis in axes:
        number = number * layout.mesh.shape[axis] + coordinates[:, axis]
    return number[layout.device]


def _sizes(layout: Layout) -> Ints:
    return np.asarray(np.prod(layout.extent, axis=1, dtype=np.int64))

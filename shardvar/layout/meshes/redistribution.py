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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import Ints
from shardvar.layout.meshes.collectives import Flow, find_collective
from shardvar.layout.meshes.copies import DeviceCopies, distinct_regions, plan_device_copies
from shardvar.layout.meshes.layout import Layout, check_reduction
from shardvar.layout.region import Region


@dataclass(frozen=True, slots=True, eq=False, repr=False)
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
    """The copies within one device: what it holds before and after."""
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
            self.source.mesh.shape[axis] for axis in _reduced_axes(self.source, self.target)
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

        Otherwise as ``sent``.
        """
        return self._sum(self.moves.receiver, self.moves.sizes(), itemsize)

    def must_receive(self, itemsize: int = 1) -> Ints:
        """The lower bound of what each device receives.

        These are the elements of its target, times terms, that it does not hold before.

        Otherwise as ``sent``.
        """
        needed = self._sum(self.target.device, self.num_terms * _sizes(self.target), itemsize)
        return needed - self._sum(self.kept.receiver, self.kept.sizes(), itemsize)

    def peak(self, itemsize: int = 1) -> Ints:
        """The elements that each device holds at the end, before the source is given up: source and
        target.

        Otherwise as ``sent``.
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
        """The collective that the copies amount to (``layouts.collectives``); None where they are
        several.

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
        return find_collective(
            Flow(
                before=self._sum(self.source.device, _sizes(self.source), 1),
                after=self._sum(self.target.device, _sizes(self.target), 1),
                kept=self._sum(self.kept.receiver, self.kept.sizes(), 1),
                sender=pairs // self.num_devices,
                receiver=pairs % self.num_devices,
                part=part,
                num_terms=self.num_terms,
            )
        )

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
    counts = _term_counts(source, target)
    holders = distinct_regions(*_rows_with_terms(source, source, target, 1), source.device)
    receivers = distinct_regions(
        *_rows_with_terms(target, source, target, counts[1]), target.device
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


def _reduced_axes(source: Layout, target: Layout) -> list[int]:
    return [axis for axis in _pending(source) if axis not in _pending(target)]


def _term_counts(source: Layout, target: Layout) -> tuple[int, int]:
    """The number of terms that stay terms, and of terms that are combined."""
    reduced = _reduced_axes(source, target)
    staying = [axis for axis in _pending(source) if axis not in reduced]
    return (
        prod(source.mesh.shape[axis] for axis in staying),
        prod(source.mesh.shape[axis] for axis in reduced),
    )


def _check_reduction(source: Layout, target: Layout, reduce: str | None) -> None:
    """Raise ``LayoutError`` unless pending axes stay as they are or are combined by the reduction
    that is named."""
    before, after = _pending(source), _pending(target)
    for axis, op in after.items():
        if before.get(axis) != op or source.mesh.shape != target.mesh.shape:
            there = f"pending as {before[axis]!r}" if axis in before else "a value"
            raise LayoutError(
                f"The target is pending as {op!r} over mesh axis {axis} of {target.mesh.shape}, "
                f"where the source, on a mesh of {source.mesh.shape}, is {there}.",
                "Redistribute to values; how they would become terms is not defined.",
            )
    ops = {before[axis] for axis in _reduced_axes(source, target)}
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


def _rows_with_terms(
    layout: Layout, source: Layout, target: Layout, num_terms: int
) -> tuple[Ints, Ints]:
    """Offsets and extents [n, 2 + rank] of a layout's regions, the two axes of terms first."""
    reduced = _reduced_axes(source, target)
    staying = [axis for axis in _pending(source) if axis not in reduced]
    first = _numbers(layout, staying)
    # A target of values needs all terms; the source holds one, whose number is its coordinate along
    # those axes.
    second = (
        _numbers(layout, reduced) if layout is source and num_terms == 1 else np.zeros_like(first)
    )
    return (
        np.column_stack([first, second, layout.offset]),
        np.column_stack([np.ones_like(first), np.full_like(first, num_terms), layout.extent]),
    )


def _numbers(layout: Layout, axes: Sequence[int]) -> Ints:
    """[n] the number of each row's device among the devices along some mesh axes, in C order; 0
    without axes."""
    coordinates = layout.mesh.coordinates()
    number = np.zeros(layout.mesh.size, np.int64)
    for axis in axes:
        number = number * layout.mesh.shape[axis] + coordinates[:, axis]
    return number[layout.device]


def _sizes(layout: Layout) -> Ints:
    return np.asarray(np.prod(layout.extent, axis=1, dtype=np.int64))

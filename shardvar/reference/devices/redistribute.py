"""Redistribute: carry out a plan between two layouts on simulated devices.

check   the layouts, and the arrays of each device against the source layout
plan    ``plan_redistribution``: the sender and the receiver of each region
move    receiver by receiver; all that a device sends to it is one message, which the ledger counts
        with its bytes
commit  the arrays of the target layout; the source's are no longer counted
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Array, DType
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.redistribution import Redistribution, plan_redistribution
from shardvar.layout.region import Region
from shardvar.reference.devices.device import Device, allocate, copy_all, operation_scope

Parts = tuple[Array, ...]
"""An array for each region that one device holds, in their order."""

_COMBINE = {
    "sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
"""The function that combines two terms; an average is divided at the end."""


def redistribute(
    parts: Sequence[Sequence[npt.ArrayLike] | Array],
    source: Layout,
    target: Layout,
    *,
    devices: Sequence[Device] | None = None,
    reduce: str | None = None,
) -> tuple[Parts, ...]:
    """Return the arrays of each device under the target layout, given those under the source.

    Terms are combined in the order of their numbers, in their dtype. ``track_transfers()`` counts
    the bytes and messages of ``plan_redistribution``. Source and target are in memory together.

    Parameters
    ----------
    parts : sequence of array_like, or of sequences of array_like
        For each device of the source's mesh the arrays of its regions in their order, or the array
        where there is one.
    source : Layout
        The layout of `parts`.
    target : Layout
        The layout of the result.
    devices : sequence of Device, optional
        The devices that the meshes number; by default new ones without a limit.
    reduce : {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"}, optional
        The reduction of a pending source.

    Returns
    -------
    tuple of tuple of ndarray
        For each device of the target's mesh new arrays of its regions in their order, of the dtype
        of `parts`.

    Raises
    ------
    LayoutError
        If the arrays do not fit `source`, or ``plan_redistribution`` refuses the layouts.
    ArgumentError
        If the dtype does not have the reduction, or `devices` are too few or repeat.
    ArgumentTypeError
        If `devices` holds other objects.
    DeviceFull
        If source and target do not fit a device together; nothing has moved then.

    Examples
    --------
    >>> import shardvar as sv
    >>> from shardvar.layouts import Replicate, Shard, dtensor
    >>> rows, whole = (dtensor((4, 3), sv.Mesh((2,)), [each]) for each in (Shard(0), Replicate()))
    >>> with sv.track_transfers() as ledger:
    ...     both = sv.redistribute([np.zeros((2, 3)), np.ones((2, 3))], rows, whole)
    >>> both[0][0].tolist() == both[1][0].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
    True
    >>> ledger.nbytes, ledger.messages
    (96, 2)
    """
    # Check, and plan.
    plan = plan_redistribution(source, target, reduce=reduce)
    held, count = _read_parts(parts, source), plan.num_devices
    if devices is None:
        devices = [Device(f"GPU:{number}") for number in range(count)]
    for device in devices:
        if not isinstance(device, Device):
            raise ArgumentTypeError(
                f"{device!r} is not a device.", "Give shardvar.reference.devices.Device objects."
            )
    if len(devices) < count or len(set(map(id, devices))) != len(devices):
        raise ArgumentError(
            f"{len(set(map(id, devices)))} devices are given for meshes of {count}.",
            "Give a device for each number.",
        )
    # Move.
    made = _move(plan, held, _read_dtype(held, reduce), devices)
    # Commit.
    if reduce == "avg":
        for array in made:
            np.divide(array, plan.num_terms, out=array)
    return tuple(tuple(made[row] for row in rows) for rows in _rows_by_device(target))


def _move(
    plan: Redistribution, held: Sequence[Parts], dtype: DType, places: Sequence[Device]
) -> list[Array]:
    """The arrays of the rows of the target, filled; until then the source's also count as used."""
    columns = zip(
        *(
            np.concatenate([getattr(copies, name) for copies in (plan.kept, plan.moves)]).tolist()
            for name in (
                "term",
                "receiver",
                "sender",
                "target_row",
                "source_row",
                "offset",
                "extent",
            )
        ),
        strict=True,
    )
    # Term by term, so that the first one is copied and the others are combined with it in their
    # order.
    copies = sorted(columns, key=itemgetter(0, 1, 2))
    combine = None if plan.reduce is None else _COMBINE[plan.reduce]
    with ExitStack() as before, operation_scope("redistribute"):
        for place, arrays in zip(places, held, strict=False):
            for array in arrays:
                before.callback(place.account(array))
        rows = zip(plan.target.device.tolist(), plan.target.extent.tolist(), strict=True)
        made = [
            allocate(extent, dtype, places[device], is_zeroed=False).array
            for device, extent in rows
        ]
        given = [array for arrays in held for array in arrays]
        for (number, to, by), group in groupby(copies, key=itemgetter(0, 1, 2)):
            regions = [
                (
                    _view(made[into], plan.target, into, Region(*region)),
                    _view(given[out_of], plan.source, out_of, Region(*region)),
                )
                for _, _, _, into, out_of, *region in group
            ]
            copy_all(regions, places[by], places[to], combine if number else None)
    return made


def _view(array: Array, layout: Layout, row: int, region: Region) -> Array:
    outer = Region(layout.offset[row].tolist(), layout.extent[row].tolist())
    # The ellipsis makes a view of a scalar too, which an empty index would copy.
    index: Any = (*region.relative_to(outer).slices, ...)
    view: Array = array[index]
    return view


def _rows_by_device(layout: Layout) -> list[range]:
    bounds = np.searchsorted(layout.device, np.arange(layout.mesh.size + 1)).tolist()
    return [range(start, stop) for start, stop in pairwise(bounds)]


# Arguments.


def _read_parts(parts: Sequence[Sequence[npt.ArrayLike] | Array], source: Layout) -> list[Parts]:
    """The arrays of each device; ``LayoutError`` unless they have the shapes of the regions."""
    if len(parts) != source.mesh.size:
        raise LayoutError(
            f"Parts of {len(parts)} devices are given for the mesh {source.mesh}.",
            "Give an entry for each device.",
        )
    held: list[Parts] = []
    for device, (given, rows) in enumerate(zip(parts, _rows_by_device(source), strict=True)):
        arrays = (
            (given,)
            if isinstance(given, np.ndarray) and len(rows) == 1
            else tuple(map(np.asarray, given))
        )
        wanted = [tuple(source.extent[row].tolist()) for row in rows]
        if [array.shape for array in arrays] != wanted:
            raise LayoutError(
                f"Device {device} is given arrays of the shapes "
                f"{[array.shape for array in arrays]}, and its regions have {wanted}.",
                "Give an array for each region of `source.regions(device)`, in that order.",
            )
        held.append(arrays)
    return held


def _read_dtype(held: Iterable[Parts], reduce: str | None) -> DType:
    """The dtype of the parts; an error for several, or for one that a reduction would change."""
    dtypes = {array.dtype for arrays in held for array in arrays}
    if len(dtypes) > 1:
        raise LayoutError(
            f"The parts have the dtypes {sorted(map(str, dtypes))}.", "Give parts of one tensor."
        )
    dtype = dtypes.pop() if dtypes else np.dtype(np.float32)
    is_bits = reduce in ("band", "bor", "bxor")
    refused = (
        (reduce == "avg" and dtype.kind in "iub")
        or (is_bits and dtype.kind not in "iub")
        or dtype.kind in "OSU"
    )
    if reduce is not None and refused:
        raise ArgumentError(
            f"The reduction {reduce!r} of terms of dtype {dtype} is not of that dtype.",
            "Cast the terms first.",
        )
    return dtype

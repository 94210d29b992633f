"""Holders: the device that held each slice before it was saved, where a checkpoint tells.

A checkpoint stores regions, and seldom the devices that held them. Two things tell:

1. Names of files, where each process wrote its own: torch's ``__3_0.distcp``, and a number after
   ``rank``.
2. The layout that the slices of a tensor are recognised as. Its devices are counted in the C order
   of the slices, so only tensors on the largest number of devices count: device 1 of 2 and device 1
   of 8 may be different ones.

Names are asked first, since they are what a process wrote; a layout follows from the regions only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.layout.dtypes import Ints
from shardvar.layout.meshes.recognition import recognize
from shardvar.planning.index import EntryTable

_RANKED_NAME = re.compile(r"(?:^|/)__(\d{1,9})_\d+[^/]*\.distcp$|rank[-_]?(\d{1,9})(?!\d)")
"""``__3_0.distcp`` of torch, or ``rank_3`` and ``mp_rank_03``."""

_LEAST_SHARE = 0.1
"""The least share of the bytes that layouts must tell of. A file limit cuts some tensors where a
file is full, and of a thousand such cuts some are equal by chance."""


@dataclass(frozen=True, slots=True, eq=False)
class Holders:
    noun: str
    """The word for one of them: ``rank`` where names of files tell, else ``device``."""
    device: Ints
    """[m] its number for each entry; -1 where nothing tells."""


def holders_of(entries: EntryTable, files: Sequence[str]) -> Holders | None:
    """Return the device of each entry; None where nothing tells two of them apart."""
    names = [_RANKED_NAME.search(name) for name in files]
    if names and None not in names:
        ranks = np.array([int(each[1] or each[2]) for each in names if each], np.int64)
        found = Holders("rank", ranks[entries.file])
    else:
        # [m] the device that holds each slice, by the layout of its tensor; -1 if unknown.
        slices = entries.slices
        device, size_of = np.full(len(slices), -1, np.int64), np.zeros(len(slices), np.int64)
        order, bounds = slices.by_tensor(by_offset=True)
        known: dict[tuple[tuple[int, ...], bytes, bytes], Ints | None] = {}
        for tensor in np.flatnonzero(np.diff(bounds) > 1).tolist():
            rows, shape = order[bounds[tensor] : bounds[tensor + 1]], slices.tensors.shape(tensor)
            offset, extent = slices.offset[rows, : len(shape)], slices.shape[rows, : len(shape)]
            # Tensors of one shape are cut alike, in most checkpoints: each cut is looked at once.
            cut = shape, offset.tobytes(), extent.tobytes()
            if cut not in known:
                layout = recognize(shape, offset, extent)
                known[cut] = None
                if layout is not None:
                    places = zip(layout.offset.tolist(), layout.device.tolist(), strict=True)
                    device_of = {tuple(place): number for place, number in places}
                    known[cut] = np.array([device_of[tuple(each)] for each in offset.tolist()])
            numbers = known[cut]
            if numbers is not None:
                device[rows], size_of[rows] = numbers, len(rows)
        device[size_of < size_of.max(initial=0)] = -1
        if slices.nbytes[device >= 0].sum() < _LEAST_SHARE * slices.nbytes.sum():
            device[:] = -1
        found = Holders("device", device)
    return found if len(np.unique(found.device[found.device >= 0])) > 1 else None

"""String tensors that a bundle has in slices, as one payload each; and payloads that are made as a
whole.

TensorFlow saves the shards of a string variable as slices, and cannot join them. The place of an
element in a payload of strings follows from the lengths of all elements before it, so the engine
moves such a payload whole, and the slices of a tensor are one entry here:

    payload of a slice     lengths | checksum of the lengths | bytes
    payload of the entry   the same, of all elements in the C order of the tensor

The lengths and bytes come from the slices, and there is one checksum of 4 bytes: slices of 9 and 12
bytes are a payload of 5 + 8 + 4 = 17.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.errors import CheckpointError, InvalidCheckpoint, MalformedCheckpoint
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.slices import SliceTable
from shardvar.wire import strings
from shardvar.wire.damage import WRITE_AGAIN, decoding, invalid

_Place = tuple[int, int, int]
"""The file, start and size of an entry."""
Joined = dict[_Place, Ints]
"""The rows of the slices of a tensor, by the place of its entry: a caller may have renamed keys."""


_MOST_KEPT = 8


@dataclass(frozen=True, slots=True)
class MadePayloads:
    """Payloads that are made as a whole, by joining or converting them, and read by blocks.

    Each is made once, and not for every block, which would take time by the square of its size. It
    is kept until its last byte is read; of more than a few, the first that was made is dropped.
    """

    kept: dict[_Place, bytes] = field(default_factory=dict)
    """The ones with bytes still to be read."""

    def read(
        self, place: _Place, start: int, buffer: memoryview, make: Callable[[], bytes]
    ) -> None:
        """Fill ``buffer`` from a payload, from byte ``start`` of it on."""
        payload = self.kept.pop(place, None) or make()
        stop = start + len(buffer)
        buffer[:] = memoryview(payload)[start:stop]
        if stop < len(payload):
            while len(self.kept) >= _MOST_KEPT:
                self.kept.pop(next(iter(self.kept)), None)
            self.kept[place] = payload


def join_strings(
    stored: EntryTable, faults: dict[str, CheckpointError], taken: Collection[_Place], index: str
) -> tuple[EntryTable, Joined]:
    """Return the entries, with one for the slices of each string tensor; it has the place of the
    first slice.

    Keys in ``faults`` stay as they are, since their slices may not tile. A key is added whose entry
    would have the place of another one: it is in ``taken``, or was given to another tensor.
    ``index`` is the path of the index file.
    """
    slices = stored.slices
    order, bounds = slices.by_tensor()
    is_string = slices.tensors.codes == code(STRING)
    chosen = [
        tensor
        for tensor in np.flatnonzero(is_string & (np.diff(bounds) > 1)).tolist()
        if slices.tensors.keys[tensor] not in faults
    ]
    if not chosen:
        return stored, {}
    joined: Joined = {}
    nbytes, offset, shape = slices.nbytes.copy(), slices.offset.copy(), slices.shape.copy()
    is_kept = np.ones(len(stored), np.bool)
    for tensor in chosen:
        rows = order[bounds[tensor] : bounds[tensor + 1]]
        first = int(rows[0])
        # A slice without elements may have no checksum either.
        size = (
            int(np.maximum(slices.nbytes[rows] - strings.WORD_NBYTES, 0).sum())
            + strings.WORD_NBYTES
        )
        place = int(stored.file[first]), int(stored.start[first]), size
        if place in joined or (place in taken and size != nbytes[first]):
            error = InvalidCheckpoint("Another tensor begins with the same bytes.", WRITE_AGAIN)
            faults[slices.tensors.keys[tensor]] = error.at(index, repr(slices.tensors.keys[tensor]))
            continue
        joined[place] = rows
        nbytes[first], offset[first], shape[first] = size, 0, slices.tensors.shapes[tensor]
        is_kept[rows[1:]] = False
    table = SliceTable(slices.tensors, slices.tensor, offset, shape, nbytes)
    return replace(stored, slices=table).take(np.flatnonzero(is_kept)), joined


def join_payloads(
    parts: Iterable[tuple[Region, bytes]], shape: tuple[int, ...], nbytes: int
) -> bytes:
    """Return the payload of a string tensor from the payloads of its slices, which tile it."""
    cause = f"No array can have the shape {shape}"
    with decoding(lambda error: invalid(f"{cause} ({error})."), ValueError):
        whole = np.empty(shape, object)
    for region, payload in parts:
        whole[region.slices] = strings.decode(payload, region.shape)
    payload = strings.encode(whole)
    # A length may be written in more bytes than it needs.
    if len(payload) != nbytes:
        raise MalformedCheckpoint(
            f"Its slices are {len(payload)} bytes when joined, and not {nbytes}.", WRITE_AGAIN
        )
    return payload

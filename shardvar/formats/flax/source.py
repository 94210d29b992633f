"""The payloads of Flax: one range of a file each, or several for an array above 2**30 bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from shardvar.errors import CheckpointError
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.flax.contents import FlaxContents
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, OBJECTS, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.wire.plain import build_objects


@dataclass(frozen=True, slots=True, eq=False)
class FlaxSource(FileSource):
    """An open file, or an open set."""

    contents: FlaxContents
    """The arrays and the plain values."""
    index: TableIndex = field(init=False)
    """The table of contents; ``start`` of a non-plain entry numbers ``contents.arrays``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", _index(self.contents))

    @property
    def data(self) -> DataFiles:
        """The files."""
        return self.contents.data

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return False: any range is read without the bytes before it."""
        return np.zeros(len(rows), np.bool)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
            return
        # With ranges of 100 and 50 bytes, the bytes 90 to 120 of the payload are the last 10 of the
        # first one and the first 20 of the second one.
        first, stop = start, start + len(buffer)
        for place, nbytes in self.contents.arrays[begin].place.spans:
            if first < nbytes and stop > 0:
                low, high = max(first, 0), min(stop, nbytes)
                self.read_span(file, place + low, buffer[low - first : high - first])
            first, stop = first - nbytes, stop - nbytes

    def findings(self) -> Sequence[Finding]:
        """Return the disagreements between the files and the index of a set."""
        return self.contents.findings


def _index(contents: FlaxContents) -> TableIndex:
    """Return the table of contents; plain values are the document among the user's metadata."""
    contents.arrays.sort(key=lambda each: each.key)
    arrays = contents.arrays
    tensors = TensorTable.of([(each.key, each.place.dtype, each.place.shape) for each in arrays])
    plain = np.array([len(each.place.spans) < 2 for each in arrays], np.bool)
    first = [each.place.spans[0][0] if each.place.spans else 0 for each in arrays]
    entries = EntryTable(
        tensors.whole(),
        np.array([each.file for each in arrays], np.int64),
        np.where(plain, np.array(first, np.int64), np.arange(len(arrays))),
        np.full(len(arrays), NO_CHECKSUM),
        plain,
    )
    user = {OBJECTS: build_objects(contents.objects)} if contents.objects else {}
    faults = cast(Mapping[str, CheckpointError], contents.faults)
    return TableIndex(entries, [*contents.data.names], Metadata(user=user), faults)

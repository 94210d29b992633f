"""Payloads that are read together with their frames, and with their neighbours.

    a file     | frame  payload  frame | frame  payload  frame |    two extents
    requests   <----------------------------------------------->    one, of at most about 4 MiB

A frame says where its payload begins, and with what checksum. On a disk, frames are read first. In
a bucket a frame takes a request or two, and for what is to be read whole these are saved: each
payload has an address before its frame is read, at the end of its extent. Addresses count from
``ADDRESSES``, so that none is an offset of a file. The engine joins neighbours by their addresses
as it does by offsets. The source then reads the extents, compares frames and checksums, and cuts
the payloads out.

A checksum that is in a frame is compared here. An entry with an address has none, so that a part of
a payload would not be compared by the engine: ``Enclosed`` reads the whole payload for it. The
verbs use addresses where they read whole payloads.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from shardvar.forks import new_lock
from shardvar.formats.files import DataFiles
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable

ADDRESSES = 1 << 60
"""The first address: more bytes than a file has."""
_MOST_NBYTES = 1 << 22
"""A larger payload is read in blocks, each by a request, so that its frame costs few in comparison."""
_FRAME_NBYTES = 1 << 16
"""The most bytes of an extent that are not its payload's."""
_KEPT_PAYLOADS = 16
"""Payloads that are kept while parts of them are asked for: what each of many threads reads ends in
one, which another thread goes on with."""


@dataclass(frozen=True, slots=True, eq=False)
class Enclosed:
    """The extents of payloads, by file and place; safe to use from several threads."""

    data: DataFiles
    """The files."""
    rows: Ints
    """[k] the row of each in the index."""
    file: Ints
    """[k] the number of its file."""
    first: Ints
    """[k] the first byte of its extent."""
    stop: Ints
    """[k] the end of its extent; no two overlap."""
    nbytes: Ints
    """[k] the size of its payload."""
    unframe: Callable[[int, memoryview], memoryview]
    """Returns the payload of a row from the bytes of its extent, compared; raises what is wrong."""
    _kept: "OrderedDict[int, memoryview]" = field(default_factory=OrderedDict)
    _lock: Any = field(default_factory=new_lock)

    @classmethod
    def of(
        cls, data: DataFiles, table: Ints, unframe: Callable[[int, memoryview], memoryview]
    ) -> Self:
        """Return the extents that are worth it; none on a disk.

        The columns of ``table`` [k, 5] are the rows, the files, the first bytes and the ends of
        extents, and the sizes of payloads.
        """
        rows, file, first, stop, nbytes = table.T
        worth = (nbytes > 0) & (nbytes <= _MOST_NBYTES) & (data.traits is not None)
        worth &= (first >= 0) & (stop - first >= nbytes) & (stop - first <= nbytes + _FRAME_NBYTES)
        # A file that is missing is the fault of its keys, which the index tells.
        absent = [each for each in np.unique(file[worth]).tolist() if data.fault(each) is not None]
        at = np.flatnonzero(worth & ~np.isin(file, absent))
        at = at[np.lexsort((rows[at], stop[at], first[at], file[at]))]
        at = at[_apart(file[at], first[at], stop[at])]
        return cls(data, rows[at], file[at], first[at], stop[at], nbytes[at], unframe)

    @property
    def address(self) -> Ints:
        """[k] the address of each payload."""
        return ADDRESSES + self.stop - self.nbytes

    def find(self, entries: EntryTable) -> tuple[Ints, Ints]:
        """Return the positions of the entries that have an address, and the row of each."""
        columns = self.file.tolist(), self.address.tolist(), self.rows.tolist()
        rows = {(file, start): row for file, start, row in zip(*columns, strict=True)}
        at = np.flatnonzero(entries.start >= ADDRESSES)
        places = zip(entries.file[at].tolist(), entries.start[at].tolist(), strict=True)
        return at, np.array([rows[place] for place in places], np.int64)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one file, from an address on; what lies between payloads is not
        defined."""
        start -= ADDRESSES
        stop = start + len(buffer)
        low, high = np.searchsorted(self.file, [file, file + 1]).tolist()
        first = low + int(np.searchsorted(self.stop[low:high], start, "right"))
        begins = (self.stop - self.nbytes)[low:high]
        last = low + int(np.searchsorted(begins, stop, "left"))
        if first >= last:
            return
        is_whole = begins[first - low] >= start and self.stop[last - 1] <= stop
        payloads = (
            self._whole(file, first, last) if is_whole else map(self._kept_of, range(first, last))
        )
        for number, payload in zip(range(first, last), payloads, strict=True):
            begin = int(begins[number - low])
            skip = max(start - begin, 0)
            part = payload[skip : stop - begin]
            buffer[begin + skip - start :][: len(part)] = part

    def _whole(self, file: int, first: int, last: int) -> "list[memoryview]":
        """Return the payloads of neighbours, read at once."""
        start = int(self.first[first])
        octets = memoryview(self.data.open(file).read(start, int(self.stop[last - 1]) - start))
        columns = (self.rows, self.first - start, self.stop - start)
        return [
            self.unframe(row, octets[begin:end])
            for row, begin, end in zip(
                *(each[first:last].tolist() for each in columns), strict=True
            )
        ]

    def _kept_of(self, number: int) -> memoryview:
        """Return a payload that is asked for in part; the last ones are kept."""
        with self._lock:
            found = self._kept.get(number)
        if found is None:
            [found] = self._whole(int(self.file[number]), number, number + 1)
            with self._lock:
                self._kept[number] = found
                while len(self._kept) > _KEPT_PAYLOADS:
                    self._kept.popitem(last=False)
        return found


def put_places(entries: EntryTable, at: Ints, found: EntryTable) -> EntryTable:
    """Return entries that have at some positions the places of others."""
    columns = (entries.start.copy(), entries.checksum.copy(), entries.plain.copy())
    for column, new in zip(columns, (found.start, found.checksum, found.plain), strict=True):
        column[at] = new
    start, checksum, plain = columns
    return replace(entries, start=start, checksum=checksum, plain=plain)


def _apart(file: Ints, first: Ints, stop: Ints) -> Bools:
    """[k] True for extents, sorted by file and place, that share no byte with another one."""
    apart = np.ones(len(file), np.bool)
    if not len(file):
        return apart
    # Where the files follow each other, the last stop so far tells an overlap.
    size = np.zeros(int(file.max()) + 1, np.int64)
    np.maximum.at(size, file, stop)
    base = (np.cumsum(size) - size)[file]
    meets = (base + first)[1:] < np.maximum.accumulate(base + stop)[:-1]
    apart[1:] &= ~meets
    apart[:-1] &= ~meets
    return apart

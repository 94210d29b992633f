"""An index whose entries are located when they are read: listing them reads no payload file.

    names, dtypes, shapes, regions    in an index file, or a pickle: known when it is opened
    the place of the elements         in a frame next to them: read by ``find`` and ``scan``, once

``outline_of`` returns the first of these as an index by itself, for all that only lists. What a
frame contradicts is a fault of its key, which is found when the key is read or verified, and not
when it is listed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from threading import RLock
from typing import NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np

from shardvar.errors import CheckpointError, ShardvarError
from shardvar.formats.files import DataFiles, KeptValues
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import (
    EntryTable,
    Index,
    Metadata,
    ScannedFaults,
    TableIndex,
    concatenate_entries,
    of_rows,
    of_tensors,
    unknown_key,
)
from shardvar.planning.slices import SliceTable
from shardvar.records import entity, field, mutable, replace
from shardvar.storage.concurrency import is_blind

# Payloads that are read together with their frames, and with their neighbours.
#
#     a file     | frame  payload  frame | frame  payload  frame |    two extents
#     requests   <----------------------------------------------->    one, of at most about 4 MiB
#
# A frame has the place of its payload, and its checksum. On a disk, frames are read first. In a
# bucket a frame takes a request or two, and for payloads to be read whole these are saved: each
# payload has an address before its frame is read, at the end of its extent. Addresses count from
# ``ADDRESSES``, so that none is an offset of a file. The engine joins neighbours by their addresses
# as it does by offsets. The source then reads the extents, compares frames and checksums, and cuts
# the payloads out.
#
# A checksum that is in a frame is compared here. An entry with an address has none, so that a part of
# a payload would not be compared by the engine: ``Enclosed`` reads the whole payload for it. The
# verbs use addresses where they read whole payloads.

ADDRESSES = 1 << 60
"""The first address: more bytes than a file has."""
_MOST_NBYTES = 1 << 22
"""A larger payload is read in blocks, each by a request, so that its frame costs few in comparison."""
_FRAME_NBYTES = 1 << 16
"""The most bytes of an extent that are not its payload's."""
_KEPT_PAYLOADS = 16
"""Payloads that are kept while parts of them are asked for: what each of many threads reads ends in
one, which another thread goes on with."""


@entity
class Enclosed:
    """The extents of payloads, by file and place; safe to use from several threads."""

    data: DataFiles
    rows: Ints  # [k] the row of each in the index
    file: Ints
    first: Ints
    """[k] the first byte of its extent."""
    stop: Ints
    """[k] the end of its extent; no two overlap."""
    nbytes: Ints  # [k] the size of its payload
    unframe: Callable[[int, memoryview], memoryview]
    """Returns the payload of a row from the bytes of its extent, compared."""
    _kept: KeptValues[int, memoryview] = field(default_factory=partial(KeptValues, _KEPT_PAYLOADS))

    @classmethod
    def of(
        cls, data: DataFiles, table: Ints, unframe: Callable[[int, memoryview], memoryview]
    ) -> Self:
        """Return the extents that are worth it; none on a disk. The columns of ``table`` [k, 5] are
        the rows, the files, the first bytes and the ends of extents, and the sizes of payloads."""
        rows, file, first, stop, nbytes = table.T
        worth = (nbytes > 0) & (nbytes <= _MOST_NBYTES) & (data.traits is not None)
        worth &= (first >= 0) & (stop - first >= nbytes) & (stop - first <= nbytes + _FRAME_NBYTES)
        # A file that is missing or cut off is the fault of its keys, which the index tells.
        absent = [
            each
            for each in np.unique(file[worth]).tolist()
            if data.fault(each) is not None or data.fault_of_size(each) is not None
        ]
        at = np.flatnonzero(worth & ~np.isin(file, absent))
        at = at[np.lexsort((rows[at], stop[at], first[at], file[at]))]
        apart = np.ones(len(at), np.bool)
        if len(at):
            # Where the files follow each other, the last stop so far tells an overlap.
            size = np.zeros(int(file[at].max()) + 1, np.int64)
            np.maximum.at(size, file[at], stop[at])
            base = (np.cumsum(size) - size)[file[at]]
            meets = (base + first[at])[1:] < np.maximum.accumulate(base + stop[at])[:-1]
            apart[1:] &= ~meets
            apart[:-1] &= ~meets
        at = at[apart]
        return cls(data, rows[at], file[at], first[at], stop[at], nbytes[at], unframe)

    @property
    def address(self) -> Ints:
        return ADDRESSES + self.stop - self.nbytes

    def find(self, entries: EntryTable) -> tuple[Ints, Ints]:
        """Return the positions of the entries that have an address, and the row of each."""
        columns = self.file.tolist(), self.address.tolist(), self.rows.tolist()
        rows = {(file, start): row for file, start, row in zip(*columns, strict=True)}
        at = np.flatnonzero(entries.start >= ADDRESSES)
        places = zip(entries.file[at].tolist(), entries.start[at].tolist(), strict=True)
        return at, np.array([rows[place] for place in places], np.int64)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from an address of one file; bytes between payloads are not defined."""
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
            self._whole(file, first, last) if is_whole else map(self._part, range(first, last))
        )
        for number, payload in zip(range(first, last), payloads, strict=True):
            begin = int(begins[number - low])
            skip = max(start - begin, 0)
            part = payload[skip : stop - begin]
            buffer[begin + skip - start :][: len(part)] = part

    def _whole(self, file: int, first: int, last: int) -> "list[memoryview]":
        start = int(self.first[first])
        octets = memoryview(self.data.open(file).read(start, int(self.stop[last - 1]) - start))
        columns = (self.rows, self.first - start, self.stop - start)
        unframe = self.unframe if not is_blind() else lambda _row, octets: octets
        return [
            unframe(row, octets[begin:end])
            for row, begin, end in zip(
                *(each[first:last].tolist() for each in columns), strict=True
            )
        ]

    def _part(self, number: int) -> memoryview:
        """Return a payload of which a part is asked for."""
        file = int(self.file[number])
        return self._kept.get(number, lambda: self._whole(file, number, number + 1)[0])


def put_places(entries: EntryTable, at: Ints, found: EntryTable) -> EntryTable:
    """Return entries that have the places of others at some positions."""
    columns = (entries.start.copy(), entries.checksum.copy(), entries.plain.copy())
    for column, new in zip(columns, (found.start, found.checksum, found.plain), strict=True):
        column[at] = new
    start, checksum, plain = columns
    return replace(entries, start=start, checksum=checksum, plain=plain)


class Located(NamedTuple):
    nbytes: int  # the outline has another one for objects
    start: int
    checksum: int
    plain: bool


@mutable
class DeferredIndex:
    """A table of contents; safe to use from several threads."""

    slices: SliceTable
    file: Ints  # [m] the number of the file of each slice
    files: list[str]
    broken: dict[str, ShardvarError]
    """Keys that cannot be read, as far as it is known without a frame."""
    locate: Callable[[Ints], Mapping[int, Located | ShardvarError]]
    """Reads the frames of some rows of ``slices``; each has a place or an error."""
    alike: Ints
    """[m] numbers that are equal for slices with the same bytes, the ``start`` of the outline; -1
    for slices that share bytes with no other."""
    is_apart: bool = False
    """True if the index is in a file without payloads, so that listing reads no other file."""
    lost: Callable[[], Mapping[int, ShardvarError]] = dict
    """Returns the rows whose files are missing or of a wrong size; a listing shows them."""
    metadata: Metadata = field(default_factory=Metadata)
    enclosed: Enclosed | None = None
    """The payloads that are read whole with their frames; None for none."""
    errors: dict[int, ShardvarError] = field(init=False, default_factory=dict)
    """The rows whose frames are wrong."""
    _is_whole: bool = field(init=False, default=False)
    _is_known: Bools = field(init=False)
    """[m] True for rows whose frames were read."""
    _located: EntryTable = field(init=False)
    """All entries; of rows whose frames were not read, the outline's."""
    _rows: dict[str, int] = field(init=False, default_factory=dict)
    _bounds: tuple[Ints, Ints] | None = field(init=False, default=None)
    _outline: TableIndex | None = field(init=False, default=None)
    _lock: RLock = field(init=False, default_factory=RLock)

    def __post_init__(self) -> None:
        count = len(self.slices)
        self._is_known = np.zeros(count, np.bool)
        slices = replace(self.slices, nbytes=self.slices.nbytes.copy())
        self._located = EntryTable.without_checksums(
            slices, np.arange(count), self.file, plain=False
        )

    @property
    def outline(self) -> TableIndex:
        """The slices and the known faults; no entry has a place, and no frame is read."""
        with self._lock:
            if self._outline is None:
                entries = EntryTable.without_checksums(
                    self.slices, self.alike, self.file, self.alike >= 0
                )
                faults = self._with_errors(self.lost())
                self._outline = TableIndex(
                    self._of_keys(entries, faults),
                    self.files,
                    self.metadata,
                    cast("Mapping[str, CheckpointError]", faults),
                )
        return self._outline

    @property
    def faults(self) -> ScannedFaults:
        return ScannedFaults(self.fault_of, self.all_faults)

    def find(self, key: str) -> EntryTable:
        fault = self.fault_of(key)
        if fault is not None:
            raise fault
        return self._of_tensors([self._tensor_of(key)])

    def find_all(self, keys: Sequence[str]) -> EntryTable:
        self.expect(keys)
        for key in keys:
            fault = self.broken.get(key) or (self.errors and self.fault_of(key))
            if fault:
                raise fault.at()  # a new error each time: one that is raised again keeps its traceback
        return self._of_tensors([self._tensor_of(key) for key in keys])

    def _tensor_of(self, key: str) -> int:
        if key not in self._position():
            raise unknown_key(key, self._position())
        return self._position()[key]

    def _of_tensors(self, tensors: list[int]) -> EntryTable:
        with self._lock:
            return of_rows(self._located, tensors, [self._rows_of(each) for each in tensors])

    def scan(self) -> Iterator[EntryTable]:
        """Yield all entries of the keys that can be read, in one table."""
        faults, entries = self.all_faults(), self._located
        if self.enclosed is not None and self._is_whole:
            is_new = ~self._is_known[self.enclosed.rows]
            at = self.enclosed.rows[is_new]
            start, plain = entries.start.copy(), entries.plain.copy()
            start[at], plain[at] = self.enclosed.address[is_new], True
            entries = replace(entries, start=start, plain=plain)
        yield self._of_keys(entries, faults)

    def prefer_whole(self, is_whole: bool) -> None:
        """Give enclosed payloads an address and read no frame of them; or give their places."""
        self._is_whole = is_whole

    def placed(self, entries: EntryTable) -> EntryTable:
        """Return entries with places instead of addresses; raise the error of a wrong frame."""
        if self.enclosed is None:
            return entries
        at, rows = self.enclosed.find(entries)
        self._resolve(rows)
        for row in rows.tolist():
            if row in self.errors:
                raise self.errors[row].at()
        return put_places(entries, at, self._located.take(rows))

    def learn(self, row: int, place: Located) -> None:
        with self._lock:
            known = self._located
            known.slices.nbytes[row], known.start[row], known.checksum[row], known.plain[row] = (
                place
            )
            self._is_known[row] = True

    def fault_of(self, key: str) -> ShardvarError | None:
        if key in self.broken:
            return self.broken[key]
        rows = self.rows_of(key)
        return next((self.errors[row] for row in rows.tolist() if row in self.errors), None)

    def all_faults(self) -> dict[str, ShardvarError]:
        """Return the error of every unreadable key; payloads to be read whole are not looked at."""
        # The frames of keys that are refused already may lie anywhere, and none of them is read.
        good = np.array([key not in self.broken for key in self.slices.tensors.keys], np.bool)
        rows = np.flatnonzero(good[self.slices.tensor])
        if self.enclosed is not None and self._is_whole:
            rows = np.setdiff1d(rows, self.enclosed.rows)
        self._resolve(rows)
        return self._with_errors(self.errors)

    def rows_of(self, key: str) -> Ints:
        """Return the rows of a key, whose frames are read; none of an unknown or refused key."""
        if key in self.broken or key not in self._position():
            return np.zeros(0, np.int64)
        rows = self._rows_of(self._position()[key])
        self._resolve(rows)
        return rows

    def expect(self, keys: Iterable[str]) -> None:
        """Read the frames of some keys together; keys that are unknown or refused are left out."""
        position = self._position()
        tensors = [position[key] for key in keys if key in position and key not in self.broken]
        if tensors:
            self._resolve(np.unique(np.concatenate([self._rows_of(each) for each in tensors])))

    def _with_errors(self, errors: Mapping[int, ShardvarError]) -> dict[str, ShardvarError]:
        """Return the known faults, and errors of rows as faults of their keys."""
        faults = dict(self.broken)
        for row, error in sorted(errors.items()):
            faults.setdefault(self.slices.key(row), error)
        return faults

    def _of_keys(self, entries: EntryTable, faults: Mapping[str, ShardvarError]) -> EntryTable:
        keys = self.slices.tensors.keys
        good = np.array([key not in faults for key in keys], np.bool)
        return of_tensors(entries, np.flatnonzero(good))

    def _position(self) -> dict[str, int]:
        if not self._rows:
            self._rows.update(self.slices.tensors.rows())
        return self._rows

    def _rows_of(self, tensor: int) -> Ints:
        with self._lock:
            if self._bounds is None:
                self._bounds = self.slices.by_tensor()
        order, bounds = self._bounds
        return order[bounds[tensor] : bounds[tensor + 1]]

    def _resolve(self, rows: Ints) -> None:
        """Read the frames of rows that were not read yet."""
        with self._lock:
            left = rows[~self._is_known[rows]]
            if not len(left):
                return
            places = self.locate(left)
            self.errors |= {
                row: each for row, each in places.items() if isinstance(each, ShardvarError)
            }
            good = {row: each for row, each in places.items() if isinstance(each, Located)}
            if good:
                at = np.fromiter(good, np.int64, len(good))
                columns = np.fromiter(chain.from_iterable(good.values()), np.int64)
                nbytes, start, checksum, plain = columns.reshape(len(good), -1).T
                known = self._located
                known.slices.nbytes[at], known.start[at] = nbytes, start
                known.checksum[at], known.plain[at] = checksum, plain
            self._is_known[left] = True


@entity
class LateIndex:
    """An index whose keys are known, and that is read whole when anything else is asked for."""

    names: Sequence[str]
    """The keys, including unreadable ones."""
    files: Sequence[str]
    read: Callable[[], Index]

    @property
    def metadata(self) -> Metadata:
        return self.read().metadata

    @property
    def faults(self) -> Mapping[str, CheckpointError]:
        return self.read().faults

    def find(self, key: str) -> EntryTable:
        return self.read().find(key)

    def scan(self) -> Iterator[EntryTable]:
        yield from self.read().scan()


def outline_of(index: Index) -> Index:
    """Return an index that reads no payload files."""
    return index.outline if isinstance(index, DeferredIndex) else index


@runtime_checkable
class WholeIndex(Protocol):
    """An index that can give entries for whole reads (``formats.deferred``)."""

    def prefer_whole(self, is_whole: bool) -> None: ...

    def placed(self, entries: EntryTable) -> EntryTable: ...


def prefer_whole(index: Index, is_whole: bool = True) -> None:
    """Have ``scan`` and ``faults`` read no frame of payloads that are read whole later."""
    if isinstance(index, WholeIndex):
        index.prefer_whole(is_whole)


def placed(index: Index, entries: EntryTable) -> EntryTable:
    """Return entries of an index with places instead of addresses, for reads of parts."""
    return index.placed(entries) if isinstance(index, WholeIndex) else entries


def find_keys(index: Index, keys: Sequence[str]) -> EntryTable:
    """Return the entries of several keys; a ``DeferredIndex`` reads their frames together."""
    if isinstance(index, DeferredIndex):
        return index.find_all(keys)
    tables = []
    for key in keys:
        fault = index.faults.get(key)
        if fault is not None:
            raise fault.at()
        tables.append(index.find(key))
    return concatenate_entries(tables)

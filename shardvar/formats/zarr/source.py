"""The payloads of an open checkpoint of Zarr or Orbax.

A chunk is decoded whole, or if it consists of inner chunks, some rows of these at a time. What was
decoded last is kept, since the engine asks for blocks of it one after the other. The engine tells
which it will ask for next (``expect``): chunks without inner ones are decoded ahead, by
TensorStore's threads.

An absent chunk, for which the fill value stands, is not looked for again: the folder was listed
when the checkpoint was opened. One element of one such chunk is decoded, and repeated for all
absent chunks of its array, so that a chunk that is absent costs neither a file nor memory.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.formats.deferred import ADDRESSES
from shardvar.formats.files import DataFiles, FileSource, KeptValues
from shardvar.formats.protocol import Finding
from shardvar.formats.zarr.contents import ArrayContents, ChunkIndex, Chunks
from shardvar.formats.zarr.files import Tree, read_ranges
from shardvar.layout.dtypes import Array, Ints, numpy_dtype
from shardvar.planning.index import EntryTable
from shardvar.records import entity, field, frozen, mutable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import corrupt, decoding, malformed

# TensorStore, which decodes chunks: only this module imports it, when the first chunk is
# decoded.
#
# On a disk it reads the files of chunks itself. Of a bucket, and of a database, it is given the bytes
# of each chunk (``StoredChunk``), in a storage in memory that has nothing else.
#
# TensorStore ends the process when it is asked for more memory than there is. So it is given only
# descriptions that ``wire.zarr_metadata`` has checked, and only arrays whose claims ``contents`` has
# compared with the bytes that are stored. It does not read chunks that are absent, unless told that
# the fill value stands for them.
#
# Its threads do not survive a fork. A child of a process that has used it is refused.

_OPEN_ARRAYS = 256
"""Arrays that are held open at a time."""

_lock = new_lock()
_loaded: dict[str, Any] = {}
"""The module, and the process that imported it."""
_POOLS = {"cache_pool": {"total_bytes_limit": 0}}
"""No chunk is kept."""


def _tensorstore() -> Any:
    with _lock:
        if not _loaded:
            try:
                import tensorstore
            except ImportError:
                cause = "Reading compressed chunks needs the package tensorstore, which is not installed."
                raise missing_extra(cause, "orbax") from None
            _loaded.update(module=tensorstore, process=os.getpid())
        if _loaded["process"] != os.getpid():
            cause = (
                "This process was forked from one that has read chunks, whose threads it does not "
                "have."
            )
            raise UnsupportedError(
                cause, "Start it with multiprocessing's method 'spawn', or read before the fork."
            )
        return _loaded["module"]


@frozen
class StoredChunk:
    """The bytes of a chunk, for TensorStore."""

    array: Any  # with no other chunk


@frozen
class Decoder:
    storage: Storage
    takes_bytes: bool
    """True if it is given the bytes of chunks, and reads no file itself."""
    _arrays: dict[str, Any]
    """The arrays that are open, by path."""
    _contexts: list[Any]
    """The caches, as the only item, once something was read."""

    @classmethod
    def of(cls, storage: Storage, has_files: bool = True) -> "Decoder":
        """Return the decoder of a folder; nothing is imported or opened."""
        return cls(storage, not has_files or storage.local_path is None, {}, [])

    def take(
        self, path: str, name: str, document: Mapping[str, Any], fills: bool, octets: memoryview
    ) -> StoredChunk:
        """Return a chunk of an array from its bytes."""
        module = _tensorstore()
        with _translating(f"{path}/{name}"):
            context = module.Context(_POOLS)
            place = {"driver": "memory", "path": f"{path}/" if path else ""}
            store = module.KvStore.open(place, context=context).result()
            held = octets.obj  # a copy of a large chunk would take long
            is_whole = type(held) is bytes and len(held) == len(octets)
            store[name.encode()] = held if is_whole else bytes(octets)
            return StoredChunk(_open(document, place, fills, context))

    def start_reading(
        self,
        path: str,
        document: Mapping[str, Any],
        fills: bool,
        region: tuple[slice, ...],
        chunk: StoredChunk | None,
    ) -> Any:
        """Begin to decode a region of an array, which ``chunk`` has, or a file in the folder."""
        with _translating(path):
            array = self._array(path, document, fills) if chunk is None else chunk.array
            return array[region].read(order="C")

    def finish_reading(self, path: str, pending: Any) -> memoryview:
        with _translating(path):
            array: Array = np.ascontiguousarray(pending.result())
        return array.reshape(-1).view(np.uint8).data

    def fill_value(self, path: str, document: Mapping[str, Any]) -> bytes:
        """Return the element that stands for absent chunks of an array; no file is looked at."""
        with _translating(path):
            empty = _open(document, {"driver": "memory"}, fills=True)
            element: bytes = empty[(0,) * empty.rank].read().result().tobytes()
        return element

    def _array(self, path: str, document: Mapping[str, Any], fills: bool) -> Any:
        with _lock:
            array = self._arrays.get(path)
            if array is None:
                # TensorStore takes paths that are absolute and free of links that lead up.
                folder = os.path.realpath(self.storage.local_path or "") + "/"
                place = {"driver": "file", "path": f"{folder}{path}/" if path else folder}
                if not self._contexts:
                    self._contexts.append(_tensorstore().Context(_POOLS))
                array = _open(document, place, fills, self._contexts[0])
                if len(self._arrays) >= _OPEN_ARRAYS:
                    self._arrays.clear()
                self._arrays[path] = array
            return array


def _open(
    document: Mapping[str, Any], place: Mapping[str, Any], fills: bool, context: Any = None
) -> Any:
    """Return an array that TensorStore opens without a look at its description."""
    spec = {
        "driver": "zarr3" if document["zarr_format"] == 3 else "zarr",
        "kvstore": dict(place),
        "metadata": dict(document),
        "fill_missing_data_reads": fills,
    }
    flags = {"open": True, "assume_metadata": True, "read": True}
    return _tensorstore().open(spec, context=context, **flags).result()


def _translating(place: str) -> decoding:
    return decoding(lambda error: _translated(error, place), Exception)


def _translated(error: Exception, place: str) -> ShardvarError:
    # The message goes on with the whole specification, and the source lines of the library.
    text = re.split(r" \[(?:tensorstore_spec|source)", str(error))[0].replace("\n", " ")
    cause = f"{place}: {text[:500]}."
    # The status is the first word; the rest may have names of arrays in it.
    status = text.partition(":")[0]
    if isinstance(error, PermissionError) or status == "PERMISSION_DENIED":
        return StorageError(cause, "Change the permissions of the files.")
    if "Digest mismatch" in text or "checksum verification failed" in text:
        return corrupt(cause)
    is_short = ": Truncated " in text or "Not enough data" in text
    if status in ("NOT_FOUND", "OUT_OF_RANGE") or is_short:
        return IncompleteCheckpoint(cause, "Copy the checkpoint again, with all its folders.")
    return malformed(cause)


Band = tuple[int, int, int]
"""The number of an entry, and the range of its rows that is decoded at once."""

_MOST_NBYTES = 1 << 26
"""Bytes that are pending, unless one band is larger."""
_MOST_BANDS = 64
"""Bands that are pending, however small they are."""
_MOST_BATCHED = 1 << 12
"""The same where they are begun together."""


def start_each(start: Callable[[Band], Any], bands: Sequence[Band]) -> list[Any]:
    """Return ``start`` of each band, or its error: another key's, raised when that is asked for."""
    begun: list[Any] = []
    for band in bands:
        try:
            begun.append(start(band))
        except Exception as error:  # noqa: BLE001
            begun.append(error)
    return begun


# Decoding ahead: the next bands are decoded while the caller works with the last one.
#
#     expected   a b c d e f g h
#                ^ ^     ^
#                | |     begun: d is the first that is not begun, since a, b and c fill the room that
#                        there is
#                | b and c are pending
#                a was asked for last
#
# An error of what was begun is kept, and raised when it is asked for.
#
# Where the bytes come from a bucket (``is_batched``), as many bands as there is room for are begun
# together, once none is pending: their ranges of files are read in joined requests.


@mutable
class Ahead:
    """Bands in the order in which they will be asked for; safe to use from several threads."""

    start: Callable[[Sequence[Band]], list[Any]]
    """Begins to decode bands; returns a pending read of each, or its error."""
    is_batched: bool = False
    """True if bands are begun together."""
    _bands: Sequence[tuple[Band, int]] = ()
    _position: dict[Band, int] = field(default_factory=dict)
    _pending: "OrderedDict[int, Any]" = field(default_factory=OrderedDict)
    _begun: int = 0
    _nbytes: int = 0
    _lock: Any = field(default_factory=new_lock)

    def expect(self, bands: Sequence[tuple[Band, int]]) -> None:
        """Set the bands that will be asked for, each with its bytes."""
        with self._lock:
            self._bands, self._begun, self._nbytes = bands, 0, 0
            self._position = {band: position for position, (band, _) in enumerate(bands)}
            self._pending.clear()

    def take(self, band: Band) -> Any:
        """Return the read that was begun of a band, or begin it, and then the next ones."""
        with self._lock:
            at = self._position.get(band, -1)
            # Bands before it that were not asked for are given up.
            while self._pending and (first := next(iter(self._pending))) < at:
                self._drop(first)
            if at >= self._begun:
                self._begin(at)
            is_pending = at in self._pending
            begun = self._drop(at) if is_pending else None
            if is_pending and not self.is_batched:
                self._begin(self._begun)
        if not is_pending:
            [begun] = self.start([band])
        if isinstance(begun, Exception):
            raise begun
        return begun

    def _drop(self, position: int) -> Any:
        self._nbytes -= self._bands[position][1]
        return self._pending.pop(position)

    def _begin(self, first: int) -> None:
        """Begin the bands from one on that there is room for; the first if nothing is pending."""
        most, at, nbytes = _MOST_BATCHED if self.is_batched else _MOST_BANDS, first, self._nbytes
        while at < len(self._bands) and len(self._pending) + at - first < most:
            nbytes += self._bands[at][1]
            if (self._pending or at > first) and nbytes > _MOST_NBYTES:
                break
            at += 1
        if at > first:
            begun = self.start([band for band, _ in self._bands[first:at]])
            self._pending.update(zip(range(first, at), begun, strict=True))
            self._nbytes += sum(size for _, size in self._bands[first:at])
            self._begun = at


_BAND_NBYTES = 1 << 23
"""Bytes that are decoded at once of a chunk that consists of inner chunks."""
_PAGE_NBYTES = 4096
"""Bytes of fill values that are copied at once: a multiple of the size of any element."""
_KEPT_BANDS = 2
"""Bands that are kept once they were asked for, and chunks with inner ones whose bytes are held."""


@entity
class ZarrSource(FileSource):
    index: ChunkIndex = field()
    """The table of contents; ``start`` of an entry that is not plain is its number."""
    data: DataFiles = field()
    contents: ArrayContents
    decoder: Decoder
    tree: Tree
    _decoded: KeptValues[Band, memoryview] = field(default_factory=partial(KeptValues, _KEPT_BANDS))
    """The bytes of the bands that were read last."""
    _pages: dict[str, bytes] = field(default_factory=dict)
    """Two pages of fill values of each array that has absent chunks and was read, by key."""
    _whole: "OrderedDict[int, StoredChunk]" = field(default_factory=OrderedDict)
    """The chunks with inner ones whose bytes are held."""
    _ahead: Ahead = field(init=False)
    _lock: Any = field(default_factory=new_lock)

    def __post_init__(self) -> None:
        is_batched = self.decoder.takes_bytes and self.traits is not None
        object.__setattr__(self, "_ahead", Ahead(self._start, is_batched))
        self.index.data.append(self.data)

    crc = CRC32C  # of chunks that are read in place; the decoder compares the others'

    @property
    def bare_index(self) -> str:
        return "the JSON of the arrays"

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        number = int(entries.start[row])
        if entries.plain[row]:
            self.read_span(int(entries.file[row]), number + start, buffer)
            return
        held = self.contents.held(number)
        if held is not None:
            buffer[:] = held[start : start + len(buffer)]
            return
        if self.contents.is_absent[number]:
            self._fill(self.contents.array_of(number)[0], start, buffer)
            return
        row_nbytes, band_rows = self._bands(number)
        filled = 0
        while filled < len(buffer):
            # A payload is a sequence of rows, and a band some of them.
            first = (start + filled) // row_nbytes // band_rows * band_rows
            place = number, first, first + band_rows
            band = self._decoded.get(place, partial(self._finish, place))
            part = band[start + filled - first * row_nbytes :][: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            filled += len(part)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        if start >= ADDRESSES:
            self.index.enclosed.read_span(file, start, buffer)
        else:
            FileSource.read_span(self, file, start, buffer)

    def close(self) -> None:
        self._decoded.clear()
        with self._lock:
            self._whole.clear()
        self._ahead.expect(())
        self.data.close()

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        numbers = entries.start[rows[~entries.plain[rows]]]
        is_read = self.contents.is_absent[numbers] | self.contents.is_held[numbers]
        bands = [(number, *self._bands(number)) for number in numbers[~is_read].tolist()]
        # Of chunks with inner ones, a part may be wanted.
        whole = [each for each in bands if each[2] == self._rows(each[0])]
        self._ahead.expect(
            [((number, 0, rows), row_nbytes * rows) for number, row_nbytes, rows in whole]
        )

    def decode(self, entries: EntryTable, row: int) -> memoryview:
        number, rows = int(entries.start[row]), 0
        if self.contents.held(number) is None and not self.contents.is_absent[number]:
            row_nbytes, rows = self._bands(number)
            if rows == self._rows(number) and row_nbytes:
                return self._finish((number, 0, rows))
        payload = memoryview(bytearray(int(entries.slices.nbytes[row])))
        self.read_into(entries, row, 0, payload)
        return payload

    def findings(self) -> Sequence[Finding]:
        return self.contents.findings

    def is_guarded(self, key: str) -> bool:
        return self.contents.is_guarded(key)

    def _fill(self, chunks: Chunks, start: int, buffer: memoryview) -> None:
        key = chunks.description.key
        with self._lock:
            page = self._pages.get(key)
        if page is None:
            with prefix_errors(f"{key!r}"):
                value = self.decoder.fill_value(chunks.description.path, chunks.metadata.document)
            # Twice, so that a page of values can begin at any byte of a value.
            page = value * (2 * _PAGE_NBYTES // len(value))
            with self._lock:
                self._pages[key] = page
        skip = start % numpy_dtype(chunks.metadata.dtype).itemsize
        whole = len(buffer) // _PAGE_NBYTES * _PAGE_NBYTES
        if whole:
            pages = np.frombuffer(buffer[:whole], np.uint8).reshape(-1, _PAGE_NBYTES)
            pages[:] = np.frombuffer(page, np.uint8, _PAGE_NBYTES, skip)
        buffer[whole:] = page[skip : skip + len(buffer) - whole]

    def _bands(self, number: int) -> tuple[int, int]:
        """Return the bytes of a row of an entry, and the rows of its bands."""
        chunks, chunk = self.contents.array_of(number)
        shape, metadata = chunks.shape[chunk], chunks.metadata
        row_nbytes = int(shape[1:].prod()) * numpy_dtype(metadata.dtype).itemsize
        rows = self._rows(number)
        inner = metadata.inner_shape[0] if metadata.inner_shape else 1
        # Inner chunks lie on a grid that begins with the chunk, so that no band cuts one. Rows may
        # have no bytes.
        return row_nbytes, min(max(_BAND_NBYTES // max(row_nbytes * inner, 1), 1) * inner, rows)

    def _rows(self, number: int) -> int:
        """Return the rows of an entry; a scalar has one."""
        chunks, chunk = self.contents.array_of(number)
        return int(chunks.shape[chunk, 0]) if chunks.metadata.shape else 1

    def _finish(self, band: Band) -> memoryview:
        description = self.contents.array_of(band[0])[0].description
        with prefix_errors(f"{description.key!r}"):
            try:
                return self.decoder.finish_reading(description.path, self._ahead.take(band))
            finally:
                # The decoder opens files by their paths: it has read the checkpoint if the file is
                # still the listed one. That it is not explains an error.
                if self.traits is None:
                    self.tree.check(self.data.names[int(self.index.entries.file[band[0]])])

    def _start(self, bands: Sequence[Band]) -> list[Any]:
        stored: dict[int, memoryview | CheckpointError] = {}
        if self.decoder.takes_bytes:
            with self._lock:
                whole = {*self._whole}
            stored = self._read_stored({band[0] for band in bands} - whole)
        return start_each(lambda band: self._start_one(band, stored.pop(band[0], None)), bands)

    def _start_one(self, band: Band, stored: memoryview | CheckpointError | None) -> Any:
        """Begin to decode a band; raise the error of its file, if one is known."""
        number, first, last = band
        if (error := self.index.errors.get(number)) is not None:
            raise error
        if isinstance(stored, CheckpointError):
            raise stored
        chunks, chunk = self.contents.array_of(number)
        begin, stop = chunks.offset[chunk].copy(), chunks.offset[chunk] + chunks.shape[chunk]
        if len(begin):
            stop[0] = min(stop[0], begin[0] + last)
            begin[0] += first
        region = tuple(slice(*ends) for ends in zip(begin.tolist(), stop.tolist(), strict=True))
        # Inner chunks may be absent from a chunk that is stored, so that the decoder has to know
        # the rule.
        path, document = chunks.description.path, chunks.metadata.document
        taken = None
        if self.decoder.takes_bytes:
            taken = self._taken(number, chunks, chunk, stored)
        return self.decoder.start_reading(path, document, self.contents.fills, region, taken)

    def _taken(
        self, number: int, chunks: Chunks, chunk: int, stored: memoryview | None
    ) -> StoredChunk:
        """Return a chunk for the decoder; one with inner ones is held."""
        with self._lock:
            found = self._whole.get(number)
        if found is None:
            if stored is None:  # it was dropped since
                [stored] = self._ranges([number])
            metadata, path = chunks.metadata, chunks.description.path
            name, fills = chunks.names[chunk], self.contents.fills
            found = self.decoder.take(path, name, metadata.document, fills, stored)
            if metadata.is_sharded:
                with self._lock:
                    self._whole[number] = found
                    while len(self._whole) > _KEPT_BANDS:
                        self._whole.popitem(last=False)
        return found

    def _read_stored(self, numbers: Collection[int]) -> dict[int, memoryview | CheckpointError]:
        """Return the stored bytes of chunks, or their errors."""
        rows = sorted(numbers)
        try:
            return dict(zip(rows, self._ranges(rows), strict=True))
        except CheckpointError as error:
            if len(rows) == 1:
                return {rows[0]: error}
        # One at a time: the file of one of them is damaged, which the others do not have.
        return {row: found for each in rows for row, found in self._read_stored([each]).items()}

    def _ranges(self, numbers: Sequence[int]) -> list[memoryview]:
        held = {number: self.contents.stored(number) for number in numbers}
        found = {number: octets for number, octets in held.items() if octets is not None}
        rows = np.array([number for number in numbers if number not in found], np.int64)
        start, nbytes = self.contents.ranges[rows].T
        read = read_ranges(self.data, self.index.entries.file[rows], start, nbytes)
        found.update(zip(rows.tolist(), read, strict=True))
        return [found[number] for number in numbers]

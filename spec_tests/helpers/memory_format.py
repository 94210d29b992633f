"""A format in memory, of the tests' own: payloads as bytes in named bytearrays, guarded by CRC32C,
checked as asked.

It shows what the protocol demands of a format and nothing else, and can do what no real one does at
once: checksums of runs or none at all, entries that must be decoded, gaps between payloads, reads
that are counted and reads that fail.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import array_source
from shardvar.engine.files import WriteSummary, file_tasks, write_checkpoint
from shardvar.engine.read import read_arrays
from shardvar.errors import CorruptCheckpoint, IncompleteCheckpoint, MissingFile
from shardvar.formats.protocol import FileChecksums, Sink, Source
from shardvar.layout.dtypes import dtype_name
from shardvar.planning.index import NO_CHECKSUM, EntryTable, RunChecksums, TableIndex
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import Assignment, SliceTable, TensorTable
from shardvar.wire.crc import CRC32C, Checksum

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

CODED = 0x5A
"""The mask XORed with the bytes of entries that are not plain."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A file, for reading and for writing."""

    name: str
    content: bytearray
    lock: Any

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def stamp(self) -> str:
        return f"{self.size}"

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        with self.lock:
            missing = start + len(buffer) - len(self.content)
            self.content.extend(bytes(max(missing, 0)))
            self.content[start : start + len(buffer)] = buffer

    def read(self, start: int, nbytes: int) -> bytes:
        if not 0 <= start <= start + nbytes <= self.size:
            raise IncompleteCheckpoint(f"{self.name} ends at {self.size}.")
        return bytes(self.content[start : start + nbytes])

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = self.read(start, len(buffer))

    def map(self) -> memoryview:
        return memoryview(bytes(self.content))

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class MemoryStorage:
    """Files by name."""

    files: dict[str, bytearray] = field(default_factory=dict)
    path: str = "memory"
    guard: Any = field(default_factory=threading.Lock)

    def open(self, name: str) -> MemoryFile:
        if name not in self.files:
            raise MissingFile(f"{name} is not there.")
        return MemoryFile(name, self.files[name], self.guard)

    def create(self, name: str) -> MemoryFile:
        self.files[name] = bytearray()
        return self.open(name)

    def names(self) -> list[str]:
        return sorted(self.files)

    def stamp(self, name: str) -> str | None:
        return self.open(name).stamp if name in self.files else None

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    move = rename

    @property
    def traits(self) -> None:
        return None

    def finish(self, name: str) -> None:
        pass

    def sync(self) -> None:
        pass

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def lock(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(slots=True)
class MemorySource(Source):
    """An open checkpoint; entries that are not plain are coded, and read in order or refused."""

    files: list[bytearray]
    index: TableIndex = field()
    crc: Checksum | None = field()
    own: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The checksums of payloads that the source checks by itself, by file, place and size."""
    nbytes_read: int = 0
    """Bytes that were asked for."""
    fail_after: int | None = None
    """The number of reads after which every one fails."""
    failure: Exception = field(default_factory=lambda: IncompleteCheckpoint("The disk is gone."))
    reads: list[tuple[tuple[int, int, int], int]] = field(default_factory=list)
    """(payload, first byte) of every read of a coded payload."""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        self.nbytes_read += len(buffer)
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise self.failure
        content = self.files[file]
        if start < 0 or start + len(buffer) > len(content):
            raise IncompleteCheckpoint(
                f"file {file} has {len(content)} bytes and no {start}:{start + len(buffer)}."
            )
        buffer[:] = memoryview(content)[start : start + len(buffer)]

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        file, begin, nbytes = (
            int(entries.file[row]),
            int(entries.start[row]),
            int(entries.slices.nbytes[row]),
        )
        if not 0 <= start <= start + len(buffer) <= nbytes:
            raise IncompleteCheckpoint(
                f"The payload has {nbytes} bytes and no {start}:{start + len(buffer)}."
            )
        self.read_span(file, begin + start, buffer)
        if entries.plain[row]:
            return
        self.reads.append(((file, begin, nbytes), start))
        octets = np.frombuffer(buffer, np.uint8)
        np.bitwise_xor(octets, CODED, out=octets)
        stored = bytes(self.files[file][begin : begin + nbytes])
        if (
            start + len(buffer) == nbytes
            and CRC32C.compute(stored) != self.own[file, begin, nbytes]
        ):
            raise CorruptCheckpoint(f"{entries.slices.key(row)!r} has another checksum.")

    def map(self, file: int) -> memoryview:
        return memoryview(bytes(self.files[file]))

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class MemoryWriter:
    """A frame of a few bytes before the payloads; strings have a checksum of another kind."""

    crc: Checksum | None = CRC32C
    run_nbytes: int = 0

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        return CRC32C.compute(payload, 0) ^ count ^ 0xFF

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        return [(0, f"{len(slices):7d}\n".encode())]


@dataclass(slots=True)
class MemorySink(Sink):
    """Places with odd gaps between them, and the entries once they are committed."""

    assignment: Assignment
    writer: MemoryWriter = field()
    gap: int = 3
    committed: list[FileChecksums] | None = None

    @property
    def asides(self) -> list[str]:
        return [f"data-{number}" for number in range(self.assignment.num_files)]

    @property
    def start(self) -> Ints:
        start = np.zeros(len(self.assignment.slices), np.int64)
        ends = [8] * self.assignment.num_files
        for row, (file, nbytes) in enumerate(
            zip(self.assignment.file.tolist(), self.assignment.slices.nbytes.tolist(), strict=True)
        ):
            start[row] = ends[file]
            ends[file] += nbytes + self.gap * (row % 2)
        return start

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        self.committed = list(checksums)

    def withdraw(self) -> None:
        """Nothing is in a place where it could be found."""


def checkpoint_of(
    arrays: dict[str, Array],
    slices: SliceTable,
    file: Ints,
    *,
    writer: MemoryWriter | None = None,
    coded: Callable[[str], bool] = lambda key: False,
    storage: MemoryStorage | None = None,
) -> MemorySource:
    """A checkpoint that holds the arrays in these slices, made by NumPy and the definition of a
    payload alone."""
    writer = writer or MemoryWriter()
    num_files = int(file.max(initial=-1)) + 1
    whole = array_source(TensorTable.of([(k, dtype_name(a.dtype), a.shape) for k, a in arrays.items()]).whole(),
                         list(arrays.values()))  # fmt: skip
    strings = {
        slices.tensors.keys[row]: len(p)
        for row, p in enumerate(whole.arrays)
        if isinstance(p, bytes)
    }
    nbytes = np.array([strings.get(slices.key(row), 0) for row in range(len(slices))], np.int64)
    slices = SliceTable.of(slices.tensors, slices.tensor, slices.offset, slices.shape, nbytes)
    sink = MemorySink(Assignment(slices, file, num_files), writer)
    files = [bytearray() for _ in range(num_files)]
    own: dict[tuple[int, int, int], int] = {}
    plain = np.ones(len(slices), np.bool)
    checksum = np.full(len(slices), NO_CHECKSUM)
    runs: list[int] = []
    first = np.zeros(len(slices), np.int64)
    for row in range(len(slices)):
        key, start = slices.key(row), int(sink.start[row])
        array = arrays[key]
        payload = whole.arrays[list(arrays).index(key)] if key in strings else None
        if not isinstance(payload, bytes):
            part = array[slices.region(row).slices]
            payload = part.astype(part.dtype.newbyteorder("<")).tobytes()
        stored = bytes(octet ^ CODED for octet in payload) if coded(key) else payload
        content = files[int(file[row])]
        content.extend(bytes(max(start + len(stored) - len(content), 0)))
        content[start : start + len(stored)] = stored
        first[row] = len(runs)
        if writer.run_nbytes:
            runs += [CRC32C.compute(payload[a : a + writer.run_nbytes])
                     for a in range(0, len(payload), writer.run_nbytes)]  # fmt: skip
        if coded(key):
            plain[row] = False
            own[int(file[row]), start, len(stored)] = CRC32C.compute(stored)
        elif writer.crc is not None:
            checksum[row] = CRC32C.compute(payload)
    table = (
        RunChecksums(writer.run_nbytes, np.array(runs, np.uint32), first)
        if writer.run_nbytes
        else None
    )
    entries = EntryTable(slices, file, sink.start, checksum, plain, table)
    names = [f"data-{number}" for number in range(num_files)]
    if storage is not None:
        storage.files.update(zip(names, files, strict=True))
    return MemorySource(files, TableIndex(entries, names), writer.crc, own)


def write(
    source: Source,
    entries: EntryTable,
    targets: SliceTable,
    file: Ints,
    writer: MemoryWriter,
    *,
    gap: int = 3,
    storage: MemoryStorage | None = None,
    resume: bool = False,
    generation: str = "g",
) -> tuple[MemorySource, WriteSummary, MemoryStorage]:
    """Reshard a source into a checkpoint in memory, by the engine."""
    storage = storage if storage is not None else MemoryStorage()
    assignment = Assignment(targets, file, int(file.max(initial=0)) + 1)
    sink = MemorySink(assignment, writer, gap)
    tasks = file_tasks(
        plan_copies(entries.slices, targets), entries, assignment, sink, storage, generation
    )
    written = write_checkpoint(tasks, source, sink, resume=resume)
    return committed(sink, storage), written, storage


def committed(sink: MemorySink, storage: MemoryStorage) -> MemorySource:
    """The checkpoint that a sink has committed, open."""
    assert sink.committed is not None
    assignment, targets = sink.assignment, sink.assignment.slices
    checksum = np.zeros(len(targets), np.int64)
    runs: dict[int, list[int]] = {}
    for number, found in enumerate(sink.committed):
        rows = np.flatnonzero(assignment.file == number)
        checksum[rows] = found.payload
        position = 0
        for row in rows.tolist() if sink.writer.run_nbytes else ():
            count = -(-int(targets.nbytes[row]) // sink.writer.run_nbytes)
            runs[row] = found.runs[position : position + count].tolist()
            position += count
        assert position == len(found.runs)
    is_string = np.array([targets.dtype(row) == "string" for row in range(len(targets))], np.bool)
    if not sink.writer.run_nbytes:
        check_whole(sink, storage, checksum, is_string)
        checksum[is_string] = NO_CHECKSUM
    if sink.writer.crc is None:
        checksum[:] = NO_CHECKSUM
    table = None
    if sink.writer.run_nbytes:
        values = [value for row in range(len(targets)) for value in runs[row]]
        sizes = [len(runs[row]) for row in range(len(targets))]
        first = np.cumsum([0, *sizes])[:-1].astype(np.int64)
        table = RunChecksums(sink.writer.run_nbytes, np.array(values, np.uint32), first)
    plain = np.ones(len(targets), np.bool)
    entries = EntryTable(targets, assignment.file, sink.start, checksum, plain, table)
    files = [storage.files[name] for name in sink.asides]
    return MemorySource(files, TableIndex(entries, sink.asides), sink.writer.crc)


def check_whole(
    sink: MemorySink, storage: MemoryStorage, checksum: Ints, rows: npt.NDArray[np.bool]
) -> None:
    """The checksums of strings are those that ``checksum_whole`` gives."""
    slices = sink.assignment.slices
    for row in np.flatnonzero(rows).tolist() if sink.writer.crc is not None else ():
        start, nbytes = int(sink.start[row]), int(slices.nbytes[row])
        payload = memoryview(storage.files[sink.asides[int(sink.assignment.file[row])]])[
            start : start + nbytes
        ]
        assert checksum[row] == sink.writer.checksum_whole(
            "string", slices.region(row).size, payload
        )
        payload.release()


def load(source: MemorySource, targets: SliceTable | None = None) -> list[Array]:
    """Targets as arrays, by the engine; the whole tensors where none are named."""
    entries = source.index.entries
    targets = targets if targets is not None else entries.slices.tensors.whole()
    return read_arrays(plan_copies(entries.slices, targets), source, entries)


def payloads(source: MemorySource) -> Iterator[tuple[int, int, int]]:
    """(row, file, place) of every byte of every payload."""
    entries = source.index.entries
    for row in range(len(entries)):
        start = int(entries.start[row])
        for place in range(start, start + int(entries.slices.nbytes[row])):
            yield row, int(entries.file[row]), place

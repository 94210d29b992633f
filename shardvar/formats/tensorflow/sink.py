"""Writing a tensor bundle that TensorFlow restores.

Payloads follow each other in the order of the assignment, without gaps, as TensorFlow writes them.
For the same entries, the index has the same bytes as TensorFlow's.

The names of data files are fixed apart from the count in them, and the index gives the right count.
So a checkpoint is overwritten with a count that is not in use: the new files lie next to the old
ones until the new index is renamed over the old index. In that one step the new checkpoint replaces
the old one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import check_written, put_in_place, remove_unnamed, write_file
from shardvar.formats.objects import document_of
from shardvar.formats.protocol import FileChecksums, FileWriter, WrittenFiles
from shardvar.formats.sinks import FileSink, temporary_files
from shardvar.formats.tensorflow.contents import HEADER_KEY, slice_key
from shardvar.formats.tensorflow.names import (
    bundle_index_name,
    check_readable,
    data_files,
    data_name,
)
from shardvar.formats.tensorflow.protos import (
    ENUMS,
    encode_head,
    encode_header,
    encode_place,
    encode_slices,
)
from shardvar.formats.unfinished import share_files, share_prefix
from shardvar.layout.dtypes import NAMES, STRING, VARIANT, Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import OBJECTS, Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.sstable import encode_table


@dataclass(frozen=True, slots=True)
class BundleWriter(FileWriter):
    """The checksums of a data file; its payloads have no frame."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the payload of ``count`` strings or variants."""
        if dtype == STRING and len(payload):
            return strings.bundle_checksum(payload, count)
        return (
            strings.variant_checksum(payload, count)
            if dtype == VARIANT
            else CRC32C.compute(payload)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BundleSink(FileSink):
    """A tensor bundle that is being written."""

    storage: Storage = field()
    """The directory for the files."""
    prefix: str
    """The prefix of the files."""
    assignment: Assignment
    """The slices, and the file of each."""
    keys: list[bytes]
    """[n] the tensors' names as they are stored."""
    asides: Sequence[str] = field()
    """The temporary name of each data file."""
    index_aside: str
    """The temporary name of the index."""
    start: Ints = field()
    """[m] the first byte of each payload, in bytes of its file."""
    writer: BundleWriter = BundleWriter()
    """The checksums of each file."""
    generation: str = ""
    """The generation that the index keeps."""
    objects: bytes = b""
    """The payload of the document of the objects, which has a separate file; empty without objects."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove what it does not name."""
        # Plan: names that are free, and the index, whole, in memory. Checksums come file by file,
        # and within a file in the order of the assignment: the order of a stable sort by file.
        names = self.storage.names()
        num_files = self.assignment.num_files + bool(self.objects)
        count = _free_count(self.prefix, num_files, names)
        crc = np.zeros(len(self.assignment.file), np.int64)
        crc[np.argsort(self.assignment.file, kind="stable")] = np.concatenate(
            [np.zeros(0, np.int64), *(file.payload for file in checksums)]
        )
        finals = [data_name(self.prefix, number, count) for number in range(num_files)]
        if self.objects:
            write_file(self.storage, self._objects_aside, self.objects)
        renames = list(zip([*self.asides, self._objects_aside], finals, strict=False))
        index = encode_table(
            [
                (HEADER_KEY, encode_header(count, self.generation)),
                *sorted([*self._entries(crc), *self._objects_entry()]),
            ]
        )
        # Commit, then remove: until the rename of the index, the old one names the old files.
        last = self.index_aside, bundle_index_name(self.prefix)
        put_in_place(self.storage, renames, last, index, tidy=lambda: self._tidy(finals))

    @property
    def temporary(self) -> Sequence[str]:
        """The temporary names of all files, the index included."""
        return [*self.asides, self._objects_aside, self.index_aside]

    @property
    def _objects_aside(self) -> str:
        return f"{self.index_aside.removesuffix('.tmp')}o.tmp"

    def _objects_entry(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entry of the objects, a string tensor without axes, if there are any."""
        if self.objects:
            crc = mask(strings.bundle_checksum(self.objects, 1))
            place = encode_place(self.assignment.num_files, 0, len(self.objects), crc)
            yield OBJECTS.encode(), encode_head(ENUMS[STRING], ()) + place

    def _tidy(self, finals: Sequence[str]) -> None:
        remove_unnamed(self.storage, lambda names: unnamed_files(self.prefix, names, finals))

    def _entries(self, crc: Ints) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the index, not yet sorted."""
        slices = self.assignment.slices
        tensors = slices.tensors
        # The rows of tensor t are rows[bounds[t] : bounds[t + 1]].
        order, ends = slices.by_tensor()
        bounds = ends.tolist()
        whole = slices.is_whole().tolist()
        dtypes = [ENUMS[tensors.dtype(row)] for row in range(len(tensors))]
        # Few combinations of dtype and shape occur in a model, so their encoding is cached.
        heads: dict[tuple[int, tuple[int, ...]], bytes] = {}
        columns = (self.assignment.file, self.start, slices.nbytes, mask(crc.astype(np.uint32)))
        places = [
            encode_place(*place)
            for place in zip(*(column.tolist() for column in columns), strict=True)
        ]
        rows = order.tolist()
        for tensor, key in enumerate(self.keys):
            mine = rows[bounds[tensor] : bounds[tensor + 1]]
            shape = tensors.shape(tensor)
            if (dtypes[tensor], shape) not in heads:
                heads[dtypes[tensor], shape] = encode_head(dtypes[tensor], shape)
            head = heads[dtypes[tensor], shape]
            if len(mine) == 1 and whole[mine[0]]:
                yield key, head + places[mine[0]]
            elif mine:
                yield from self._sliced(key, dtypes[tensor], head, mine, places)

    def _sliced(
        self, key: bytes, dtype: int, head: bytes, rows: list[int], places: list[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The full entry of a tensor, and the entries of its slices (``contents``)."""
        slices = self.assignment.slices
        rank = int(slices.tensors.ranks[slices.tensor[rows[0]]])
        shapes = slices.shape[rows, :rank].tolist()
        starts = slices.offset[rows, :rank].tolist()
        extents = [
            tuple(zip(start, shape, strict=True))
            for start, shape in zip(starts, shapes, strict=True)
        ]
        # The full entry has the file of its first slice, as TensorFlow's merge leaves it; readers
        # ignore it.
        place = encode_place(int(self.assignment.file[rows[0]]), 0, 0, 0)
        yield key, head + place + encode_slices(extents)
        for row, shape, extent in zip(rows, shapes, extents, strict=True):
            yield slice_key(key, extent), encode_head(dtype, shape) + places[row]


def plan_bundle(
    storage: Storage,
    prefix: str,
    assignment: Assignment,
    metadata: Metadata,
    capabilities: Capabilities,
    generation: str,
) -> BundleSink:
    """Lay the assigned slices out; ``UnsupportedError`` if TensorFlow could not read them back."""
    check_readable(prefix)
    check_holds(assignment.slices, capabilities, "tensorflow")
    _check_cuts(assignment.slices, capabilities)
    keys = [_encode_key(key) for key in assignment.slices.tensors.keys]
    asides = [
        f"{prefix}.data-{number:05}.{generation}.tmp" for number in range(assignment.num_files)
    ]
    return BundleSink(
        storage,
        prefix,
        assignment,
        keys,
        asides,
        f"{prefix}.index.{generation}.tmp",
        _starts(assignment),
        objects=_payload(document_of(metadata, assignment.slices.tensors.keys)),
    )


def _payload(text: str) -> bytes:
    """Return the payload of a text as a string tensor without axes; empty for an empty text."""
    return strings.encode(np.array(text.encode("ascii"), object)) if text else b""


def adopt_bundle(
    storage: Storage,
    prefix: str,
    assignment: Assignment,
    metadata: Metadata,
    capabilities: Capabilities,
    files: WrittenFiles,
) -> BundleSink:
    """Return the sink of data files that are written already, numbered as the assignment says."""
    written = check_written(storage, [[each] for each in files.names], files.nbytes)
    planned = plan_bundle(storage, prefix, assignment, metadata, capabilities, metadata.generation)
    return replace(planned, asides=written, start=files.start, generation=metadata.generation)


def _starts(assignment: Assignment) -> Ints:
    """Return [m] the first byte of each payload in its file: after the payloads before it."""
    # Sorted by file, payloads of 10, 20 and 5 bytes in the files 0, 0, 1 have before = [0, 10, 30].
    # The first payload of file 1 is at position 2, so 30 is subtracted in that file: [0, 10, 0].
    order = np.argsort(assignment.file, kind="stable")
    nbytes = assignment.slices.nbytes[order]
    before = np.cumsum(nbytes) - nbytes
    _, first, file = np.unique(assignment.file[order], return_index=True, return_inverse=True)
    start = np.zeros(len(order), np.int64)
    start[order] = before - before[first][file]
    return start


def _check_cuts(slices: SliceTable, capabilities: Capabilities) -> None:
    """Raise ``UnsupportedError`` for slices that TensorFlow could not join again."""
    held = np.array([name in capabilities.slice_dtypes for name in NAMES])
    refused = ~held[slices.codes()] | (
        slices.tensors.ranks[slices.tensor] > capabilities.max_slice_rank
    )
    refused |= (slices.shape == 0).any(axis=1)
    for row in np.flatnonzero(refused & ~slices.is_whole()).tolist():
        raise UnsupportedError(
            f"TensorFlow cannot read the slice {slices.region(row)} of {slices.key(row)!r} "
            f"({slices.dtype(row)}) back.",
            "Write the tensor whole.",
        )


def _encode_key(key: str) -> bytes:
    """Return a name as it is stored; an empty one is the header's, and names with a zero byte first
    are slices'."""
    try:
        encoded = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"{key!r} cannot be encoded as a name.", "Rename the tensor."
        ) from error
    if encoded[:1] in (b"", b"\x00"):
        raise UnsupportedError(f"{key!r} is a name that TensorFlow reserves.", "Rename the tensor.")
    return encoded


def _free_count(prefix: str, num_files: int, names: list[str]) -> int:
    """Return the count in the names of the data files: their number, or the next unused."""
    count = max(num_files, 1)
    taken = (
        {count for _, count in data_files(prefix, names)}
        if bundle_index_name(prefix) in names
        else set()
    )
    while count in taken:
        count += 1
    return count


def unnamed_files(prefix: str, names: Sequence[str], finals: Sequence[str]) -> list[str]:
    """Return data files outside the index, and dead writers' temporary files."""
    old = {name for name, _ in data_files(prefix, names)}.difference(finals)
    asides = temporary_files(re.escape(prefix) + r"\.(?:data-\d{5,}|index)", names)
    return [*old, *asides, *share_files(names, share_prefix(prefix, "tensorflow"))]

"""TensorFlow's V2 checkpoints, called tensor bundles, read and written without TensorFlow.

names       file names, and what a person may type for a checkpoint
contents    the index: its messages, and its entries, which are tensors and slices
source      the table of contents with its laws checked, and the payloads
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import FileChecksums, FileWriter, NewCheckpoint, SharedFormat
from shardvar.formats.sinks import CommitSteps, SetSink, aside_names, take_away, temporary_files
from shardvar.formats.tensorflow.contents import (
    ENUMS,
    HEADER_KEY,
    encode_head,
    encode_header,
    encode_place,
    encode_slices,
    slice_key,
)
from shardvar.formats.tensorflow.names import (
    bundle_index_name,
    check_readable,
    data_files,
    data_name,
    find_bundles,
)
from shardvar.formats.tensorflow.source import BundleSource, open_bundle
from shardvar.formats.unfinished import share_files, share_prefix
from shardvar.layout.dtypes import NAMES, STRING, VARIANT, Ints
from shardvar.planning.index import OBJECTS
from shardvar.planning.slices import Capabilities, check_holds
from shardvar.records import frozen_dataclass
from shardvar.storage.protocol import Storage
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.sstable import encode_table

SLICE_DTYPES = frozenset(
    "float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128 bfloat16 qint8 quint8 "
    "qint32 "
    "int4 uint4".split()
)
"""The dtypes whose slices TensorFlow joins when it reads them (HANDLE_COPY in tensor_bundle.cc)."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(ENUMS),
    slice_dtypes=SLICE_DTYPES,
    max_slice_rank=8,  # kTensorSliceMaxRank: TensorFlow aborts when it reads more axes
    holds_objects=True,
    guards_metadata=True,
    holds_texts=False,
    objects_in_tensor=True,
)


# Writing a tensor bundle that TensorFlow restores.
#
# Payloads follow each other in the order of the assignment, without gaps, as TensorFlow writes them.
# For the same entries, the index has the same bytes as TensorFlow's.
#
# The names of data files are fixed apart from the count in them, and the index gives the right count.
# So a checkpoint is overwritten with a count that is not in use: the new files lie next to the old
# ones until the new index is renamed over the old index. In that one step the new checkpoint replaces
# the old one.


@frozen_dataclass
class BundleWriter(FileWriter):
    """The checksums of a data file; its payloads have no frame."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        if dtype == STRING and len(payload):
            return strings.bundle_checksum(payload, count)
        return (
            strings.variant_checksum(payload, count)
            if dtype == VARIANT
            else CRC32C.compute(payload)
        )


@frozen_dataclass(eq=False, kw_only=True)
class BundleSink(SetSink):
    keys: list[bytes]  # [n] the tensors' names as they are stored

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        prefix, crc = self.new.name, self.by_row(checksums)
        num_files = self.new.assignment.num_files + bool(self.objects)
        # The count in the names of the data files: their number, or the next that is unused.
        count, has_index = max(num_files, 1), bundle_index_name(prefix) in there
        taken = {count for _, count in data_files(prefix, there)} if has_index else set()
        while count in taken:
            count += 1
        finals = [data_name(prefix, number, count) for number in range(num_files)]
        asides = [*self.asides, *(self.objects or ())[:1]]
        entries = [*self._entries(crc)]
        if self.objects:
            payload = self.objects[1]
            checksum = mask(strings.bundle_checksum(payload, 1))
            place = encode_place(self.new.assignment.num_files, 0, len(payload), checksum)
            entries.append((OBJECTS.encode(), encode_head(ENUMS[STRING], ()) + place))
        index = encode_table([(HEADER_KEY, encode_header(count, self.new.run)), *sorted(entries)])
        tidy = self.sweep(lambda names: unnamed_files(prefix, names, finals))
        renames = list(zip(asides, finals, strict=True))
        return CommitSteps(renames, (self.index_aside, bundle_index_name(prefix)), index, tidy)

    def _entries(self, crc: Ints) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of the index, not yet sorted."""
        slices = self.new.assignment.slices
        tensors = slices.tensors
        # The rows of tensor t are rows[bounds[t] : bounds[t + 1]].
        order, ends = slices.by_tensor()
        bounds = ends.tolist()
        whole = slices.is_whole().tolist()
        dtypes = [ENUMS[tensors.dtype(row)] for row in range(len(tensors))]
        # Few combinations of dtype and shape occur in a model, so their encoding is cached.
        heads: dict[tuple[int, tuple[int, ...]], bytes] = {}
        columns = (self.new.assignment.file, self.start, slices.nbytes, mask(crc.astype(np.uint32)))
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
        """Yield the full entry of a tensor, and the entries of its slices (``contents``)."""
        slices = self.new.assignment.slices
        rank = int(slices.tensors.ranks[slices.tensor[rows[0]]])
        shapes = slices.shape[rows, :rank].tolist()
        starts = slices.offset[rows, :rank].tolist()
        extents = [
            tuple(zip(start, shape, strict=True))
            for start, shape in zip(starts, shapes, strict=True)
        ]
        # The full entry has the file of its first slice, as TensorFlow's merge leaves it; readers
        # ignore it.
        place = encode_place(int(self.new.assignment.file[rows[0]]), 0, 0, 0)
        yield key, head + place + encode_slices(extents)
        for row, shape, extent in zip(rows, shapes, extents, strict=True):
            yield slice_key(key, extent), encode_head(dtype, shape) + places[row]


def bundle_sink(new: NewCheckpoint, capabilities: Capabilities) -> BundleSink:
    """Return the sink of a bundle; raise if TensorFlow could not read the slices back."""
    prefix, slices = new.name, new.assignment.slices
    asides = aside_names(new, lambda number: f"{prefix}.data-{number:05}")
    check_readable(prefix)
    check_holds(slices, capabilities, "tensorflow")
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
    from shardvar.formats.objects import document_of  # of a write

    text, aside = document_of(new.metadata, slices.tensors.keys), f"{prefix}.index.{new.generation}"
    # The payload of a text as a string tensor without axes.
    payload = strings.encode(np.array(text.encode("ascii"), object)) if text else b""
    return BundleSink(
        new=new,
        asides=asides,
        start=new.assignment.starts(slices.nbytes) if new.files is None else new.files.start,
        writer=BundleWriter(),
        index_aside=f"{aside}.tmp",
        objects=(f"{aside}o.tmp", payload) if payload else None,
        keys=[_encode_key(key) for key in slices.tensors.keys],
    )


def _encode_key(key: str) -> bytes:
    # An empty name is the header's, and names with a zero byte first are slices'.
    try:
        encoded = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"{key!r} cannot be encoded as a name.", "Rename the tensor."
        ) from error
    if encoded[:1] in (b"", b"\x00"):
        raise UnsupportedError(f"{key!r} is a name that TensorFlow reserves.", "Rename the tensor.")
    return encoded


def unnamed_files(prefix: str, names: Sequence[str], finals: Sequence[str]) -> list[str]:
    """Return data files outside the index, and dead writers' temporary files."""
    old = {name for name, _ in data_files(prefix, names)}.difference(finals)
    asides = temporary_files(re.escape(prefix) + r"\.(?:data-\d{5,}|index)", names)
    return [*old, *asides, *share_files(names, share_prefix(prefix, "tensorflow"))]


@frozen_dataclass
class TensorFlowFormat(SharedFormat):
    """TensorFlow's V2 format; its methods name a checkpoint by its prefix."""

    name: str = "tensorflow"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the prefixes that ``name`` may mean, also of V1, which ``open`` refuses."""
        return find_bundles(storage, name)

    def open(self, storage: Storage, name: str) -> BundleSource:
        return open_bundle(storage, name)

    def lay_out(self, new: NewCheckpoint) -> BundleSink:
        return bundle_sink(new, self.capabilities)

    def adopts_objects(self) -> bool:
        """Return True: the commit writes them into another file."""
        return True

    def remove(self, storage: Storage, name: str) -> None:
        index = bundle_index_name(name)
        take_away(
            storage, [(index, f"{index}.removed.tmp")], lambda names: unnamed_files(name, names, ())
        )


FORMAT = TensorFlowFormat()

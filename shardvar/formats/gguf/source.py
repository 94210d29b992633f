"""The payloads of GGUF: read in place, swapped where they are big-endian, or dequantized.

``GgufSource`` has the tensors as they are stored. ``DequantizedSource`` has the same ones, but in
the place of blocks their numbers as float32. It decodes the blocks that a range of the payload
meets, and no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from shardvar.errors import CheckpointError, ReadError, UnsupportedError
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.gguf.contents import GgufContents, TensorPlace
from shardvar.formats.protocol import Finding, Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.wire.ggml import dequantize

_FLOAT = "float32"


@dataclass(frozen=True, slots=True, eq=False)
class GgufSource(FileSource):
    """An open file, or an open split one, with the tensors as they are stored."""

    contents: GgufContents
    """The tensors."""
    index: TableIndex = field(init=False)
    """The table of contents; ``start`` of a non-plain entry numbers ``contents.tensors``."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "index", _index(self.contents, self.contents.tensors, self.contents.faults)
        )

    @property
    def data(self) -> DataFiles:
        """The files."""
        return self.contents.data

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return False: any range is decoded without the bytes before it."""
        return np.zeros(len(rows), np.bool)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
            return
        # Elements 3 to 6 of the payload hold its bytes 13 to 26, if each has 4: the first byte is
        # dropped.
        tensor = self.contents.tensors[begin]
        size = tensor.itemsize
        first, stop = start // size * size, -(-(start + len(buffer)) // size) * size
        stored = np.empty(stop - first, np.uint8)
        self.read_span(file, tensor.start + first, stored.data)
        buffer[:] = stored.reshape(-1, size)[:, ::-1].tobytes()[start - first :][: len(buffer)]

    def findings(self) -> Sequence[Finding]:
        """Return the files that have bytes of no tensor."""
        return self.contents.findings

    def encodings(self) -> Mapping[str, str]:
        """Return the types of blocks, by key."""
        return {tensor.key: tensor.block.name for tensor in self.contents.tensors if tensor.block}

    def dequantized(self) -> "DequantizedSource":
        """Return the same checkpoint with the numbers of blocks in their place."""
        return DequantizedSource(self)


@dataclass(frozen=True, slots=True, eq=False)
class DequantizedSource(WrappedSource):
    """A checkpoint with the numbers of blocks in the place of the blocks."""

    stored: GgufSource
    """The same with blocks."""
    index: TableIndex = field(init=False)
    """The table of contents; ``start`` of a non-plain entry numbers ``contents.tensors``."""

    def __post_init__(self) -> None:
        contents, faults = self.stored.contents, dict(self.stored.contents.faults)
        for tensor in contents.tensors:
            if tensor.block and tensor.is_big_endian:
                cause = f"{tensor.key!r} consists of big-endian blocks, which are not dequantized."
                remedy = "Leave it out with a filter, or read its blocks as bytes."
                faults[tensor.key] = UnsupportedError(cause, remedy)
        tensors = [_dequantized(tensor) for tensor in contents.tensors]
        object.__setattr__(self, "index", _index(contents, tensors, faults))

    @property
    def inner(self) -> GgufSource:
        """The same with blocks."""
        return self.stored

    def encodings(self) -> Mapping[str, str]:
        """Return nothing: all keys hold numbers."""
        return {}

    def dequantized(self) -> Source:
        """Return this source."""
        return self

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        number = int(entries.start[row])
        tensor = None if entries.plain[row] else self.stored.contents.tensors[number]
        if tensor is None or tensor.block is None:
            self.stored.read_into(entries, row, start, buffer)
            return
        # Blocks of 32 numbers are 128 bytes of the payload: bytes 300 to 400 are of the blocks 2
        # and 3, from 44 on.
        size = tensor.block.length * int(ITEMSIZES[code(_FLOAT)])
        first, stop = start // size, -(-(start + len(buffer)) // size)
        blocks = np.empty((stop - first) * tensor.block.nbytes, np.uint8)
        self.stored.read_span(tensor.file, tensor.start + first * tensor.block.nbytes, blocks.data)
        numbers = dequantize(blocks, tensor.block.name).view(np.uint8)
        buffer[:] = numbers[start - first * size :][: len(buffer)].data


def _dequantized(tensor: TensorPlace) -> TensorPlace:
    """Return the tensor with the dtype and the shape of its numbers."""
    if tensor.block is None:
        return tensor
    row = tensor.shape[-1] // tensor.block.nbytes * tensor.block.length
    return replace(tensor, dtype=_FLOAT, shape=(*tensor.shape[:-1], row))


def _index(
    contents: GgufContents, tensors: Sequence[TensorPlace], faults: Mapping[str, ReadError]
) -> TableIndex:
    """Return the table of contents of tensors that are read as ``tensors`` says."""
    table = TensorTable.of((tensor.key, tensor.dtype, tensor.shape) for tensor in tensors)
    plain = np.array(
        [each.is_plain and (each.block is None or each.dtype != _FLOAT) for each in tensors],
        np.bool,
    )
    start = np.array([tensor.start for tensor in tensors], np.int64)
    file = np.array([tensor.file for tensor in tensors], np.int64)
    entries = EntryTable(
        table.whole(),
        file,
        np.where(plain, start, np.arange(len(tensors))),
        np.full(len(tensors), NO_CHECKSUM),
        plain,
    )
    readable = cast(Mapping[str, CheckpointError], faults)
    return TableIndex(entries, contents.data.names, Metadata(user=contents.metadata), readable)

"""Reading the payloads of a safetensors checkpoint.

Elements of 8 bits and more lie in the file as they are, without any checksum. Those of 4 bits lie two in a byte, the
first in the low half, and are spread to one a byte. How elements of 6 bits lie no writer has yet shown: they are listed
and refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Finding
from shardvar.formats.safetensors.contents import Contents
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.wire.safetensors_header import BITS

_HALF = 4
"""Bits of an element of which two share a byte."""


@dataclass(frozen=True, slots=True)
class SafetensorsSource:
    """An open safetensors checkpoint."""

    contents: Contents
    """What it holds."""

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.index

    @property
    def crc(self) -> None:
        """The format has no checksums."""
        return None

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
            return
        dtype = entries.slices.dtype(row)
        if BITS[dtype] != _HALF:
            raise UnsupportedError(
                f"{entries.slices.key(row)!r} has the dtype {dtype}, whose elements of {BITS[dtype]} bits are packed.",
                "How they are packed is not known; unpack them with the program that wrote the file.",
            )
        first, stop = start // 2, -(-(start + len(buffer)) // 2)
        packed = np.frombuffer(self.contents.files.open(file).read(begin + first, stop - first), np.uint8)
        elements = np.stack([packed & 0xF, packed >> _HALF], axis=-1).reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = elements[start - 2 * first :][: len(buffer)]

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""
        self.contents.files.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""
        return self.contents.files.open(file).map()

    def close(self) -> None:
        """Give the files back."""
        self.contents.files.close()

    def findings(self) -> Sequence[Finding]:
        """What is odd about the set."""
        return self.contents.findings

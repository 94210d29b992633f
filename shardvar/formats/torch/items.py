"""One stored item: where the bytes of a tensor lie in a file, or the text of an object.

    plain       the elements lie in the file byte for byte, in C order: read in place, or mapped
    decoded     strides, lazy signs or another byte order: elements are picked from the record, in C order
    an object   its Python literal, as a string tensor without axes

The CRC-32 of a record is compared when a tensor that spans the record was read to its last byte. A
view of a part of a record is read by itself; ``StorageChecks`` compares the CRC of such records for
the verbs that ask.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.files import DataFiles
from shardvar.formats.torch.archive import Archive, Record
from shardvar.formats.torch.tensors import StoredTensor, literal_of
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.index import NO_CHECKSUM
from shardvar.wire import strings
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import WRITE_AGAIN, corrupt


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in its record."""

    tensor: StoredTensor
    """The tensor."""
    record: Record
    """The record of its storage."""
    is_big_endian: bool
    """True if the elements of the record are big-endian."""

    @property
    def nbytes(self) -> int:
        """The size of the payload."""
        return self.tensor.count * self.tensor.itemsize

    @property
    def start(self) -> int:
        """The first byte of the payload of a plain view, in bytes of the file."""
        return self.record.start + self.tensor.offset * self.tensor.itemsize

    @property
    def is_plain(self) -> bool:
        """Return True if the payload lies in the file byte for byte."""
        return self.tensor.is_contiguous and not (self.is_big_endian and self.tensor.itemsize > 1)

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte of the record that an element has, and the end of the last one; (0, 0)
        without elements."""
        return self.tensor.reach

    @property
    def spans_record(self) -> bool:
        """Return True if the elements reach from the record's first byte to its last."""
        return self.tensor.offset == 0 and self.reach[1] == self.record.nbytes

    @property
    def checksum(self) -> int:
        """The CRC-32 of the payload; ``NO_CHECKSUM`` if the record has one of other bytes only."""
        return self.record.crc if self.is_plain and self.spans_record else NO_CHECKSUM


def view_of(archive: Archive, tensor: StoredTensor, is_big_endian: bool) -> View:
    """Return a tensor with its record; raise if that is missing, compressed or too small."""
    record = archive.record(tensor.record)
    if record.nbytes != tensor.storage_nbytes:
        cause = (
            f"The record {tensor.record!r} has {record.nbytes} bytes, but its storage "
            f"{tensor.storage_nbytes}."
        )
        raise InvalidCheckpoint(cause, WRITE_AGAIN)
    archive.check_stored(tensor.record)
    view = View(tensor, record, is_big_endian)
    if not record.nbytes and record.crc not in (NO_CHECKSUM, 0):
        raise corrupt(f"The record {tensor.record!r} is empty, and its CRC-32 is not 0.")
    return view


def payload_of(value: Any) -> bytes:
    """Return the payload of an object: its literal, as a string tensor without axes."""
    literal = np.array(literal_of(value).encode("utf-8", "surrogatepass"), object)
    return strings.encode(literal)


def literal_in(payload: bytes) -> str:
    """Return the literal of an object from its payload."""
    return bytes(strings.decode(payload, ())[()]).decode("utf-8", "surrogatepass")


def read_view(view: View, data: DataFiles, file: int, start: int, buffer: memoryview) -> None:
    """Fill ``buffer`` with a part of a payload, from byte ``start`` of it on; compare the CRC with
    its last byte.

    The record is in the data file of number ``file``.
    """
    tensor, record = view.tensor, view.record
    size = tensor.itemsize
    low, high = view.reach
    stored = data.view(file, record.start + low, record.start + high)
    # Elements 3 to 6 of the payload hold its bytes 13 to 26, if each has 4: the first byte is
    # dropped at the end.
    first, stop = start // size, -(-(start + len(buffer)) // size)
    if stop > first:
        strides = [stride * size for stride in tensor.strides]
        elements = np.ndarray(
            tensor.shape, f"V{size}", stored, tensor.offset * size - low, strides
        ).flat[first:stop]
        octets = _changed(elements.tobytes(), view)
        buffer[:] = octets[start - first * size :][: len(buffer)]
    is_last = start + len(buffer) == view.nbytes
    if is_last and view.spans_record and record.crc not in (NO_CHECKSUM, CRC32.compute(stored)):
        raise corrupt(
            f"The {record.nbytes} bytes at offset {record.start} disagree with their CRC-32."
        )


def _changed(elements: bytes, view: View) -> memoryview:
    """Return elements in little-endian order, with signs changed as flagged."""
    octets = np.frombuffer(elements, np.uint8)
    dtype = numpy_dtype(view.tensor.dtype)
    unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    if view.is_big_endian and unit > 1:
        octets = np.frombuffer(elements, f"u{unit}").byteswap().view(np.uint8)
    if view.tensor.is_conjugate:
        octets = np.conjugate(octets.view(dtype)).view(np.uint8)
    if view.tensor.is_negative:
        octets = np.negative(octets.view(dtype)).view(np.uint8)
    return octets.data

"""The frame of an item that is written: all its bytes except the tensor's elements and their CRC.

An item is an archive (``packing``) of one tensor. Its directory is padded, so that the size of the
item is a multiple of 64 bytes. Then the elements of every item of a file begin at a multiple of 64
bytes, and can be mapped. Tensors of one dtype and one shape have one frame, so it is made once for
all of them. The item of an object has no elements, and is its pickle in an archive.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardvar.formats.torch.packing import build_frame, records_of, tensor_call
from shardvar.formats.torch.tensors import value_of
from shardvar.layout.dtypes import numpy_dtype
from shardvar.wire.opcode_writer import build_pickle
from shardvar.wire.zip import CENTRAL, plan_padding

_LOCAL_CRC, _CENTRAL_CRC = 14, 16
"""The place of the CRC in a local header, and in an entry of the directory."""
_ELEMENTS = b"archive/data/0"
"""The name of the record of the elements."""


@dataclass(frozen=True, slots=True)
class ItemFrame:
    """The bytes around the elements; each of the two parts has four bytes of CRC left out."""

    head: tuple[bytes, bytes]
    """The bytes in front of the elements."""
    tail: tuple[bytes, bytes]
    """The bytes behind them."""

    @property
    def head_nbytes(self) -> int:
        """The size of the head."""
        return sum(map(len, self.head)) + 4

    @property
    def tail_nbytes(self) -> int:
        """The size of the tail."""
        return sum(map(len, self.tail)) + 4

    def build(self, crc: int) -> tuple[bytes, bytes]:
        """Return head and tail of an item whose elements have that CRC-32."""
        octets = struct.pack("<L", crc)
        return octets.join(self.head), octets.join(self.tail)


@lru_cache(256)
def frame_of(dtype: str, shape: tuple[int, ...]) -> ItemFrame:
    """Return the frame of a tensor in C order.

    >>> frame = frame_of("float32", (3, 4))
    >>> frame.head_nbytes % 64, (frame.head_nbytes + 48 + frame.tail_nbytes) % 64
    (0, 0)
    """
    nbytes = prod(shape) * numpy_dtype(dtype).itemsize
    records = records_of(build_pickle(tensor_call(dtype, shape, 0)), [nbytes])
    *_, (start, end) = build_frame(records, [0])
    ranges = [octets for _, octets in build_frame(records, [0], plan_padding(start + len(end)))]
    # Two records, and then the local header of the elements; behind them the last record and the
    # directory.
    head, tail = b"".join(ranges[:3]), b"".join(ranges[3:])
    entry = tail.rindex(_ELEMENTS) - CENTRAL.size
    return ItemFrame(
        _without(head, len(head) - len(ranges[2]) + _LOCAL_CRC),
        _without(tail, entry + _CENTRAL_CRC),
    )


def object_item(literal: str) -> bytes | None:
    """Return the item of an object that has this literal; None if it holds other than plain values.

    >>> object_item("{'betas': (0.9, 0.99)}") is None, object_item("set([1])") is None
    (False, True)
    """
    try:
        pickle = build_pickle(value_of(literal))
    except ValueError:
        return None
    return b"".join(octets for _, octets in build_frame(records_of(pickle, []), []))


def _without(octets: bytes, crc: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a CRC."""
    return octets[:crc], octets[crc + 4 :]

r"""The header of a GGUF file: metadata, and a list of tensors.

    size    content
    4       GGUF
    4       version: 2 or 3
    8       number of tensors
    8       number of metadata
    …       each metadatum: its name, the type of its value (4), the value
    …       each tensor: its name, number of axes (4), extents (8 each, the last axis first), type
            (4), offset (8)
    …       zeros up to a multiple of the alignment; then the data, from which offsets count

A name is its size (8) and its bytes, and so is a string. An array is the type of its elements (4),
their number (8) and the elements. The alignment is 32, or the metadatum ``general.alignment``. A
file whose version is a small number only when its bytes are reversed is big-endian, also its data.

A tokenizer has arrays of hundreds of thousands of strings. They are walked, and a few of their
elements are decoded. Before any list is walked, its number is compared with the bytes that are
left.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.limits import MAX_GGUF_HEADER_NBYTES, MAX_RANK
from shardvar.records import field, frozen, mutable
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    check_key,
    distrusted,
    foreign_file,
    incomplete,
    invalid,
    malformed,
    past_limit,
)

GGUF_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
ALIGNMENT = 32
_OF_LAYOUT = ("split.", "general.alignment", "general.file_type")
"""Beginnings of the names of metadata that are not true of a copy."""
_FIRST_NBYTES = 1 << 16
"""Bytes that are read first: the header of a file without a tokenizer."""

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"), 5: ("int32", "i"),
    6: ("float32", "f"), 7: ("bool", "?"), 10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
"""The types of numbers, each with its name and its code in ``struct``."""
_LEAST_ENTRY_NBYTES = 8 + 4 + 1
_LEAST_TENSOR_NBYTES = 8 + 4 + 4 + 8
_SHOWN = 8
"""Elements of an array that are kept."""

Scalar = int | float | bool | str
ReadAt = Callable[[int, int], bytes]


@frozen
class GgufArray:
    type: str  # of its elements, such as "string"
    count: int
    first: tuple[Scalar, ...]


@frozen
class GgufTensor:
    name: str
    shape: tuple[int, ...]
    """Its extents, first axis first: the elements', also if blocks are stored."""
    type: int  # a number of ``wire.ggml``
    offset: int  # in the data


@frozen
class GgufHeader:
    is_big_endian: bool
    """True if numbers are big-endian, also in the data."""
    metadata: dict[str, Scalar | GgufArray]
    tensors: Sequence[GgufTensor]
    alignment: int  # of each offset
    data_start: int  # in bytes of the file
    copied: tuple[bytes, ...] = ()
    """The metadata as they are stored, without the file's layout; none of big-endian files."""


@mutable
class _Cursor:
    """The bytes of a header that have been read, and the place of the next to decode."""

    read: ReadAt
    file_nbytes: int
    order: str = "<"
    position: int = 0
    data: bytes = field(default=b"", repr=False)

    def skip(self, nbytes: int) -> int:
        """Pass over some bytes, which are in ``data`` then, and return their place."""
        start, stop = self.position, self.position + nbytes
        if stop > len(self.data):
            if stop > self.file_nbytes:
                raise incomplete(
                    f"The header reaches to byte {stop} or beyond, but the file has "
                    f"{self.file_nbytes}."
                )
            if stop > MAX_GGUF_HEADER_NBYTES:
                raise past_limit(f"The header has {stop} bytes or more", "MAX_GGUF_HEADER_NBYTES")
            # Each time twice as far, so that few reads and copies are needed.
            wide = min(max(2 * len(self.data), _FIRST_NBYTES, stop), self.file_nbytes)
            self.data += self.read(len(self.data), wide - len(self.data))
        self.position = stop
        return start

    def number(self, code: str) -> int:
        return int(self.value(code))

    def value(self, code: str) -> Scalar:
        form = struct.Struct(self.order + code)
        start = self.skip(form.size)  # first, since it may replace ``data``
        value: Scalar = form.unpack_from(self.data, start)[0]
        return value

    def text(self) -> str:
        nbytes = self.number("Q")
        start = self.skip(nbytes)
        return self.data[start : start + nbytes].decode("utf-8", "surrogateescape")

    def check_room(self, count: int, nbytes: int, what: str) -> None:
        room = self.file_nbytes - self.position
        if count * nbytes > room:
            raise incomplete(
                f"It claims {count} {what} at offset {self.position}, where the file has {room} "
                "more bytes."
            )


def parse_gguf(read: ReadAt, file_nbytes: int) -> GgufHeader:
    """Return the header of a file, with every field checked that concerns more than one tensor."""
    cursor = _Cursor(read, file_nbytes)
    is_big_endian = _read_version(cursor)
    num_tensors, num_metadata = cursor.number("Q"), cursor.number("Q")
    cursor.check_room(num_tensors, _LEAST_TENSOR_NBYTES, "tensors")
    cursor.check_room(num_metadata, _LEAST_ENTRY_NBYTES, "metadata")
    metadata: dict[str, Scalar | GgufArray] = {}
    copied = list[bytes]()
    for _ in range(num_metadata):
        start, name = cursor.position, cursor.text()
        if name in metadata:
            raise invalid(f"Two metadata are called {name!r}.")
        metadata[name] = _read_value(cursor, cursor.number("I"), name)
        if not (is_big_endian or name.startswith(_OF_LAYOUT)):
            copied.append(cursor.data[start : cursor.position])
    alignment = metadata.get("general.alignment", ALIGNMENT)
    # Reversed booleans are integers to Python; the type is compared, and so True is refused.
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise invalid(f"The alignment is {alignment!r}, which is not a power of two.")
    tensors = [_read_tensor(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    return GgufHeader(is_big_endian, metadata, tensors, alignment, data_start, (*copied,))


def build_gguf(metadata: Sequence[bytes], tensors: Sequence[GgufTensor]) -> bytes:
    """Return the header of a file of version 3, up to its data: the inverse of ``parse_gguf``."""
    parts = [GGUF_MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata)), *metadata]
    for name, shape, kind, offset in map(astuple, tensors):
        octets, rank = name.encode("utf-8", "surrogateescape"), len(shape)
        form = f"<Q{len(octets)}sI{rank}QIQ"
        parts.append(struct.pack(form, len(octets), octets, rank, *shape[::-1], kind, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % ALIGNMENT)


def _read_version(cursor: _Cursor) -> bool:
    """Pass over magic and version, and return True for a big-endian file."""
    first = cursor.read(0, min(SNIFF_NBYTES, cursor.file_nbytes))
    if not first.startswith(GGUF_MAGIC):
        raise foreign_file("a GGUF file", first, cursor.file_nbytes, "it does not begin with GGUF")
    cursor.skip(len(GGUF_MAGIC))
    version = cursor.number("I")
    # 3 is 03 00 00 00 in a little-endian file; read in the wrong order, it is 50331648.
    if is_big_endian := version & 0xFFFF == 0 and version != 0:
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in _VERSIONS:
        cause = f"Version {version} of GGUF is unknown; 2 and 3 are read."
        raise UnsupportedError(cause, "Convert the file with a program that reads this version.")
    return is_big_endian


def _read_value(cursor: _Cursor, kind: int, name: str) -> Scalar | GgufArray:
    if kind == _ARRAY:
        return _read_array(cursor, cursor.number("I"), cursor.number("Q"), name)
    if kind == _STRING:
        return cursor.text()
    if kind not in _SCALARS:
        raise malformed(
            f"The metadatum {name!r} at offset {cursor.position} has the unknown type {kind}."
        )
    value = cursor.value(_SCALARS[kind][1])
    # The shortest number that is the same float32: 1e-05, and not 9.999999747378752e-06.
    return float(str(np.float32(value))) if _SCALARS[kind][0] == "float32" else value


def _read_array(cursor: _Cursor, kind: int, count: int, name: str) -> GgufArray:
    if kind == _ARRAY:
        # The arrays that are left, at each level; a loop, because a file may have a million levels.
        left = [count]
        while left:
            if not left[-1]:
                left.pop()
                continue
            left[-1] -= 1
            inner_kind, inner = cursor.number("I"), cursor.number("Q")
            if inner_kind == _ARRAY:
                left.append(inner)
            else:
                _skip_elements(cursor, inner_kind, inner, name)
        return GgufArray("array", count, ())
    if kind == _STRING:
        cursor.check_room(count, 8, f"strings of {name!r}")
        first = tuple(cursor.text() for _ in range(min(count, _SHOWN)))
        _skip_elements(cursor, _STRING, count - len(first), name)
        return GgufArray("string", count, first)
    start = cursor.position
    _skip_elements(cursor, kind, count, name)
    type_name, code = _SCALARS[kind]
    shown = min(count, _SHOWN)
    return GgufArray(
        type_name, count, struct.unpack_from(f"{cursor.order}{shown}{code}", cursor.data, start)
    )


def _skip_elements(cursor: _Cursor, kind: int, count: int, name: str) -> None:
    if kind == _STRING:
        cursor.check_room(count, 8, f"strings of {name!r}")
        length = struct.Struct(cursor.order + "Q").unpack_from
        for _ in range(count):
            # Both steps of ``text`` but its decoding, since this is done a million times.
            start = cursor.skip(8)
            cursor.skip(length(cursor.data, start)[0])
        return
    if kind not in _SCALARS:
        raise malformed(
            f"The elements of {name!r} at offset {cursor.position} have the unknown type {kind}."
        )
    size = struct.calcsize(_SCALARS[kind][1])
    cursor.check_room(count, size, f"elements of {name!r}")
    cursor.skip(count * size)


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.text()
    check_key(name)
    rank = cursor.number("I")
    if rank > MAX_RANK:
        raise distrusted(f"{name!r} has {rank} axes; NumPy has at most {MAX_RANK}.")
    start = cursor.skip(8 * rank)
    shape = struct.unpack_from(f"{cursor.order}{rank}Q", cursor.data, start)[::-1]
    return GgufTensor(name, shape, cursor.number("I"), cursor.number("Q"))

"""The msgpack of Flax: a tree of maps and lists whose leaves are plain values and NumPy arrays.

    value   := nil, bool, int, float, str, bin     as msgpack has them
             | map of plain values to values, list of values
             | ext 1: a msgpack of [shape, name of the dtype, bin of the elements]    an array
             | ext 2: a msgpack of [real, imaginary]                         a complex number
             | ext 3: as ext 1, with the shape []                          a scalar of NumPy

An array above 2**30 bytes is a map, since msgpack counts bytes in 32 bits: flat ranges of its
elements, one after the other.

    {"__msgpack_chunked_array__": true, "shape": {"0": 70000, "1": 9000}, "chunks": {"0": array, ...}}

Elements are in C order, and in the byte order of the machine that wrote them, which the file does
not tell; all machines that Flax runs on are little-endian. There is no index and no checksum:
``parse_msgpack`` passes over the structure once, and skips the elements.

Nothing recurses, and no claim of a length is believed before it is compared with the file's size.

Of a file that is cut off, the value that is cut is refused, and so are the lists around it.
"""

import struct
from collections.abc import Callable
from math import prod
from typing import Any

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.limits import MAX_NBYTES, MAX_NESTING, MAX_RANK
from shardvar.records import entity, field, frozen, mutable
from shardvar.wire.damage import decoding, incomplete, invalid, malformed, past_limit
from shardvar.wire.plain import MAX_TEXT, too_large

_ReadAt = Callable[[int, int], bytes]

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_CHUNKED = "__msgpack_chunked_array__"
_LONGEST_DTYPE = 64

# What follows the first byte of a value: the code of ``struct`` of a number or of a length.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"), 0xC8: ("ext", ">H"), 0xC9: ("ext", ">I"),
    0xD9: ("str", ">B"), 0xDA: ("str", ">H"), 0xDB: ("str", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


@frozen
class PlacedArray:
    """An array, and the ranges of the file that have its elements."""

    dtype: str  # a name of NumPy, or unknown
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # the first byte of each range in the file, and its size


@entity
class RefusedValue:
    """A value that cannot be read; the values around it can."""

    error: ShardvarError


@mutable
class _Cursor:
    """The place of the next byte to decode, and the end of what may be decoded."""

    read: _ReadAt
    stop: int
    position: int = 0
    has_refused: bool = False  # True after a value that is wrong

    def take(self, nbytes: int) -> bytes:
        start = self.skip(nbytes)
        return self.read(start, nbytes)

    def skip(self, nbytes: int) -> int:
        start = self.position
        if nbytes > self.stop - start:
            raise incomplete(
                f"The value at offset {start} needs {nbytes} bytes, but has {self.stop - start} left."
            )
        self.position = start + nbytes
        return start

    def head(self) -> tuple[str, Any]:
        """Return the kind of the next value, and the value itself or its length."""
        start = self.position
        first = self.take(1)[0]
        if first < 0x80 or first >= 0xE0:
            return "value", first if first < 0x80 else first - 0x100
        if first < 0xC0:
            if first >= 0xA0:
                return "str", first & 0x1F
            return ("list" if first >= 0x90 else "map"), first & 0xF
        if first in _CONSTANTS:
            return "value", _CONSTANTS[first]
        if first in _NUMBERS:
            return "value", self.number(_NUMBERS[first])
        if first in _LENGTHS:
            kind, code = _LENGTHS[first]
            return kind, int(self.number(code))
        if first in _FIXED_EXT:
            return "ext", _FIXED_EXT[first]
        raise malformed(f"The byte {first:#x} at offset {start} begins no value of msgpack.")

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]


@mutable
class _Open:
    """A map or a list whose values are still to come."""

    value: dict[Any, Any] | list[Any]
    left: int
    start: int
    key: Any = None
    has_key: bool = field(default=False)


def parse_msgpack(read: _ReadAt, nbytes: int) -> tuple[Any, CheckpointError | None]:
    """Return the value that fills a file, of dicts and lists of plain values, ``PlacedArray`` and
    ``RefusedValue``; and the fault of a file that is cut off, or has more bytes.

    >>> data = b"\\x82\\xa1w\\xc7\\x0c\\x01\\x93\\x91\\x02\\xa4int8\\xc4\\x02ab\\xa1n\\x07"
    >>> parse_msgpack(lambda start, count: data[start : start + count], len(data))[0]
    {'w': PlacedArray(dtype='int8', shape=(2,), spans=((16, 2),)), 'n': 7}
    """
    cursor, open_, value = _Cursor(read, nbytes), list[_Open](), None
    try:
        while not open_ or value is open_:
            start = cursor.position
            value = _next(cursor, open_)
            # A value that ends a container is followed by the container as a value.
            while open_ and value is not open_:
                _put(open_[-1], value, start)
                value = _closed(open_)
            if not open_:
                break
    except IncompleteCheckpoint as error:
        # Only the last value may be wrong: an earlier one would mean other damage than a cut.
        if not open_ or cursor.has_refused:
            raise
        return _cut(open_, RefusedValue(error), cursor.position), error
    fault = None
    if cursor.position != nbytes:
        fault = invalid(
            f"The value ends at byte {cursor.position}, and {nbytes - cursor.position} bytes follow it."
        )
    return value, fault


def _next(cursor: _Cursor, open_: list[_Open]) -> Any:
    """Return the next value; ``open_``, after adding to it, for the beginning of a container."""
    start = cursor.position
    kind, value = cursor.head()
    if kind not in ("list", "map"):
        return _leaf(cursor, kind, value)
    if len(open_) >= MAX_NESTING:
        raise past_limit(f"It has {len(open_) + 1} levels or more", "MAX_NESTING")
    open_.append(_Open({} if kind == "map" else [], value, start))
    return _closed(open_)


def _cut(open_: list[_Open], value: Any, start: int) -> Any:
    refused = value
    while open_:
        if type(open_[-1].value) is list:
            open_[-1].value += [value, refused]
        elif open_[-1].has_key:
            _put(open_[-1], value, start)
        open_[-1].left = 0
        value = _closed(open_)
    return value


def _closed(open_: list[_Open]) -> Any:
    """Take away the last container and return it if it has all its values; else return ``open_``."""
    last = open_[-1]
    if last.left:
        return open_
    open_.pop()
    return (
        _joined(last.value) if type(last.value) is dict and _CHUNKED in last.value else last.value
    )


def _put(container: _Open, value: Any, start: int) -> None:
    """Add a value to a container, or the key of the next one."""
    if type(container.value) is list:
        container.value.append(value)
    elif not container.has_key:
        if isinstance(value, dict | list | PlacedArray | RefusedValue):
            raise malformed(
                f"The key at offset {start} of the map at {container.start} is not a plain value."
            )
        if value in container.value:
            raise invalid(f"The map at offset {container.start} has the key {value!r} twice.")
        container.key, container.has_key = value, True
        return
    else:
        container.value[container.key] = value
        container.has_key = False
    container.left -= 1


def _leaf(cursor: _Cursor, kind: str, value: Any) -> Any:
    """Return a value that is neither a map nor a list, whose head was read."""
    if kind == "value":
        return value
    if kind == "ext":
        code = cursor.number(">b")
        start = cursor.skip(value)
        inner = _Cursor(cursor.read, start + value, start)
        try:
            if code in (_ARRAY, _SCALAR):
                return _array(inner)
            if code == _COMPLEX:
                if inner.head() != ("list", 2):
                    raise invalid("Its complex number is not two numbers.")
                (one, real), (other, imaginary) = inner.head(), inner.head()
                if (one, other) != ("value", "value"):
                    raise invalid("Its complex number is wrong (a part is not a number).")
                cause = "Its complex number is wrong"
                with decoding(lambda error: invalid(f"{cause} ({error})."), TypeError):
                    return complex(float(real), float(imaginary))
        except ShardvarError as error:
            cursor.has_refused = True
            return RefusedValue(error)
        cause = f"It is an extension of msgpack with the number {code}, which Flax does not write."
        return RefusedValue(UnsupportedError(cause, "Load it with the program that wrote it."))
    if value > MAX_TEXT:
        cursor.skip(value)
        return RefusedValue(too_large())
    octets = cursor.take(value)
    return octets if kind == "bin" else octets.decode("utf-8", "surrogateescape")


def _array(cursor: _Cursor) -> PlacedArray:
    if cursor.head() != ("list", 3):
        raise invalid("Its array is not a shape, a dtype and the elements.")
    kind, rank = cursor.head()
    if kind != "list" or rank > MAX_RANK:
        raise invalid(f"Its shape is not a list of at most {MAX_RANK} extents.")
    shape = tuple(_extent(*cursor.head()) for _ in range(rank))
    kind, length = cursor.head()
    if kind not in ("str", "bin") or length > _LONGEST_DTYPE:
        raise invalid("Its dtype is not a name.")
    dtype = cursor.take(length).decode("utf-8", "replace")
    kind, nbytes = cursor.head()
    if kind not in ("str", "bin") or nbytes != cursor.stop - cursor.position:
        raise invalid("Its elements do not fill the rest of its bytes.")
    return PlacedArray(dtype, shape, ((cursor.position, nbytes),) if nbytes else ())


def _extent(kind: str, value: Any) -> int:
    if kind != "value" or type(value) is not int or not 0 <= value <= MAX_NBYTES:
        raise invalid("An extent of its shape is not a number from 0 on.")
    return value


def _joined(chunked: dict[Any, Any]) -> PlacedArray | RefusedValue:
    try:
        shape = tuple(_extent("value", each) for each in _items(chunked.get("shape")))
        chunks = _items(chunked.get("chunks"))
        if len(shape) > MAX_RANK or not chunks:
            raise invalid(f"Its array has no chunks, or more than {MAX_RANK} axes.")
        for each in chunks:
            if isinstance(each, RefusedValue):
                return each
            if (
                not isinstance(each, PlacedArray)
                or len(each.shape) != 1
                or each.dtype != chunks[0].dtype
            ):
                raise invalid("Its chunks are not flat arrays of one dtype.")
        count = sum(each.shape[0] for each in chunks)
        if count != prod(shape):
            raise invalid(
                f"Its chunks have {count} elements, but its shape {list(shape)} has {prod(shape)}."
            )
    except ShardvarError as error:
        return RefusedValue(error)
    return PlacedArray(
        chunks[0].dtype, shape, tuple(span for each in chunks for span in each.spans)
    )


def _items(numbered: Any) -> list[Any]:
    """Return the values of a map of the keys "0", "1", and so on, as which Flax writes a tuple."""
    if type(numbered) is not dict or [*numbered] != [*map(str, range(len(numbered)))]:
        raise invalid("The shape or the chunks of its array are not numbered.")
    return [*numbered.values()]

r"""The texts of attributes in an HDF5 file, as they are stored. All else in HDF5 is read by h5py.

HDF5 takes the memory that a text claims, up to 4 GiB, before it looks for the text, and a thousand
claims may lead to one text. Here a text is looked for first, and all bytes that are read for
attributes are at most twice the file's: headers, values and texts do not share any.

    size        content
    object header, version 1, and each of its messages:
    8           version (1); other numbers
    4, 4        size of the messages; zeros
    8           type (2), size (2), flags (1), zeros (3); then the message
    object header, version 2, and each of its messages:
    6           OHDR, version (1), flags (1); then, by the flags, times (16) and limits (4)
    1, 2, 4, 8  size of the messages
    4           type (1), size (2), flags (1); then, by the header's flags, its number (2); then the
                message
    message of type 16: more messages; version 2's between OCHK and a checksum (4)
    8, 8        the place of the first byte; size
    message of type 12: an attribute
    8           version (1), flags (1), sizes of the name (2), of the dtype (2) and of the shape (2)
    1           the encoding of the name, in version 3
    …           name, dtype, shape, in version 1 each with zeros up to a multiple of 8; then the
                values
    value that is a text
    16          its size (4), the place of a collection (8), the number of an object in it (4)
    collection
    16          GCOL, version (1), zeros (3), size (8)
    16          each object: number (2), other numbers (6), size (8); then its bytes, with zeros up
                to a multiple of 8

Attributes of one object that are many, or of more than 64 KiB, lie elsewhere, and are not found
here.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardvar.errors import InvalidCheckpoint
from shardvar.limits import MAX_KEY_NBYTES
from shardvar.wire.damage import DISTRUST, malformed, past_limit

_MAGIC = b"OHDR\2"
_HAS_TIMES, _HAS_LIMITS, _HAS_NUMBERS, _SIZE_WIDTH = 32, 16, 4, 3
_FIRST_NBYTES = 6 + 16 + 4 + 8
"""The most bytes in front of the messages of an object header."""
_OLD_MESSAGE, _NEW_MESSAGE = struct.Struct("<HHB3x"), struct.Struct("<BHB")
_ATTRIBUTE, _CONTINUATION = 12, 16
_IS_SHARED = 2
"""The flag of a message that lies elsewhere."""
_PLACE = struct.Struct("<QQ")
_ATTRIBUTE_HEAD = struct.Struct("<BxHHH")
_TEXT = struct.Struct("<IQI")
_COLLECTION, _OBJECT = struct.Struct("<4s4xQ"), struct.Struct("<H6xQ")


@dataclass(slots=True)
class Hdf5Texts:
    read: Callable[[int, int], bytes]
    nbytes: int
    _spent_nbytes: int = 0
    _values: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    """The values of the attributes by name, of each object header."""
    _objects: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """The short objects by number, of each collection."""

    def read_texts(self, header: int, name: bytes, count: int) -> list[bytes] | None:
        """Return the ``count`` texts of an attribute; None if the object header lacks it."""
        if header not in self._values:
            self._values[header] = dict(self._attributes(header))
        values = self._values[header].get(name)
        if values is None:
            return None
        if count * _TEXT.size > len(values):
            raise malformed(f"{count} texts are said to be in {len(values)} bytes.")
        self.spend(count * _TEXT.size)
        return [self._text(*each) for each in _TEXT.iter_unpack(values[: count * _TEXT.size])]

    def spend(self, nbytes: int) -> None:
        """Count bytes that are read, and raise if they are more than the file can hold."""
        self._spent_nbytes += nbytes
        if self._spent_nbytes > 2 * self.nbytes:
            raise InvalidCheckpoint("Its texts also belong to other attributes.", DISTRUST)

    def _text(self, nbytes: int, place: int, number: int) -> bytes:
        if not nbytes:
            return b""
        if nbytes > MAX_KEY_NBYTES:
            raise past_limit(f"A text has {nbytes} bytes", "MAX_KEY_NBYTES")
        if place not in self._objects:
            self._objects[place] = dict(self._collection(place))
        text = self._objects[place].get(number, b"")
        if len(text) != nbytes:
            raise malformed(
                f"A text of {nbytes} bytes is said to be object {number} at {place}, where it is "
                "not."
            )
        self.spend(nbytes)
        return text.partition(b"\0")[0]

    def _collection(self, place: int) -> Iterator[tuple[int, bytes]]:
        """Yield the objects of a collection that are short enough for a name, by number."""
        magic, nbytes = _COLLECTION.unpack(self._take(place, _COLLECTION.size))
        if magic != b"GCOL":
            raise malformed(f"Texts are said to be at {place}, where they are not.")
        self.spend(nbytes)
        octets, position = self._take(place, nbytes), _COLLECTION.size
        while position + _OBJECT.size <= nbytes:
            number, size = _OBJECT.unpack_from(octets, position)
            if not number:  # the rest is free
                return
            position += _OBJECT.size
            if size <= MAX_KEY_NBYTES:
                yield number, octets[position : position + size]
            position += -(-size // 8) * 8

    def _attributes(self, header: int) -> Iterator[tuple[bytes, bytes]]:
        for message in self._messages(header):
            if len(message) < _ATTRIBUTE_HEAD.size:
                raise malformed(f"An attribute has {len(message)} bytes.")
            version, *sizes = _ATTRIBUTE_HEAD.unpack_from(message)
            start, unit = _ATTRIBUTE_HEAD.size + (version == 3), 8 if version == 1 else 1
            name = message[start : start + sizes[0]].partition(b"\0")[0]
            yield name, message[start + sum(-(-nbytes // unit) * unit for nbytes in sizes) :]

    def _messages(self, header: int) -> Iterator[bytes]:
        """Yield the messages of an object that are attributes, wherever it continues."""
        head, skipped, trailer, block = self._frame(header)
        left = [block]
        while left:
            start, nbytes = left.pop()
            self.spend(nbytes)
            octets, position = self._take(start, nbytes), 0
            while position + head.size + skipped <= nbytes:
                kind, size, flags = head.unpack_from(octets, position)
                position += head.size + skipped
                message = octets[position : position + size]
                position += size
                if kind == _ATTRIBUTE and not flags & _IS_SHARED:
                    yield message
                elif kind == _CONTINUATION:
                    if size < _PLACE.size or len(message) < size:
                        raise malformed(f"The object header at {header} continues nowhere.")
                    place, size = _PLACE.unpack_from(message)
                    left.append((place + trailer, max(size - 2 * trailer, 0)))

    def _frame(self, header: int) -> tuple[struct.Struct, int, int, tuple[int, int]]:
        """Return how messages begin, the bytes after that and around a continuation, and the first
        messages."""
        first = self._take(header, max(min(_FIRST_NBYTES, self.nbytes - header), 0))
        if first.startswith(b"\1"):
            return _OLD_MESSAGE, 0, 0, (header + 16, int.from_bytes(first[8:12], "little"))
        if not first.startswith(_MAGIC):
            raise malformed(f"An object header is said to be at {header}, where it is not.")
        flags = int.from_bytes(first[5:6])
        size = 6 + (16 if flags & _HAS_TIMES else 0) + (4 if flags & _HAS_LIMITS else 0)
        start = size + (1 << (flags & _SIZE_WIDTH))
        nbytes = int.from_bytes(first[size:start], "little")
        return _NEW_MESSAGE, 2 if flags & _HAS_NUMBERS else 0, 4, (header + start, nbytes)

    def _take(self, start: int, nbytes: int) -> bytes:
        if start + nbytes > self.nbytes:
            raise malformed(f"{nbytes} bytes are said to be at {start} of {self.nbytes}.")
        return self.read(start, nbytes)

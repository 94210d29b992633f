"""The payload of a changed tensor in a delta: the leaves that differ, each as a mask of XOR.

A leaf is a MiB of the tensor's data, as in the tensor digest (docs/digest.md), and the last one may
be shorter. ``new = old XOR mask``, byte by byte. All integers are little-endian:

    payload   the number of frames (4 bytes), a row of 48 bytes for each, the bodies in order
    row       leaf (4) | encoding (4) | bytes of the body (4) | changed elements (4) | SHA-256 of the
              new leaf (32)
    sparse    1: a zlib stream of the planes of gaps, then the planes of the elements of the mask
    dense     2: a zlib stream of the planes of the mask
    stored    3: the mask

A gap is the number of equal elements before a changed one, since the changed one before it; it has 4
bytes. The planes of ``n`` integers of ``w`` bytes are ``w`` times ``n`` bytes: first the lowest byte
of each, and the highest last. The bytes of one significance are alike, so they compress well.

Rows are in ascending order of leaves, a leaf has at most one, and nothing follows the last body. A
reader must refuse all else: a stream of another length, a position behind the leaf, an element of
the mask that is 0, another number of changed elements.

Masks compose: the mask of two steps is the XOR of theirs. So deltas are joined without the base, and
a mask also leads back.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.wire.damage import invalid, malformed
from shardvar.wire.digests import LEAF_NBYTES

SPARSE, DENSE, STORED = 1, 2, 3
"""The encodings of a mask."""
ROW_NBYTES = 48
"""The bytes of a row."""
_COUNT = struct.Struct("<I")
_ROW = struct.Struct("<IIII32s")
_GAP = np.dtype("<u4")
_SPARSE_LEVEL, _DENSE_LEVEL = 6, 1
"""The levels of zlib: what is sparse is small, so that a better level costs little."""
_MOST_SPARSE, _LEAST_DENSE = 4, 64
"""A mask is tried as sparse if at most a quarter of the elements changed, and as dense if at least
one in 64 did. In between, both are tried, and the smaller one is kept."""

MaskWords = npt.NDArray[Any]
"""Elements of a leaf as unsigned integers."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The change of one leaf."""

    leaf: int
    """The number of the leaf."""
    encoding: int
    """The encoding of the mask."""
    nbytes: int
    """The bytes of the body."""
    num_changed: int
    """The elements that differ."""
    digest: bytes
    """SHA-256 of the new leaf."""

    def row(self) -> bytes:
        """Return the row."""
        return _ROW.pack(self.leaf, self.encoding, self.nbytes, self.num_changed, self.digest)


def word_nbytes(itemsize: int) -> int:
    """Return the bytes of a word: an element is one, or two of complex128; without a size, a byte.

    >>> [word_nbytes(itemsize) for itemsize in (0, 1, 2, 4, 8, 16)]
    [1, 1, 2, 4, 8, 8]
    """
    return min(max(itemsize, 1), 8)


def mask_of(old: memoryview, new: memoryview, width: int) -> MaskWords:
    """Return the mask between two leaves, as words of ``width`` bytes; both are a number of words."""
    kind = np.dtype(f"<u{width}")
    mask: MaskWords = np.bitwise_xor(np.frombuffer(old, kind), np.frombuffer(new, kind))
    return mask


def encode_mask(mask: MaskWords) -> tuple[int, int, bytes]:
    """Return the encoding, the number of changed elements and the body of a mask that is not 0.

    >>> encoding, count, body = encode_mask(np.array([0, 0, 7, 0, 0, 0, 0, 1], "<u2"))
    >>> (encoding, count), decode_mask(encoding, count, body, 16, 2).tolist()
    ((3, 2), [0, 0, 7, 0, 0, 0, 0, 1])
    """
    places = np.flatnonzero(mask)
    count, found = len(places), (STORED, mask.tobytes())
    if _MOST_SPARSE * count <= len(mask):
        gaps = np.diff(places, prepend=-1) - 1
        planes = _planes(gaps.astype(_GAP)) + _planes(mask[places])
        found = min(found, (SPARSE, zlib.compress(planes, _SPARSE_LEVEL)), key=_size)
    if _LEAST_DENSE * count >= len(mask):
        found = min(found, (DENSE, zlib.compress(_planes(mask), _DENSE_LEVEL)), key=_size)
    return found[0], count, found[1]


def _size(found: tuple[int, bytes]) -> int:
    return len(found[1])


def decode_mask(
    encoding: int, count: int, body: bytes | memoryview, nbytes: int, width: int
) -> MaskWords:
    """Return the mask of a leaf of ``nbytes`` bytes; ``InvalidCheckpoint`` if the body is not one.

    Memory: a few times the bytes of a leaf, also if the body claims more.
    """
    kind = np.dtype(f"<u{width}")
    num = nbytes // width
    if count > num:
        raise invalid(f"A leaf of {num} elements has {count} changed ones.")
    if encoding == SPARSE:
        data = inflate(body, count * (_GAP.itemsize + width))
        gaps = _unplaned(data[: count * _GAP.itemsize], _GAP)
        values = _unplaned(data[count * _GAP.itemsize :], kind)
        # In 64 bits: a million gaps of 4 bytes do not overflow.
        places = np.cumsum(gaps.astype(np.int64) + 1) - 1
        if count and int(places[-1]) >= num:
            raise invalid(f"A changed element is at {int(places[-1])} of a leaf of {num}.")
        mask: MaskWords = np.zeros(num, kind)
        mask[places] = values
    elif encoding == DENSE:
        mask = _unplaned(inflate(body, nbytes), kind)
    elif encoding == STORED:
        if len(body) != nbytes:
            raise invalid(f"A stored mask has {len(body)} bytes, and its leaf {nbytes}.")
        mask = np.frombuffer(body, kind)
    else:
        raise invalid(f"A frame has the encoding {encoding}, which is not known.")
    found = int(np.count_nonzero(mask))
    if not found or found != count:
        raise invalid(f"A frame changes {found} elements, and says {count}.")
    return mask


def apply_mask(mask: MaskWords, leaf: memoryview) -> None:
    """Turn the old leaf into the new one, in place."""
    words = np.frombuffer(leaf, mask.dtype)
    np.bitwise_xor(words, mask, out=words)


def encode_frames(frames: list[Frame]) -> bytes:
    """Return the beginning of a payload: all that comes before the bodies."""
    return _COUNT.pack(len(frames)) + b"".join([each.row() for each in frames])


def table_nbytes(beginning: bytes | memoryview, nbytes: int) -> int:
    """Return the bytes before the bodies, from the first bytes of a payload of ``nbytes``."""
    if nbytes < _COUNT.size:
        raise malformed(f"The frames of a tensor have {nbytes} bytes, and no number of them.")
    (count,) = _COUNT.unpack(bytes(beginning[: _COUNT.size]))
    size = _COUNT.size + int(count) * ROW_NBYTES
    if size > nbytes:
        raise malformed(f"The {nbytes} bytes of a changed tensor end before its {count} rows do.")
    return size


def decode_frames(table: bytes | memoryview, nbytes: int, tensor_nbytes: int) -> list[Frame]:
    """Return the frames of a payload of ``nbytes`` bytes, of a tensor of ``tensor_nbytes``.

    ``InvalidCheckpoint`` if they are not in order, or do not make up the payload.
    """
    frames = [Frame(*row) for row in _ROW.iter_unpack(table[_COUNT.size :])]
    num_leaves, before, total = -(-tensor_nbytes // LEAF_NBYTES), -1, len(table)
    for each in frames:
        if not before < each.leaf < num_leaves:
            raise invalid(f"A frame of leaf {each.leaf} follows {before}, of {num_leaves} leaves.")
        before = each.leaf
        total += each.nbytes
    if total != nbytes:
        raise invalid(f"The frames of a tensor take {total} bytes, and its payload has {nbytes}.")
    return frames


def inflate(body: bytes | memoryview, nbytes: int) -> bytes:
    """Return the data of a zlib stream, which must be exactly ``nbytes`` and end there."""
    stream = zlib.decompressobj()
    try:
        # One byte more than is due, so that a longer stream is seen and not unpacked.
        data = stream.decompress(body, nbytes + 1)
    except zlib.error as error:
        raise malformed(f"A frame is not a zlib stream ({error}).") from None
    if len(data) != nbytes or not stream.eof or stream.unused_data:
        raise invalid(f"A frame does not unpack to {nbytes} bytes.")
    return data


def _planes(words: MaskWords) -> bytes:
    return words.view(np.uint8).reshape(len(words), -1).T.tobytes()


def _unplaned(data: bytes, kind: np.dtype[Any]) -> MaskWords:
    planes = np.frombuffer(data, np.uint8).reshape(kind.itemsize, -1)
    words: MaskWords = np.ascontiguousarray(planes.T).reshape(-1).view(kind)
    return words

"""Digests of tensors by docs/digest.md, texts that list them, and frames of the leaves that
changed.

    leaf         SHA-256 of a MiB of a tensor's data in C order; the last one may be shorter
    tensor       SHA-256 of a head, the key and all leaves
    checkpoint   SHA-256 of the sorted digests of its tensors

A tensor is digested in parts, on any threads or machines, since a leaf needs only its own bytes.
``LeafHashes`` collects the leaves of one tensor: of each range of its data that is at hand it
hashes the leaves that lie wholly inside, and it knows which are missing.

A manifest is such a text, and so are the digests that a checkpoint carries in its metadata:

    # shardvar digest 1
    # checkpoint 3b6c...
    # tensor c25e... "table"
    6f1c...  model.safetensors

The last line is of a file, which only a manifest has. Other programs write lists of such lines
without the others, which ``decode_sums`` reads.

Frames. The payload of a changed tensor in a delta has the leaves that differ, each as a mask of
XOR: ``new = old XOR mask``, byte by byte. All integers are little-endian:

    payload   the number of frames (4 bytes), a row of 48 bytes for each, the bodies in order
    row       leaf (4) | encoding (4) | bytes of the body (4) | changed elements (4) | SHA-256 of the
              new leaf (32)
    sparse    1: a zlib stream of the planes of gaps, then the planes of the elements of the mask
    dense     2: a zlib stream of the planes of the mask
    stored    3: the mask

A gap is the number of equal elements before a changed one, since the changed one before it; it has
4 bytes. The planes of ``n`` integers of ``w`` bytes are ``w`` times ``n`` bytes: first the lowest
byte of each, and the highest last. The bytes of one significance are alike, so they compress well.

Rows are in ascending order of leaves, a leaf has at most one, and nothing follows the last body. A
reader must refuse all else: a stream of another length, a position behind the leaf, an element of
the mask that is 0, another number of changed elements.

Masks compose: the mask of two steps is the XOR of theirs. So deltas are joined without the base,
and a mask also leads back.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import MalformedCheckpoint, UnsupportedError
from shardvar.records import frozen
from shardvar.wire.damage import invalid, malformed

DIGESTS = "shardvar.digests"
"""The name of the text in the metadata of a file that has the digests of its tensors. It is none of
the user's metadata."""
LEAF_NBYTES = 1 << 20  # the bytes of a tensor that have a hash of their own
HASH_NBYTES = 32  # the bytes of a hash

_USED_BITS = {
    "int2": 0x03, "uint2": 0x03, "int4": 0x0F, "uint4": 0x0F,
    "float4_e2m1fn": 0x0F, "float6_e2m3fn": 0x3F, "float6_e3m2fn": 0x3F,
}  # fmt: skip
"""The bits of a byte that an element of the dtype uses."""

Octets = bytes | bytearray | memoryview


def has_unused_bits(dtype: str) -> bool:
    """Return True if an element leaves bits of its byte unused, which do not count."""
    return dtype in _USED_BITS


def hash_of(data: Octets) -> bytes:
    from hashlib import sha256  # a listing computes no digest

    return sha256(data).digest()


def hash_leaf(dtype: str, payload: Octets) -> bytes:
    mask = _USED_BITS.get(dtype)
    if mask is None:
        return hash_of(payload)
    return hash_of((np.frombuffer(payload, np.uint8) & mask).tobytes())


def digest_of_leaves(key: str, dtype: str, shape: tuple[int, ...], leaves: Octets) -> str:
    # Keys are bytes in most formats; keys that are not UTF-8 were read with escapes.
    name = key.encode("utf-8", "surrogateescape")
    head = f"shardvar digest 1\n{dtype}\n{','.join(map(str, shape))}\n{len(name)}\n"
    return hash_of(head.encode() + name + leaves).hex()


def digest_of_all(tensors: Mapping[str, str]) -> str:
    return hash_of(b"".join(sorted(map(bytes.fromhex, tensors.values())))).hex()


class LeafHashes:
    """The hashes of the leaves of one tensor, as far as they are known."""

    __slots__ = ("hashes", "is_known", "nbytes", "num_missing")

    def __init__(self, nbytes: int) -> None:
        count = -(-nbytes // LEAF_NBYTES)
        self.nbytes = nbytes
        self.hashes = bytearray(HASH_NBYTES * count)
        self.is_known = bytearray(count)
        self.num_missing = count

    def inside(self, start: int, stop: int) -> range:
        """Return the numbers of the leaves wholly in the bytes ``[start, stop)`` of the data."""
        last = len(self.is_known) if stop == self.nbytes else stop // LEAF_NBYTES
        return range(-(-start // LEAF_NBYTES), last)

    def bounds(self, leaf: int) -> tuple[int, int]:
        return leaf * LEAF_NBYTES, min((leaf + 1) * LEAF_NBYTES, self.nbytes)

    def hashes_of(self, dtype: str, start: int, payload: memoryview) -> dict[int, bytes]:
        """Hash the leaves that lie wholly in a range of the data, from byte ``start`` on."""
        found = {}
        for leaf in self.inside(start, start + len(payload)):
            first, last = self.bounds(leaf)
            found[leaf] = hash_leaf(dtype, payload[first - start : last - start])
        return found

    def add(self, dtype: str, start: int, payload: memoryview) -> None:
        for leaf, value in self.hashes_of(dtype, start, payload).items():
            self.put(leaf, value)

    def add_region(
        self,
        dtype: str,
        shape: tuple[int, ...],
        offset: tuple[int, ...],
        extent: tuple[int, ...],
        payload: memoryview,
    ) -> None:
        """Hash the leaves that lie wholly in a region of the tensor, whose bytes are the payload."""
        if not len(payload):
            return
        # The region is runs of the data: all of some last axes, and a range of the axis before.
        axis = len(shape) - 1
        while axis > 0 and extent[axis] == shape[axis]:
            axis -= 1
        run_nbytes = len(payload) // prod(extent[: max(axis, 0)])
        count = len(payload) // run_nbytes
        # Of short runs, only the last of the data may have a whole leaf.
        first = 0 if run_nbytes >= LEAF_NBYTES else count - 1
        for number in range(first, count):
            index, place, stride = number, 0, self.nbytes // prod(shape)
            for at in reversed(range(len(shape))):
                here = offset[at] + (index % extent[at] if at < axis else 0)
                index = index // extent[at] if at < axis else index
                place, stride = place + here * stride, stride * shape[at]
            run = payload[number * run_nbytes : (number + 1) * run_nbytes]
            self.add(dtype, place, run)

    def put(self, leaf: int, found: bytes) -> bool:
        """Keep the hash of a leaf; return False if another one is known of it."""
        place = slice(leaf * HASH_NBYTES, (leaf + 1) * HASH_NBYTES)
        if self.is_known[leaf]:
            return self.hashes[place] == found
        self.hashes[place], self.is_known[leaf] = found, 1
        self.num_missing -= 1
        return True

    def known(self) -> dict[int, bytes]:
        """Return the hashes that are known, by the number of the leaf."""
        return {
            leaf: bytes(self.hashes[leaf * HASH_NBYTES : (leaf + 1) * HASH_NBYTES])
            for leaf, is_known in enumerate(self.is_known)
            if is_known
        }

    def missing(self) -> Iterator[int]:
        return (leaf for leaf, is_known in enumerate(self.is_known) if not is_known)

    def digest(self, key: str, dtype: str, shape: tuple[int, ...]) -> str:
        """Return the digest of the tensor; ``ValueError`` while a leaf is missing."""
        if self.num_missing:
            raise ValueError(f"{self.num_missing} leaves of {key!r} are missing.")
        return digest_of_leaves(key, dtype, shape, bytes(self.hashes))


# The text.

HEAD = "# shardvar digest 1"
"""The first line."""
_VERSION = re.compile(r"# shardvar digest ([0-9]{1,9})")
_CHECKPOINT = re.compile(r"# checkpoint ([0-9a-f]{64})")
_TENSOR = re.compile(r'# tensor ([0-9a-f]{64}) ("(?:[^"\\]|\\.)*")')
_FILE = re.compile(r"\\?([0-9a-f]{64})  (.+)")
_WRITE_ONE = "`shardvar digest PATH --write` writes one."
WRITE_AGAIN = (
    "Write it again from a checkpoint that is known to be right: `shardvar digest PATH --write`."
)
"""The remedy for a text of digests that is damaged."""


def encode_digests(tensors: Mapping[str, str]) -> str:
    lines = [HEAD, f"# checkpoint {digest_of_all(tensors)}"]
    lines += [f"# tensor {value} {json.dumps(key)}" for key, value in tensors.items()]
    return "".join(f"{line}\n" for line in lines)


def decode_digests(text: str, place: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of tensors by key, and of files by name; raise unless whole."""
    head, *lines = text.split("\n")
    if head != HEAD:
        raise not_digests(place, head)
    if not lines or lines.pop():
        raise MalformedCheckpoint(f"{place} ends within a line.", WRITE_AGAIN)
    of_all, tensors, files = "", dict[str, str](), dict[str, str]()
    for number, line in enumerate(lines, start=2):
        if found := _TENSOR.fullmatch(line):
            try:
                key = str(json.loads(found[2]))
            except json.JSONDecodeError:
                key = None
            if key is None or key in tensors:
                raise MalformedCheckpoint(
                    f"{place} has a wrong key in line {number}, or one twice.", WRITE_AGAIN
                )
            tensors[key] = found[1]
        elif found := _FILE.fullmatch(line):
            files[found[2]] = found[1]
        elif found := _CHECKPOINT.fullmatch(line):
            of_all = found[1]
        else:
            raise MalformedCheckpoint(
                f"{place} has a line {number} of no kind that is known.", WRITE_AGAIN
            )
    if of_all != digest_of_all(tensors):
        raise MalformedCheckpoint(
            f"The digest of the checkpoint in {place} does not match the tensors that it lists.",
            WRITE_AGAIN,
        )
    return tensors, files


_ALGORITHMS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
"""The algorithms of checksums of files, by their hexadecimal digits."""
_SUM = re.compile(r"(\\?)(?:(?:md5|sha\d+)[:-])?([0-9a-fA-F]{32,128})(?:[ \t]+\*?(.+))?")
_TAGGED_SUM = re.compile(r"(\\?)(?:MD5|SHA(?:2?-)?\d+) ?\((.+)\) ?= ?([0-9a-fA-F]{32,128})")
_ESCAPE = re.compile(r"\\([\\nr])")
_UNESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}


def is_digests(octets: bytes) -> bool:
    """Return True if bytes begin as a text of digests of any version does."""
    return octets.startswith(HEAD[:-1].encode())


def decode_sums(octets: bytes) -> list[tuple[str, str, str]]:
    """Return algorithm, digits and file name, if any, of each line of sha256sum and its like."""
    is_wide = octets.startswith((b"\xff\xfe", b"\xfe\xff"))  # as PowerShell writes texts
    text = (
        octets.decode("utf-16", "replace")
        if is_wide
        else octets.decode("utf-8-sig", "surrogateescape")
    )
    sums = []
    for line in text.split("\n"):
        if found := _SUM.fullmatch(line.rstrip("\r ")):
            escaped, digits, name = found[1], found[2], found[3] or ""
        elif found := _TAGGED_SUM.fullmatch(line.rstrip("\r ")):
            escaped, name, digits = found[1], found[2], found[3]
        else:
            continue
        if escaped:
            name = _ESCAPE.sub(lambda mark: _UNESCAPED[mark[1]], name)
        if len(digits) in _ALGORITHMS:
            sums.append((_ALGORITHMS[len(digits)], digits.lower(), "" if name == "-" else name))
    return sums


def not_digests(place: str, head: str) -> MalformedCheckpoint:
    if head == f"{HEAD}\r":
        cause = f"The lines of {place} end in CR LF, and lines of a manifest in LF."
        return MalformedCheckpoint(cause, "Copy it again as it is, without a conversion of text.")
    if version := _VERSION.fullmatch(head):
        cause = f"{place} is a manifest of version {version[1]}, and this shardvar reads version 1."
        return MalformedCheckpoint(
            cause, "Read it with the version of shardvar that wrote it, or a later one."
        )
    cause = f"{place} is not a manifest of shardvar: it does not begin with {HEAD!r}."
    return MalformedCheckpoint(cause, _WRITE_ONE)


def with_digests(texts: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, str]:
    return {**texts, DIGESTS: encode_digests(digests)}


def take_digests(texts: dict[str, str]) -> Mapping[str, str]:
    """Return the digests that a file's metadata carry, and remove their text from the others."""
    return CarriedDigests(texts.pop(DIGESTS))


def check_digests_fit(digests: Mapping[str, str], nbytes: int) -> None:
    """Raise ``UnsupportedError`` if the text of digests has more than ``nbytes`` bytes."""
    found = len(encode_digests(digests))
    if found > nbytes:
        raise UnsupportedError(
            f"The digests of {len(digests)} tensors have {found} bytes, and the metadata have room "
            f"for {nbytes}.",
            "Keep them in a file: `shardvar digest PATH --write`.",
        )


class CarriedDigests(Mapping[str, str]):
    """The digests in the metadata of a checkpoint, whose text is parsed when one is asked for."""

    __slots__ = ("_digests", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._digests: dict[str, str] | None = None

    def _tensors(self) -> dict[str, str]:
        if self._digests is None:
            self._digests, _ = decode_digests(self.text, f"The text {DIGESTS!r} of the metadata")
        return self._digests

    def __getitem__(self, key: str) -> str:
        return self._tensors()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def __contains__(self, key: Any) -> bool:
        return key in self._tensors()

    def __repr__(self) -> str:
        return f"CarriedDigests({len(self.text)} characters)"


SPARSE, DENSE, STORED = 1, 2, 3
"""The encodings of a mask."""
ROW_NBYTES = 48  # the bytes of a row
_COUNT = struct.Struct("<I")
_ROW = struct.Struct("<IIII32s")
_GAP = np.dtype("<u4")
_SPARSE_LEVEL, _DENSE_LEVEL = 6, 1
"""The levels of zlib: sparse data are small, so that a better level costs little."""
_MOST_SPARSE, _LEAST_DENSE = 4, 64
"""A mask is tried as sparse if at most a quarter of the elements changed, and as dense if at least
one in 64 did. In between, both are tried, and the smaller one is kept."""

MaskWords = npt.NDArray[Any]  # elements of a leaf as unsigned integers


@frozen
class Frame:
    leaf: int  # its number
    encoding: int  # of the mask
    nbytes: int  # of the body
    num_changed: int  # the elements that differ
    digest: bytes  # SHA-256 of the new leaf

    def row(self) -> bytes:
        return _ROW.pack(self.leaf, self.encoding, self.nbytes, self.num_changed, self.digest)


def word_nbytes(itemsize: int) -> int:
    """Return the bytes of a word: an element, half of a complex128, or a byte without a size."""
    return min(max(itemsize, 1), 8)


def mask_of(old: memoryview, new: memoryview, width: int) -> MaskWords:
    """Return the mask between two leaves, as words of ``width`` bytes."""
    kind = np.dtype(f"<u{width}")
    mask: MaskWords = np.bitwise_xor(np.frombuffer(old, kind), np.frombuffer(new, kind))
    return mask


def encode_mask(mask: MaskWords) -> tuple[int, int, bytes]:
    """Return the encoding, the number of changed elements and the body of a mask that is not 0."""
    places = np.flatnonzero(mask)
    count, smallest = len(places), (STORED, mask.tobytes())

    def keep(encoding: int, planes: bytes, level: int) -> None:
        nonlocal smallest
        body = zlib.compress(planes, level)
        if len(body) < len(smallest[1]):
            smallest = encoding, body

    if _MOST_SPARSE * count <= len(mask):
        gaps = np.diff(places, prepend=-1) - 1
        keep(SPARSE, _planes(gaps.astype(_GAP)) + _planes(mask[places]), _SPARSE_LEVEL)
    if _LEAST_DENSE * count >= len(mask):
        keep(DENSE, _planes(mask), _DENSE_LEVEL)
    return smallest[0], count, smallest[1]


def decode_mask(
    encoding: int, count: int, body: bytes | memoryview, nbytes: int, width: int
) -> MaskWords:
    """Return the mask of a leaf in a few times its memory, also if the body claims more."""
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
        raise invalid(f"A frame changes {found} elements, and claims {count}.")
    return mask


def apply_mask(mask: MaskWords, leaf: memoryview) -> None:
    words = np.frombuffer(leaf, mask.dtype)
    np.bitwise_xor(words, mask, out=words)


def encode_frames(frames: list[Frame]) -> bytes:
    """Return all of a payload that comes before the bodies."""
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
    """Return the frames of a payload of ``nbytes`` bytes, of a tensor of ``tensor_nbytes``."""
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
    """Return the data of a zlib stream of exactly ``nbytes``."""
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

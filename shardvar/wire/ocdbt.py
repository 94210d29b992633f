"""The database OCDBT of TensorStore: a map from keys to values, in a B-tree.

    manifest.ocdbt              the settings of the database, and where the root is
    d/16 bytes in hexadecimal   any file: nodes of the tree, and values that nodes lead to

    manifest := frame(settings, files, version)            node := frame(height, files, entries)
    frame    := magic, length, version 0, compression 0, body, CRC32C of all before
    files    := the paths that the body leads to           entries := columns of keys and of values

A value is in a leaf (``bytes``), where the checksum of the node guards it, or is a range of a file
(``ValueRange``), which no checksum guards. Other nodes lead to nodes. Numbers are varints, unless
the code has another form. Columns follow each other: all lengths of keys, then all keys.

Paths and keys may leave out the beginning that they share with the last. The writer here never does.

TensorStore's documentation has the layout, in "OCDBT: storage format", and its reader is the oracle
of the tests.

Reading. Databases of other writers have more in them:

    frame     the body may be one frame of Zstandard
    paths     each may leave out the beginning that it shares with the last
    keys      the same; and a node leaves out what a branch above it has already
    versions  a manifest has the last ones. The newest is the database, so that the nodes of older
              versions are never looked at
    numbered  ``manifest.ocdbt`` has only settings, and ``manifest.`` with a number of 16 digits the
              versions: for storages that cannot replace a file

Each node is checked by itself, and with what leads to it: its height is one less, and its keys lie
between its neighbours'. So all keys are in order, no node leads to itself, and each key
is found once. Every checksum is compared before anything is unpacked.

Unpacked bytes are counted (``NodeRoom``) against the bytes that are stored: a few bytes of
Zstandard may be millions of keys, and a key of a few bytes may repeat 65535 of the last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import lt

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import UnsupportedError
from shardvar.limits import MAX_KEY_EXPANSION, MAX_NODE_EXPANSION
from shardvar.records import entity, frozen, mutable
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import corrupt, invalid, malformed, past_limit
from shardvar.wire.protobuf import decode_varint, decode_varints, encode_varint, encode_varints

INLINE_NBYTES = 1024
"""The size up to which Orbax has values in nodes: a setting, which only writers obey."""
NODE_NBYTES = 8 << 20  # the size of a node from which another one begins: TensorStore's default
MAX_ENTRIES = 1 << 20  # the most entries of a node that TensorStore reads
MAX_KEY_NBYTES = 65535  # the longest key that TensorStore reads

MANIFEST_MAGIC, NODE_MAGIC = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
_VERSION, _UNCOMPRESSED, _ONE_MANIFEST = b"\0", b"\0", b"\0"
_ARITY = b"\4"  # Versions beyond 2**4 would have nodes of their own; one is written
_WRITTEN_ENTRY_NBYTES = 24  # About what an entry takes in addition to its key and its value


@frozen
class ValueRange:
    """A value that is a range of a file, by the file's number."""

    file: int
    start: int
    nbytes: int


@frozen
class _Node:
    key: bytes  # its first key
    octets: bytes
    totals: tuple[int, int, int]
    """The keys below it, the bytes of its nodes, and the bytes of spans below it."""


def build_database(
    values: Mapping[bytes, bytes | ValueRange],
    files: Sequence[str],
    own: str,
    uuid: bytes,
    nanoseconds: int,
    node_nbytes: int = NODE_NBYTES,
) -> tuple[bytes, bytes]:
    """Return the manifest of a database, and the file ``own`` that holds its nodes."""
    entries = sorted(values.items())
    sizes = [
        len(key) + _WRITTEN_ENTRY_NBYTES + (len(value) if type(value) is bytes else 0)
        for key, value in entries
    ]
    level = [_leaf(entries[rows.start : rows.stop], files) for rows in _runs(sizes, node_nbytes)]
    nodes = bytearray()
    height = 0
    while True:
        starts = []
        for node in level:
            starts.append(len(nodes))
            nodes += node.octets
        if len(level) <= 1:
            break
        height += 1
        runs = [*_runs([len(node.key) for node in level], node_nbytes)]
        # A node that leads to a single one leads nowhere, so the largest have two at least.
        if len(runs) == len(level):
            ends = [*range(2, len(level) - 1, 2), len(level)]
            runs = [*map(range, [0, *ends], ends)]
        level = [
            _branch(height, level[rows.start : rows.stop], starts[rows.start : rows.stop], own)
            for rows in runs
        ]
    manifest = [
        uuid,
        _ONE_MANIFEST,
        encode_varint(INLINE_NBYTES),
        encode_varint(node_nbytes),
        _ARITY,
        _UNCOMPRESSED,
        _build_files([own] if level else [""]),
        encode_varint(1),  # versions
        encode_varint(1),  # the number of the first
        bytes([height]),
        _places(level, starts) if level else _NO_ROOT,
        nanoseconds.to_bytes(8, "little"),
        encode_varint(0),  # nodes of older versions
    ]
    return _frame(MANIFEST_MAGIC, manifest), bytes(nodes)


def _runs(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield ranges of neighbours that together are not larger than a node should be, but by one."""
    start = total = 0
    for row, size in enumerate(sizes):
        if row > start and (total + size > most or row - start == MAX_ENTRIES):
            yield range(start, row)
            start, total = row, 0
        total += size
    if sizes:
        yield range(start, len(sizes))


def _leaf(entries: Sequence[tuple[bytes, bytes | ValueRange]], files: Sequence[str]) -> _Node:
    spans = [value for _, value in entries if type(value) is ValueRange]
    inline = [value for _, value in entries if type(value) is bytes]
    used = sorted({span.file for span in spans}, key=lambda number: _parts(files[number]))
    place = {number: row for row, number in enumerate(used)}
    keys = [key for key, _ in entries]
    body = [
        bytes([0]),
        _build_files([files[number] for number in used]),
        encode_varint(len(entries)),
        _column([0] * (len(entries) - 1)),
        _column(map(len, keys)),
        *keys,
        _column(value.nbytes if type(value) is ValueRange else len(value) for _, value in entries),  # type: ignore[arg-type]
        bytes(type(value) is ValueRange for _, value in entries),
        _column(place[span.file] for span in spans),
        _column(span.start for span in spans),
        *inline,
    ]
    octets = _frame(NODE_MAGIC, body)
    return _Node(keys[0], octets, (len(keys), len(octets), sum(span.nbytes for span in spans)))


def _branch(height: int, below: Sequence[_Node], starts: Sequence[int], own: str) -> _Node:
    """Return the node that leads to nodes, which begin at ``starts`` in the file ``own``."""
    count = len(below)
    body = [
        bytes([height]),
        _build_files([own]),
        encode_varint(count),
        _column([0] * (count - 1)),
        _column(len(node.key) for node in below),
        _column([0] * count),  # the keys below leave nothing out
        *(node.key for node in below),
        _places(below, starts),
    ]
    octets = _frame(NODE_MAGIC, body)
    keys, tree, spans = (sum(node.totals[each] for node in below) for each in range(3))
    return _Node(below[0].key, octets, (keys, tree + len(octets), spans))


def _places(nodes: Sequence[_Node], starts: Sequence[int]) -> bytes:
    """Return the columns that lead to nodes of one file, the only one in its table."""
    return b"".join(
        [
            _column([0] * len(nodes)),
            _column(starts),
            _column(len(node.octets) for node in nodes),
            *(_column(node.totals[each] for node in nodes) for each in range(3)),
        ]
    )


_NO_ROOT = encode_varint(0) + (encode_varints(np.array([2**64 - 1] * 2, np.uint64))) + bytes(3)
"""The columns of a root that is missing."""


def _build_files(paths: Sequence[str]) -> bytes:
    """Return a table of sorted paths, each with the size of its ``base``."""
    parts = [_parts(path) for path in paths]
    return b"".join(
        [
            encode_varint(len(parts)),
            _column([0] * max(len(parts) - 1, 0)),
            _column(len(base) + len(rest) for base, rest in parts),
            _column(len(base) for base, _ in parts),
            *(base + rest for base, rest in parts),
        ]
    )


def _parts(path: str) -> tuple[bytes, bytes]:
    """Return the folder of the database that a path leads to, and the path in it."""
    before, slash, name = path.rpartition("d/")
    return before.encode(), (slash + name).encode()


def _column(numbers: "Iterator[int] | Sequence[int] | map[int]") -> bytes:
    return encode_varints(np.fromiter(numbers, np.uint64))


def _frame(magic: bytes, body: Sequence[bytes]) -> bytes:
    content = b"".join([_VERSION, _UNCOMPRESSED, *body])
    length = len(magic) + 8 + len(content) + 4
    octets = magic + length.to_bytes(8, "little") + content
    return octets + CRC32C.compute(octets).to_bytes(4, "little")


_Ints = NDArray[np.int64]
Unpack = Callable[[bytes, int], bytes]
"""Returns the content of a frame of Zstandard, which may have so many bytes at most."""

_HEAD_NBYTES, _TAIL_NBYTES = 12, 4
_FREE_NBYTES = 1 << 26  # bytes that may be unpacked of the smallest database
_ENTRY_NBYTES = 256  # About what a key takes in memory in addition to its bytes
_MAX_NUMBER = (1 << 63) - 1
_NOWHERE = (1 << 64) - 1  # the first byte, and the size, of a root that is missing
_MAX_ARITY = 16


@mutable
class NodeRoom:
    """The bytes that a database may still become in memory."""

    nbytes: int = _FREE_NBYTES

    def add(self, stored: int) -> None:
        self.nbytes += stored * MAX_NODE_EXPANSION

    def take(self, nbytes: int) -> None:
        """Take some; raise if there is no room for them."""
        if nbytes > self.nbytes:
            raise past_limit(
                f"The nodes become {nbytes - self.nbytes} bytes more than they may",
                "MAX_NODE_EXPANSION",
            )
        self.nbytes -= nbytes


@frozen
class NodePlace:
    file: str
    folder: str  # the folder of the database that wrote it, to which its own paths are relative
    start: int
    nbytes: int
    height: int  # the levels below it
    prefix: bytes = b""  # the beginning of all its keys, which it leaves out
    least: bytes = b""  # No key of it is smaller
    stop: bytes | None = None  # All keys of it are smaller; None for the last node of a level


@frozen
class DatabaseHead:
    """The settings of a database, and the root of its newest version."""

    uuid: bytes
    is_numbered: bool  # True if the versions are in numbered files
    root: NodePlace | None
    """The root; None if the database is empty, or the versions are in numbered files."""


@entity
class LeafNode:
    """A node of keys and values."""

    keys: list[bytes]  # sorted
    files: list[str]  # the paths of the files of values
    file: _Ints
    """[n] the number of the file of each value; -1 for values in the node."""
    start: _Ints  # [n] the first byte of each value, in its file or in the body of the node
    nbytes: _Ints
    body: bytes  # the body of the node; empty if no value is in it


class _Body:
    """The body of a frame, read from its beginning on."""

    def __init__(self, octets: bytes, room: NodeRoom) -> None:
        self.octets, self.at, self.room = octets, 0, room

    def take(self, nbytes: int) -> bytes:
        if nbytes > len(self.octets) - self.at:
            raise malformed(f"{nbytes} bytes are due at byte {self.at} of {len(self.octets)}.")
        self.at += nbytes
        return self.octets[self.at - nbytes : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        value, self.at = decode_varint(self.octets, self.at)
        return value

    def words(self, count: int) -> "list[int]":
        """Return a column of varints of up to 64 bits."""
        values, end = decode_varints(memoryview(self.octets)[self.at :], count)
        self.at += end
        found: list[int] = values.tolist()
        return found

    def column(self, count: int, most: int = _MAX_NUMBER) -> _Ints:
        """Return a column of varints, none above ``most``."""
        values, end = decode_varints(memoryview(self.octets)[self.at :], count)
        if count and int(values.max()) > most:
            raise malformed(f"The number {int(values.max())} is above {most}.")
        self.at += end
        return values.astype(np.int64)

    def texts(
        self, what: str, count: int, outside: int, has_parts: bool = True, copies: int = 1
    ) -> tuple[list[bytes], _Ints]:
        """Return keys or paths, each of which leaves out its beginning in the last one, and the length
        of a part of each. The caller puts ``outside`` bytes in front, and copies parts."""
        shared = np.append(0, self.column(count - 1, MAX_KEY_NBYTES))
        added = self.column(count, MAX_KEY_NBYTES)
        parts = self.column(count, MAX_KEY_NBYTES) if has_parts else np.zeros(count, np.int64)
        lengths = shared + added
        if (shared[1:] > lengths[:-1]).any() or (parts > lengths).any():
            raise malformed(f"A {what} has more in common with another one than that has.")
        longest = outside + int(lengths.max())
        if longest > MAX_KEY_NBYTES:
            raise malformed(f"A {what} has {longest} bytes; {MAX_KEY_NBYTES} are allowed.")
        nbytes = int((lengths + (copies - 1) * parts).sum()) + copies * count * outside
        if nbytes > MAX_KEY_EXPANSION * len(self.octets):
            raise past_limit(
                f"The {what}s of a node of {len(self.octets)} bytes have {nbytes} bytes",
                "MAX_KEY_EXPANSION",
            )
        self.room.take(nbytes + count * _ENTRY_NBYTES)
        joined, at, text, texts = self.take(int(added.sum())), 0, b"", []
        for begin, more in zip(shared.tolist(), added.tolist(), strict=True):
            text, at = text[:begin] + joined[at : at + more], at + more
            texts.append(text)
        return texts, parts

    def finish(self) -> None:
        """Raise if there are more bytes."""
        if self.at < len(self.octets):
            raise malformed(f"{len(self.octets) - self.at} bytes follow the last field.")


def parse_manifest(octets: bytes, unpack: Unpack, room: NodeRoom) -> DatabaseHead:
    body = _unframe(octets, MANIFEST_MAGIC, unpack, room)
    uuid, kind = body.take(16), body.byte()
    body.number(), body.number()  # sizes, which only writers obey
    arity, compression = body.byte(), body.number()
    if kind > 1 or not 1 <= arity <= _MAX_ARITY or compression > 1:
        raise malformed(f"The settings are not known: {kind}, {arity}, {compression}.")
    body.take(4 * compression)  # the level, which only writers obey
    if kind:
        body.finish()
        return DatabaseHead(uuid, is_numbered=True, root=None)
    files = _read_files(body, "")
    count = body.number()
    if not 1 <= count <= 1 << arity:
        raise malformed(f"The manifest has {count} versions, and not 1 to {1 << arity}.")
    generations = body.words(count)
    if any(one >= other for one, other in pairwise([0, *generations])):
        raise malformed("The versions are not in order.")
    # The root of the last version.
    height = body.take(count)[-1]
    file = int(body.column(count, len(files) - 1)[-1])
    start, nbytes = body.words(count)[-1], body.words(count)[-1]
    for _ in range(3):  # totals, which readers do not need
        body.words(count)
    body.take(8 * count)  # times
    root = None
    if start == nbytes == _NOWHERE:
        if height:
            raise malformed(f"The root has {height} levels below it, and is missing.")
    elif start + nbytes > _MAX_NUMBER:
        raise malformed(f"The {nbytes} bytes from byte {start} on end nowhere.")
    else:
        folder, path = files[file]
        root = NodePlace(path, folder, start, nbytes, height)
    count = body.number()  # of the columns that lead to nodes of older versions
    if count > 64:  # one for each height; a number of 64 bits has no more
        raise malformed(f"The manifest leads to {count} nodes of versions.")
    body.words(count)
    body.column(count, max(len(files) - 1, 0))
    for _ in range(3):
        body.words(count)
    body.take(8 * count + count)
    body.finish()
    return DatabaseHead(uuid, is_numbered=False, root=root)


def parse_node(
    octets: bytes, place: NodePlace, unpack: Unpack, room: NodeRoom
) -> LeafNode | list[NodePlace]:
    """Return the keys and values of a node, or the nodes to which it leads."""
    body = _unframe(octets, NODE_MAGIC, unpack, room)
    height = body.byte()
    if height != place.height:
        raise malformed(f"The node is of height {height}, and {place.height} is due.")
    files = _read_files(body, place.folder)
    count = body.number()
    if not 1 <= count <= MAX_ENTRIES:
        raise malformed(f"The node has {count} entries, and not 1 to {MAX_ENTRIES}.")
    texts, common = body.texts("key", count, len(place.prefix), height > 0)
    if not all(map(lt, texts, texts[1:])):
        row = next(row for row in range(1, count) if texts[row] <= texts[row - 1])
        raise malformed(f"The key {texts[row][:100]!r} follows {texts[row - 1][:100]!r}.")
    keys = [place.prefix + text for text in texts]
    if keys[0] < place.least or (place.stop is not None and keys[-1] >= place.stop):
        raise malformed("The node has keys that are a neighbour's.")
    if height:
        found = _read_places(body, place, files, keys, common)
        body.finish()
        return found
    return _read_values(body, [path for _, path in files], keys)


def _read_places(
    body: _Body,
    place: NodePlace,
    files: Sequence[tuple[str, str]],
    keys: Sequence[bytes],
    common: _Ints,
) -> list[NodePlace]:
    count = len(keys)
    file = body.column(count, len(files) - 1)
    start, nbytes = body.column(count), body.column(count)
    for _ in range(3):  # totals, which readers do not need
        body.words(count)
    if (start > _MAX_NUMBER - nbytes).any():
        raise malformed("The node leads to a range that ends nowhere.")
    stops = [*keys[1:], place.stop]
    columns = zip(file.tolist(), start.tolist(), nbytes.tolist(), common.tolist(), strict=True)
    found = []
    for key, stop, (number, first, size, left_out) in zip(keys, stops, columns, strict=True):
        folder, path = files[number]
        prefix = key[: len(place.prefix) + left_out]
        found.append(NodePlace(path, folder, first, size, place.height - 1, prefix, key, stop))
    return found


def _read_values(body: _Body, files: list[str], keys: list[bytes]) -> LeafNode:
    count = len(keys)
    nbytes, kinds = body.column(count), np.frombuffer(body.take(count), np.uint8)
    if (kinds > 1).any():
        raise malformed(f"A value is of the kind {int(kinds.max())}, which is not known.")
    is_span = kinds == 1
    file, start = np.full(count, -1), np.zeros(count, np.int64)
    spans, inline = np.flatnonzero(is_span), np.flatnonzero(~is_span)
    file[spans] = body.column(len(spans), len(files) - 1)
    start[spans] = body.column(len(spans))
    if (start > _MAX_NUMBER - nbytes).any():
        raise malformed("A value is a range that ends nowhere.")
    room = len(body.octets) - body.at
    if (nbytes[inline] > room).any():  # before a sum that may be too large for a number
        raise malformed(f"A value has {int(nbytes[inline].max())} bytes, and the node {room}.")
    ends = body.at + np.cumsum(nbytes[inline])
    start[inline] = ends - nbytes[inline]
    body.at = int(ends[-1]) if len(ends) else body.at
    if body.at > len(body.octets):
        raise malformed(f"The values end {body.at - len(body.octets)} bytes behind the node.")
    body.finish()
    return LeafNode(keys, files, file, start, nbytes, body.octets if len(inline) else b"")


def _read_files(body: _Body, folder: str) -> list[tuple[str, str]]:
    """Return the files of a body, each with the folder of the database that wrote it."""
    count = body.number()
    if not count:
        return []
    paths, bases = body.texts("path", count, len(folder), copies=2)
    files = []
    for path, base in zip(paths, bases.tolist(), strict=True):
        before, whole = (each.decode("utf-8", "surrogateescape") for each in (path[:base], path))
        files.append((folder + before, folder + whole))
    return files


def _unframe(octets: bytes, magic: bytes, unpack: Unpack, room: NodeRoom) -> _Body:
    """Return the body of a frame, after comparing its checksum."""
    if len(octets) < _HEAD_NBYTES + _TAIL_NBYTES or not octets.startswith(magic):
        raise malformed(
            f"{len(octets)} bytes that begin with {octets[:4].hex() or 'nothing'} are not a node of "
            f"a database, which begins with {magic.hex()}."
        )
    nbytes = int.from_bytes(octets[len(magic) : _HEAD_NBYTES], "little")
    if nbytes != len(octets):
        raise malformed(f"It claims {nbytes} bytes, and it has {len(octets)}.")
    stored = int.from_bytes(octets[-_TAIL_NBYTES:], "little")
    if CRC32C.compute(memoryview(octets)[:-_TAIL_NBYTES]) != stored:
        raise corrupt(f"Its {nbytes} bytes disagree with their checksum.")
    room.add(nbytes)
    content = octets[:-_TAIL_NBYTES]
    version, at = decode_varint(content, _HEAD_NBYTES)
    if version:
        raise UnsupportedError(
            f"The node is of version {version}; 0 is the newest that is known.", "Update shardvar."
        )
    compression, at = decode_varint(content, at)
    if compression > 1:
        raise invalid(f"The node is compressed in the way {compression}, which is not known.")
    body = unpack(content[at:], room.nbytes) if compression else content[at:]
    room.take(len(body))
    return _Body(body, room)

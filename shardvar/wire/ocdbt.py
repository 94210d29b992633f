"""The database OCDBT of TensorStore, as it is written: a map from keys to values, in a B-tree.

    manifest.ocdbt              the settings of the database, and where the root is
    d/16 bytes in hexadecimal   any file: nodes of the tree, and values that nodes lead to

    manifest := frame(settings, files, version)            node := frame(height, files, entries)
    frame    := magic, length, version 0, compression 0, body, CRC32C of all before
    files    := the paths that the body leads to           entries := columns of keys and of values

A value is in a leaf (``bytes``), where the checksum of the node guards it, or is a range of a file
(``ValueRange``), which no checksum guards. Other nodes lead to nodes. Numbers are varints, unless the
code says otherwise. Columns follow each other: all lengths of keys, then all keys.

Paths and keys may leave out what they have in common with the one before. Here they never do.

TensorStore's documentation has the layout, in "OCDBT: storage format", and its reader is the
oracle of the tests. ``wire.btree`` reads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.wire.crc import CRC32C
from shardvar.wire.varint import encode_varint, encode_varints

INLINE_NBYTES = 1024
"""The size up to which Orbax has values in nodes: a setting, which only writers obey."""
NODE_NBYTES = 8 << 20
"""The size of a node from which another one begins: TensorStore's default."""
MAX_ENTRIES = 1 << 20
"""The most entries of a node that TensorStore reads."""
MAX_KEY_NBYTES = 65535
"""The longest key that TensorStore reads."""

MANIFEST_MAGIC, NODE_MAGIC = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
_VERSION, _UNCOMPRESSED, _ONE_MANIFEST = b"\0", b"\0", b"\0"
_ARITY = b"\4"
"""Versions beyond 2**4 would have nodes of their own; one is written."""
_ENTRY_NBYTES = 24
"""About what an entry takes in addition to its key and its value."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """A value that is a range of a file."""

    file: int
    """The number of the file."""
    start: int
    """Its first byte."""
    nbytes: int
    """Its size."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that was built."""

    key: bytes
    """Its first key."""
    octets: bytes
    """Its bytes."""
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
    """Return the manifest of a database, and the file ``own`` that holds its nodes.

    ``files`` are the paths of the files of spans, ``uuid`` has 16 bytes, and ``nanoseconds`` are the
    time since 1970.

    >>> manifest, nodes = build_database({b"a": b"1", b"b": ValueRange(0, 0, 9)}, ["d/f"], "d/0", bytes(16), 0)
    >>> manifest[:4].hex(), nodes[:4].hex()
    ('0cdb3a2a', '0cdb20de')
    """
    keys = sorted(values)
    level = [
        _leaf([(key, values[key]) for key in keys[rows.start : rows.stop]], files)
        for rows in _runs([len(key) + _size(values[key]) for key in keys], node_nbytes)
    ]
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
        # A node that leads to a single one leads nowhere: the largest have two at least.
        runs = runs if len(runs) < len(level) else [*_pairs(len(level))]
        level = [
            _branch(height, level[rows.start : rows.stop], starts[rows.start : rows.stop], own)
            for rows in runs
        ]
    return _manifest(level, starts, height, own, uuid, nanoseconds, node_nbytes), bytes(nodes)


def _size(value: bytes | ValueRange) -> int:
    return _ENTRY_NBYTES + (0 if type(value) is ValueRange else len(value))  # type: ignore[arg-type]


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


def _pairs(count: int) -> Iterator[range]:
    """Yield ranges of two neighbours, the last of three if their number is odd."""
    for start in range(0, count - 1, 2):
        yield range(start, count if start + 3 >= count else start + 2)
        if start + 3 >= count:
            return


def _leaf(entries: Sequence[tuple[bytes, bytes | ValueRange]], files: Sequence[str]) -> _Node:
    """Return the node of keys and values."""
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


def _manifest(
    root: Sequence[_Node],
    starts: Sequence[int],
    height: int,
    own: str,
    uuid: bytes,
    nanoseconds: int,
    node_nbytes: int,
) -> bytes:
    """Return the manifest of one version, which has no root if the database is empty."""
    body = [
        uuid,
        _ONE_MANIFEST,
        encode_varint(INLINE_NBYTES),
        encode_varint(node_nbytes),
        _ARITY,
        _UNCOMPRESSED,
        _build_files([own] if root else [""]),
        encode_varint(1),  # versions
        encode_varint(1),  # the number of the first
        bytes([height]),
        _places(root, starts) if root else _MISSING,
        nanoseconds.to_bytes(8, "little"),
        encode_varint(0),  # nodes of older versions
    ]
    return _frame(MANIFEST_MAGIC, body)


_MISSING = encode_varint(0) + (encode_varints(np.array([2**64 - 1] * 2, np.uint64))) + bytes(3)
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
    """Return the folder of the database that a path leads to, and the path in it. Nodes name files
    relative to the folder of their own database."""
    before, slash, name = path.rpartition("d/")
    return before.encode(), (slash + name).encode()


def _column(numbers: "Iterator[int] | Sequence[int] | map[int]") -> bytes:
    return encode_varints(np.fromiter(numbers, np.uint64))


def _frame(magic: bytes, body: Sequence[bytes]) -> bytes:
    """Return a frame around a body."""
    content = b"".join([_VERSION, _UNCOMPRESSED, *body])
    length = len(magic) + 8 + len(content) + 4
    octets = magic + length.to_bytes(8, "little") + content
    return octets + CRC32C.compute(octets).to_bytes(4, "little")

"""Hostile databases of Orbax (OCDBT). Each node and each manifest is made by hand, with the checksum
of what it says, so that only a reader that looks at what it says finds what is wrong."""

from collections.abc import Mapping, Sequence

import crc32c

from spec_tests.hostile.case import Evidence, Files
from spec_tests.hostile.tensorflow import varint
from spec_tests.hostile.zarr import orbax

MANIFEST, NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
NODES = "d/" + "0" * 32
Span = tuple[int, int]
"""A range of the data file: its first byte, and its size."""
GOOD_TREE: Files = {"_METADATA": orbax(use_ocdbt=True)["_METADATA"]}
GOOD: dict[str, bytes | Span] = {
    "t/.zarray": orbax()["t/.zarray"],
    "t/0": (0, 8),
    "t/1": (8, 8),
}


def column(*numbers: int) -> bytes:
    return b"".join(map(varint, numbers))


def frame(magic: bytes, body: bytes) -> bytes:
    """A frame of version 0, not compressed, with its length before and its checksum after it."""
    octets = magic + (len(body) + 18).to_bytes(8, "little") + b"\0\0" + body
    return octets + crc32c.crc32c(octets).to_bytes(4, "little")


def paths(*names: tuple[str, str]) -> bytes:
    """A table of files: the folder of the database of each, and its path in that."""
    texts = [before + name for before, name in names]
    lengths = column(*map(len, texts)) + column(*(len(before) for before, _ in names))
    return varint(len(names)) + bytes(max(len(names) - 1, 0)) + lengths + "".join(texts).encode()


def leaf(
    values: Mapping[str, bytes | Span], data: tuple[str, str], count: int | None = None
) -> bytes:
    """A node with these keys and values, which claims ``count`` of them."""
    keys = sorted(values)
    spans = [value for key in keys if isinstance(value := values[key], tuple)]
    inline = [value for key in keys if isinstance(value := values[key], bytes)]
    sizes = [value[1] if isinstance(value := values[key], tuple) else len(value) for key in keys]
    body = bytes([0]) + paths(*[data][: len(spans)]) + varint(len(keys) if count is None else count)
    body += bytes(len(keys) - 1) + column(*map(len, keys)) + "".join(keys).encode()
    body += column(*sizes) + bytes(isinstance(values[key], tuple) for key in keys)
    body += bytes(len(spans)) + column(*(start for start, _ in spans)) + b"".join(inline)
    return frame(NODE, body)


def manifest(place: Sequence[int], height: int = 0) -> bytes:
    """A manifest whose root is at these bytes (the first, and how many) of the file of nodes."""
    settings = bytes(16) + bytes([0]) + column(1024, 8 << 20) + bytes([4, 0])
    root = bytes([height]) + bytes([0]) + column(*place) + bytes(3)
    return frame(MANIFEST, settings + paths(("", NODES)) + bytes([1, 1]) + root + bytes(8) + b"\0")


def keyed(keys: Sequence[str], shared: Sequence[int] = ()) -> bytes:
    """A leaf of these keys, in this order, with values of no bytes; each key leaves out the first
    ``shared`` bytes."""
    shared = shared or [0] * len(keys)
    body = bytes([0]) + paths() + varint(len(keys)) + column(*shared[1:])
    body += column(*map(len, keys)) + "".join(keys).encode()
    return frame(NODE, body + bytes(2 * len(keys)))


def branch(keys: Sequence[str], common: int, places: Sequence[Sequence[int]]) -> bytes:
    """A node of height 1 that leads to places in the file of nodes; the keys below leave out the
    first ``common`` bytes."""
    count = len(keys)
    body = bytes([1]) + paths(("", NODES)) + varint(count) + bytes(count - 1)
    body += column(*map(len, keys)) + column(*[common] * count) + "".join(keys).encode()
    body += bytes(count) + column(*(start for start, _ in places))
    return frame(NODE, body + column(*(size for _, size in places)) + bytes(3 * count))


def rooted(*nodes: bytes, height: int = 0) -> Files:
    """A database of these nodes, of which the last is the root."""
    whole = b"".join(nodes)
    place = len(whole) - len(nodes[-1]), len(nodes[-1])
    return {"manifest.ocdbt": manifest(place, height), NODES: whole}


EVIDENCE = {"orbax": Evidence("orbax/pytree_zarr3/ckpt", "orbax_")}

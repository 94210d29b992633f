"""Hostile databases of Orbax (OCDBT). Each node and each manifest is made by hand, with the checksum
of what it says, so that only a reader that looks at what it says finds what is wrong."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import crc32c

from spec_tests.hostile.case import Case, Evidence, Files
from spec_tests.hostile.zarr import VALUES, orbax, orbax_cases

MANIFEST, NODE = bytes.fromhex("0cdb3a2a"), bytes.fromhex("0cdb20de")
NODES, DATA = "d/" + "0" * 32, "ocdbt.process_0/d/" + "a" * 32
Span = tuple[int, int]
"""A range of the data file: its first byte, and its size."""
GOOD_TREE: Files = {"_METADATA": orbax(use_ocdbt=True)["_METADATA"]}
GOOD: dict[str, bytes | Span] = {
    "t/.zarray": orbax()["t/.zarray"],
    "t/0": (0, 8),
    "t/1": (8, 8),
}


def varint(number: int) -> bytes:
    """A number in base 128, the lowest digit first."""
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])


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


def database(
    changes: Mapping[str, bytes | Span] | None = None,
    data: tuple[str, str] = ("ocdbt.process_0/", "d/" + "a" * 32),
    lost: Sequence[str] = (),
    count: int | None = None,
) -> Files:
    """A checkpoint of the array ``t`` in a database with these changes."""
    values = {key: value for key, value in (GOOD | (changes or {})).items() if key not in lost}
    node = leaf(values, data, count)
    files = {"manifest.ocdbt": manifest((0, len(node))), NODES: node, DATA: VALUES}
    return GOOD_TREE | {name: octets for name, octets in files.items() if name not in lost}


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


def zeros(nbytes: int, says: int) -> bytes:
    """A frame of Zstandard that becomes so many zeros, in blocks of 4 bytes, and says its size."""
    blocks = -(-nbytes // (1 << 17))
    heads = [((1 << 17) << 3 | 1 << 1 | (number == blocks - 1)) for number in range(blocks)]
    content = b"".join(head.to_bytes(3, "little") + b"\0" for head in heads)
    return b"\x28\xb5\x2f\xfd" + bytes([0b11000000, 0x38]) + says.to_bytes(8, "little") + content


def node_cases(case: Callable[[str, str, str, Files], Case], sound: Files) -> Iterator[Case]:
    """Nodes of which one field lies."""
    bomb = zeros(1 << 30, 1 << 30)
    packed = NODE + (len(bomb) + 18).to_bytes(8, "little") + b"\0\1" + bomb
    packed += crc32c.crc32c(packed).to_bytes(4, "little")
    kind = NODE + (18).to_bytes(8, "little") + b"\0\7"
    kind += crc32c.crc32c(kind).to_bytes(4, "little")
    one, other = keyed(["a", "c"]), keyed(["b"])
    leaf = keyed(["x"])
    many = [f"k{number:02}" for number in range(99)]
    claims = [
        ("order", "Malformed", "Keys in the wrong order: a search finds none.", rooted(keyed(["b", "a"]))),
        ("key_twice", "Malformed", "A key has two values.", rooted(keyed(["a", "a"]))),
        ("shared", "Malformed", "A key begins with 9 bytes of one that has 1.", rooted(keyed(["a", "b"], [0, 9]))),
        (
            "neighbour",
            "Malformed",
            "A node has a key that is behind the first one of its neighbour.",
            rooted(one, other, branch(["a", "b"], 0, [(0, len(one)), (len(one), len(other))]), height=1),
        ),
        (
            "same_nodes",
            "Invalid",
            "A node leads 99 times to one other, and so may that.",
            rooted(leaf, branch(many, 3, [(0, len(leaf))] * 99), height=1),
        ),
        ("keys", "Invalid", "2000 keys of which each is one byte longer.", rooted(keyed(["a"] * 2000, range(2000)))),
        ("compression", "Invalid", "A node is compressed in a way that is not known.", rooted(kind)),
        ("bomb", "Invalid", "A node of 32 KB that becomes 1 GiB of zeros.", rooted(packed)),
    ]  # fmt: skip
    for label, error, why, changed in claims:
        yield case(label, f"{error}Checkpoint", why, sound | changed)
    settings = bytes(16) + bytes([1]) + column(1024, 8 << 20) + bytes([4, 0])
    why = "The versions are in numbered files, of which there is none."
    yield case(
        "numbered",
        "IncompleteCheckpoint",
        why,
        sound | {"manifest.ocdbt": frame(MANIFEST, settings)},
    )
    settings = settings.replace(bytes([1]), bytes([0]), 1) + paths(("", NODES))
    why = "The manifest claims 2**40 versions."
    versions = frame(MANIFEST, settings + varint(1 << 40))
    yield case("versions", "MalformedCheckpoint", why, sound | {"manifest.ocdbt": versions})


def database_cases() -> Iterator[Case]:
    def case(label: str, error: str, why: str, files: Files) -> Case:
        return Case(f"orbax_database_{label}", "_METADATA", error, why, files)

    for label, place in {
        "dotdot": ("ocdbt.process_0/", "d/../../../orbax_cut/t/0"),
        "other": ("../orbax_cut/", "t/0"),
        "absolute": ("/etc/", "passwd"),
    }.items():
        why = f"A chunk is a range of the file {''.join(place)!r}, outside of the folder."
        yield case(label, "InvalidCheckpoint", why, database(data=place))
    for label, span, why in (
        ("past_end", (12, 8), "A chunk reaches past the end of its file."),
        ("huge", (0, 1 << 60), "A chunk of 2**60 bytes in a file of 16: room is made for it."),
    ):
        yield case(label, "IncompleteCheckpoint", why, database({"t/1": span}))
    why = "A chunk begins at 2**63 - 4: its end is negative in a signed number."
    yield case("offset_huge", "MalformedCheckpoint", why, database({"t/1": ((1 << 63) - 4, 8)}))
    why = "A chunk in a node lacks its last byte."
    yield case("cut", "IncompleteCheckpoint", why, database({"t/1": VALUES[8:15]}))
    why = "A chunk in a node has one byte more."
    yield case("long", "InvalidCheckpoint", why, database({"t/1": VALUES[8:] + b"\0"}))
    for label, name, error, why in (
        ("chunk_lost", "t/1", "IncompleteCheckpoint", "No key is of the second chunk: zeros."),
        ("array_lost", "t/.zarray", "MissingFile", "The array that the index names has no key."),
        ("nodes_lost", NODES, "IncompleteCheckpoint", "The file of nodes is not there."),
        ("data_lost", DATA, "IncompleteCheckpoint", "The data file is not there: an empty one."),
    ):
        yield case(label, error, why, database(lost=[name]))
    why = "A node claims 2**40 keys: tables are made for them."
    yield case("claims", "MalformedCheckpoint", why, database(count=1 << 40))
    sound = database()
    size = len(sound[NODES])
    for label, error, changed, why in (
        ("node_huge", "IncompleteCheckpoint", manifest((0, 1 << 50)), "A node of 2**50 bytes."),
        (
            "high",
            "MalformedCheckpoint",
            manifest((0, size), 200),
            "A tree of height 200 of one node.",
        ),
        ("empty", "MalformedCheckpoint", b"", "A manifest of no bytes."),
    ):
        yield case(label, error, why, sound | {"manifest.ocdbt": changed})
    itself = frame(NODE, bytes([1]) + paths(("", NODES)) + bytes([1]) + column(9, 0) + b"t/.zarray")
    itself = frame(NODE, itself[14:-4] + bytes([0, 0]) + column(len(itself) + 6, 3, 3, 3))
    yield from node_cases(case, sound)
    why = "A node leads to itself: it is followed for ever."
    looped = {"manifest.ocdbt": manifest((0, len(itself)), 1), NODES: itself}
    yield case("cycle", "MalformedCheckpoint", why, sound | looped)


def _cases() -> Iterator[Case]:
    yield from orbax_cases()
    yield from database_cases()


EVIDENCE = {"orbax": Evidence("orbax/pytree_zarr3/ckpt", _cases)}

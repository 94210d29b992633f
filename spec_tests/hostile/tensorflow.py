"""Tensor bundles: sorted tables made by hand, so that each number in them may be any."""

import struct
from collections.abc import Iterable, Iterator, Sequence

import crc32c

from shardvar.formats.tensorflow.contents import slice_key
from spec_tests.hostile.case import PICTURE, Case, Evidence, Files


def varint(number: int) -> bytes:
    octets = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def proto(*fields: tuple[int, int | bytes]) -> bytes:
    """A message: integers as varints, bytes behind their lengths."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def bundle_entry(
    shape: Sequence[int] = (4,),
    size: int = 16,
    *,
    dtype: int = 1,
    shard: int = 0,
    offset: int = 0,
    data: bytes = bytes(16),
    slices: Iterable[Sequence[tuple[int, int]]] = (),
) -> bytes:
    """The value of a tensor's entry; float32 unless ``dtype`` says otherwise."""
    dims = proto(*((2, proto((1, extent))) for extent in shape))
    extents = [
        proto(*((1, proto((1, start), (2, length))) for start, length in each)) for each in slices
    ]
    crc = varint(6 << 3 | 5) + struct.pack("<I", masked(data))
    return (
        proto((1, dtype), (2, dims), (3, shard), (4, offset), (5, size))
        + crc
        + proto(*((7, e) for e in extents))
    )


def masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def block(entries: Iterable[tuple[bytes, bytes]], restarts: int = 1) -> bytes:
    body = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries
    )
    return body + struct.pack("<II", 0, restarts)


def stored(content: bytes, kind: int = 0) -> bytes:
    """A block with its trailer."""
    return content + bytes([kind]) + struct.pack("<I", masked(content + bytes([kind])))


def handle(offset: int, nbytes: int) -> bytes:
    return varint(offset) + varint(nbytes)


def table(
    data: bytes,
    kind: int = 0,
    handles: Sequence[tuple[bytes, bytes]] | None = None,
    index: bytes | None = None,
) -> bytes:
    """A sorted table of one block, whose index block holds ``handles`` and whose footer the handle
    ``index``."""
    first = stored(data, kind)
    rows = [(b"\xff", handle(0, len(data)))] if handles is None else handles
    listed = block(rows)
    footer = handle(0, len(data)) + (handle(len(first), len(listed)) if index is None else index)
    return first + stored(listed) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def bundle(*entries: tuple[bytes, bytes], num_shards: int = 1, data: bytes = bytes(16)) -> Files:
    rows = [(b"", proto((1, num_shards))), *entries]
    return {"ck.index": table(block(rows)), f"ck.data-00000-of-{num_shards:05}": data}


def sliced(*extents: tuple[int, int]) -> Files:
    """A tensor of four zeros in slices (start, length)."""
    parts = [
        (
            slice_key(b"t", [extent]),
            bundle_entry([extent[1]], 4 * extent[1], data=bytes(4 * extent[1])),
        )
        for extent in sorted(set(extents))
    ]
    return bundle(*parts, (b"t", bundle_entry(size=0, slices=[[extent] for extent in extents])))


def tensorflow_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, files: Files) -> Case:
        return Case(f"tensorflow_{name}", "ck", error, why, files)

    yield case(
        "huge",
        "IncompleteCheckpoint",
        "Claims 2^60 elements in a file of 16 bytes: an array is allocated before the file's "
        "size is looked at.",
        bundle((b"t", bundle_entry([1 << 60], 1 << 62))),
    )
    yield case(
        "huge_and_empty",
        "InvalidCheckpoint",
        "A shape of 0 x 2^62 x 2^62: sizes are multiplied without looking for overflow, since "
        "the product is 0.",
        bundle((b"t", bundle_entry([0, 1 << 62, 1 << 62], 0, data=b""))),
    )
    yield case(
        "strings",
        "InvalidCheckpoint",
        "A string tensor of 2^40 elements in 16 bytes: a list of as many lengths is made first.",
        bundle((b"t", bundle_entry([1 << 40], 16, dtype=7))),
    )
    yield case(
        "rank",
        "InvalidCheckpoint",
        "A tensor of 20,000 axes, of which NumPy has 64: every table is made as wide.",
        bundle((b"t", bundle_entry([1] * 20000, 4))),
    )
    yield case(
        "overlap", "OverlappingSlices", "Two slices hold the same element.", sliced((0, 3), (2, 2))
    )
    yield case(
        "outside",
        "OutOfBounds",
        "A slice reaches out of its tensor: TensorFlow itself was made to write past its buffers "
        "so.",
        sliced((0, 2), (2, 3)),
    )
    yield case(
        "listed_often",
        "OverlappingSlices",
        "One slice is listed 3,000 times: overlaps are sought by comparing all with all, or it "
        "is counted as covering.",
        sliced(*[(0, 1)] * 3000, (1, 3)),
    )
    entries = block([(b"", proto((1, 1))), (b"t", bundle_entry())])
    at = len(entries) + 5
    loop = block([(b"\xff", handle(at, 16))])
    yield case(
        "handle_cycle",
        "InvalidCheckpoint",
        "The index block lists itself as a block of entries: it is followed for ever.",
        {
            "ck.index": table(entries, handles=[(b"\xff", handle(at, len(loop)))]),
            "ck.data-00000-of-00001": bytes(16),
        },
    )
    yield case(
        "handle_twice",
        "InvalidCheckpoint",
        "The index block lists the same block 2,000 times: a small file becomes a large table.",
        {
            "ck.index": table(
                entries, handles=[(b"u%04d" % n, handle(0, len(entries))) for n in range(2000)]
            ),
            "ck.data-00000-of-00001": bytes(16),
        },
    )
    for name, far in {"offset": handle(1 << 62, 100), "size": handle(0, 1 << 62)}.items():
        yield case(
            f"handle_huge_{name}",
            "MalformedCheckpoint",
            f"The {name} of a block is 2^62: it is added to, or allocated, before the file's "
            "size is looked at.",
            {
                "ck.index": table(entries, handles=[(b"\xff", far)]),
                "ck.data-00000-of-00001": bytes(16),
            },
        )
        yield case(
            f"footer_huge_{name}",
            "MalformedCheckpoint",
            f"The same of the index block, in the footer: its {name} is 2^62.",
            {"ck.index": table(entries, index=far), "ck.data-00000-of-00001": bytes(16)},
        )
    yield case(
        "restarts",
        "MalformedCheckpoint",
        "A block claims 2^32 - 1 restarts: four times as many bytes are taken off its end.",
        {
            "ck.index": table(block([(b"", proto((1, 1))), (b"t", bundle_entry())], 0xFFFFFFFF)),
            "ck.data-00000-of-00001": bytes(16),
        },
    )
    yield case(
        "snappy_claims",
        "MalformedCheckpoint",
        "A compressed block of 20 bytes that claims to become 2^32 - 1.",
        {"ck.index": table(varint(0xFFFFFFFF) + bytes(20), 1), "ck.data-00000-of-00001": bytes(16)},
    )
    # One literal zero, and copies of 64 bytes from one byte back: three bytes each.
    bomb = b"\x00\x00" + b"\xfe\x01\x00" * 20000
    yield case(
        "snappy_bomb",
        "MalformedCheckpoint",
        "A compressed block that claims 100 bytes and becomes 1.3 million: the claim is not held "
        "against what comes.",
        {"ck.index": table(varint(100) + bomb, 1), "ck.data-00000-of-00001": bytes(16)},
    )
    yield case(
        "shards",
        "MissingFile",
        "The header claims 2^31 - 1 data files: a name is made for each, or each is looked for.",
        bundle((b"t", bundle_entry(shard=7)), num_shards=(1 << 31) - 1),
    )
    yield case(
        "shard_negative",
        "InvalidCheckpoint",
        "A payload lies in data file -1: it is taken from the end of a list.",
        bundle((b"t", bundle_entry(shard=-1))),
    )
    yield case(
        "offset_negative",
        "OutOfBounds",
        "A payload begins at -8: what is before the file, or the end of it, is read.",
        bundle((b"t", bundle_entry(offset=-8))),
    )
    yield case(
        "empty", "MalformedCheckpoint", "An index of no bytes.", bundle() | {"ck.index": b""}
    )
    yield case(
        "foreign",
        "MalformedCheckpoint",
        "A picture under the name of an index.",
        bundle() | {"ck.index": PICTURE},
    )
    yield case(
        "data_truncated",
        "IncompleteCheckpoint",
        "The data file lost its last byte.",
        bundle((b"t", bundle_entry()), data=bytes(15)),
    )
    yield case(
        "data_swapped",
        "CorruptCheckpoint",
        "The data file is that of another checkpoint, of equal size.",
        bundle((b"t", bundle_entry()), data=bytes(range(16))),
    )


EVIDENCE = {"tensorflow": Evidence("tensorflow/sharded_var_3/sv", tensorflow_cases)}

"""Native checkpoints: indexes with right checksums that lie, and files that were harmed."""

import struct
from collections.abc import Iterator

import crc32c
import numpy as np

from shardvar.formats.native.index import Overview
from shardvar.planning.index import Metadata
from spec_tests.helpers.native_checkpoints import hand_made
from spec_tests.hostile.case import PICTURE, Case, Evidence, Files


def u64(*numbers: int) -> object:
    return np.array(numbers, "<u8")


def u32(*numbers: int) -> object:
    return np.array(numbers, "<u4")


def native(index: bytes, data: bytes = bytes(4)) -> Files:
    return {"ck.svindex": index, "ck.svdata-g1-00000-of-00001": data}


def native_slices(*regions: tuple[int, int]) -> bytes:
    """A tensor of four bytes in slices (start, length), all of zeros."""
    offset, extent = zip(*regions, strict=True)
    count = len(regions)
    crc = [crc32c.crc32c(bytes(length)) for length in extent]
    columns = {
        "offset": u64(*offset),
        "extent": u64(*extent),
        "nbytes": u64(*extent),
        "crc": u32(*crc),
    }
    zeros = {"file": u32(*[0] * count), "start": u64(*[0] * count), "count": u32(count)}
    return hand_made({**columns, **zeros})


def native_generation(generation: str) -> bytes:
    return hand_made(overview=Overview(Metadata(), generation, np.array([4])))


def native_owners(*owners: str, files: int = 0) -> bytes:
    """An index of data files that other checkpoints wrote."""
    count = files or len(owners)
    ends = ["g1-00000-of-00001"] * len(owners) + ["g2-00000-of-00001"] * (count - len(owners))
    return hand_made(
        overview=Overview(
            Metadata(), "g1", np.array([4] * count), file_names=ends, file_owners=owners
        )
    )


def native_footer(table_nbytes: int) -> bytes:
    """An index whose footer, with a right checksum, claims a table of another size."""
    index = hand_made()
    guarded = bytearray(index[-40:-12])
    guarded[8:16] = table_nbytes.to_bytes(8, "little")
    return index[:-40] + bytes(guarded) + struct.pack("<I", crc32c.crc32c(guarded)) + index[-8:]


def native_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, files: Files) -> Case:
        return Case(f"native_{name}", "ck", error, why, files)

    huge = u64(1 << 60)
    yield case(
        "huge",
        "InvalidCheckpoint",
        "Claims 2^60 elements in a file of 4 bytes: an array is allocated before the file's size "
        "is looked at.",
        native(hand_made({"shape": huge, "extent": huge, "nbytes": huge})),
    )
    yield case(
        "huge_file",
        "InvalidCheckpoint",
        "Claims 2^60 elements, and that the data file is as large: the checksums of its runs are "
        "not counted.",
        native(
            hand_made(
                {"shape": huge, "extent": huge, "nbytes": huge},
                Overview(Metadata(), "g1", np.array([1 << 60])),
            )
        ),
    )
    yield case(
        "huge_and_empty",
        "InvalidCheckpoint",
        "A shape of 0 x 2^63 elements: sizes are multiplied without looking for overflow, since "
        "the product is 0.",
        native(
            hand_made(
                {
                    "rank": np.array([2], "u1"),
                    "shape": u64(0, 1 << 63),
                    "offset": u64(0, 0),
                    "extent": u64(0, 1 << 63),
                    "nbytes": u64(0),
                    "crc": u32(0),
                }
            )
        ),
    )
    yield case(
        "overlap",
        "OverlappingSlices",
        "Two slices hold the same element: whichever is read last wins.",
        native(native_slices((0, 3), (2, 2))),
    )
    yield case(
        "outside",
        "OutOfBounds",
        "A slice reaches out of its tensor: it is copied over what lies behind the array.",
        native(native_slices((0, 2), (2, 3))),
    )
    yield case(
        "hole",
        "IncompleteCheckpoint",
        "An element is in no slice: zeros, or what was in the memory before, are returned for it.",
        native(native_slices((0, 1), (2, 2))),
    )
    yield case(
        "nested",
        "MalformedCheckpoint",
        "A million nested msgpack arrays: a decoder that recurses leaves the stack, and the "
        "process.",
        native(hand_made(metadata=b"\x91" * 10**6 + b"\xc0")),
    )
    yield case(
        "msgpack_claims",
        "MalformedCheckpoint",
        "A msgpack array of 2^32 - 1 elements, of which there is none: room is made for them first.",
        native(hand_made(metadata=b"\xdd\xff\xff\xff\xff")),
    )
    for name, generation in {"dotdot": "../../x", "absolute": "/etc/x", "nul": "g\x001"}.items():
        yield case(
            f"generation_{name}",
            "InvalidCheckpoint",
            f"The generation, of which the data files' names are made, is {generation!r}: it "
            "leads out of the "
            "directory, or cuts the name off.",
            native(native_generation(generation)),
        )
    for name, owner in {
        "dotdot": "..",
        "folder": "../x",
        "absolute": "/etc/x",
        "backslash": "..\\x",
        "nul": "x\0y",
    }.items():
        yield case(
            f"owner_{name}",
            "InvalidCheckpoint",
            f"The prefix of a data file of another checkpoint is {owner!r}: it leads out of the "
            "directory, or cuts the name off.",
            native(native_owners(owner)),
        )
    yield case(
        "owner_twice",
        "InvalidCheckpoint",
        "Two data files have one name: the sizes of one are taken for the other.",
        native(native_owners("x", "x")),
    )
    yield case(
        "owner_count",
        "InvalidCheckpoint",
        "Two data files, and the prefix of one: the other is looked for anywhere.",
        native(native_owners("x", files=2)),
    )
    yield case(
        "owner_lost",
        "MissingFile",
        "The data file of another checkpoint is missing: zeros are returned, or the file of the same "
        "name of this checkpoint.",
        native(native_owners("x")),
    )
    yield case(
        "counts",
        "InvalidCheckpoint",
        "The one tensor claims 2^32 - 1 entries: columns are read past their ends.",
        native(hand_made({"count": u32(0xFFFFFFFF)})),
    )
    yield case(
        "table_huge",
        "MalformedCheckpoint",
        "The footer claims a table of 2^60 bytes: it is read before the file's size is looked at.",
        native(native_footer(1 << 60)),
    )
    yield case("empty", "MalformedCheckpoint", "An index of no bytes.", native(b""))
    yield case(
        "truncated",
        "MalformedCheckpoint",
        "Half an index, as a full disk leaves it.",
        native(hand_made()[:200]),
    )
    yield case(
        "foreign", "MalformedCheckpoint", "A picture under the name of an index.", native(PICTURE)
    )
    other = native(hand_made(), b"\1\2\3\4")
    yield case(
        "swapped",
        "CorruptCheckpoint",
        "The data file is that of another checkpoint, of equal size.",
        other,
    )


EVIDENCE = {"shardvar": Evidence("native/tiny/ck", native_cases)}

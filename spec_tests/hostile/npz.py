"""npz: zip archives and npy headers made by hand, deflate streams too."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from spec_tests.hostile.case import PICTURE, Case, Evidence


def npy(
    shape: str = "(4,)", descr: str = "'<f4'", data: bytes = bytes(16), nbytes: int | None = None
) -> bytes:
    """An array's file; ``nbytes`` is what it claims of its header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return (
        b"\x93NUMPY\1\0"
        + struct.pack("<H", len(header) if nbytes is None else nbytes)
        + header
        + data
    )


@dataclass(frozen=True)
class Member:
    """A member of an archive."""

    name: str
    content: bytes
    """The stored bytes, compressed or not."""
    method: int = 0
    nbytes: int | None = None
    """The size that it claims to have when inflated."""
    crc: int | None = None
    extra: bytes = b""
    """An optional extra field, which is to give the sizes."""


def archive(*members: Member, is_shared: bool = False) -> bytes:
    """A zip archive; with ``is_shared`` all members are those of the directory, and one alone is in
    the file."""
    local, central = b"", b""
    for member in members:
        name = member.name.encode()
        crc = zlib.crc32(member.content) if member.crc is None else member.crc
        nbytes = len(member.content) if member.nbytes is None else member.nbytes
        sizes = (0xFFFFFFFF, 0xFFFFFFFF) if member.extra else (len(member.content), nbytes)
        fields = struct.pack("<HHHHHIII", 20, 0, member.method, 0, 33, crc, *sizes)
        fields += struct.pack("<HH", len(name), len(member.extra))
        start = 0 if is_shared else len(local)
        if not (is_shared and local):
            local += b"PK\3\4" + fields + name + member.extra + member.content
        central += (
            b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, start)
        )
        central += name + member.extra
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(central), len(local), 0)
    return local + central + b"PK\5\6" + end


def deflated_zeros(prefix: bytes, count: int) -> bytes:
    """A deflate stream of a stored block ``prefix`` and ``count`` * 258 + 1 zeros, by fixed codes:
    13 bits for 258.

    The literal 0 is 00110000; 258 bytes from one byte back are 11000101 and 00000; the end is
    0000000.
    """
    bits = "110" + "00110000" + "1100010100000" * count + "0000000"
    bits += "0" * (-len(bits) % 8)
    octets = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    return b"\0" + struct.pack("<HH", len(prefix), len(prefix) ^ 0xFFFF) + prefix + octets


def npz_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"npz_{name}", "ck.npz", error, why, {"ck.npz": file})

    count = 16_000
    zeros = count * 258 + 1
    kernel = npy(f"({zeros},)", "'|i1'", b"")
    stream, crc = deflated_zeros(kernel, count), zlib.crc32(kernel + bytes(zeros))
    bomb = Member("a.npy", stream, 8, len(kernel) + zeros, crc)
    yield case(
        "bomb_shared",
        "InvalidCheckpoint",
        "A thousand members share one compressed array: 26 KB become 4 GB, though no member is "
        "inflated very much.",
        archive(
            *(Member(f"{n:03}.npy", stream, 8, bomb.nbytes, crc) for n in range(1000)),
            is_shared=True,
        ),
    )
    yield case(
        "bomb_claims",
        "InvalidCheckpoint",
        "A compressed array of 26 KB that claims 2^31 bytes, more than deflate can make of it.",
        archive(
            Member(
                "a.npy",
                deflated_zeros(npy(f"({1 << 31},)", "'|i1'", b""), count),
                8,
                (1 << 31) + len(kernel),
                crc,
            )
        ),
    )
    yield case(
        "bomb_past_claim",
        "MalformedCheckpoint",
        "A compressed array that claims 64 bytes and becomes 4 million: it is inflated to its "
        "end, not to its claim.",
        archive(
            Member(
                "a.npy",
                deflated_zeros(npy("(64,)", "'|i1'", b""), count),
                8,
                len(npy("(64,)")) + 48,
                crc,
            )
        ),
    )
    yield case(
        "huge",
        "IncompleteCheckpoint",
        "An array of 2^60 elements in a member of 16 bytes.",
        archive(Member("a.npy", npy(f"({1 << 60},)"))),
    )
    yield case(
        "overflow",
        "InvalidCheckpoint",
        "A shape whose size is 0 in 64 bits: 2^32 x 2^32.",
        archive(Member("a.npy", npy(f"({1 << 32}, {1 << 32})", data=b""))),
    )
    yield case(
        "negative",
        "InvalidCheckpoint",
        "A shape of -4: the array's size is negative, and compares as smaller than the member.",
        archive(Member("a.npy", npy("(-4,)"))),
    )
    yield case(
        "power",
        "InvalidCheckpoint",
        "A shape of 9**9**9, which whoever evaluates the header computes.",
        archive(Member("a.npy", npy("(9**9**9,)"))),
    )
    yield case(
        "nested",
        "InvalidCheckpoint",
        "Thirty thousand nested brackets: a parser that recurses leaves the stack, and the process.",
        archive(Member("a.npy", npy("(" * 30_000))),
    )
    yield case(
        "pickle",
        "InvalidCheckpoint",
        "An array of objects, whose pickle calls a function: whoever unpickles it runs what "
        "somebody else wrote.",
        archive(Member("a.npy", npy("(1,)", "'|O'", b"cos\nsystem\n(S'touch pickled'\ntR."))),
    )
    yield case(
        "header_past_end",
        "IncompleteCheckpoint",
        "An array's header claims more bytes than its member has: it is read from the next member.",
        archive(Member("a.npy", npy(nbytes=60_000))),
    )
    yield case(
        "duplicate",
        "InvalidCheckpoint",
        "Two members of one name: readers disagree on which of them counts.",
        archive(Member("a.npy", npy()), Member("a.npy", npy(data=bytes(range(16))))),
    )
    yield case(
        "zip64_cut",
        "OutOfBounds",
        "The field that gives the sizes claims 16 bytes and has 5: it is unpacked as if they "
        "were there.",
        archive(Member("a.npy", npy(), extra=struct.pack("<HH", 1, 16) + b"\x90\0\0\0\0")),
    )
    whole = archive(Member("a.npy", npy()))
    yield case(
        "directory_past_end",
        "InvalidCheckpoint",
        "The directory is said to begin past the end of the file.",
        whole[:-6] + struct.pack("<IH", 0xFFFFFFF0, 0),
    )
    yield case(
        "truncated",
        "MalformedCheckpoint",
        "The end of the archive, and so its directory, is gone.",
        whole[:100],
    )
    yield case("empty", "MalformedCheckpoint", "A file of no bytes.", b"")
    yield case("foreign", "MalformedCheckpoint", "A picture under the name of an archive.", PICTURE)
    yield case(
        "swapped",
        "CorruptCheckpoint",
        "The array's bytes are not those of which the directory has the checksum.",
        archive(Member("a.npy", npy(data=bytes(range(16))), crc=zlib.crc32(npy()))),
    )


EVIDENCE = {"npz": Evidence("npz/scalars_0d/ckpt/arrays.npz", npz_cases, file="ck.npz")}

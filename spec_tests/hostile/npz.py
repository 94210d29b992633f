"""npz: zip archives and npy headers made by hand, deflate streams too."""

import struct
import zlib
from dataclasses import dataclass

from spec_tests.hostile.case import Evidence


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


EVIDENCE = {"npz": Evidence("npz/scalars_0d/ckpt/arrays.npz", "npz_", file="ck.npz")}

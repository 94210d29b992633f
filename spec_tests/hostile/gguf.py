"""GGUF files, assembled field by field."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from spec_tests.hostile.case import Arrays, Evidence, Files

F32, Q4_0, Q8_0 = 0, 2, 8
U32, STRING, ARRAY, U16 = 4, 8, 9, 2


@dataclass(frozen=True)
class Field:
    """A metadatum: its name, the number of its type, and its bytes."""

    name: str
    kind: int
    value: bytes


@dataclass(frozen=True)
class Info:
    """A line of the list of tensors; extents as in the file, the last axis first."""

    name: str = "t"
    dims: Sequence[int] = (4,)
    kind: int = F32
    offset: int = 0
    rank: int | None = None
    """The number of axes that it claims."""


def text(value: str, order: str = "<", nbytes: int | None = None) -> bytes:
    octets = value.encode()
    return struct.pack(order + "Q", len(octets) if nbytes is None else nbytes) + octets


def number(name: str, value: int, code: str = "I", kind: int = U32, order: str = "<") -> Field:
    return Field(name, kind, struct.pack(order + code, value))


def gguf(
    *infos: Info,
    data: bytes = bytes(16),
    fields: Sequence[Field] = (),
    order: str = "<",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; ``counts`` are the numbers of tensors and of metadata that it claims."""
    out = b"GGUF" + struct.pack(order + "I2Q", version, *(counts or (len(infos), len(fields))))
    for field in fields:
        out += text(field.name, order) + struct.pack(order + "I", field.kind) + field.value
    for info in infos:
        rank = len(info.dims) if info.rank is None else info.rank
        out += text(info.name, order) + struct.pack(f"{order}I{len(info.dims)}Q", rank, *info.dims)
        out += struct.pack(order + "IQ", info.kind, info.offset)
    return out + bytes(-len(out) % alignment) + data


def split(number_: int, count: int, *infos: Info, total: int = 2) -> bytes:
    """A part of a split file."""
    fields = [
        number("split.no", number_, "H", U16),
        number("split.count", count, "H", U16),
        number("split.tensors.count", total, "i", 5),
    ]
    return gguf(*infos, fields=fields)


def _make(arrays: Arrays) -> Files:
    """Matrices, not quantised."""
    starts = accumulate((array.nbytes for array in arrays.values()), initial=0)
    infos = [
        Info(key, array.shape[::-1], F32, start)
        for (key, array), start in zip(arrays.items(), starts, strict=False)
    ]
    return {"ck.gguf": gguf(*infos, data=b"".join(map(bytes, arrays.values())))}


EVIDENCE = {"gguf": Evidence("gguf/every_type/m", "gguf_", file="ck.gguf", make=_make)}

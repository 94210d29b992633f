"""GGUF files, assembled field by field."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spec_tests.hostile.case import PICTURE, Arrays, Case, Evidence, Files

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


def gguf_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"gguf_{name}", "ck.gguf", error, why, {"ck.gguf": file})

    incomplete, invalid = "IncompleteCheckpoint", "InvalidCheckpoint"
    yield case(
        "huge", incomplete, "Claims 2^60 elements in 16 bytes.", gguf(Info(dims=(1 << 30, 1 << 28)))
    )
    yield case(
        "overflow",
        invalid,
        "Extents whose product is 0 in 64 bits.",
        gguf(Info(dims=(1 << 32, 1 << 32))),
    )
    yield case(
        "extent_huge",
        invalid,
        "An extent of 2^64 - 1, beside one of 0.",
        gguf(Info(dims=((1 << 64) - 1, 0))),
    )
    wide = gguf(Info(dims=(1 << 61, 0), kind=8))
    yield case(
        "wide_and_empty", invalid, "2^61 numbers in blocks of 8 bits, beside an extent of 0.", wide
    )
    yield case("tensors", incomplete, "Claims 2^60 tensors.", gguf(Info(), counts=(1 << 60, 0)))
    yield case("fields", incomplete, "Claims 2^60 metadata.", gguf(Info(), counts=(1, 1 << 60)))
    array = struct.pack("<IQ", STRING, 1 << 60)
    yield case(
        "array",
        incomplete,
        "An array of 2^60 strings.",
        gguf(Info(), fields=[Field("a", ARRAY, array)]),
    )
    array = struct.pack("<IQ", U32, 1 << 62)
    yield case(
        "array_overflow",
        incomplete,
        "An array of 2^62 numbers of 4 bytes, together 0 in 64 bits.",
        gguf(Info(), fields=[Field("a", ARRAY, array)]),
    )
    string = struct.pack("<Q", (1 << 64) - 4)
    yield case(
        "string",
        incomplete,
        "A string of 2^64 - 4 bytes.",
        gguf(Info(), fields=[Field("a", STRING, string)]),
    )
    nested = struct.pack("<IQ", ARRAY, 1) * 20_000 + struct.pack("<IQ", 99, 1)
    yield case(
        "nested",
        "MalformedCheckpoint",
        "Twenty thousand arrays in each other, the last of an unknown type: a parser recurses.",
        gguf(Info(), fields=[Field("a", ARRAY, nested)]),
    )
    yield case("rank", invalid, "2^32 - 1 axes.", gguf(Info(rank=(1 << 32) - 1)))
    yield case(
        "overlap",
        invalid,
        "Two tensors share bytes: a small file becomes large arrays.",
        gguf(Info("a", (16,)), Info("b", offset=32), data=bytes(64)),
    )
    yield case(
        "outside",
        incomplete,
        "A tensor begins behind the end of its file.",
        gguf(Info(offset=1 << 20)),
    )
    yield case(
        "offset_huge",
        incomplete,
        "An offset of 2^64 - 32: -32 if it is signed.",
        gguf(Info(offset=-32 % 2**64)),
    )
    yield case(
        "unaligned",
        invalid,
        "An offset that is not a multiple of the alignment.",
        gguf(Info(offset=8)),
    )
    for name, value in (("zero", 0), ("odd", 24)):
        yield case(
            f"alignment_{name}",
            invalid,
            f"An alignment of {value}: a remainder by 0, or a mask that is none.",
            gguf(Info(), fields=[number("general.alignment", value)]),
        )
    yield case(
        "duplicate",
        invalid,
        "Two tensors of one name.",
        gguf(Info(), Info(offset=32), data=bytes(64)),
    )
    yield case(
        "row", invalid, "A row of 48 numbers in blocks of 32.", gguf(Info(dims=(48, 1), kind=Q8_0))
    )
    yield case("type", "UnsupportedError", "A type that ggml has given up.", gguf(Info(kind=4)))
    yield case("cut", incomplete, "The last byte is missing.", gguf(Info())[:-1])
    yield case(
        "cut_header",
        incomplete,
        "The header ends within a name.",
        gguf(Info("a name of some length"))[:40],
    )
    yield case("empty", "MalformedCheckpoint", "A file of no bytes.", b"")
    yield case("foreign", "MalformedCheckpoint", "A picture under the name of a model.", PICTURE)
    yield from _split_cases()


def split(number_: int, count: int, *infos: Info, total: int = 2) -> bytes:
    """A part of a split file."""
    fields = [
        number("split.no", number_, "H", U16),
        number("split.count", count, "H", U16),
        number("split.tensors.count", total, "i", 5),
    ]
    return gguf(*infos, fields=fields)


def _split_cases() -> Iterator[Case]:
    first, second = split(0, 2, Info("a")), split(1, 2, Info("b"))
    names = "ck-00001-of-00002.gguf", "ck-00002-of-00002.gguf"

    def case(name: str, error: str, why: str, files: Files) -> Case:
        return Case(
            f"gguf_split_{name}", names[0] if names[0] in files else names[1], error, why, files
        )

    yield case("missing", "MissingFile", "The second of two parts is missing.", {names[0]: first})
    yield case(
        "first_missing", "MissingFile", "The first of two parts is missing.", {names[1]: second}
    )
    yield case(
        "exchanged",
        "InvalidCheckpoint",
        "The parts have each other's names.",
        {names[0]: second, names[1]: first},
    )
    yield case(
        "tensors",
        "IncompleteCheckpoint",
        "A part has fewer tensors than the split file says.",
        {names[0]: first, names[1]: split(1, 2)},
    )
    yield Case(
        "gguf_split_alone",
        "ck.gguf",
        "IncompleteCheckpoint",
        "One part of two under the name of a whole file.",
        {"ck.gguf": first},
    )


def _make(arrays: Arrays) -> Files:
    """Matrices, not quantised."""
    starts = accumulate((array.nbytes for array in arrays.values()), initial=0)
    infos = [
        Info(key, array.shape[::-1], F32, start)
        for (key, array), start in zip(arrays.items(), starts, strict=False)
    ]
    return {"ck.gguf": gguf(*infos, data=b"".join(map(bytes, arrays.values())))}


EVIDENCE = {"gguf": Evidence("gguf/every_type/m", gguf_cases, file="ck.gguf", make=_make)}

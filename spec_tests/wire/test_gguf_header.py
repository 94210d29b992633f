"""Headers of GGUF: what was put in is read, wherever the first bytes end; and each fault in words."""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import CheckpointError, IncompleteCheckpoint, ShardvarError
from shardvar.wire import gguf as codec
from shardvar.wire.gguf import GgufArray, GgufHeader, GgufTensor, build_gguf, parse_gguf
from spec_tests.helpers.octets import reads_of
from spec_tests.hostile.gguf import ARRAY, STRING, U32, Field, Info, gguf, number, text

CODES = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
NAMES = dict(
    zip(CODES, "uint8 int8 uint16 int16 uint32 int32 float32 bool uint64 int64 float64".split(), strict=True)
)  # fmt: skip


def numbers(kind: int) -> st.SearchStrategy[Any]:
    if kind in (6, 12):
        return st.floats(allow_nan=False, width=32 if kind == 6 else 64)
    if kind == 7:
        return st.booleans()
    bits = 8 * struct.calcsize(CODES[kind])
    low = 0 if CODES[kind].isupper() else -(1 << bits - 1)
    return st.integers(low, low + (1 << bits) - 1)


@st.composite
def fields(draw: st.DrawFn, name: str, order: str) -> tuple[Field, Any]:
    """A metadatum, and its value as a header has it."""

    def array(kind: int) -> tuple[bytes, tuple[Any, ...]]:
        values = draw(
            st.lists(st.text(max_size=9) if kind == STRING else numbers(kind), max_size=11)
        )
        octets = [
            text(each, order) if kind == STRING else struct.pack(order + CODES[kind], each)
            for each in values
        ]
        return struct.pack(order + "IQ", kind, len(values)) + b"".join(octets), (*values,)

    kind = draw(st.sampled_from([*CODES, STRING, ARRAY]))
    if kind == STRING:
        value: Any = draw(st.text(max_size=9))
        return Field(name, kind, text(value, order)), value
    if kind != ARRAY:
        value = draw(numbers(kind))
        own = float(str(np.float32(value))) if kind == 6 else value
        return Field(name, kind, struct.pack(order + CODES[kind], value)), own
    inner = draw(st.sampled_from([*CODES, STRING, ARRAY]))
    if inner != ARRAY:
        octets, values = array(inner)
        return Field(name, ARRAY, octets), GgufArray(
            NAMES.get(inner, "string"), len(values), values[:8]
        )
    kinds = draw(st.lists(st.sampled_from([*CODES, STRING, None]), max_size=3))
    deep = struct.pack(order + "IQ", ARRAY, 1)
    inside = b"".join(array(each)[0] if each is not None else deep + array(0)[0] for each in kinds)
    return Field(name, ARRAY, struct.pack(order + "IQ", ARRAY, len(kinds)) + inside), GgufArray(
        "array", len(kinds), ()
    )


def parse(octets: bytes, reads: list[tuple[int, int]] | None = None) -> GgufHeader:
    return parse_gguf(reads_of(octets, seen=reads), len(octets))


@given(st.data(), st.sampled_from("<>"), st.sampled_from([2, 3]), st.integers(1, 60))
def test_a_header_is_read_as_it_was_built(
    data: st.DataObject, order: str, version: int, first: int
) -> None:
    """However few bytes are read first; each byte once, but for the first. A copy has the metadata
    that do not depend on the file."""
    names = data.draw(
        st.lists(
            st.sampled_from(["a", "split.no", "general.alignmen", "general.file_type", "ü"]),
            unique=True,
        )
    )
    held = [data.draw(fields(name, order)) for name in names]
    alignment = data.draw(st.sampled_from([None, 1, 8, 64]))
    if alignment:
        held.insert(0, (number("general.alignment", alignment, order=order), alignment))
    infos = data.draw(st.lists(st.builds(
        Info, st.text(max_size=5), st.lists(st.integers(0, 2**64 - 1), max_size=4), st.integers(0, 99),
        st.integers(0, 2**64 - 1),
    ), max_size=3))  # fmt: skip
    octets = gguf(
        *infos, data=b"end", fields=[field for field, _ in held], order=order, version=version,
        alignment=alignment or 32,
    )  # fmt: skip
    reads: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_FIRST_NBYTES", first)
        found = parse(octets, reads)
    tensors = [GgufTensor(each.name, (*each.dims[::-1],), each.kind, each.offset) for each in infos]
    copied = [
        text(field.name) + struct.pack("<I", field.kind) + field.value
        for field, _ in held
        if order == "<" and field.name in ("a", "ü", "general.alignmen")
    ]
    assert found == GgufHeader(
        order == ">", {field.name: value for field, value in held}, tensors, alignment or 32,
        len(octets) - 3, (*copied,),
    )  # fmt: skip
    places = [0]
    for start, nbytes in reads[1:]:
        assert start == places[-1] and nbytes > 0
        places.append(start + nbytes)
    steps = [stop - start for start, stop in pairwise(places)]
    assert all(
        step >= min(place, len(octets) - place) for place, step in zip(places, steps, strict=False)
    )
    again = build_gguf(copied, tensors)
    header = parse(again)
    assert (header.tensors, header.copied, header.data_start) == (tensors, (*copied,), len(again))
    assert again[:8] == b"GGUF\3\0\0\0" and len(again) % 32 == 0


def test_a_header_that_is_cut_anywhere_is_incomplete() -> None:
    held = [
        number("n", 7), Field("s", STRING, text("value")),
        Field("l", ARRAY, struct.pack("<IQ", STRING, 9) + text("x") * 9),
        Field("d", ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ2H", 2, 2, 1, 1)),
    ]  # fmt: skip
    whole = gguf(Info("tensor", (2, 3), offset=2**63 + 1), fields=held, data=b"", alignment=1)
    for cut in range(4, len(whole)):
        with pytest.raises(IncompleteCheckpoint):
            parse(whole[:cut])
    assert parse(whole).data_start == -(-len(whole) // 32) * 32


def claims(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


@pytest.mark.parametrize(
    ("octets", "cause"),
    [
        (gguf(fields=[number("a", 1), number("a", 2)]), "Two metadata are called 'a'."),
        (gguf(fields=[Field("a", 13, b"")]), "The metadatum 'a' at offset 37 has the unknown type 13."),
        (
            gguf(fields=[Field("a", ARRAY, claims(13, 0))]),
            "The elements of 'a' at offset 49 have the unknown type 13.",
        ),
        (
            gguf(fields=[Field("a", ARRAY, claims(ARRAY, 1) + claims(13, 0))]),
            "The elements of 'a' at offset 61 have the unknown type 13.",
        ),
        *(
            (gguf(fields=[number("general.alignment", *how)]), f"The alignment is {each}, which is not a power of two.")
            for how, each in [((0,), 0), ((24,), 24), ((-1, "i", 5), -1), ((1, "?", 7), True), ((1, "f", 6), 1.0)]
        ),
        (
            gguf(counts=(2, 0), data=b"", alignment=1) + bytes(47),
            "It claims 2 tensors at offset 24, where the file has 47 more bytes.",
        ),
        (
            gguf(counts=(0, 2), data=b"", alignment=1) + bytes(25),
            "It claims 2 metadata at offset 24, where the file has 25 more bytes.",
        ),
        (
            gguf(fields=[Field("a", ARRAY, claims(STRING, 3) + bytes(23))], data=b"", alignment=1),
            "It claims 3 strings of 'a' at offset 49, where the file has 23 more bytes.",
        ),
        (
            gguf(fields=[Field("a", ARRAY, claims(ARRAY, 1) + claims(STRING, 3) + bytes(23))], data=b"", alignment=1),
            "It claims 3 strings of 'a' at offset 61, where the file has 23 more bytes.",
        ),
        (
            gguf(fields=[Field("a", ARRAY, claims(U32, 3) + bytes(11))], data=b"", alignment=1),
            "It claims 3 elements of 'a' at offset 49, where the file has 11 more bytes.",
        ),
        (
            gguf(fields=[Field("a", STRING, text("xyz", nbytes=4))], data=b"", alignment=1),
            "The header reaches to byte 49 or beyond, but the file has 48.",
        ),
        (gguf(Info("t", (), rank=65)), "'t' has 65 axes; NumPy has at most 64."),
        (gguf(Info("t", (1,) * 64), version=1), "Version 1 of GGUF is unknown; 2 and 3 are read."),
        (gguf(version=4, order=">"), "Version 4 of GGUF is unknown; 2 and 3 are read."),
        (gguf(version=0), "Version 0 of GGUF is unknown; 2 and 3 are read."),
        (b"GGUE" + bytes(20), "The file is not a GGUF file: it does not begin with GGUF."),
        (b"", "The file is empty, not a GGUF file."),
        (
            gguf(Info("x" * 65536)),
            f"The name of a tensor that begins with '{'x' * 32}' is too long, which is beyond the limit of 65535 "
            "(MAX_KEY_NBYTES).",
        ),
    ],
)  # fmt: skip
def test_each_fault_of_a_header_in_words(octets: bytes, cause: str) -> None:
    with pytest.raises(ShardvarError) as caught:
        parse(octets)
    assert caught.value.cause == cause


def test_a_header_has_64_axes_and_as_many_bytes_as_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse(gguf(Info("t", (1,) * 64))).tensors[0].shape == (1,) * 64
    octets = gguf(fields=[Field("a", STRING, text("x" * 100_000))], data=b"", alignment=1)
    monkeypatch.setattr(codec, "MAX_GGUF_HEADER_NBYTES", len(octets))
    assert parse(octets).metadata == {"a": "x" * 100_000}
    monkeypatch.setattr(codec, "MAX_GGUF_HEADER_NBYTES", len(octets) - 1)
    with pytest.raises(CheckpointError, match=f"The header has {len(octets)} bytes or more, which"):
        parse(octets)
    reads: list[tuple[int, int]] = []
    parse(gguf(data=bytes(1 << 17)), reads)
    assert reads == [(0, 512), (0, 1 << 16)]

"""The laws of a safetensors header and of the JSON that it is written in."""

import json
import re
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.limits import MAX_HEADER_NBYTES
from shardvar.wire.safetensors_header import (
    BITS,
    HEADER_ALIGNMENT,
    METADATA,
    STORED_DTYPES,
    build_header,
    header_nbytes,
    parse_header,
)
from shardvar.wire.strict_json import parse_json

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
I8 = {"dtype": "I8", "shape": [3], "data_offsets": [8, 11]}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
rows = st.lists(
    st.tuples(
        st.text().filter(lambda key: key != METADATA),
        st.sampled_from(sorted(BITS)),
        st.lists(st.integers(0, 5), max_size=4),
    ),
    unique_by=lambda row: row[0],
)


def read(header: Any, nbytes: int) -> Any:
    """What a header says of a file whose data have ``nbytes`` bytes."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    parsed = parse_header(encoded)
    assert parsed.stop == 8 + len(encoded) + nbytes
    return parsed


@given(values, st.booleans())
def test_what_json_writes_is_read_as_it_was(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode(), max_depth=100) == value


@given(st.binary(max_size=40) | st.text(alphabet='[]{}",:\\u0dN1. ', max_size=40).map(str.encode))
def test_no_bytes_raise_anything_but_a_clean_error(data: bytes) -> None:
    try:
        value = parse_json(data, max_depth=8)
    except CheckpointError:
        return
    assert value == json.loads(data)


@pytest.mark.parametrize(("depth", "is_read"), [(3, True), (4, False), (100_000, False)])
def test_depth_is_bounded_before_anything_recurses(depth: int, is_read: bool) -> None:
    text = b"[" * depth + b"]" * depth
    if is_read:
        assert parse_json(text, max_depth=3) == [[[]]]
    else:
        with pytest.raises(MalformedCheckpoint, match="deeper than 3"):
            parse_json(text, max_depth=3)


def test_brackets_within_strings_do_not_count_as_depth() -> None:
    assert parse_json(rb'["[[[[\"[[[[", "\\", "]]]]"]', max_depth=1) == ['[[[["[[[[', "\\", "]]]]"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"a": 1, "a": 1}', InvalidCheckpoint),
        (b'[{"x": {"a": 1, "b": 2, "a": 3}}]', InvalidCheckpoint),
        (rb'{"a": 1, "\u0061": 1}', InvalidCheckpoint),
        (rb'{"\ud800": 1}', MalformedCheckpoint),
        (rb'["\udc00\ud800"]', MalformedCheckpoint),
        (b"[NaN]", MalformedCheckpoint),
        (b"[-Infinity]", MalformedCheckpoint),
        (b"[" + b"1" * 5000 + b"]", MalformedCheckpoint),
        (b'["\xff"]', MalformedCheckpoint),
        (b'["\xc1\xa1"]', MalformedCheckpoint),
        (b"\xef\xbb\xbf[]", MalformedCheckpoint),
        ("[]".encode("utf-16"), MalformedCheckpoint),
        (b'["a\nb"]', MalformedCheckpoint),
        (b"[1] x", MalformedCheckpoint),
        (b"", MalformedCheckpoint),
    ],
)
def test_json_that_parsers_take_in_different_ways_is_refused(
    text: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        parse_json(text, max_depth=9)


@given(rows, st.dictionaries(st.text(), st.text()))
def test_a_header_says_what_it_was_built_from(rows: list[Any], metadata: dict[str, str]) -> None:
    widths = [prod(shape) * BITS[dtype] for _, dtype, shape in rows]
    if any(width % 8 for width in widths):
        with pytest.raises(UnsupportedError, match="within a byte"):
            build_header(rows, metadata)
        return
    built = build_header(rows, metadata)
    nbytes = [width // 8 for width in widths]
    header = parse_header(built[8:])
    assert header_nbytes(built[:64], len(built) + sum(nbytes)) == len(built) - 8
    assert len(built) % HEADER_ALIGNMENT == 0
    assert header.metadata == metadata
    start = np.cumsum([len(built), *nbytes])[:-1].tolist()
    found = zip(
        header.keys,
        header.dtypes,
        header.shapes,
        header.start.tolist(),
        header.nbytes.tolist(),
        strict=True,
    )
    expected = ((k, d, s, at, n) for (k, d, s), at, n in zip(rows, start, nbytes, strict=True))
    assert sorted(found) == sorted(expected)


def test_pairs_of_pytorch_are_written_as_the_elements_that_they_hold() -> None:
    """The real library writes a tensor of ``torch.float4_e2m1fn_x2`` so."""
    built = build_header([("a", "float4_e2m1fn_x2", (4, 4))], {})
    header = parse_header(built[8:])
    assert (*header.dtypes, *header.shapes) == ("float4_e2m1fn_packed", [4, 8])
    with pytest.raises(UnsupportedError, match="within a byte"):
        build_header([("a", "float4_e2m1fn_x2", ())], {})


@pytest.mark.parametrize(
    "tensor",
    [
        F32 | {"dtype": "F33"},
        F32 | {"dtype": "f32"},
        F32 | {"dtype": None},
        F32 | {"dtype": ["F32"]},
        F32 | {"shape": None},
        F32 | {"shape": 2},
        F32 | {"shape": [2.0]},
        F32 | {"shape": [True, 2]},
        F32 | {"shape": ["2"]},
        F32 | {"shape": [-2]},
        F32 | {"shape": [1]},
        F32 | {"shape": [3]},
        F32 | {"shape": [2, 0]},
        F32 | {"shape": [2**63]},
        F32 | {"shape": [2**33, 2**31]},
        F32 | {"shape": [10**4000]},
        F32 | {"data_offsets": [0]},
        F32 | {"data_offsets": [0, 4, 8]},
        F32 | {"data_offsets": [8, 0]},
        F32 | {"data_offsets": [-8, 0]},
        F32 | {"data_offsets": ["0", "8"]},
        F32 | {"data_offsets": {"0": 0, "8": 8}},
        F32 | {"data_offsets": [2**64, 2**64 + 8]},
        {"dtype": "F32", "shape": [2]},
        ["F32", [2], [0, 8]],
        "F32",
        None,
        {"dtype": "F4", "shape": [15], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
    ],
)
def test_a_tensor_that_is_not_described_exactly_is_invalid(tensor: Any) -> None:
    with pytest.raises(InvalidCheckpoint, match="'a'"):
        read({"a": tensor}, 8)


def test_an_element_has_as_many_bits_as_the_name_of_its_dtype_says() -> None:
    said = {text: int((re.findall(r"\d+", text) or [8])[0]) for text in STORED_DTYPES}
    assert {text: bits for text, (_, bits) in STORED_DTYPES.items()} == said
    assert read({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}, 8).keys == ["a"]


@pytest.mark.parametrize("metadata", [None, [], "x", {"a": 1}, {"a": None}, {"a": {"b": "c"}}])
def test_metadata_are_texts_by_texts(metadata: Any) -> None:
    with pytest.raises((InvalidCheckpoint, MalformedCheckpoint)):
        read({METADATA: metadata, "a": F32}, 8)


def test_a_hole_and_an_overlap_are_invalid() -> None:
    header = {"a": F32, "b": I8}
    assert read(header, 11).keys == ["a", "b"]
    with pytest.raises(InvalidCheckpoint, match="leaves a hole"):
        read(header | {"b": I8 | {"data_offsets": [9, 12]}}, 12)
    with pytest.raises(InvalidCheckpoint, match="leaves a hole"):
        read({"b": I8}, 11)
    with pytest.raises(InvalidCheckpoint, match="overlaps"):
        read(header | {"b": I8 | {"data_offsets": [7, 10]}}, 10)
    with pytest.raises(InvalidCheckpoint, match="overlaps"):
        read(header | {"c": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}}, 11)


def test_tensors_without_elements_may_share_an_offset_anywhere() -> None:
    empties = {
        f"e{at}": {"dtype": "F64", "shape": [at, 0], "data_offsets": [at, at]} for at in (0, 8, 11)
    }
    assert read({"b": I8, **empties, "a": F32}, 11).keys == ["a", "b", "e0", "e11", "e8"]


@pytest.mark.parametrize(
    ("first", "size", "error", "text"),
    [
        (b"", 0, MalformedCheckpoint, "empty"),
        (b"\x02\0\0\0\0\0\0", 7, MalformedCheckpoint, "not a safetensors file"),
        (bytes(8), 8, MalformedCheckpoint, "not a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0 {}", 11, MalformedCheckpoint, "not a safetensors file"),
        (b"\x03\0\0\0\0\0\0\0{}", 10, IncompleteCheckpoint, "end at offset 11"),
        (b"\xff" * 8 + b"{}", 10, MalformedCheckpoint, str(MAX_HEADER_NBYTES)),
        (b"version https://git-lfs.github.com/spec/v1", 130, MalformedCheckpoint, "Git LFS"),
        (b"PK\x03\x04" + bytes(40), 999, MalformedCheckpoint, "zip archive"),
        (b"<!DOCTYPE html><html>", 999, MalformedCheckpoint, "web page"),
    ],
)
def test_what_is_no_safetensors_file_is_named(
    first: bytes, size: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        header_nbytes(first, size)


def test_names_that_the_format_cannot_hold_are_refused_in_writing() -> None:
    for key in (METADATA, "\udc80"):
        with pytest.raises(UnsupportedError):
            build_header([(key, "float32", (1,))], {})


@pytest.mark.parametrize("header", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_a_header_that_is_no_json_object_is_invalid(header: bytes) -> None:
    with pytest.raises(InvalidCheckpoint, match="not a JSON object"):
        parse_header(header)


def test_a_field_of_later_versions_is_ignored() -> None:
    """As the real library does."""
    encoded = json.dumps({"x": F32 | {"strides": [1]}}).encode()
    assert parse_header(encoded).keys == ["x"]

"""Descriptions of Zarr's arrays: names of chunks, codecs that leave bytes as they are, and fields
that no reader knows."""

import json
from itertools import product
from typing import Any

import pytest

from shardvar.errors import CheckpointError, UnsupportedError
from shardvar.wire.zarr_metadata import ArrayMetadata, parse_array

V2 = {
    "zarr_format": 2, "shape": [3, 2], "chunks": [2, 2], "dtype": "<f4", "order": "C",
    "fill_value": 0, "compressor": None, "filters": None,
}  # fmt: skip
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CHECKSUM = {"name": "crc32c"}
V3 = {
    "zarr_format": 3, "node_type": "array", "shape": [3, 2], "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0, "codecs": [BYTES],
}  # fmt: skip


def described(base: dict[str, Any], **changes: Any) -> ArrayMetadata:
    return parse_array(json.dumps(base | changes).encode(), base["zarr_format"])


def encoding(name: str, separator: str) -> dict[str, Any]:
    return {"name": name, "configuration": {"separator": separator}}


@pytest.mark.parametrize("separator", [".", "/"])
def test_chunks_have_their_places_as_names(separator: str) -> None:
    """In C order; with the prefix ``c`` in the default encoding of version 3."""
    places = [separator.join(map(str, place)) for place in product(range(2), range(1))]
    assert [*described(V2, dimension_separator=separator).chunk_names()] == places
    v2 = described(V3, chunk_key_encoding=encoding("v2", separator))
    assert [*v2.chunk_names()] == places
    default = described(V3, chunk_key_encoding=encoding("default", separator))
    assert [*default.chunk_names()] == [f"c{separator}{place}" for place in places]


def test_the_one_chunk_of_a_scalar_has_a_name_too() -> None:
    assert [*described(V2, shape=[], chunks=[]).chunk_names()] == ["0"]
    grid = {"name": "regular", "configuration": {"chunk_shape": []}}
    for name, expected in (("default", "c"), ("v2", "0")):
        scalar = described(V3, shape=[], chunk_grid=grid, chunk_key_encoding=encoding(name, "/"))
        assert [*scalar.chunk_names()] == [expected]


@pytest.mark.parametrize(
    ("codecs", "is_raw", "is_framed"),
    [
        ([BYTES], True, False),
        ([BYTES, CHECKSUM], False, True),
        ([BIG], False, False),
        ([BIG, CHECKSUM], False, False),
        ([BYTES, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}], False, False),
        (
            [BYTES, {"name": "gzip", "configuration": {"level": 1}}, CHECKSUM],
            False,
            False,
        ),
    ],
)
def test_bytes_lie_as_they_are_or_with_a_checksum_behind_them(
    codecs: list[Any], is_raw: bool, is_framed: bool
) -> None:
    found = described(V3, codecs=codecs)
    assert (found.is_raw, found.is_framed) == (is_raw, is_framed)


@pytest.mark.parametrize(
    "changes",
    [
        {"order": "A"}, {"order": None}, {"dimension_separator": "-"}, {"dimension_separator": ""},
        {"order": "F", "dimension_separator": "-"}, {"shape": [-1, 2]}, {"chunks": [0, 2]},
        {"chunks": [2]}, {"compressor": "zlib"},
    ],
)  # fmt: skip
def test_wrong_fields_of_version_2_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        described(V2, **changes)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"node_type": "group"}, {"shape": [-1, 2]}, {"codecs": []},
        {"codecs": [7]}, {"codecs": [{"name": "pcodec"}]}, {"shape": [True, 2]},
        {"chunk_key_encoding": {"name": "other"}}, {"storage_transformers": [1]},
        {"data_type": "yonder"}, {"data_type": {"name": "numpy.datetime64"}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 2]}}},
    ],
)  # fmt: skip
def test_wrong_fields_of_version_3_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((CheckpointError, UnsupportedError)) as caught:
        described(V3, **changes)
    assert caught.value.remedy

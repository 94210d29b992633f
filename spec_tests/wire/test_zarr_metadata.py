"""Descriptions of Zarr's arrays: names of chunks, codecs that leave bytes as they are, and fields
that no reader knows."""

import json
from itertools import product
from typing import Any

import pytest

from shardvar.errors import ShardvarError
from shardvar.limits import MAX_NBYTES
from shardvar.wire import zarr_metadata
from shardvar.wire.zarr_metadata import (
    ArrayMetadata,
    may_be_guarded,
    parse_array,
    parse_document,
    parse_object,
)

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


def test_a_description_says_how_chunks_are_stored() -> None:
    """In both versions; a document for a decoder has only the fields that it needs."""
    rest: dict[str, Any] = dict.fromkeys(
        ("is_framed", "is_complete", "is_sharded", "is_guarded"), False
    )
    rest |= {"dtype": "float32", "shape": (3, 2), "chunk_shape": (2, 2), "inner_shape": (2, 2)}
    rest |= {"has_fill": True, "is_raw": True}
    found = described(V2, attributes={"a": 1})
    kept = {**V2, "dimension_separator": "."}
    assert found == ArrayMetadata(version=2, prefix="", separator=".", document=kept, **rest)
    assert (found.counts, found.min_nbytes) == ((2, 1), 0)
    found = described(V3, attributes={"a": 1})
    assert found == ArrayMetadata(version=3, prefix="c", separator="/", document=V3, **rest)


def sharded(*index: Any, inner: Any = (1, 2), codecs: Any = (BYTES, CHECKSUM)) -> dict[str, Any]:
    how = {"chunk_shape": [*inner], "codecs": [*codecs], "index_codecs": [*index]}
    return {"name": "sharding_indexed", "configuration": how}


ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": True}}


@pytest.mark.parametrize(
    ("base", "changes", "fields"),
    [
        (V2, {"fill_value": None}, {"has_fill": False}),
        (V3, {"fill_value": None}, {"has_fill": False}),
        (V2, {"order": "F"}, {"is_raw": False}),
        (V2, {"order": "F", "shape": [3], "chunks": [2]}, {"is_raw": True}),
        (V2, {"dtype": ">f4"}, {"is_raw": False, "dtype": "float32"}),
        (V2, {"compressor": {"id": "zlib"}}, {"is_raw": False, "is_guarded": False}),
        (V2, {"compressor": {"id": "zstd", "checksum": True}}, {"is_raw": False, "is_guarded": True}),
        (V2, {"compressor": {"id": "zstd", "checksum": False}}, {"is_guarded": False}),
        (V3, {"attributes": zarr_metadata.COMPLETE}, {"is_complete": True}),
        (V3, {"codecs": [BIG], "data_type": "int8"}, {"is_raw": True}),
        (V3, {"codecs": [BIG], "data_type": "float8_e5m2"}, {"is_raw": True}),
        (V3, {"codecs": [{"name": "bytes"}], "data_type": "bool"}, {"is_raw": True}),
        (V3, {"data_type": "int4"}, {"is_raw": False}),
        (V3, {"codecs": [BYTES, ZSTD]}, {"is_guarded": True, "is_framed": False}),
        (V3, {"codecs": [BYTES, CHECKSUM]}, {"is_guarded": True}),
        (V3, {"codecs": [sharded(BYTES, CHECKSUM)]},
         {"is_sharded": True, "is_guarded": True, "inner_shape": (1, 2), "min_nbytes": 32, "is_raw": False}),
        (V3, {"codecs": [sharded(BYTES)]}, {"is_sharded": True, "is_guarded": False}),
        (V3, {"codecs": [sharded(CHECKSUM, codecs=[BYTES])]}, {"is_guarded": False}),
    ],
)  # fmt: skip
def test_each_field_that_changes_how_chunks_are_stored(
    base: dict[str, Any], changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    found = described(base, **changes)
    assert {name: getattr(found, name) for name in fields} == fields


CODEC = "It has the codec {}, which shardvar does not read."
DTYPE = "It has the shape [3, 2] and the dtype {}, which shardvar does not read{}."
ORDER = "Its order is {} and its dimension_separator {}."
KINDS = zarr_metadata._KINDS_V3
NAMELESS = "One of its codecs has no name, or a configuration that is not an object."
OTHER = {"name": "other", "configuration": {"chunk_shape": [2, 2]}}


@pytest.mark.parametrize(
    ("base", "changes", "cause"),
    [
        (V2, {"order": "A"}, ORDER.format("'A'", "'.'")),
        (V2, {"order": None}, ORDER.format("None", "'.'")),
        (V2, {"dimension_separator": "-"}, ORDER.format("'C'", "'-'")),
        (V2, {"order": "F", "dimension_separator": ""}, ORDER.format("'F'", "''")),
        (V2, {"shape": [-1, 2]}, "Its shape is [-1, 2], with an extent out of range."),
        (V2, {"chunks": [0, 2]}, "Its chunks is [0, 2], with an extent out of range."),
        (V2, {"shape": [MAX_NBYTES + 1, 2]}, f"Its shape is [{MAX_NBYTES + 1}, 2], with an extent out of range."),
        (V2, {"chunks": [2]}, "It has 2 axes, and its chunks 1."),
        (V2, {"shape": [1] * 33, "chunks": [1] * 33}, "It has 33 axes, more than 32."),
        (V2, {"compressor": "zlib"}, "Its compressor is not an object."),
        (V2, {"compressor": {"id": "new"}}, CODEC.format("'new'")),
        (V2, {"filters": 7}, "Its filters are not a list."),
        (V2, {"filters": [{"id": "delta"}, 7]}, "It has the filters 'delta', 7."),
        (V2, {"filters": [*range(1, 10)]}, "It has the filters 1, 2, 3, 4, 5, 6, 7, 8."),
        (V2, {"dtype": 7}, DTYPE.format("7", "")),
        (V2, {"dtype": [["a", "<f4"]]}, DTYPE.format("[['a', '<f4']]", f": {KINDS['structured']}")),
        (V2, {"dtype": "|O"}, DTYPE.format("'|O'", ": objects of Python")),
        (V2, {"dtype": "|O", "filters": [7]}, DTYPE.format("'|O'", ": objects of Python")),
        (V2, {"dtype": "|O", "filters": [{"id": "vlen-bytes"}]}, DTYPE.format("'|O'", f": {KINDS['bytes']}")),
        (V2, {"dtype": "<M8[ns]"}, DTYPE.format("'<M8[ns]'", f": {zarr_metadata.LOST_KINDS['M']}")),
        (V2, {"zarr_format": 1}, "Its zarr_format is not 2."),
        (V3, {"node_type": "group"}, "Its node_type is not 'array'."),
        (V3, {"shape": [True, 2]}, "Its shape is not a list of integers."),
        (V3, {"codecs": []}, "Its codecs are not a list of codecs."),
        (V3, {"codecs": [7]}, NAMELESS),
        (V3, {"codecs": [{"name": "bytes", "configuration": 7}]}, NAMELESS),
        (V3, {"codecs": [{"name": f"c{n}"} for n in range(9)]},
         CODEC.format("'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7'")),
        (V3, {"codecs": [sharded(codecs=[sharded(codecs=[BYTES])])]}, "Its shards consist of shards."),
        (V3, {"codecs": [sharded(BYTES, inner=[1, 3])]}, "Inner chunks of [1, 3] do not tile a chunk of [2, 2]."),
        (V3, {"codecs": [sharded(BYTES, inner=[1])]}, "Inner chunks of [1] do not tile a chunk of [2, 2]."),
        (V3, {"chunk_key_encoding": OTHER}, "Its chunk_grid is 'regular' and its chunk_key_encoding 'other'."),
        (V3, {"chunk_grid": OTHER}, "Its chunk_grid is 'other' and its chunk_key_encoding 'default'."),
        (V3, {"chunk_key_encoding": encoding("v2", "-")}, "The separator of its chunk_key_encoding is '-'."),
        (V3, {"storage_transformers": [1]}, "It has storage transformers."),
        (V3, {"data_type": "yonder"}, DTYPE.format("'yonder'", "")),
        (V3, {"data_type": {"name": "string"}}, DTYPE.format("'string'", f": {KINDS['string']}")),
    ],
)  # fmt: skip
def test_each_fault_of_a_description_in_words(
    base: dict[str, Any], changes: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ShardvarError) as caught:
        parse_array(json.dumps(base | changes).encode(), base["zarr_format"])
    assert caught.value.cause == cause and caught.value.remedy


def test_a_description_is_a_json_object_of_bounded_size() -> None:
    with pytest.raises(ShardvarError, match="The file is a picture, not a description of Zarr"):
        parse_object(b"\x89PNG", "a description of Zarr")
    assert parse_object(b'  {"a": NaN}', "it").keys() == {"a"}
    data = json.dumps(V2).encode()
    assert parse_document(data, 2, len(data)) == V2
    with pytest.raises(ShardvarError, match=f"has {len(data)} bytes, more than {len(data) - 1}"):
        parse_document(data, 2, len(data) - 1)
    most = MAX_NBYTES // 16
    assert described(V2, shape=[most, 0], chunks=[most, 1]).shape == (most, 0)
    for shape, chunks in (([most + 1, 0], [1, 1]), ([1, 0], [most + 1, 1])):
        with pytest.raises(
            ShardvarError, match=r"is too large, which is beyond the limit of .*MAX_NBYTES"
        ):
            described(V2, shape=shape, chunks=chunks)


@pytest.mark.parametrize(
    ("document", "may_be"),
    [
        ({}, False),
        ({"compressor": {"id": "zlib"}, "filters": None, "codecs": 7}, False),
        ({"filters": [{"id": "crc32"}]}, True),
        ({"codecs": [{"name": "numcodecs.zlib"}, "bytes"]}, False),
        ({"codecs": [{"name": "numcodecs.fletcher32"}]}, True),
        ({"compressor": {"id": 7}}, True),
        ([], True),
    ],
)  # fmt: skip
def test_an_array_that_is_not_read_may_have_a_checksum(document: Any, may_be: bool) -> None:
    assert may_be_guarded(json.dumps(document).encode()) is may_be

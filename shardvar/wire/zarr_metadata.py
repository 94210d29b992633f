"""The description of an array in Zarr: ``.zarray`` of version 2, and ``zarr.json`` of version 3.

    version 2   {"zarr_format": 2, "shape": [9, 7], "chunks": [4, 4], "dtype": "<f4", "order": "C",
                "fill_value": 0.0,
                 "compressor": {"id": "zstd", ...} or null, "filters": null, "dimension_separator": "."}
    version 3   {"zarr_format": 3, "node_type": "array", "shape": [9, 7], "data_type": "float32",
                "fill_value": 0.0,
                 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
                 "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                 "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, ...]}

An array is cut into chunks of one shape, which begin at its first element; those at its end reach
beyond it, and are stored whole. Each chunk is a file, whose name counts the chunks before it on
each axis: "1.0" in version 2, "c/1/0" in version 3. With the codec ``sharding_indexed`` a chunk
consists of inner chunks, which can be read singly.

Everything is checked here: ``document`` is what a decoder may be given.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import CheckpointError, UnsupportedError
from shardvar.limits import MAX_NBYTES
from shardvar.records import frozen
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    distrusted,
    foreign_file,
    invalid,
    malformed,
    past_limit,
)
from shardvar.wire.npy import LOST_KINDS
from shardvar.wire.strict_json import parse_json

NATIVE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128".split()
)
"""The dtypes of NumPy, which every reader of Zarr has."""
_EXTENDED = (
    "bfloat16 float8_e3m4 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int4 int2"
).split()
DTYPES_V3 = {name: name for name in (*sorted(NATIVE), *_EXTENDED)}
"""dtypes by their names in version 3, which shardvar uses as well."""
DTYPES_V2 = {
    dtype.str: name
    for name in sorted(NATIVE)
    for dtype in (np.dtype(name), np.dtype(name).newbyteorder(">"))
}
DTYPES_V2 |= {name: name for name in _EXTENDED}
"""dtypes by their names in version 2, which has the names of NumPy's array interface, with a byte
order."""


DEPTH = 64  # Levels of a document, whose attributes are the user's
MAX_DOCUMENT_NBYTES = 1 << 20  # bytes of the description of an array
MAX_AXES = 32  # Axes of an array in TensorStore


_KINDS_V3 = {
    "string": "text of any length",
    "variable_length_bytes": "byte strings of any length",
    "bytes": "byte strings of any length",
    "fixed_length_utf32": LOST_KINDS["U"],
    "null_terminated_bytes": LOST_KINDS["S"],
    "raw_bytes": "raw bytes without a type",
    "numpy.datetime64": LOST_KINDS["M"],
    "numpy.timedelta64": LOST_KINDS["m"],
    "structured": "elements with fields",
    "struct": "elements with fields",
}
"""Descriptions of the data types of version 3 that no tensor has."""

_CODECS_V2 = {"zlib", "gzip", "bz2", "zstd", "blosc"}
_CODECS_V3 = {"bytes", "transpose", "gzip", "zstd", "blosc", "crc32c", "sharding_indexed"}
_UNGUARDED = (_CODECS_V2 | _CODECS_V3) - {"crc32c", "sharding_indexed"}
_UNGUARDED |= set(
    "lz4 lzma delta fixedscaleoffset quantize bitround packbits categorize astype vlen-utf8 "
    "vlen-bytes vlen-array "
    "json2 msgpack2 pickle shuffle snappy pcodec zfpy base64".split()
)
"""Codecs that keep no checksum, including other programs'."""
_SHARDING = "sharding_indexed"
_CHECKSUM = {"name": "crc32c", "configuration": {}}
CORE_V2 = ("shape", "chunks", "dtype", "order", "fill_value")
CORE_V3 = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
"""The fields of a description of elements and their places."""
COMPLETE = {"all_chunks_are_stored": True}
"""The attributes by which shardvar marks an absent chunk as lost. Zarr itself takes it for the
fill value."""
ARRAYS_ATTRIBUTE = "shardvar_arrays"
"""The attribute of a group with which shardvar lists the arrays in it, where it writes no
consolidated metadata."""
_INDEX_ENTRY_NBYTES = 16
"""Bytes of the index of a chunk for each of its inner chunks: offset and length."""


@frozen
class ArrayMetadata:
    version: int  # 2 or 3
    dtype: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]  # the extents of a chunk, which is a file
    inner_shape: tuple[int, ...]
    """The extents of the least that can be decoded by itself: a chunk, or an inner chunk."""
    separator: str  # the text between the numbers in the name of a chunk
    prefix: str  # the beginning of the name of a chunk: "c" in version 3, or empty
    has_fill: bool
    """True if a fill value stands for absent chunks; in version 2 it may be null."""
    is_raw: bool
    """True if chunks are stored as in memory: little-endian, in C order, not compressed."""
    is_framed: bool
    """True if chunks are stored as in memory, and then their CRC32C as 4 bytes, little-endian."""
    is_complete: bool  # True if the writer stored every chunk, so that absent ones are lost
    is_sharded: bool  # True if chunks consist of inner chunks
    is_guarded: bool  # True if a checksum covers every byte of a chunk
    document: Mapping[str, Any]  # the fields that a decoder needs, as JSON

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks on each axis."""
        return tuple(
            -(-extent // step) for extent, step in zip(self.shape, self.chunk_shape, strict=True)
        )

    @property
    def min_nbytes(self) -> int:
        inner = prod(
            whole // part for whole, part in zip(self.chunk_shape, self.inner_shape, strict=True)
        )
        return inner * _INDEX_ENTRY_NBYTES if self.is_sharded else 0

    def chunk_names(self) -> Iterator[str]:
        if not self.shape:
            yield self.prefix or "0"
            return
        lead = self.prefix + self.separator if self.prefix else ""
        yield from _names_of_places(lead, self.separator, self.counts)


def _names_of_places(lead: str, separator: str, counts: Sequence[int]) -> Iterator[str]:
    # Nothing is made before it is asked for: the counts are claims.
    for number in range(counts[0]):
        if len(counts) == 1:
            yield f"{lead}{number}"
        else:
            yield from _names_of_places(f"{lead}{number}{separator}", separator, counts[1:])


def parse_array(data: bytes, version: int) -> ArrayMetadata:
    """Return the description of an array; raise for a dtype or codec that is not read."""
    document = parse_document(data, version)
    if version == 3 and document.get("node_type") != "array":
        raise invalid("Its node_type is not 'array'.")
    return _parse_v2(document) if version == 2 else _parse_v3(document)


def parse_document(data: bytes, version: int, most: int = MAX_DOCUMENT_NBYTES) -> dict[str, Any]:
    if len(data) > most:
        raise malformed(f"The description has {len(data)} bytes, more than {most}.")
    document = parse_object(data, "a description of Zarr")
    if document.get("zarr_format") != version:
        raise invalid(f"Its zarr_format is not {version}.")
    return document


def parse_object(data: bytes, expected: str) -> dict[str, Any]:
    """Return a JSON object; ``expected`` names it in errors."""
    if not data.lstrip().startswith(b"{"):
        raise foreign_file(
            expected, data[:SNIFF_NBYTES], len(data), "it does not begin a JSON object"
        )
    # zarr-python and Orbax write attributes as Python does: a missing value is often NaN.
    document: dict[str, Any] = parse_json(data, DEPTH, allow_nan=True)
    return document


def _parse_v2(document: Mapping[str, Any]) -> ArrayMetadata:
    shape, chunks = _extents(document, "shape"), _extents(document, "chunks", least=1)
    text = document.get("dtype")
    dtype = DTYPES_V2.get(text) if type(text) is str else None
    if dtype is None:
        raise _not_held(text, _kind_v2(text, document.get("filters")), shape)
    filters = document.get("filters")
    if filters:
        if type(filters) is not list:
            raise invalid("Its filters are not a list.")
        names = ", ".join(
            repr(each.get("id") if type(each) is dict else each) for each in filters[:8]
        )
        raise UnsupportedError(f"It has the filters {names}.", "Write it without filters.")
    compressor = document.get("compressor")
    if compressor is not None:
        if type(compressor) is not dict:
            raise invalid("Its compressor is not an object.")
        name = compressor.get("id")
        _check_known([str(name)], _CODECS_V2)
        if name == "zstd":  # numcodecs writes a field that the frame has as well
            compressor = {
                field: value for field, value in compressor.items() if field != "checksum"
            }
    order, separator = document.get("order"), document.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise invalid(f"Its order is {order!r} and its dimension_separator {separator!r}.")
    sent = {field: document.get(field) for field in CORE_V2} | {"zarr_format": 2, "filters": None}
    # Both are the same then, and TensorStore takes only this one.
    sent["order"] = "C" if len(shape) < 2 else order
    return _metadata(
        version=2,
        dtype=dtype,
        shape=shape,
        chunk_shape=chunks,
        inner_shape=chunks,
        separator=separator,
        prefix="",
        has_fill=document.get("fill_value") is not None,
        is_raw=compressor is None
        and (order == "C" or len(shape) < 2)
        and not str(text).startswith(">"),
        is_framed=False,
        is_complete=False,
        is_sharded=False,
        is_guarded=compressor is not None and document["compressor"].get("checksum") is True,
        document=sent | {"compressor": compressor, "dimension_separator": separator},
    )


def _kind_v2(dtype: Any, filters: Any) -> str:
    if type(dtype) is list:
        return _KINDS_V3["structured"]
    if dtype == "|O":
        # The first filter made bytes of the objects.
        name = (
            filters[0].get("id")
            if type(filters) is list and filters and type(filters[0]) is dict
            else None
        )
        kinds = {"vlen-utf8": _KINDS_V3["string"], "vlen-bytes": _KINDS_V3["bytes"]}
        return kinds.get(str(name), "objects of Python")
    match = re.match("[<>|]([SUVmM])", dtype) if type(dtype) is str else None
    return LOST_KINDS[match[1]] if match else ""


def _not_held(dtype: Any, kind: str, shape: Sequence[int]) -> UnsupportedError:
    cause = f"It has the shape {list(shape)} and the dtype {dtype!r}, which shardvar does not read"
    return UnsupportedError(cause + (f": {kind}." if kind else "."), "Write numbers instead.")


def _parse_v3(document: Mapping[str, Any]) -> ArrayMetadata:
    shape = _extents(document, "shape")
    chunks = _extents(_configuration(document, "chunk_grid"), "chunk_shape", 1)
    grid, encoding = _name(document.get("chunk_grid")), _name(document.get("chunk_key_encoding"))
    if grid != "regular" or encoding not in ("default", "v2"):
        cause = f"Its chunk_grid is {grid!r} and its chunk_key_encoding {encoding!r}."
        raise UnsupportedError(
            cause, "Write it with the grid 'regular' and the encoding 'default'."
        )
    separator = _configuration(document, "chunk_key_encoding").get(
        "separator", "/" if encoding == "default" else "."
    )
    if separator not in (".", "/"):
        raise invalid(f"The separator of its chunk_key_encoding is {separator!r}.")
    data_type = document.get("data_type")
    dtype = DTYPES_V3.get(data_type) if type(data_type) is str else None
    if dtype is None:
        raise _not_held(_name(data_type), _KINDS_V3.get(str(_name(data_type)), ""), shape)
    if document.get("storage_transformers"):
        raise UnsupportedError("It has storage transformers.", "Write it without them.")
    codecs = _codecs(document.get("codecs"))
    inner = chunks
    for codec in codecs:
        if codec["name"] == _SHARDING:
            inner = _extents(codec["configuration"], "chunk_shape", least=1)
            if len(inner) != len(chunks) or any(
                whole % part for whole, part in zip(chunks, inner, strict=True)
            ):
                raise invalid(
                    f"Inner chunks of {list(inner)} do not tile a chunk of {list(chunks)}."
                )
    return _metadata(
        version=3,
        dtype=dtype,
        shape=shape,
        chunk_shape=chunks,
        inner_shape=inner,
        separator=separator,
        prefix="c" if encoding == "default" else "",
        has_fill=document.get("fill_value") is not None,
        is_raw=len(codecs) == 1 and _is_raw(codecs[0], dtype),
        is_framed=len(codecs) == 2 and _is_raw(codecs[0], dtype) and codecs[1] == _CHECKSUM,
        is_complete=document.get("attributes") == COMPLETE,
        is_sharded=any(codec["name"] == _SHARDING for codec in codecs),
        is_guarded=_guards(codecs),
        document={field: document.get(field) for field in CORE_V3}
        | {"zarr_format": 3, "node_type": "array"},
    )


def _metadata(**fields: Any) -> ArrayMetadata:
    """Return the description, which obeys the laws of both versions."""
    metadata = ArrayMetadata(**fields)
    rank = len(metadata.shape)
    if len(metadata.chunk_shape) != rank:
        raise invalid(f"It has {rank} axes, and its chunks {len(metadata.chunk_shape)}.")
    if rank > MAX_AXES:
        raise UnsupportedError(
            f"It has {rank} axes, more than {MAX_AXES}.", "Reshape it before it is saved."
        )
    for extents in (metadata.shape, metadata.chunk_shape):
        # An element has at most 16 bytes. NumPy cannot hold (2**62, 0) either.
        if prod(filter(None, extents)) > MAX_NBYTES // 16:
            raise past_limit(
                f"Its shape {list(metadata.shape)}, in chunks of {list(extents)}, is too large",
                "MAX_NBYTES",
            )
    return metadata


def _extents(fields: Mapping[str, Any], name: str, least: int = 0) -> tuple[int, ...]:
    extents = fields.get(name)
    if type(extents) is not list or not all(type(extent) is int for extent in extents):
        raise invalid(f"Its {name} is not a list of integers.")
    if not all(least <= extent <= MAX_NBYTES for extent in extents):
        raise distrusted(f"Its {name} is {extents[:MAX_AXES]}, with an extent out of range.")
    return tuple(extents)


def may_be_guarded(data: bytes) -> bool:
    """Return True if an array that is not read may have a checksum: a codec is one, or unknown."""
    try:
        document = parse_object(data, "a description of Zarr")
    except CheckpointError:
        return True
    codecs = [
        document.get("compressor"),
        *_listed(document.get("filters")),
        *_listed(document.get("codecs")),
    ]
    names = [
        each.get("id", each.get("name")) if type(each) is dict else each
        for each in codecs
        if each is not None
    ]
    return any(
        type(name) is not str or name.removeprefix("numcodecs.") not in _UNGUARDED for name in names
    )


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _codecs(value: Any) -> list[dict[str, Any]]:
    """Return codecs, each with its configuration; all are known, also inner ones."""
    if type(value) is not list or not value:
        raise invalid("Its codecs are not a list of codecs.")
    codecs: list[dict[str, Any]] = []
    for codec in value:
        name = _name(codec)
        configuration = codec.get("configuration", {}) if type(codec) is dict else {}
        if type(name) is not str or type(configuration) is not dict:
            raise invalid(
                "One of its codecs has no name, or a configuration that is not an object."
            )
        codecs.append({"name": name, "configuration": configuration})
    _check_known([codec["name"] for codec in codecs], _CODECS_V3)
    for codec in codecs:
        if codec["name"] == _SHARDING:
            inner = _codecs(codec["configuration"].get("codecs"))
            if any(each["name"] == _SHARDING for each in inner):
                raise UnsupportedError(
                    "Its shards consist of shards.", "Write it with one level of shards."
                )
    return codecs


def _check_known(names: Sequence[str], known: set[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(map(repr, unknown[:8]))
        raise UnsupportedError(
            f"It has the codec {listed}, which shardvar does not read.", "Write it with zstd."
        )


def _is_raw(codec: Mapping[str, Any], dtype: str) -> bool:
    # Elements of one byte need no order.
    one_byte = dtype in ("bool", "int8", "uint8") or dtype.startswith("float8")
    little = codec["configuration"].get("endian") == "little"
    return (
        codec["name"] == "bytes"
        and (little or one_byte)
        and dtype not in ("int4", "int2", "float4_e2m1fn")
    )


def _guards(codecs: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if one of the codecs is a checksum, or writes one."""
    for codec in codecs:
        name, configuration = codec["name"], codec["configuration"]
        if name == "crc32c" or (name == "zstd" and configuration.get("checksum") is True):
            return True
        # A change of the index, which lists the inner chunks, would make the fill value of one.
        index = any(_name(each) == "crc32c" for each in _listed(configuration.get("index_codecs")))
        if name == _SHARDING and index and _guards(_codecs(configuration.get("codecs"))):
            return True
    return False


def _configuration(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    configuration = value.get("configuration", {}) if type(value) is dict else {}
    return configuration if type(configuration) is dict else {}


def _name(value: Any) -> Any:
    """Return the name of an extension, which is text, or an object with a name."""
    return value.get("name") if type(value) is dict else value

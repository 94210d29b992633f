"""Hostile groups of Zarr and checkpoints of Orbax. Descriptions are JSON, chunks are not
compressed."""

import json
import struct
from collections.abc import Iterator
from typing import Any

from spec_tests.hostile.case import PICTURE, Case, Evidence, Files

VALUES = struct.pack("<4f", 0, 1, 2, 3)
BYTES: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
DATABASE = b"\x0c\xdb\x3a\x2a" + bytes(60)
"""A manifest of OCDBT that begins as one does."""


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def grid(*extents: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": extents}}


def array(**fields: Any) -> bytes:
    """An array of four elements in one chunk, whose description has these fields."""
    encoding = {"name": "default", "configuration": {"separator": "/"}}
    described = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "float32",
        "fill_value": 0,
    }
    return text(
        described
        | {"chunk_grid": grid(4), "chunk_key_encoding": encoding, "codecs": [BYTES]}
        | fields
    )


def zarr(described: bytes, **chunks: bytes) -> Files:
    """A group of one array, ``t``."""
    group = text({"zarr_format": 3, "node_type": "group"})
    names = {f"t/{name.replace('_', '/')}": octets for name, octets in chunks.items()}
    return {"zarr.json": group, "t/zarr.json": described, **names}


def zarr_cases() -> Iterator[Case]:
    def case(label: str, error: str, why: str, files: Files) -> Case:
        return Case(f"zarr_{label}", "zarr.json", error, why, files)

    rows, zstd, crc = 2**50, {"name": "zstd"}, {"name": "crc32c"}
    claimed = zarr(array(shape=[rows]), c_0=VALUES)
    yield case(
        "huge",
        "InvalidCheckpoint",
        "2**50 rows are claimed, in 2**48 chunks, and four stored.",
        claimed,
    )
    wide = array(shape=[rows], chunk_grid=grid(rows))
    yield case(
        "chunk_huge",
        "IncompleteCheckpoint",
        "A chunk of 2**50 elements in a file of 16 bytes.",
        zarr(wide, c_0=VALUES),
    )
    packed = zarr(array(shape=[rows], chunk_grid=grid(rows), codecs=[BYTES, zstd]), c_0=VALUES)
    yield case(
        "bomb",
        "InvalidCheckpoint",
        "The same, compressed: memory is taken before a byte is decoded.",
        packed,
    )
    small = zarr(array(chunk_grid=grid(rows), codecs=[BYTES, zstd]), c_0=VALUES)
    yield case(
        "chunk_beyond",
        "InvalidCheckpoint",
        "Four elements in a chunk of 2**50: it is decoded whole.",
        small,
    )
    filled = zarr(array(shape=[2**40], chunk_grid=grid(2**40)))
    yield case(
        "fill",
        "InvalidCheckpoint",
        "2**40 elements of which none is stored: all are the fill value.",
        filled,
    )
    product = zarr(array(shape=[2**32, 2**32], chunk_grid=grid(2**32, 2**32)), c_0_0=VALUES)
    yield case(
        "overflow",
        "InvalidCheckpoint",
        "2**32 x 2**32 elements, whose product is 0 in 64 bits.",
        product,
    )
    nothing = zarr(array(shape=[0, 2**62], chunk_grid=grid(1, 2**62)))
    yield case(
        "huge_and_empty",
        "InvalidCheckpoint",
        "A shape of 0 x 2**62, in chunks of 2**62 elements.",
        nothing,
    )
    wide = zarr(array(shape=[0, 2**62], chunk_grid=grid(1, 1024)))
    yield case(
        "wide_and_empty",
        "InvalidCheckpoint",
        "A shape of 0 x 2**62, which NumPy cannot hold.",
        wide,
    )
    zero = zarr(array(chunk_grid=grid(0)), c_0=VALUES)
    yield case("zero", "InvalidCheckpoint", "A chunk of no rows: a division by zero.", zero)
    yield case(
        "negative", "InvalidCheckpoint", "A shape of -4.", zarr(array(shape=[-4]), c_0=VALUES)
    )
    axes = array(shape=[1] * 20_000, chunk_grid=grid(*[1] * 20_000))
    yield case("rank", "UnsupportedError", "An array of 20,000 axes.", zarr(axes, c=VALUES[:4]))
    tiny = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1], "codecs": [BYTES], "index_codecs": [BYTES, crc]},
    }
    inner = array(shape=[2**16], chunk_grid=grid(2**16), codecs=[tiny])
    yield case(
        "inner",
        "IncompleteCheckpoint",
        "2**16 inner chunks in 16 bytes, each with an entry.",
        zarr(inner, c_0=VALUES),
    )
    codec: dict[str, Any] = BYTES
    for _ in range(10):
        codec = {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [4], "codecs": [codec], "index_codecs": [BYTES]},
        }
    yield case(
        "shards",
        "UnsupportedError",
        "Shards of shards of shards.",
        zarr(array(codecs=[codec]), c_0=VALUES),
    )
    deep = b'{"zarr_format": 3, "node_type": "array", "attributes": ' + b"[" * 100_000
    yield case(
        "nested",
        "MalformedCheckpoint",
        "100,000 lists in each other: a parser recurses.",
        zarr(deep),
    )
    digits = array().replace(b"[4]", b"[" + b"9" * 50_000 + b"]", 1)
    yield case(
        "digits", "MalformedCheckpoint", "An extent of 50,000 digits.", zarr(digits, c_0=VALUES)
    )
    twice = zarr(array(), c_0=VALUES) | {"t/.zarray": array()}
    yield case(
        "two_versions",
        "InvalidCheckpoint",
        "Two descriptions: readers choose different ones.",
        twice,
    )
    cut = zarr(array(), c_0=VALUES[:-1])
    yield case("cut", "IncompleteCheckpoint", "The last byte of a chunk is missing.", cut)
    yield case(
        "foreign",
        "MalformedCheckpoint",
        "A picture under the name of a description.",
        zarr(PICTURE),
    )
    yield case("empty", "MalformedCheckpoint", "A description of no bytes.", zarr(b""))


def leaf(*steps: str) -> dict[str, Any]:
    keys = [{"key": step, "key_type": 2} for step in steps]
    return {
        "key_metadata": keys,
        "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
    }


def orbax(*leaves: dict[str, Any], use_ocdbt: bool = False, **fields: Any) -> Files:
    """A checkpoint of the array ``t``, with these leaves, or with that one."""
    described = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": "<f4",
        "order": "C",
        "fill_value": None,
    }
    described |= {"compressor": None, "filters": None, "dimension_separator": "."} | fields
    listed = {str(number): each for number, each in enumerate(leaves or (leaf("t"),))}
    index = text({"tree_metadata": listed, "use_ocdbt": use_ocdbt})
    return {"_METADATA": index, "t/.zarray": text(described), "t/0": VALUES[:8], "t/1": VALUES[8:]}


def orbax_cases() -> Iterator[Case]:
    def case(label: str, error: str, why: str, files: Files) -> Case:
        return Case(f"orbax_{label}", "_METADATA", error, why, files)

    yield case(
        "dotdot",
        "InvalidCheckpoint",
        "An array is outside of the folder.",
        orbax(leaf("../orbax_cut/t")),
    )
    yield case(
        "absolute", "InvalidCheckpoint", "An array has an absolute path.", orbax(leaf("/etc"))
    )
    yield case(
        "twice", "InvalidCheckpoint", "Two leaves have one array.", orbax(leaf("t"), leaf("t"))
    )
    yield case(
        "lost",
        "MissingFile",
        "The index names an array that is not there.",
        orbax(leaf("t"), leaf("u")),
    )
    absent = orbax()
    del absent["t/1"]
    yield case(
        "absent", "IncompleteCheckpoint", "A chunk is not there: zeros are returned for it.", absent
    )
    huge = orbax(shape=[2**50])
    yield case(
        "huge",
        "IncompleteCheckpoint",
        "2**50 rows are claimed and four stored: TensorStore ends the process.",
        huge,
    )
    yield case(
        "cut",
        "IncompleteCheckpoint",
        "The last byte of a chunk is missing.",
        orbax() | {"t/1": VALUES[8:15]},
    )
    yield case(
        "objects", "UnsupportedError", "Elements are Python objects: pickles.", orbax(dtype="|O")
    )
    yield case(
        "no_tree", "InvalidCheckpoint", "An index that is not one.", orbax() | {"_METADATA": b"{}"}
    )
    yield case(
        "no_steps", "InvalidCheckpoint", "A leaf without a path.", orbax({"value_metadata": {}})
    )
    nested = b'{"tree_metadata": ' + b"[" * 100_000
    yield case(
        "nested",
        "MalformedCheckpoint",
        "100,000 lists in each other.",
        orbax() | {"_METADATA": nested},
    )
    yield case(
        "foreign",
        "MalformedCheckpoint",
        "A picture as the index.",
        orbax() | {"_METADATA": PICTURE},
    )
    yield case(
        "no_database",
        "MissingFile",
        "The database of all arrays is not there.",
        orbax(use_ocdbt=True),
    )
    garbage = orbax(use_ocdbt=True) | {"manifest.ocdbt": DATABASE}
    yield case("database", "MalformedCheckpoint", "A database of zeros.", garbage)


EVIDENCE = {"zarr": Evidence("zarr/v3_default/ckpt", zarr_cases)}

"""Hostile groups of Zarr and checkpoints of Orbax. Descriptions are JSON, chunks are not
compressed."""

import json
import struct
from typing import Any

from spec_tests.hostile.case import Evidence, Files

VALUES = struct.pack("<4f", 0, 1, 2, 3)
BYTES: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def grid(*extents: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": extents}}


def described_v2(**fields: Any) -> dict[str, Any]:
    """An array of four elements in two chunks, with these fields."""
    described = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "order": "C"}
    described |= {"fill_value": None, "compressor": None, "filters": None}
    return described | {"dimension_separator": "."} | fields


def described_v3(**fields: Any) -> dict[str, Any]:
    """The same in version 3."""
    described = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "float32"}
    encoding = {"name": "default", "configuration": {"separator": "/"}}
    described |= {"fill_value": 1.5, "chunk_grid": grid(2), "chunk_key_encoding": encoding}
    return described | {"codecs": [BYTES]} | fields


def array(**fields: Any) -> bytes:
    """An array of four elements in one chunk, whose description has these fields."""
    return text(described_v3(chunk_grid=grid(4), fill_value=0) | fields)


def zarr(described: bytes, **chunks: bytes) -> Files:
    """A group of one array, ``t``."""
    group = text({"zarr_format": 3, "node_type": "group"})
    names = {f"t/{name.replace('_', '/')}": octets for name, octets in chunks.items()}
    return {"zarr.json": group, "t/zarr.json": described, **names}


def leaf(*steps: str, kind: str = "np.ndarray") -> dict[str, Any]:
    keys = [{"key": step, "key_type": 2} for step in steps]
    return {
        "key_metadata": keys,
        "value_metadata": {"value_type": kind, "skip_deserialize": False},
    }


def orbax(*leaves: dict[str, Any], use_ocdbt: bool = False, **fields: Any) -> Files:
    """A checkpoint of the array ``t``, with these leaves, or with that one."""
    described = described_v2(**fields)
    listed = {str(number): each for number, each in enumerate(leaves or (leaf("t"),))}
    index = text({"tree_metadata": listed, "use_ocdbt": use_ocdbt})
    return {"_METADATA": index, "t/.zarray": text(described), "t/0": VALUES[:8], "t/1": VALUES[8:]}


EVIDENCE = {"zarr": Evidence("zarr/v3_default/ckpt", "zarr_")}

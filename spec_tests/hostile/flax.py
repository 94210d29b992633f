"""Msgpack files of Flax, assembled value by value."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from spec_tests.hostile.case import Arrays, Evidence, Files

CHUNKED = "__msgpack_chunked_array__"


def array(
    shape: Sequence[int] = (4,), dtype: str = "float32", data: bytes = bytes(16), code: int = 1
) -> msgpack.ExtType:
    """An array as Flax packs one."""
    return msgpack.ExtType(code, msgpack.packb([list(shape), dtype, data], use_bin_type=True))


def of(values: np.ndarray) -> msgpack.ExtType:
    """The array of these values."""
    return array(values.shape, values.dtype.name, values.tobytes())


def chunks(shape: Sequence[int], *parts: Any) -> dict[str, Any]:
    """An array in chunks."""
    return {
        CHUNKED: True,
        "shape": {str(axis): extent for axis, extent in enumerate(shape)},
        "chunks": {str(number): part for number, part in enumerate(parts)},
    }


def packed(tree: Any) -> bytes:
    octets: bytes = msgpack.packb(tree, use_bin_type=True)
    return octets


def index(files: Mapping[str, str]) -> bytes:
    """The index of a set."""
    return json.dumps({"metadata": {}, "weight_map": files}).encode()


def _make(arrays: Arrays) -> Files:
    params = {key: array(each.shape, data=each.tobytes()) for key, each in arrays.items()}
    return {"ck.msgpack": packed({"params": params})}


EVIDENCE = {"flax": Evidence("flax/every_value/m", "flax_", file="ck.msgpack", make=_make)}

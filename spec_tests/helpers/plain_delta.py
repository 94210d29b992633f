"""A reader of deltas written from docs/delta.md, with no code of shardvar's: the oracle of its
tests.

It holds whole tensors in memory and works byte by byte where that is clearer.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


def result_of(base: Arrays, delta: Arrays) -> dict[str, Any]:
    """Return the tensors that a delta makes of its base; both are loaded."""
    table = json.loads(delta["table"].tobytes())
    found = {}
    for row in table["tensors"]:
        key, kind = row["key"], row["kind"]
        if kind == "equal":
            found[key] = base[key]
        elif kind == "whole":
            found[key] = delta["whole/" + key]
        elif kind == "changed":
            found[key] = _changed(base[key], delta["changed/" + key].tobytes())
        else:
            assert kind == "removed"
    return found


def _changed(array: Any, payload: bytes) -> Any:
    data = bytearray(array.tobytes())
    width = min(array.dtype.itemsize, 8)
    (count,) = struct.unpack_from("<I", payload)
    at = 4 + 48 * count
    for number in range(count):
        leaf, encoding, size, changed, digest = struct.unpack_from(
            "<IIII32s", payload, 4 + 48 * number
        )
        start = leaf * 2**20
        stop = min(start + 2**20, len(data))
        mask = _mask(encoding, payload[at : at + size], changed, stop - start, width)
        at += size
        for place, octet in mask:
            data[start + place] ^= octet
        assert sha256(data[start:stop]).digest() == digest or array.dtype.itemsize * 8 > _bits(
            array
        )
    assert at == len(payload)
    return np.frombuffer(bytes(data), array.dtype).reshape(array.shape)


def _bits(array: Any) -> int:
    name = array.dtype.name
    odd = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
    return odd.get(name, 6 if name.startswith("float6") else array.dtype.itemsize * 8)


def _mask(
    encoding: int, body: bytes, changed: int, nbytes: int, width: int
) -> list[tuple[int, int]]:
    """The bytes of a mask that are not 0, each with its place in the leaf."""
    if encoding == 3:
        return [(place, octet) for place, octet in enumerate(body) if octet]
    planes = zlib.decompress(body)
    if encoding == 2:
        words = nbytes // width
        octets = [planes[(place % width) * words + place // width] for place in range(nbytes)]
        return [(place, octet) for place, octet in enumerate(octets) if octet]
    assert encoding == 1
    found, element = [], -1
    for number in range(changed):
        gap = sum(planes[plane * changed + number] << 8 * plane for plane in range(4))
        element += gap + 1
        found += [
            (element * width + byte, planes[(4 + byte) * changed + number]) for byte in range(width)
        ]
    return found

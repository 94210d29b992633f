"""The test vectors of docs/digest.md, by a second implementation of the page that imports nothing
of shardvar.

    python -m spec_tests.vector_generators.digests     write docs/digest-vectors.json
"""

import json
import random
from hashlib import sha256
from typing import Any

from spec_tests.helpers.paths import DOCS

PATH = DOCS / "digest-vectors.json"
LEAF = 1 << 20
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "complex64": 8,
    "complex128": 16, "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "float6_e2m3fn": 1, "float6_e3m2fn": 1, "float4_e2m1fn": 1, "int2": 1,
    "int4": 1, "uint2": 1, "uint4": 1,
}  # fmt: skip
BITS = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}


def digest(key: bytes, dtype: str, shape: list[int], data: bytes) -> bytes:
    """Return the digest of a tensor by the page, step by step."""
    state = sha256()
    for line in ("shardvar digest 1", dtype, ",".join(str(extent) for extent in shape)):
        state.update(line.encode("ascii") + b"\n")
    state.update(b"%d\n" % len(key) + key)
    at = 0
    while at < len(data):
        state.update(sha256(data[at : at + LEAF]).digest())
        at += LEAF
    return state.digest()


def case(why: str, key: str, dtype: str, shape: list[int], data: bytes | int) -> dict[str, Any]:
    """Return one case; a number of bytes stands for a pattern of four that is repeated."""
    told: Any = data.hex() if isinstance(data, bytes) else {"repeat": "00017fff", "nbytes": data}
    octets = data_of(told)
    found = digest(key.encode("utf-8", "surrogateescape"), dtype, shape, octets)
    return {
        "why": why,
        "key": key,
        "dtype": dtype,
        "shape": shape,
        "data": told,
        "digest": found.hex(),
    }


def data_of(told: Any) -> bytes:
    if isinstance(told, str):
        return bytes.fromhex(told)
    repeated, nbytes = bytes.fromhex(told["repeat"]), told["nbytes"]
    return (repeated * (nbytes // len(repeated) + 1))[:nbytes]


def strings(*each: bytes) -> bytes:
    """Return the data of a string tensor."""
    return b"".join(len(one).to_bytes(8, "little") + one for one in each)


def vectors() -> dict[str, Any]:
    draw = random.Random(20)
    cases = [
        case(f"Each dtype has its name and its bytes: {dtype}.", f"of/{dtype}", dtype, [2, 3], data)
        for dtype, size in SIZES.items()
        for data in [bytes(draw.randrange(1 << BITS.get(dtype, 8)) for _ in range(6 * size))]
    ]
    cases += [
        case("A scalar has an empty line of extents.", "step", "int64", [], bytes([7] + 7 * [0])),
        case("One element is not a scalar.", "step1", "int64", [1], bytes([7] + 7 * [0])),
        case("Without elements there is no leaf.", "none", "float32", [0, 4], b""),
        case("The empty extents count.", "none2", "float32", [4, 0], b""),
        case("The key is counted in bytes, not characters.", "größe/表", "uint8", [1], b"\1"),
        case("A key may have line feeds and quotation marks.", 'a\n"b"\\', "uint8", [1], b"\1"),
        case("A key may be empty.", "", "uint8", [1], b"\1"),
        case("A NaN keeps its payload.", "nan", "float32", [2], bytes.fromhex("0100c07f0000c0ff")),
        case("-0.0 is not 0.0.", "zero", "float32", [2], bytes.fromhex("0000008000000000")),
        case("Strings have their lengths.", "words", "string", [3], strings(b"a", b"", b"\0\xff")),
        case("No strings.", "nowords", "string", [0], b""),
        case("One byte less than a leaf.", "leaf-1", "uint8", [LEAF - 1], LEAF - 1),
        case("One leaf.", "leaf", "float32", [LEAF // 4], LEAF),
        case("One byte more than a leaf.", "leaf+1", "uint8", [LEAF + 1], LEAF + 1),
        case("An element lies in two leaves.", "wide", "complex128", [3, 43691], 3 * 43691 * 16),
    ]
    of_all = sha256(b"".join(sorted(bytes.fromhex(each["digest"]) for each in cases))).hexdigest()
    return {"version": 1, "cases": cases, "checkpoint": of_all, "empty": sha256().hexdigest()}


def text() -> str:
    """Return the file of vectors: a line for each case."""
    found = vectors()
    lines = ",\n".join("  " + json.dumps(each) for each in found["cases"])
    rest = {key: value for key, value in found.items() if key not in ("version", "cases")}
    return f'{{"version": {found["version"]},\n"cases": [\n{lines}\n],\n{json.dumps(rest)[1:]}\n'


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

"""Msgpack files of Flax, assembled value by value."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from spec_tests.hostile.case import PICTURE, Arrays, Case, Evidence, Files

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


def flax_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"flax_{name}", "ck.msgpack", error, why, {"ck.msgpack": file})

    incomplete, invalid = "IncompleteCheckpoint", "InvalidCheckpoint"
    malformed, unsupported = "MalformedCheckpoint", "UnsupportedError"
    whole = packed({"t": array()})
    yield case(
        "huge",
        invalid,
        "Claims 2^60 elements in 16 bytes.",
        packed({"t": array((1 << 30, 1 << 30))}),
    )
    yield case(
        "overflow",
        invalid,
        "Extents whose product is 0 in 64 bits.",
        packed({"t": array((1 << 32, 1 << 32), data=b"")}),
    )
    yield case(
        "wide_and_empty",
        invalid,
        "An extent of 2^62 beside one of 0: NumPy has no such array.",
        packed({"t": array((1 << 62, 1 << 62, 0), data=b"")}),
    )
    yield case(
        "negative",
        invalid,
        "An extent of -1, which NumPy takes for the rest.",
        packed({"t": array((-1,))}),
    )
    yield case("rank", invalid, "A shape of 65 axes.", packed({"t": array((1,) * 65)}))
    yield case(
        "rank_huge",
        invalid,
        "A shape of 2^32 - 1 axes, of which there is none.",
        packed({"t": msgpack.ExtType(1, b"\x93\xdd\xff\xff\xff\xff")}),
    )
    yield case(
        "dtype",
        unsupported,
        "A dtype of Python objects, whose bytes are pointers.",
        packed({"t": array((2,), "object")}),
    )
    yield case("text", unsupported, "A dtype of texts.", packed({"t": array((1,), "str128")}))
    yield case(
        "inner",
        invalid,
        "The elements end before the bytes of their array do: what follows is no one's.",
        packed({"t": msgpack.ExtType(1, packed([[4], "float32", bytes(16)]) + b"\xc0")}),
    )
    yield case(
        "past_its_end",
        invalid,
        "The elements reach over the end of their array, into the next value.",
        packed({"t": msgpack.ExtType(1, b"\x93\x91\x04\xa7float32\xc4\x10"), "u": bytes(16)}),
    )
    yield case(
        "complex",
        invalid,
        "A complex number of two texts.",
        packed({"t": msgpack.ExtType(2, packed(["a", "b"]))}),
    )
    yield case(
        "extension",
        unsupported,
        "An extension that Flax does not write.",
        packed({"t": msgpack.ExtType(77, b"x")}),
    )
    part = array((2,), data=bytes(8))
    yield case(
        "chunks_lost",
        invalid,
        "Chunks of fewer elements than the shape has.",
        packed({"t": chunks((5,), part, part)}),
    )
    yield case(
        "chunks_dtypes",
        invalid,
        "Chunks of two dtypes: one is read as the other.",
        packed({"t": chunks((4,), part, array((2,), "int32", bytes(8)))}),
    )
    yield case(
        "chunks_shape",
        invalid,
        "A chunk that is not flat.",
        packed({"t": chunks((2,), array((2, 1), data=bytes(8)))}),
    )
    yield case(
        "chunks_order",
        invalid,
        "Chunks in another order than their numbers.",
        packed({"t": {CHUNKED: True, "shape": {"0": 4}, "chunks": {"1": part, "0": part}}}),
    )
    yield case("chunks_none", invalid, "An array in no chunks.", packed({"t": chunks((0,))}))
    yield case(
        "twice",
        invalid,
        "A map with a key twice: readers disagree which value counts.",
        b"\x82" + 2 * packed({"t": array()})[1:],
    )
    yield case(
        "claims",
        incomplete,
        "A list of 2^32 - 1 items, of which there is none: room is made for them first.",
        b"\x81\xa1t\xdd\xff\xff\xff\xff",
    )
    yield case("bytes", incomplete, "A text of 2^32 - 1 bytes.", b"\x81\xa1t\xdb\xff\xff\xff\xff")
    yield case(
        "nested",
        invalid,
        "A million lists in each other: a decoder that recurses leaves the stack.",
        b"\x81\xa1t" + b"\x91" * 1_000_000 + b"\x80",
    )
    yield case(
        "deep",
        unsupported,
        "Ninety lists in each other: no other checkpoint could hold the value.",
        b"\x81\xa1t" + b"\x91" * 90 + b"\xc0",
    )
    yield case("key", malformed, "A map whose key is a map.", b"\x81\x80\x01")
    yield case("byte", malformed, "A byte that begins no value.", b"\x81\xa1t\xc1")
    yield case("cut", incomplete, "The last byte is missing.", whole[:-1])
    yield case("trailing", malformed, "A second value follows.", whole + whole)
    yield case("empty", malformed, "A file of no bytes.", b"")
    yield case("foreign", malformed, "A picture under the name of a model.", PICTURE)
    yield case("number", malformed, "A file of one number.", struct.pack(">Bd", 0xCB, 1.0))
    yield from _sets()


def _sets() -> Iterator[Case]:
    names = "ck-00001-of-00002.msgpack", "ck-00002-of-00002.msgpack"
    first, second = packed({"a": {"w": array()}}), packed({"b": {"w": array()}})
    listed = {"a/w": names[0], "b/w": names[1]}
    path = "ck.msgpack.index.json"

    def case(name: str, error: str, why: str, **files: bytes) -> Case:
        return Case(f"flax_set_{name}", path, error, why, files)

    yield case(
        "missing",
        "MissingFile",
        "The second of two files is missing.",
        **{path: index(listed), names[0]: first},
    )
    yield case(
        "lost",
        "IncompleteCheckpoint",
        "A file lacks the key that the index has in it.",
        **{path: index(listed), names[0]: first, names[1]: packed({"c": array()})},
    )
    yield case(
        "dotdot",
        "InvalidCheckpoint",
        "The index leads out of the folder.",
        **{path: index({"t": "../ck.msgpack"})},
    )
    yield case(
        "absolute",
        "InvalidCheckpoint",
        "The index names a file of the system.",
        **{path: index({"t": "/etc/passwd"})},
    )
    yield Case(
        "flax_set_no_index",
        "ck",
        "MissingFile",
        "Files of a set without its index.",
        {names[0]: first, names[1]: second},
    )


def _make(arrays: Arrays) -> Files:
    params = {key: array(each.shape, data=each.tobytes()) for key, each in arrays.items()}
    return {"ck.msgpack": packed({"params": params})}


EVIDENCE = {"flax": Evidence("flax/every_value/m", flax_cases, file="ck.msgpack", make=_make)}

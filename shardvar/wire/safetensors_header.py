"""The header of a safetensors file.

    offset   size   content
    0        8      n, the size of the header, unsigned, little-endian; at most 100,000,000
    8        n      JSON: {NAME: {"dtype": D, "shape": [int, ...], "data_offsets": [BEGIN, END]},
                    ...,
                           "__metadata__": {text: text, ...}}
    8 + n           the tensors' bytes: C order, little-endian; BEGIN and END count from here

A writer SHOULD pad the header with spaces, so that the bytes begin at a multiple of 8. The real
library knows only the names in ``STORED_DTYPES``; elements of fewer than 8 bits are packed.

A reader MUST check these laws, and ``parse_header`` checks them in this order. The real library
checks all but the first.

    1. names are unique at every level
    2. every field has its type; others are ignored
    3. END - BEGIN is the size that dtype and shape give, computed without overflow
    4. sorted by BEGIN, the tensors follow each other without a hole or an overlap, and the file ends
       with the last one: ``Header.stop``, which the caller compares with its size
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import UnsupportedError
from shardvar.limits import MAX_HEADER_NBYTES, MAX_NBYTES, MAX_RANK
from shardvar.records import entity
from shardvar.wire import strict_json
from shardvar.wire.damage import (
    check_key_nbytes,
    foreign_file,
    incomplete,
    invalid,
    past_limit,
)

_Ints = NDArray[np.int64]

PREAMBLE_NBYTES = 8
METADATA = "__metadata__"
HEADER_ALIGNMENT = 8
"""Bytes, of the largest element: the real library pads headers to these."""

_FIELDS = frozenset(("dtype", "shape", "data_offsets"))
_LISTS = {"shape": "extents", "data_offsets": "offsets"}
"""The fields that are lists of numbers, and what messages call their numbers."""
_MAX_DEPTH = 3
"""The header, a tensor in it, a list in the tensor."""

STORED_DTYPES: dict[str, tuple[str, int]] = {
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F32": ("float32", 32),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "BF16": ("bfloat16", 16),
    "F16": ("float16", 16),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "I8": ("int8", 8),
    "U8": ("uint8", 8),
    "F6_E3M2": ("float6_e3m2fn_packed", 6),
    "F6_E2M3": ("float6_e2m3fn_packed", 6),
    "F4": ("float4_e2m1fn_packed", 4),
    "BOOL": ("bool", 8),
}
"""The name in the file -> the name of the dtype, and the bits of an element; in the order in which the
real library writes tensors, the largest elements first, so that all are aligned."""

BITS = dict(STORED_DTYPES.values())
"""Bits of an element by the name of the dtype."""

_WRITTEN = {name: (text, bits) for text, (name, bits) in STORED_DTYPES.items()}
_PAIRS = "float4_e2m1fn_x2"
"""The dtype of PyTorch whose element is two elements of F4: the real library doubles the last
extent."""

SAFETENSORS_DTYPES = frozenset((*_WRITTEN, _PAIRS))
"""The dtypes that are written."""
DTYPES_IN_ORDER = (*_WRITTEN, _PAIRS)
"""The same in the order of their tensors in a file."""


@entity
class Header:
    """The content of a header in columns, one row a tensor, in the order of the names."""

    keys: Sequence[str]
    dtypes: Sequence[str]
    """[n] their element types, as NumPy and ml_dtypes name them."""
    shapes: Sequence[Sequence[int]]
    start: _Ints
    """[n] the first byte of each, in bytes of the file."""
    nbytes: _Ints
    metadata: Mapping[str, str]
    """The texts under ``METADATA``."""
    stop: int
    """The end of the last tensor, and of the file."""


def header_nbytes(first: bytes, file_nbytes: int) -> int:
    nbytes = int.from_bytes(first[:PREAMBLE_NBYTES], "little")
    begins = first[PREAMBLE_NBYTES : PREAMBLE_NBYTES + 1] == b"{"
    if nbytes > MAX_HEADER_NBYTES and begins and PREAMBLE_NBYTES + nbytes <= file_nbytes:
        raise UnsupportedError(
            f"The header has {nbytes} bytes, and safetensors allows {MAX_HEADER_NBYTES} "
            "(MAX_HEADER_NBYTES).",
            "Write it again as several files, in the program that wrote it: each has a part of the "
            "header.",
        )
    if nbytes > MAX_HEADER_NBYTES:
        why = (
            f"its first 8 bytes claim a header of {nbytes} bytes; at most {MAX_HEADER_NBYTES} are "
            "allowed"
        )
        raise foreign_file("a safetensors file", first, file_nbytes, why)
    if not begins:
        raise foreign_file(
            "a safetensors file",
            first,
            file_nbytes,
            "its header does not begin with '{' at offset 8",
        )
    if PREAMBLE_NBYTES + nbytes > file_nbytes:
        raise incomplete(
            f"The header should end at offset {PREAMBLE_NBYTES + nbytes}, but the file ends at "
            f"{file_nbytes}."
        )
    return nbytes


def parse_header(header: bytes) -> Header:
    """Return the content of the header; every law is checked but the size of the file."""
    # Law 1, names.
    tensors = strict_json.parse_json(header, _MAX_DEPTH)
    if type(tensors) is not dict:
        raise invalid("The header is not a JSON object.")

    # Law 2, types.
    metadata = tensors.pop(METADATA, {})
    if type(metadata) is not dict or not set(map(type, metadata.values())) <= {str}:
        raise invalid(f"{METADATA} is not a map from text to text.")
    check_key_nbytes(max(map(len, tensors), default=0))
    keys = sorted(tensors)
    infos = [tensors[key] for key in keys]
    _check_types(keys, infos)
    shapes = [info["shape"] for info in infos]
    bits = [STORED_DTYPES[info["dtype"]][1] for info in infos]

    # Law 3, sizes. BEGIN and END count from the end of the header.
    nbytes = sizes_of(keys, shapes, bits)
    pairs = [info["data_offsets"] for info in infos]
    try:
        matrix = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except OverflowError:
        row = next(row for row, pair in enumerate(pairs) if max(pair) >= 2**63)
        raise invalid(
            f"The tensor {keys[row]!r} has offsets {pairs[row]}, beyond any file."
        ) from None
    begin, end = matrix[:, 0], matrix[:, 1]
    wrong = np.flatnonzero((begin > end) | (end - begin != nbytes))
    if len(wrong):
        row = int(wrong[0])
        needed = f"The tensor {keys[row]!r} needs {nbytes[row]} bytes by dtype and shape"
        raise invalid(f"{needed}, but its offsets are {begin[row]} to {end[row]}.")

    # Law 4, cover.
    data_start = PREAMBLE_NBYTES + len(header)
    _check_cover(keys, begin, end)
    dtypes = [STORED_DTYPES[info["dtype"]][0] for info in infos]
    stop = data_start + int(end.max(initial=0))
    return Header(keys, dtypes, shapes, begin + data_start, nbytes, metadata, stop)


def build_header(
    rows: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the first bytes of a file whose tensors (name, dtype, shape) follow each other.

    They are padded to a multiple of 8. ``UnsupportedError`` if a name or the header does not fit.
    """
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    header, begin = bytearray(b"{"), 0

    # Entry by entry: as objects, all of them would take several times the memory of the text.
    def add(key: str, value: object) -> None:
        header.extend(encode({key: value})[1:-1].encode("utf-8") + b",")

    try:
        if metadata:
            add(METADATA, dict(metadata))
        for key, dtype, shape in rows:
            if key == METADATA:
                raise UnsupportedError(
                    f"A safetensors file cannot have a tensor named {METADATA!r}.", "Rename it."
                )
            if dtype == _PAIRS and len(shape):
                dtype, shape = "float4_e2m1fn_packed", [*shape[:-1], 2 * shape[-1]]
            if dtype == _PAIRS or prod(shape) * _WRITTEN[dtype][1] % 8:
                cause = f"The tensor {key!r} of shape {tuple(shape)} would end within a byte."
                raise UnsupportedError(cause, "Leave it out, or write the native format.")
            text, bits = _WRITTEN[dtype]
            end = begin + prod(shape) * bits // 8
            add(key, {"dtype": text, "shape": list(shape), "data_offsets": [begin, end]})
            begin = end
    except UnicodeEncodeError as error:
        cause = (
            "A safetensors file has names in UTF-8, which cannot encode "
            f"{error.object[error.start : error.end]!r}."
        )
        raise UnsupportedError(cause, "Rename the tensors, or write the native format.") from None
    encoded = bytes(header).removesuffix(b",") + b"}"
    encoded += b" " * (-(PREAMBLE_NBYTES + len(encoded)) % HEADER_ALIGNMENT)
    if len(encoded) > MAX_HEADER_NBYTES:
        cause = (
            f"The header of a safetensors file can have {MAX_HEADER_NBYTES} bytes, but would have "
            f"{len(encoded)}."
        )
        raise UnsupportedError(cause, "Spread the tensors over more files.")
    return len(encoded).to_bytes(PREAMBLE_NBYTES, "little") + encoded


def sizes_of(keys: Sequence[str], shapes: Sequence[Sequence[int]], bits: Sequence[int]) -> _Ints:
    """Return [n] the bytes of dtypes and shapes; raise if a tensor is too large to exist."""
    sizes = []  # of Python's integers, which do not overflow
    for key, shape, width in zip(keys, shapes, bits, strict=True):
        size = _product(shape) * width
        # An extent of 0 does not make the others harmless: NumPy cannot hold an array of shape
        # (2**62, 2**62, 0).
        if (size or _product([*filter(None, shape)]) * width) > 8 * MAX_NBYTES:
            raise past_limit(
                f"The tensor {key!r} of shape {shape[:8]} is too large to exist: its size",
                "MAX_NBYTES",
            )
        if size % 8:
            raise invalid(f"The tensor {key!r} ends within a byte.")
        sizes.append(size // 8)
    return np.array(sizes, dtype=np.int64)


def _check_types(keys: Sequence[str], infos: Sequence[Any]) -> None:
    """Raise unless each tensor is described by the three fields, each of its type."""
    for key, info in zip(keys, infos, strict=True):
        if not (
            type(info) is dict
            and info.keys() >= _FIELDS
            and type(info["dtype"]) is str
            and type(info["shape"]) is list
            and type(info["data_offsets"]) is list
            and len(info["data_offsets"]) == 2
        ):
            fields = ", ".join(sorted(_FIELDS))
            raise invalid(f"The tensor {key!r} is not described by {fields}, each of its type.")
    # All numbers at once: nearly every header passes, and then it is not asked which tensor has a
    # wrong one.
    if not _are_naturals([number for info in infos for field in _LISTS for number in info[field]]):
        for field, what in _LISTS.items():
            for key, info in zip(keys, infos, strict=True):
                if not _are_naturals(info[field]):
                    raise invalid(f"The tensor {key!r} has {what} that are not natural numbers.")
    for key, info in zip(keys, infos, strict=True):
        if info["dtype"] not in STORED_DTYPES:
            raise invalid(
                f"The tensor {key!r} has the dtype {info['dtype']!r}, which safetensors does not "
                "define."
            )


def _are_naturals(numbers: Sequence[Any]) -> bool:
    """Return True if all are integers and none is negative; True and 2.0 are not integers here."""
    return set(map(type, numbers)) <= {int} and min(numbers, default=0) >= 0


def _product(shape: Sequence[int]) -> int:
    """Return the product, or some number above ``8 * MAX_NBYTES``: huge ones take too long."""
    if len(shape) <= MAX_RANK and max(shape, default=0) <= MAX_NBYTES:
        return prod(shape)
    product = 1
    for extent in sorted(shape):  # zeros first
        product *= min(extent, 2 * MAX_NBYTES)
        if not product or product > 8 * MAX_NBYTES:
            break
    return product


def _check_cover(keys: Sequence[str], begin: _Ints, end: _Ints) -> None:
    """Raise unless the tensors, sorted by BEGIN, follow each other from 0 on."""
    # Tensors of no bytes share their BEGIN with the next tensor; END sorts them before it.
    order = np.lexsort((end, begin))
    # Each must begin where the last one ends: of [0, 8), [8, 12) and [12, 20) the expected
    # beginnings are 0, 8 and 12.
    expected = np.concatenate([[0], end[order]])
    wrong = np.flatnonzero(begin[order] != expected[:-1])
    if len(wrong):
        row, offset = int(order[wrong[0]]), int(expected[wrong[0]])
        what = "overlaps the one before it" if begin[row] < offset else "leaves a hole before it"
        raise invalid(
            f"The tensor {keys[row]!r} {what}: it begins at {begin[row]} of the data instead of "
            f"{offset}."
        )

"""The header of a safetensors file.

    offset   size   content
    0        8      n, the size of the header, unsigned, little-endian; at most 100,000,000
    8        n      JSON: {NAME: {"dtype": D, "shape": [int, ...], "data_offsets": [BEGIN, END]}, ...,
                           "__metadata__": {text: text, ...}}
    8 + n           the tensors' bytes: C order, little-endian; BEGIN and END count from here

A writer SHOULD pad the header with spaces, so that the bytes begin at a multiple of 8. The real library knows no names
other than those in ``DTYPES``; elements of fewer than 8 bits are packed.

What a reader MUST check, and the real library does but for the first: names are unique at every level; every field
has its type and there is no other; END - BEGIN is what dtype and shape say, computed without overflow; sorted by
offset, the tensors cover the rest of the file without a hole, an overlap, or a byte left over.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import IncompleteCheckpoint, InvalidCheckpoint, UnsupportedError
from shardvar.wire import strict_json
from shardvar.wire.damage import COPY_AGAIN, invalid, not_a

Ints = NDArray[np.int64]

PREAMBLE_NBYTES = 8
MAX_HEADER_NBYTES = 100_000_000
METADATA = "__metadata__"
ALIGNMENT = 64
"""Bytes: a cache line, so that a mapped payload can be used as it stands."""

_FIELDS = frozenset(("dtype", "shape", "data_offsets"))
_MAX_DEPTH = 3
"""The header, a tensor in it, a list in that."""
_MAX_NBYTES = 2**62

DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F4": ("float4_e2m1fn", 4),
}
"""The name in the file -> the name that NumPy and ml_dtypes have, and the bits of an element."""

BITS = dict(DTYPES.values())
"""Bits of an element by NumPy's name."""

_WRITTEN = {name: (text, bits) for text, (name, bits) in DTYPES.items() if bits >= 8}

WRITABLE = frozenset(_WRITTEN)
"""The dtypes that are written: those that are not packed."""


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """What a header says, in columns, one row a tensor, in the order of the names."""

    keys: Sequence[str]
    """The tensors' names."""
    dtypes: Sequence[str]
    """Their element types, as NumPy and ml_dtypes call them."""
    shapes: Sequence[Sequence[int]]
    """Their shapes."""
    start: Ints
    """[n] where each begins, in bytes of the file."""
    nbytes: Ints
    """[n] the bytes of each in the file."""
    metadata: Mapping[str, str]
    """What the writer wanted to say."""


def header_nbytes(first: bytes, file_nbytes: int) -> int:
    """The size of the header, from the first bytes of a file."""
    nbytes = int.from_bytes(first[:PREAMBLE_NBYTES], "little")
    if nbytes > MAX_HEADER_NBYTES:
        why = f"its first 8 bytes claim a header of {nbytes} bytes, and {MAX_HEADER_NBYTES} are the most"
        raise not_a("a safetensors file", first, file_nbytes, why)
    if first[PREAMBLE_NBYTES : PREAMBLE_NBYTES + 1] != b"{":
        raise not_a("a safetensors file", first, file_nbytes, "no header begins with '{' at offset 8")
    if PREAMBLE_NBYTES + nbytes > file_nbytes:
        cause = f"The header should end at offset {PREAMBLE_NBYTES + nbytes}; the file ends at {file_nbytes}."
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    return nbytes


def parse_header(header: bytes, file_nbytes: int) -> Header:
    """What the header says of a file of that size, once every law has been checked."""
    tensors = strict_json.parse(header, _MAX_DEPTH)
    if type(tensors) is not dict:
        raise invalid("The header is no JSON object.")
    metadata = tensors.pop(METADATA, {})
    if type(metadata) is not dict or not set(map(type, metadata.values())) <= {str}:
        raise invalid(f"{METADATA} is no map from text to text.")
    keys = sorted(tensors)
    infos = [tensors[key] for key in keys]
    _check_all(keys, infos, _is_tensor, f"is not described by {', '.join(sorted(_FIELDS))}, each of its type")
    shapes = [info["shape"] for info in infos]
    offsets = [info["data_offsets"] for info in infos]
    if not _is_naturals([number for numbers in (*shapes, *offsets) for number in numbers]):
        _check_all(keys, shapes, _is_naturals, "has a shape of other numbers than naturals")
        _check_all(keys, offsets, _is_naturals, "has offsets that are other numbers than naturals")
    known = [DTYPES.get(info["dtype"]) for info in infos]
    _check_all(keys, known, bool, "has a dtype that safetensors does not know")
    names, bits = zip(*filter(None, known), strict=True) if known else ((), ())
    nbytes = _sizes(keys, shapes, bits)
    begin, end = _offsets(keys, offsets)
    data_start = PREAMBLE_NBYTES + len(header)
    _check_sizes(keys, begin, end, nbytes)
    _check_cover(keys, begin, end, data_start, file_nbytes)
    return Header(keys, names, shapes, begin + data_start, nbytes, metadata)


def build_header(rows: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file whose tensors (name, dtype, shape) follow each other; a multiple of ``ALIGNMENT``.

    ``UnsupportedError`` where a name or the whole does not fit.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    begin = 0
    for key, dtype, shape in rows:
        if key == METADATA:
            raise UnsupportedError(f"No tensor of a safetensors file may be called {METADATA!r}.", "Rename it.")
        text, bits = _WRITTEN[dtype]
        end = begin + prod(shape) * bits // 8
        header[key] = {"dtype": text, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    try:
        encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        cause = f"A safetensors file holds names in UTF-8, and {error.object[error.start : error.end]!r} is none."
        raise UnsupportedError(cause, "Rename the tensors, or write the native format.") from None
    encoded += b" " * (-(PREAMBLE_NBYTES + len(encoded)) % ALIGNMENT)
    if len(encoded) > MAX_HEADER_NBYTES:
        cause = f"The header of a safetensors file may have {MAX_HEADER_NBYTES} bytes and would have {len(encoded)}."
        raise UnsupportedError(cause, "Spread the tensors over more files.")
    return len(encoded).to_bytes(PREAMBLE_NBYTES, "little") + encoded


def _check_all(keys: Sequence[str], values: Sequence[Any], is_good: Callable[[Any], bool], complaint: str) -> None:
    if not all(map(is_good, values)):
        bad = next(key for key, value in zip(keys, values, strict=True) if not is_good(value))
        raise invalid(f"The tensor {bad!r} {complaint}.")


def _is_tensor(info: Any) -> bool:
    return (
        type(info) is dict
        and info.keys() == _FIELDS
        and type(info["dtype"]) is str
        and type(info["shape"]) is list
        and type(info["data_offsets"]) is list
        and len(info["data_offsets"]) == 2
    )


def _is_naturals(numbers: Sequence[Any]) -> bool:
    """True where all are integers and none negative; True and 2.0 are no integers."""
    return set(map(type, numbers)) <= {int} and min(numbers, default=0) >= 0


def _sizes(keys: Sequence[str], shapes: Sequence[Sequence[int]], bits: Sequence[int]) -> Ints:
    """[n] the bytes that dtypes and shapes ask for; Python's integers do not overflow."""
    sizes = list(map(int.__mul__, map(prod, shapes), bits))
    for key, shape, width, size in zip(keys, shapes, bits, sizes, strict=True):
        if size % 8:
            raise invalid(f"The tensor {key!r} ends within a byte.")
        # Where one extent is 0 the others count as well: NumPy cannot hold an array of such a shape.
        if (size or prod(filter(None, shape)) * width) > 8 * _MAX_NBYTES:
            raise invalid(f"The tensor {key!r} of shape {shape[:8]} is too large to exist.")
    return np.array([size // 8 for size in sizes], dtype=np.int64)


def _offsets(keys: Sequence[str], pairs: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    try:
        matrix = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except OverflowError:
        row = next(row for row, pair in enumerate(pairs) if max(pair) >= 2**63)
        raise invalid(f"The tensor {keys[row]!r} has offsets {pairs[row]}, beyond any file.") from None
    return matrix[:, 0], matrix[:, 1]


def _check_sizes(keys: Sequence[str], begin: Ints, end: Ints, nbytes: Ints) -> None:
    wrong = np.flatnonzero((begin > end) | (end - begin != nbytes))
    if len(wrong):
        row = int(wrong[0])
        offsets = f"{begin[row]} to {end[row]}"
        raise invalid(
            f"The tensor {keys[row]!r} needs {nbytes[row]} bytes by dtype and shape; its offsets are {offsets}."
        )


def _check_cover(keys: Sequence[str], begin: Ints, end: Ints, data_start: int, file_nbytes: int) -> None:
    """Sorted by offset, each tensor begins where the one before it ended; the last ends with the file."""
    order = np.lexsort((end, begin))
    expected = np.concatenate([[0], end[order]])
    wrong = np.flatnonzero(begin[order] != expected[:-1])
    if len(wrong):
        row, offset = int(order[wrong[0]]), int(expected[wrong[0]])
        what = "overlaps the one before it" if begin[row] < offset else "leaves a hole before it"
        cause = f"The tensor {keys[row]!r} {what}: it begins at {begin[row]} of the data and should at {offset}."
        raise InvalidCheckpoint(cause, "Whatever wrote the file is at fault: write it again with another program.")
    stop = data_start + int(expected[-1])
    if stop > file_nbytes:
        key = keys[int(order[np.argmax(end[order] + data_start > file_nbytes)])]
        cause = f"The tensors reach to offset {stop} and the file ends at {file_nbytes}: {key!r} is cut off."
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    if stop < file_nbytes:
        raise invalid(f"The tensors end at offset {stop}, and {file_nbytes - stop} bytes follow that no tensor owns.")

r"""The header of an npy array: the bytes in front of its elements, in an npy file or in a member of
an npz archive.

    offset   size     content
    0        6        \x93NUMPY
    6        2        version: 1.0, 2.0 or 3.0
    8        2 or 4   n, the size of the header, little-endian; 2 bytes in version 1.0
    …        n        a Python dictionary {'descr': …, 'fortran_order': …, 'shape': …, }, spaces, a
                      newline; Latin-1, in version 3.0 UTF-8

The dictionary is a literal with three fields, in any order. Nothing is evaluated: one regular
expression matches each field. It accepts strings, True, False and tuples of integers, the only
values that a plain array has.

A ``descr`` is a string such as ``'<f4'``: byte order, kind, bytes of an element. Arrays of Python
objects (``'|O'``) are pickles, which may run code: they are refused, never read. Structured arrays,
text, dates and ``|V2``, as which NumPy stores bfloat16, are valid and unsupported.
"""

import re
from math import prod
from typing import NamedTuple

from shardvar.errors import InvalidCheckpoint, UnsupportedError
from shardvar.limits import MAX_NBYTES, MAX_NPY_HEADER_NBYTES, MAX_RANK
from shardvar.wire.damage import incomplete, invalid, malformed

NPY_MAGIC = b"\x93NUMPY"
_ALIGNMENT = 64
"""Bytes: since NumPy 1.14 the elements begin at a multiple of this."""

_VERSIONS = {b"\x01\x00": (2, "latin-1"), b"\x02\x00": (4, "latin-1"), b"\x03\x00": (4, "utf-8")}

_FIELD = re.compile(
    r"""\s* (?P<quote>['"]) (?P<name>\w+) (?P=quote) \s* : \s*
        (?: (?P<text> '[^'\\]*' | "[^"\\]*" )
        |   (?P<word> True | False )
        |   \( (?P<tuple> [\d\sL,]* ) \)
        |   (?P<other> [(\[] ) )
        \s* (?P<comma> , | (?=\}) )?""",
    re.VERBOSE | re.ASCII,
)
"""One field. Strings have no escapes; any other opening bracket begins a descr of several parts."""
_OPEN = r"(?a)\s*\{"
_CLOSE = re.compile(r"\s*\}\s*\Z", re.ASCII)
_TUPLE = r"(?a)\s*(?:(?:\d{1,20}L?\s*,\s*)+(?:\d{1,20}L?\s*)?)?"
"""The inside of a tuple; ``10L`` is an integer of Python 2."""

_DESCR = r"(?a)([<>=|]?)([?biufcSVUOmM])(\d{0,9})(\[[^\]]*\])?"
_NAMES = {
    ("b", 1): "bool",
    ("?", 1): "bool",
    **{("i", n): f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{("u", n): f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{("f", n): f"float{8 * n}" for n in (2, 4, 8)},
    **{("c", n): f"complex{8 * n}" for n in (8, 16)},
}
_DESCRS = {
    name: f"{'|' if n == 1 else '<'}{kind}{n}" for (kind, n), name in _NAMES.items() if kind != "?"
}

NPY_DTYPES = frozenset(_DESCRS)
"""The dtypes that an npy header can name, so that they are written."""

LOST_KINDS = {
    "V": "raw bytes without a type; NumPy stores bfloat16, float8 and int4 so, and their type is "
    "lost",
    "S": "byte strings of fixed size",
    "U": "text",
    "m": "time differences",
    "M": "dates",
    "f": "floating-point numbers of a size that differs from machine to machine",
    "c": "complex numbers of a size that differs from machine to machine",
}
"""Descriptions of the kinds that no tensor has, by NumPy's letters."""


class NpyHeader(NamedTuple):
    dtype: str
    itemsize: int
    swap_nbytes: int
    """The bytes that are reversed together to make the elements little-endian; 1 if none are."""
    is_fortran: bool
    """True if the first axis varies fastest and the shape is such that this makes a difference."""
    shape: tuple[int, ...]
    data_start: int  # counted from the magic bytes

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def is_plain(self) -> bool:
        """True if the elements are stored in C order and little-endian."""
        return self.swap_nbytes == 1 and not self.is_fortran


def preamble_nbytes(first: bytes, nbytes: int) -> int:
    """Return the size of the bytes before the elements, of which ``first`` are the first 12."""
    if first[: len(NPY_MAGIC)] != NPY_MAGIC:
        raise malformed(f"It is not an npy array: it begins with {first[:6]!r}.")
    version = _VERSIONS.get(first[6:8])
    if version is None:
        raise malformed(
            f"Version {'.'.join(map(str, first[6:8]))} of npy is unknown; 1.0, 2.0 and 3.0 are "
            "read."
        )
    # The size field follows magic and version, and has 2 or 4 bytes; the header follows it.
    start = 8 + version[0]
    stop = start + int.from_bytes(first[8:start], "little")
    if stop > nbytes or len(first) < start:
        raise incomplete(f"The npy header needs {stop} bytes, but the array has {nbytes}.")
    if stop - start > MAX_NPY_HEADER_NBYTES:
        raise invalid(
            f"The npy header has {stop - start} bytes; at most {MAX_NPY_HEADER_NBYTES} are allowed."
        )
    return stop


def parse_preamble(preamble: bytes) -> NpyHeader:
    """Return the header, with every field checked, from all bytes before the elements."""
    width, encoding = _VERSIONS[preamble[6:8]]
    try:
        descr, is_fortran, shape = _parse_dictionary(preamble[8 + width :].decode(encoding))
    except UnicodeDecodeError as error:
        raise malformed(
            f"The npy header is not {encoding} at offset {8 + width + error.start}."
        ) from None
    dtype, itemsize, swap_nbytes = _parse_descr(descr)
    if len(shape) > MAX_RANK:
        raise invalid(
            f"The shape in the npy header has {len(shape)} axes; NumPy has at most {MAX_RANK}."
        )
    # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0).
    if prod(filter(None, shape)) * itemsize > MAX_NBYTES:
        raise invalid(f"The shape {shape} of {dtype} in the npy header is too large to exist.")
    # Both orders are the same in an array without elements, and if at most one axis is longer than
    # 1: (1, 5, 1).
    is_fortran &= 0 not in shape and sum(extent > 1 for extent in shape) > 1
    return NpyHeader(dtype, itemsize, swap_nbytes, is_fortran, shape, len(preamble))


def build_preamble(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes before the elements of a little-endian array in C order, as NumPy's."""
    text = f"{{'descr': {_DESCRS[dtype]!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    # Magic, version and size take 10 bytes, the newline one: rounded up to the alignment, the rest
    # is text and spaces.
    nbytes = -(-(len(NPY_MAGIC) + 4 + len(text) + 1) // _ALIGNMENT) * _ALIGNMENT
    header = text.encode("ascii").ljust(nbytes - len(NPY_MAGIC) - 5) + b"\n"
    return NPY_MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header


def _parse_dictionary(text: str) -> tuple[str, bool, tuple[int, ...]]:
    """Return descr, fortran_order and shape; only white space may follow the dictionary."""
    fields: dict[str, str | bool | tuple[int, ...]] = {}
    opening = re.match(_OPEN, text)
    position = opening.end() if opening else len(text)
    while not _CLOSE.match(text, position):
        field = _FIELD.match(text, position)
        if (
            field is None
            or (field["comma"] is None and not field["other"])
            or field["name"] in fields
        ):
            raise malformed(
                f"The npy header is not a dictionary of three fields: see character {position}."
            )
        value: str | bool | tuple[int, ...]
        if field["text"]:
            value = field["text"][1:-1]
        elif field["word"]:
            value = field["word"] == "True"
        elif field["other"] == "[" and field["name"] == "descr":
            cause = "It is a structured array, whose elements have fields."
            raise UnsupportedError(cause, "Save each field as a separate array.")
        elif field["other"] or not re.fullmatch(_TUPLE, field["tuple"]):
            raise invalid(
                f"The {field['name']} in the npy header is not a string, True, False or a tuple of "
                "natural numbers."
            )
        else:
            numbers = (each.strip().rstrip("L") for each in field["tuple"].split(","))
            value = tuple(int(number) for number in numbers if number)
        fields[field["name"]] = value
        position = field.end()
    # The types are checked here and not by the expression, so that the message can name all three
    # fields.
    match fields:
        case {"descr": str(descr), "fortran_order": bool(is_fortran), "shape": tuple(shape)} if (
            len(fields) == 3
        ):
            return descr, is_fortran, shape
    raise invalid(
        "The npy header must have descr (a string), fortran_order (True or False), shape (a "
        "tuple) and nothing else."
    )


def _parse_descr(descr: str) -> tuple[str, int, int]:
    """Return the dtype's name, the bytes of an element, and of a part that is reversed."""
    match = re.fullmatch(_DESCR, descr)
    if match is None:
        raise invalid(f"The npy header has the invalid descr {descr!r}.")
    order, kind, size = match[1], match[2], int(match[3] or "1")
    if kind == "O":
        cause = (
            "It is an array of Python objects: a pickle, which may run code and is never loaded."
        )
        raise InvalidCheckpoint(cause, "Save it again as numeric arrays, if you trust its writer.")
    # A fourth group is the shape of a subarray dtype, such as '<f4[2]': valid, and never a plain
    # number.
    name = None if match[4] else _NAMES.get((kind, size))
    if name is not None:
        part = size // 2 if kind == "c" else size  # real and imaginary part are reversed one by one
        return name, size, part if order == ">" else 1
    if kind not in LOST_KINDS or (kind in "fc" and size not in (12, 16, 24, 32)):
        raise invalid(f"The npy header has the invalid descr {descr!r}.")
    raise UnsupportedError(
        f"It has the dtype {descr!r}: {LOST_KINDS[kind]}.",
        "Convert it to a numeric dtype and save it again.",
    )

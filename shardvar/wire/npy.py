r"""The header of an npy array: what stands in front of its bytes in a file of its own or in a member of an npz.

    offset   size     content
    0        6        \x93NUMPY
    6        2        version: 1.0, 2.0 or 3.0
    8        2 or 4   n, the size of the header, little-endian; 2 bytes in version 1.0
    …        n        a Python dictionary {'descr': …, 'fortran_order': …, 'shape': …, }, spaces, a newline;
                      Latin-1, in version 3.0 UTF-8

The dictionary is a literal with three fields, in any order. Nothing is evaluated: each field is matched by one regular
expression, which knows strings, True, False and tuples of integers, the only values that a plain array has.

A ``descr`` is a string such as ``'<f4'``: byte order, kind, bytes of an element. Arrays of Python objects (``'|O'``)
are pickles, which may run code: they are refused, never read. Structured arrays, text, dates and ``|V2``, which is what
NumPy makes of bfloat16, are valid and hold no dtype that shardvar has.
"""

import re
from dataclasses import dataclass
from math import prod

from shardvar.errors import IncompleteCheckpoint, InvalidCheckpoint, UnsupportedError
from shardvar.wire.damage import COPY_AGAIN, invalid, malformed

MAGIC = b"\x93NUMPY"
MAX_HEADER_NBYTES = 10_000
"""NumPy's own limit: 64 axes of 20 digits need a tenth of it."""
MAX_PREAMBLE_NBYTES = 12 + MAX_HEADER_NBYTES
ALIGNMENT = 64
"""What the header's size is padded to, since NumPy 1.14."""

_MAX_RANK = 64
_MAX_NBYTES = 2**62
_VERSIONS = {b"\x01\x00": (2, "latin-1"), b"\x02\x00": (4, "latin-1"), b"\x03\x00": (4, "utf-8")}
_KEYS = frozenset(("descr", "fortran_order", "shape"))

_FIELD = re.compile(
    r"""\s* (?P<quote>['"]) (?P<name>\w+) (?P=quote) \s* : \s*
        (?: (?P<text> '[^'\\]*' | "[^"\\]*" )
        |   (?P<word> True | False )
        |   \( (?P<tuple> [\d\sL,]* ) \)
        |   (?P<other> [(\[] ) )
        \s* (?P<comma> , | (?=\}) )?""",
    re.VERBOSE | re.ASCII,
)
"""One field: strings hold no escapes; whatever else opens a bracket is a descr of several parts."""
_OPEN = re.compile(r"\s*\{", re.ASCII)
_CLOSE = re.compile(r"\s*\}\s*\Z", re.ASCII)
_TUPLE = re.compile(r"\s*(?:(?:\d{1,20}L?\s*,\s*)+(?:\d{1,20}L?\s*)?)?", re.ASCII)
"""The inside of a tuple; ``10L`` is an integer of Python 2."""

_DESCR = re.compile(r"([<>=|]?)([?biufcSVUOmM])(\d{0,9})(\[[^\]]*\])?", re.ASCII)
_NAMES = {
    ("b", 1): "bool",
    ("?", 1): "bool",
    **{("i", n): f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{("u", n): f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{("f", n): f"float{8 * n}" for n in (2, 4, 8)},
    **{("c", n): f"complex{8 * n}" for n in (8, 16)},
}
_DESCRS = {name: f"{'|' if n == 1 else '<'}{kind}{n}" for (kind, n), name in _NAMES.items() if kind != "?"}

WRITABLE = frozenset(_DESCRS)
"""The dtypes that npy can hold without losing which they are."""

_LOST = {
    "V": "raw bytes without a type; NumPy makes them of bfloat16, float8 and int4, and which it was is lost",
    "S": "byte strings of fixed size",
    "U": "text",
    "m": "time differences",
    "M": "dates",
    "f": "floating-point numbers of a size that differs from machine to machine",
    "c": "complex numbers of a size that differs from machine to machine",
}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What the header of one array says."""

    dtype: str
    """The element type's name."""
    itemsize: int
    """Bytes of an element."""
    swap_nbytes: int
    """How many bytes are reversed at a time to make the elements little-endian; 1 for none."""
    is_fortran: bool
    """True where the first axis varies fastest, and that makes a difference."""
    shape: tuple[int, ...]
    """The array's shape."""
    data_start: int
    """Where the elements begin, counted from the magic bytes."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return prod(self.shape) * self.itemsize

    @property
    def is_plain(self) -> bool:
        """True where the elements are in C order and little-endian as they stand."""
        return self.swap_nbytes == 1 and not self.is_fortran


def preamble_nbytes(first: bytes, nbytes: int) -> int:
    """How many bytes come before the elements, from the first 12 of an array that takes ``nbytes`` with its header."""
    if first[: len(MAGIC)] != MAGIC:
        raise malformed(f"It is no npy array: it begins with {first[:6]!r}.")
    version = _VERSIONS.get(first[6:8])
    if version is None:
        raise malformed(f"Version {'.'.join(map(str, first[6:8]))} of npy is not known, only 1.0, 2.0 and 3.0.")
    start = 8 + version[0]
    stop = start + int.from_bytes(first[8:start], "little")
    if stop > nbytes or len(first) < start:
        raise IncompleteCheckpoint(f"The npy header needs {stop} bytes, and there are {nbytes}.", COPY_AGAIN)
    if stop - start > MAX_HEADER_NBYTES:
        raise invalid(f"The npy header has {stop - start} bytes, and {MAX_HEADER_NBYTES} are the most.")
    return stop


def parse_preamble(preamble: bytes) -> NpyHeader:
    """What the bytes before the elements say, all of which are given; every field is checked."""
    width, encoding = _VERSIONS[preamble[6:8]]
    try:
        descr, is_fortran, shape = _parse_dictionary(preamble[8 + width :].decode(encoding))
    except UnicodeDecodeError as error:
        raise malformed(f"The npy header is not {encoding} at offset {8 + width + error.start}.") from None
    dtype, itemsize, swap_nbytes = _parse_descr(descr)
    if len(shape) > _MAX_RANK:
        raise invalid(f"The shape in the npy header has {len(shape)} axes; NumPy has at most {_MAX_RANK}.")
    if prod(filter(None, shape)) * itemsize > _MAX_NBYTES:
        raise invalid(f"The shape {shape} of {dtype} in the npy header is too large to exist.")
    # Where at most one axis has more than one index, and where there are no elements, both orders are the same.
    is_fortran &= 0 not in shape and sum(extent > 1 for extent in shape) > 1
    return NpyHeader(dtype, itemsize, swap_nbytes, is_fortran, shape, len(preamble))


def build_preamble(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes before the elements of a little-endian array in C order, as NumPy itself would write them."""
    text = f"{{'descr': {_DESCRS[dtype]!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    nbytes = -(-(len(MAGIC) + 4 + len(text) + 1) // ALIGNMENT) * ALIGNMENT
    header = text.encode("ascii").ljust(nbytes - len(MAGIC) - 5) + b"\n"
    return MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header


def _parse_dictionary(text: str) -> tuple[str, bool, tuple[int, ...]]:
    """descr, fortran_order and shape; nothing but space may follow the dictionary."""
    fields: dict[str, str | bool | tuple[int, ...]] = {}
    opening = _OPEN.match(text)
    position = opening.end() if opening else len(text)
    while not _CLOSE.match(text, position):
        field = _FIELD.match(text, position)
        if field is None or (field["comma"] is None and not field["other"]) or field["name"] in fields:
            raise malformed(f"The npy header is no dictionary of three fields: it goes wrong at character {position}.")
        fields[field["name"]] = _parse_value(field)
        position = field.end()
    match fields:
        case {"descr": str(descr), "fortran_order": bool(is_fortran), "shape": tuple(shape)} if len(fields) == 3:
            return descr, is_fortran, shape
    raise invalid(
        "The npy header has to hold descr, a string, fortran_order, a truth value, shape, a tuple, and no more."
    )


def _parse_value(field: re.Match[str]) -> str | bool | tuple[int, ...]:
    if field["text"]:
        return field["text"][1:-1]
    if field["word"]:
        return field["word"] == "True"
    if field["other"] == "[" and field["name"] == "descr":
        cause = "It is a structured array, whose elements have fields."
        raise UnsupportedError(cause, "Save each field as an array of its own.")
    if field["other"] or not _TUPLE.fullmatch(field["tuple"]):
        raise invalid(
            f"The {field['name']} in the npy header is neither a string, a truth value nor a tuple of naturals."
        )
    return tuple(int(number.strip().rstrip("L")) for number in field["tuple"].split(",") if number.strip())


def _parse_descr(descr: str) -> tuple[str, int, int]:
    """The dtype's name, the bytes of an element, and how many of them are reversed together."""
    match = _DESCR.fullmatch(descr)
    if match is None:
        raise invalid(f"The npy header has the descr {descr!r}, which no array has.")
    order, kind, size = match[1], match[2], int(match[3] or "1")
    if kind == "O":
        cause = "It is an array of Python objects: a pickle, which may run code and is never loaded."
        raise InvalidCheckpoint(cause, "Save it anew as numeric arrays, where its writer is trusted.")
    name = None if match[4] else _NAMES.get((kind, size))
    if name is not None:
        part = size // 2 if kind == "c" else size
        return name, size, part if order == ">" else 1
    if kind not in _LOST or (kind in "fc" and size not in (12, 16, 24, 32)):
        raise invalid(f"The npy header has the descr {descr!r}, which no array has.")
    raise UnsupportedError(
        f"It has the dtype {descr!r}: {_LOST[kind]}.", "Convert it to a numeric dtype and save it anew."
    )

"""Plain values, which a training program keeps with its tensors: encoding, literals, inert nodes.

A value is a tree of the types below. The encoding is JSON in ASCII. What JSON has means itself; any
other value is an object with one name, the *tag* of its type:

    None, True, False              ``null``, ``true``, ``false``
    text                           a string; with halves of surrogate pairs ``{"str": BASE64}``, the
                                   bytes of UTF-8 that encodes them as other characters
    integer of at most 53 bits     a number without a point or an exponent
    other integer                  ``{"int": "-0x20000000000000"}``
    float                          ``{"float": "0.1"}``: the shortest text that gives the same
                                   number, as Python writes it; ``inf``, ``-inf``; ``nan``, or
                                   ``nan:`` and the 16 digits of the bits of any other NaN
    complex                        ``{"complex": [REAL, IMAGINARY]}``, each the text of a float
    bytes, bytearray               ``{"bytes": BASE64}``, ``{"bytearray": BASE64}``
    list                           an array
    tuple, torch.Size              ``{"tuple": [...]}``, ``{"torch.Size": [...]}``
    set, frozenset                 ``{"set": [...]}``, ``{"frozenset": [...]}``: the items in the
                                   order of the pickle
    dict, OrderedDict              ``{"dict": [[KEY, VALUE], ...]}``, ``{"OrderedDict": ...}``
    argparse.Namespace             ``{"argparse.Namespace": [[NAME, VALUE], ...]}``
    torch.dtype                    ``{"torch.dtype": "float32"}``
    torch.device                   ``{"torch.device": ["cuda", 3]}``, or only the type
    text of Orbax                  ``{"text": "adam"}``: a text whose literal has no quotes
    scalar of NumPy                ``{"numpy.float64": HEX}``: its bytes, little-endian;
                                   ``{"numpy.str_": TEXT}``, ``{"numpy.bytes_": BASE64}``
    array of NumPy                 ``{"numpy.ndarray": ["uint32", [624], BASE64]}``: dtype, shape, and
                                   the elements in C order, little-endian

Each value has one encoding, which a reader checks: equal texts are equal values of equal types. A
tag that a reader does not know is an error of that value only. Nothing is imported or called.

A *document* is the encoding of many values with their keys, which are sorted:

    ``{"version": 1, "objects": [[KEY, VALUE], ...]}``

A reader refuses another version, and ignores other names. Spaces between tokens do not count.

Laws: ``decode_value(encode_value(value))`` is the value; ``encode_value(decode_value(text))`` is
the text, up to spaces.

Names and calls of a pickle are values that do nothing:

    Global      a name
    Node        a call of a name, with its arguments, its state, and what would be appended to it
    Reference   an object outside of the pickle, such as a storage

Three calls have no effect but a plain value, and are made at once: ``torch.Size`` becomes a tuple,
``collections.OrderedDict`` a dict, and ``_codecs.encode``, with which protocol 2 writes bytes,
bytes. Where the types of values matter, the first two become ``Size`` and ``OrderedMap``.

Lists, dicts and nodes may be nested without bounds, may be shared and may contain themselves. So
nothing here recurses, and nothing that gets them may: not ``repr``, not ``==``, not ``hash``.

Literals are texts as Python writes them, for people to read, compare and search. They are not
decoded again.
"""

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.limits import MAX_OBJECTS_NBYTES
from shardvar.records import frozen
from shardvar.wire.damage import decoding, invalid, past_limit
from shardvar.wire.strict_json import parse_json

SIZE, ORDERED_DICT, ENCODE = "torch.Size", "collections.OrderedDict", "_codecs.encode"
"""The calls that become plain values."""

_KEY_ITEMS = 64
"""The most items of a tuple that may be the key of a dict, including the tuples in it."""

_BYTES = ("__builtin__.bytes", "builtins.bytes")
"""The class whose call makes no bytes; the first is the name of Python 2, which protocol 2 uses."""


class Size(tuple[Any, ...]):
    """A tuple that was a ``torch.Size``."""

    __slots__ = ()


class OrderedMap(dict[Any, Any]):
    """A dict that was a ``collections.OrderedDict``."""

    __slots__ = ()


class Global:
    """A name that the pickle would import."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Global({self.name!r})"


class Node:
    """An object that the pickle would make by calling a name; its parts are data."""

    __slots__ = ("args", "items", "name", "state")

    def __init__(self, name: Any, args: Any, state: Any = None) -> None:
        self.name = name
        """The name, or a ``Node`` where the result of another call would be called."""
        self.args = args  # the arguments, usually a tuple
        self.state = state  # the state that BUILD would set; None if there is none
        self.items: list[Any] | None = None
        """Items that would be appended to it or set in it, flat; None if nothing."""

    def __repr__(self) -> str:
        return f"Node({self.name!r})"  # not its parts, which may be nested without bounds


class Reference:
    """An object outside of the pickle, such as the storage of a tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value  # the description that the pickle gives of it


_HASHED = (str, int, float, bool, bytes, type(None), Global, Node, Reference)
"""Types whose hash is quick; the last three compare by identity."""


def name_of(called: Any) -> Any:
    return called.name if type(called) is Global else called


def call(called: Any, args: Any, is_typed: bool = False) -> Any:
    """Return what a call gives: a plain value where the result is known, else a node."""
    name = called.name if type(called) is Global else None
    values = args if type(args) is tuple else ()
    if name == SIZE and len(values) == 1 and type(values[0]) in (tuple, list):
        return Size(values[0]) if is_typed else tuple(values[0])
    if name == ORDERED_DICT and (not values or (len(values) == 1 and type(values[0]) is list)):
        # The items are set afterwards; Python 2 gave them as pairs.
        made: dict[Any, Any] = OrderedMap() if is_typed else {}
        for key, value in values[0] if values else ():
            set_items(made, [key, value])
        return made
    if name in _BYTES and args == ():
        return b""
    if name == ENCODE and len(values) == 2 and type(values[0]) is str and values[1] == "latin1":
        return values[0].encode("latin1")
    return Node(name or called, args)


def extend(target: Any, values: list[Any]) -> None:
    if type(target) is Node:
        target.items = [*(target.items or ()), *values]
    elif type(target) is list:
        target += values
    else:
        raise TypeError


def set_items(target: Any, items: list[Any]) -> None:
    """Set keys and values, which alternate in ``items``."""
    keys, values = items[::2], items[1::2]
    if type(target) is Node:
        target.items = [*(target.items or ()), *items]
    elif type(target) in (dict, OrderedMap) and all(map(_is_key, keys)):
        target.update(zip(keys, values, strict=True))
    else:
        raise TypeError


def _is_key(value: Any) -> bool:
    """Return True if hashing a value is quick, and goes no deeper than a few tuples."""
    if type(value) not in (tuple, Size):
        return type(value) in _HASHED
    left, count = [*value[: _KEY_ITEMS + 1]], len(value)
    while left and count <= _KEY_ITEMS:
        item = left.pop()
        if type(item) in (tuple, Size):
            left += item[: _KEY_ITEMS + 1]
            count += len(item)
        elif type(item) not in _HASHED:
            return False
    return count <= _KEY_ITEMS


VERSION = 1  # the version of a document

MAX_DEPTH, MAX_TEXT = 64, 1 << 20
"""Bounds of one value: levels of lists within lists; characters of its literal, and the number of
values in it."""
_JSON_DEPTH = 3 * MAX_DEPTH + 8
"""Levels of JSON: a dict takes three, the object, the list of its items and the item."""
_EXACT = 1 << 53
"""The first integer that a double cannot tell from the next one: readers in other languages take
numbers of JSON for doubles."""
_NAN = 0x7FF8000000000000  # the bits of the NaN that Python makes

NUMPY_NAMES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128".split()
)
"""The dtypes of arrays of NumPy that are plain values, and of scalars; these also have ``str_`` and
``bytes_``."""
ARRAY = "numpy.ndarray"  # the tag of an array of NumPy
_MAX_RANK = 64  # the most axes of an array of NumPy
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)  # the name of a dtype of torch


@frozen
class Tagged:
    """A value whose type Python's literals lack."""

    kind: str  # the tag of the type
    value: Any
    """A list for ``set`` and ``frozenset``, a dict of texts for ``argparse.Namespace``, a text for
    ``torch.dtype`` and ``text``, a tuple of the type and the number for ``torch.device``; for an array
    of NumPy a tuple of the name of its dtype, its shape, and the bytes of its elements."""


def too_large() -> UnsupportedError:
    """Return the error for a value that is larger than any setting."""
    cause = (
        f"It is an object of more than {MAX_TEXT} characters, or nested deeper than {MAX_DEPTH}."
    )
    return UnsupportedError(cause, "Save large data as tensors.")


# Encoding.


def encode_value(value: Any) -> str:
    text = json.dumps(_node(value, 0), separators=(",", ":"))
    if len(text) > 8 * MAX_TEXT:
        raise too_large()
    return text


def _node(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise too_large()
    if value is None or type(value) is bool:
        return value
    if isinstance(value, np.str_):
        return {"numpy.str_": _text_node(str(value), 0)}
    if isinstance(value, np.bytes_):
        return {"numpy.bytes_": _base64(bytes(value))}
    if isinstance(value, np.generic):
        octets = np.asarray(value, value.dtype.newbyteorder("<")).tobytes()
        return {f"numpy.{value.dtype.name}": octets.hex()}
    return _NODES[type(value)](value, depth + 1)


def _text_node(text: str, _depth: int) -> Any:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"str": _base64(text.encode("utf-8", "surrogatepass"))}
    return text


def _named_node(value: Tagged, depth: int) -> Any:
    content = value.value
    if value.kind in ("torch.dtype", "text"):
        content = _text_node(content, depth)
    elif value.kind == "argparse.Namespace":
        content = _pairs(content, depth)
    elif value.kind == ARRAY:
        name, shape, octets = content
        content = [name, [*shape], _base64(octets)]
    else:
        content = _items(content, depth)
    return {value.kind: content}


def _items(values: Iterable[Any], depth: int) -> list[Any]:
    return [_node(each, depth) for each in values]


def _pairs(values: Mapping[Any, Any], depth: int) -> list[Any]:
    return [[_node(key, depth), _node(each, depth)] for key, each in values.items()]


def _float_text(value: float) -> str:
    if value == value:
        return repr(value)
    bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    return "nan" if bits == _NAN else f"nan:{bits:016x}"


def _base64(octets: bytes | bytearray) -> str:
    return base64.b64encode(octets).decode("ascii")


_NODES: dict[type, Callable[[Any, int], Any]] = {
    str: _text_node,
    int: lambda value, _: value if -_EXACT < value < _EXACT else {"int": hex(value)},
    float: lambda value, _: {"float": _float_text(value)},
    complex: lambda value, _: {"complex": [_float_text(value.real), _float_text(value.imag)]},
    bytes: lambda value, _: {"bytes": _base64(value)},
    bytearray: lambda value, _: {"bytearray": _base64(value)},
    list: _items,
    tuple: lambda value, depth: {"tuple": _items(value, depth)},
    Size: lambda value, depth: {"torch.Size": _items(value, depth)},
    dict: lambda value, depth: {"dict": _pairs(value, depth)},
    OrderedMap: lambda value, depth: {"OrderedDict": _pairs(value, depth)},
    Tagged: _named_node,
}


# Decoding. The depth is bounded before anything recurses.


def decode_value(text: str) -> Any:
    return value_of_node(parse_json(text.encode("utf-8", "surrogatepass"), _JSON_DEPTH))


def value_of_node(node: Any) -> Any:
    with decoding(
        lambda error: invalid(
            f"The encoding of an object is wrong: {str(error) or type(error).__name__}."
        ),
        ValueError,
        TypeError,
        OverflowError,
        struct.error,
    ):
        value = _value(node)
        # One value has one encoding. So what differs, such as a key that occurs twice, a float
        # with needless digits, or an integer that should be a number, was not written by a writer.
        if _node(value, 0) != node:
            raise ValueError("another text is its encoding")
    return value


def _value(node: Any) -> Any:
    kind = type(node)
    if kind is list:
        return [_value(each) for each in node]
    if kind is dict:
        if len(node) != 1:
            raise ValueError(f"an object has {len(node)} names")
        ((tag, content),) = node.items()
        decode = _VALUES.get(tag)
        return _scalar(tag, content) if decode is None else decode(content)
    if kind is float:
        raise ValueError("a number has a point or an exponent")
    return node


def _scalar(tag: str, content: Any) -> Any:
    if tag.removeprefix("numpy.") in NUMPY_NAMES and tag.startswith("numpy."):
        dtype = np.dtype(tag.removeprefix("numpy."))
        octets = bytes.fromhex(content)
        if len(octets) != dtype.itemsize or (dtype == np.bool and octets > b"\1"):
            raise ValueError(f"{content!r} is not a scalar of NumPy")
        return np.frombuffer(octets, dtype.newbyteorder("<")).astype(dtype)[0]
    cause = f"It has the type {tag[:100]!r}, which this release does not know."
    raise UnsupportedError(cause, "Install a newer release.")


def _float_of(text: Any) -> float:
    if type(text) is not str:
        raise TypeError("a float is not text")
    if text.startswith("nan"):
        bits = int(text.removeprefix("nan:"), 16) if text != "nan" else _NAN
        number: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
        return number
    return float(text)


def _octets_of(text: Any) -> bytes:
    if type(text) is not str:
        raise TypeError("bytes are not text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _list_of(content: Any) -> list[Any]:
    if type(content) is not list:
        raise TypeError("the items of an object are not an array")
    return [_value(each) for each in content]


def _dict_of(pairs: Any, make: Callable[[Any], dict[Any, Any]] = dict) -> dict[Any, Any]:
    made = make((_value(key), _value(each)) for key, each in pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _checked(kind: str, value: Any, is_right: object) -> Tagged:
    if not is_right:
        raise TypeError(f"the value of {kind!r} is of another type")
    return Tagged(kind, value)


def tagged_array(name: str, shape: tuple[int, ...], octets: bytes) -> Tagged | None:
    """Return an array of NumPy from its elements in C order; None if it is impossible."""
    if name not in NUMPY_NAMES or any(type(each) is not int or each < 0 for each in shape):
        return None
    dtype = np.dtype(name)
    # NumPy refuses shapes whose other axes are that long also if one is 0.
    room = dtype.itemsize * prod(max(each, 1) for each in shape)
    if len(octets) != dtype.itemsize * prod(shape) or room >= 1 << 63 or len(shape) > _MAX_RANK:
        return None
    if dtype == np.bool and not {*octets} <= {0, 1}:
        return None
    return Tagged(ARRAY, (name, shape, octets))


def _array_of(parts: Any) -> Tagged:
    name, shape, text = parts
    octets = _octets_of(text)
    made = tagged_array(name, tuple(shape), octets) if type(name) is str else None
    if type(shape) is not list or made is None:
        raise TypeError("an array of NumPy is not a dtype, a shape and its elements")
    return made


_VALUES: dict[str, Callable[[Any], Any]] = {
    "str": lambda text: _octets_of(text).decode("utf-8", "surrogatepass"),
    "int": lambda text: int(text, 16),
    "float": _float_of,
    "complex": lambda parts: complex(*map(_float_of, parts)),
    "bytes": _octets_of,
    "bytearray": lambda text: bytearray(_octets_of(text)),
    "tuple": lambda items: tuple(_list_of(items)),
    "torch.Size": lambda items: Size(_list_of(items)),
    "set": lambda items: Tagged("set", _list_of(items)),
    "frozenset": lambda items: Tagged("frozenset", _list_of(items)),
    "dict": _dict_of,
    "OrderedDict": lambda pairs: _dict_of(pairs, OrderedMap),
    "argparse.Namespace": lambda pairs: _checked(
        "argparse.Namespace", made := _dict_of(pairs), all(type(name) is str for name in made)
    ),
    "torch.dtype": lambda name: _checked(
        "torch.dtype", name, type(name) is str and _DTYPE.fullmatch(name)
    ),
    "torch.device": lambda parts: _checked(
        "torch.device", tuple(parts), [*map(type, parts)] in ([str], [str, int])
    ),
    "text": lambda node: _checked("text", text := _value(node), type(text) is str),
    ARRAY: _array_of,
    "numpy.str_": lambda node: np.str_(_value(node)),
    "numpy.bytes_": lambda text: np.bytes_(_octets_of(text)),
}


# Documents.


def build_objects(objects: Mapping[str, str]) -> str:
    pairs = [f"[{encode_value(key)},{objects[key]}]" for key in sorted(objects)]
    text = f'{{"version":{VERSION},"objects":[{",".join(pairs)}]}}'
    if len(text) > MAX_OBJECTS_NBYTES:
        cause = f"The {len(pairs)} objects take {len(text)} bytes, more than {MAX_OBJECTS_NBYTES}"
        raise UnsupportedError(
            f"{cause} (MAX_OBJECTS_NBYTES).", "Leave some out (--exclude), or save them as tensors."
        )
    return text


def parse_objects(text: str) -> dict[str, Any]:
    if len(text) > MAX_OBJECTS_NBYTES:
        raise past_limit(f"The objects have {len(text)} bytes", "MAX_OBJECTS_NBYTES")
    root = parse_json(text.encode("utf-8", "surrogatepass"), _JSON_DEPTH)
    version = root.get("version") if type(root) is dict else None
    if type(version) is int and version != VERSION:
        raise UnsupportedError(
            f"The objects have version {version}; this release reads {VERSION}.",
            "Install a newer release.",
        )
    pairs = root.get("objects") if type(version) is int else None
    if type(pairs) is not list or not all(type(each) is list and len(each) == 2 for each in pairs):
        raise invalid("The objects are not a version and a list of keys and values.")
    nodes: dict[str, Any] = {}
    for name, node in pairs:
        key = value_of_node(name)
        if type(key) is not str or key in nodes:
            raise invalid(f"A key of an object is not text, or occurs twice: {str(name)[:100]}.")
        nodes[key] = node
    return nodes


_TOLD = ("bool", "int64", "float64", "complex128")  # the dtypes that NumPy gives elements of Python


def literal_of(value: Any) -> str:
    """Return a plain value as Python writes it, for people; OrderedDicts as dicts."""
    parts: list[str] = []
    _Literal(parts).add(value)
    return "".join(parts)


class _Literal:
    """The parts of a literal, whose length is bounded while they are added."""

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts
        self.length = 0

    def write(self, text: str) -> None:
        self.length += len(text)
        if self.length > MAX_TEXT:
            raise too_large()
        self.parts.append(text)

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind in (list, tuple, Size):
            begin, end = "[]" if kind is list else "()"
            self.add_items(begin, value, f",{end}" if kind is not list and len(value) == 1 else end)
        elif kind in (dict, OrderedMap):
            self.add_pairs("{", [(each, ": ", value[each]) for each in value], "}")
        elif kind is Tagged:
            self.add_named(value)
        elif isinstance(value, np.generic):
            is_text = isinstance(value, np.character)
            name = kind.__name__ if is_text else value.dtype.name
            self.write(f"np.{name}({repr(value.item()) if is_text else value})")
        elif kind is int and value.bit_length() > 4096:  # Python refuses longer ones as decimals
            self.write(hex(value))
        elif kind is complex:
            self.write(f"complex({value.real!r}, {value.imag!r})")
        elif kind is bytearray:  # as protocol 2 of pickle has it
            text = f"{value.decode('latin1')!r}, 'latin-1'" if value else ""
            self.write(f"bytearray({text})")
        else:
            self.write(repr(value))

    def add_items(self, begin: str, items: Iterable[Any], end: str) -> None:
        self.add_pairs(begin, [("", "", each) for each in items], end)

    def add_pairs(self, begin: str, pairs: Iterable[tuple[Any, str, Any]], end: str) -> None:
        """Add names or keys, each with its value after a sign, which may be empty."""
        self.write(begin)
        for position, (name, sign, value) in enumerate(pairs):
            if position:
                self.write(", ")
            if sign == "=":
                self.write(name)
            elif sign:
                self.add(name)
            self.write(sign)
            self.add(value)
        self.write(end)

    def add_named(self, value: Tagged) -> None:
        if value.kind == "text":
            self.write(value.value)
        elif value.kind == "torch.dtype":
            self.write(f"torch.{value.value}")
        elif value.kind == "torch.device":
            self.write(f"torch.device({':'.join(map(str, value.value))!r})")
        elif value.kind == ARRAY:
            # With its dtype unless the elements tell it, as NumPy does.
            name, shape, octets = value.value
            elements = np.frombuffer(octets, np.dtype(name).newbyteorder("<")).reshape(shape)
            self.write("array(")
            self.add(elements.tolist() if elements.size else [])
            if not elements.size and len(shape) != 1:
                self.write(f", shape={shape}")
            if not elements.size or name not in _TOLD:
                self.write(f", dtype={name}")
            self.write(")")
        elif value.kind == "argparse.Namespace":
            pairs = [(name, "=", each) for name, each in value.value.items()]
            self.add_pairs("Namespace(", pairs, ")")
        else:
            self.add_items(f"{value.kind}([", value.value, "])")

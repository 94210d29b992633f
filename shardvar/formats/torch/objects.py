"""Objects of torch's pickles as plain values, and the reverse.

A *plain* object is made of None, numbers, text and bytes; of lists, tuples, dicts and sets of them;
and of the few classes that programs keep with their tensors:

    torch.Size, OrderedDict       ``wire.inert`` tells them apart
    torch.dtype                   a name
    torch.device                  a call of the type, and perhaps the number
    argparse.Namespace            an instance, whose state is a dict
    scalar of NumPy               a call of a dtype and the bytes
    array of NumPy                as in ``tensors``: in the state of a generator of random numbers

An object of any other class is refused, and the error names the class. Values may be nested, shared
and cyclic as the file likes, so their depth and their size are bounded while they are copied.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shardvar.errors import InvalidCheckpoint, UnsupportedError
from shardvar.formats.leaves import is_generator_state
from shardvar.formats.torch.tensors import (
    ARRAYS,
    CALLS,
    dtype_of_numpy,
    of_builtins,
    pickled_array,
    unsupported,
)
from shardvar.wire.damage import DISTRUST
from shardvar.wire.inert import SIZE, Global, Node, OrderedMap, Size
from shardvar.wire.opcode_writer import Call, Instance
from shardvar.wire.plain import (
    ARRAY,
    MAX_DEPTH,
    MAX_TEXT,
    NUMPY_NAMES,
    Tagged,
    tagged_array,
    too_large,
)

_NAMESPACE, _DEVICE = "argparse.Namespace", "torch.device"
_SETS = {name: name.rpartition(".")[2] for name in of_builtins("set", "frozenset")}
_COMPLEX, _BYTEARRAY = of_builtins("complex"), of_builtins("bytearray")
_SCALARS = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
"""The function that makes a scalar of NumPy, by its names in NumPy 2 and 1."""
_TORCH_DTYPE = re.compile(
    r"torch\.(?:bool|[iu]?int[0-9]{1,2}|uint[0-9]{1,2}|b?float[0-9a-z_]+|complex[0-9]+|"
    r"q(?:u?int[0-9x]+)|bits[0-9x]+)",
    re.ASCII,
)
"""The names of dtypes of torch, including ones that tensors of shardvar cannot have."""
_MAX_EXPANSION, _FREE_TEXT = 64, 1 << 16
"""Characters and items of all objects of a pickle, for each of its bytes, and of any pickle. A name
of 64 characters that comes again is a reference of two bytes."""


@dataclass(slots=True)
class TextRoom:
    """The characters, digits and items that the objects of one pickle may still have: values that
    objects share could make them as large as the square of the pickle."""

    left: int
    """Their number."""

    @classmethod
    def of(cls, nbytes: int) -> Self:
        """Return the room of a pickle of ``nbytes``."""
        return cls(max(_FREE_TEXT, _MAX_EXPANSION * nbytes))


def plain_of(item: Any, room: TextRoom | None = None, has_arrays: bool = True) -> Any:
    """Return the plain value of a parsed object; raise the error for the first part that is not
    plain, or ``InvalidCheckpoint`` if its pickle has no ``room`` left.

    Without ``has_arrays``, arrays of NumPy are parts of states of generators only: elsewhere their
    numbers would become text.
    """
    if room is not None and room.left <= 0:
        cause = (
            f"The objects of the file have more than {_MAX_EXPANSION} times as many characters and "
            "items as their pickle has bytes."
        )
        raise InvalidCheckpoint(cause, DISTRUST)
    copy = _Copy(has_arrays)
    try:
        return copy.of(item, 0)
    finally:
        # An error also took its time.
        if room is not None:
            room.left -= max(MAX_TEXT - copy.left, 1)


class _Copy:
    """The copy of a value, whose size is bounded while it is made."""

    def __init__(self, has_arrays: bool) -> None:
        self.left = MAX_TEXT
        """The characters, digits and items that may still come."""
        self.has_arrays = has_arrays
        """True where arrays of NumPy may come."""

    def of(self, item: Any, depth: int) -> Any:
        """Return the copy of a value at that depth."""
        kind = type(item)
        size = len(item) if kind in (str, bytes, list, tuple, Size, dict, OrderedMap) else 1
        self.left -= item.bit_length() // 4 if kind is int else size
        if self.left < 0 or depth > MAX_DEPTH:
            raise too_large()
        if item is None or kind in (bool, int, float, str, bytes):
            return item
        if kind in (list, tuple, Size, dict, OrderedMap):
            outside = self.has_arrays
            self.has_arrays |= is_generator_state(item)
            is_dict = kind in (dict, OrderedMap)
            made = (
                self.pairs(kind, item, depth)
                if is_dict
                else kind([self.of(each, depth + 1) for each in item])
            )
            self.has_arrays = outside
            return made
        if kind is Global and _TORCH_DTYPE.fullmatch(item.name):
            return Tagged("torch.dtype", item.name.removeprefix("torch."))
        if kind is Node and type(item.name) is str:
            return self.made(item, depth)
        raise unsupported(item)

    def pairs(self, kind: Any, items: Mapping[Any, Any], depth: int) -> Any:
        """Return the copy of a dict."""
        made = kind()
        for key, value in items.items():
            name = self.of(key, depth + 1)
            if not _is_key(name):
                raise unsupported(key)
            if name in made:  # such as two scalars of NumPy, which the pickle has as two calls
                raise UnsupportedError("It is a dict of two equal keys.", "Save one of them.")
            made[name] = self.of(value, depth + 1)
        return made

    def made(self, node: Node, depth: int) -> Any:
        """Return the plain value that a call makes."""
        args, state, items = node.args, node.state, node.items
        values = args if type(args) is tuple else (args,)
        kinds = [*map(type, values)]
        if node.name in _SETS and state is None and kinds in ([], [list]) and not (kinds and items):
            held = self.of(values[0] if kinds else items or [], depth)
            return Tagged(_SETS[node.name], held)
        if node.name == _NAMESPACE and not values and items is None:
            held = self.of({} if state is None else state, depth)
            if type(held) is dict and {*map(type, held)} <= {str}:
                return Tagged(_NAMESPACE, held)
        if node.name in ARRAYS and items is None:
            return self.array(node)
        if state is None and items is None:
            if node.name in _COMPLEX and kinds == [float, float]:
                return complex(*values)
            if node.name in _BYTEARRAY and kinds in ([], [bytes]):
                return bytearray(*self.of(values, depth))
            if node.name in _BYTEARRAY and kinds == [str, str] and values[1] == "latin-1":
                return bytearray(_latin(self.of(values[0], depth)))
            if node.name == _DEVICE and kinds in ([str], [str, int]):
                return Tagged(_DEVICE, self.of(values, depth))
            if node.name in _SCALARS and kinds == [Node, bytes]:
                self.of(values[1], depth)
                return _scalar(node, *values)
        if node.name in CALLS:
            raise UnsupportedError(
                "It is an object with a tensor in it.", "Save its tensors in dicts and lists."
            )
        raise unsupported(node)

    def array(self, node: Node) -> Tagged:
        """Return an array of NumPy."""
        if not self.has_arrays:
            raise UnsupportedError(
                "It is an object with an array of NumPy in it.",
                "Save its arrays in dicts and lists.",
            )
        array = pickled_array(node)
        self.of(array.content, 0)
        self.of(array.shape, 0)
        dtype = np.dtype(array.dtype).newbyteorder(">" if array.is_big_endian else "<")
        strides = [step * dtype.itemsize for step in array.strides]
        elements = np.ndarray(array.shape, dtype, array.content, 0, strides)
        stored = elements.astype(dtype.newbyteorder("<")).tobytes()
        made = tagged_array(array.dtype, array.shape, stored)
        if made is None:
            raise unsupported(node)
        return made


def _is_key(value: Any) -> bool:
    """Return True if a plain value may be the key of a dict."""
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    if type(value) is Tagged:
        return value.kind in ("torch.dtype", _DEVICE)
    return not isinstance(value, list | dict | bytearray)


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise unsupported(Node("builtins.bytearray", ())) from None


def _scalar(node: Node, described: Node, octets: bytes) -> Any:
    """Return a scalar of NumPy, from the description of its dtype and its bytes."""
    name, is_big_endian = dtype_of_numpy(described)
    if name not in NUMPY_NAMES and not name.startswith(("str", "bytes")):
        raise unsupported(node)
    dtype = np.dtype(name if name in NUMPY_NAMES else described.args[0]).newbyteorder(
        ">" if is_big_endian else "<"
    )
    if len(octets) != dtype.itemsize or (dtype == np.bool and octets > b"\1"):
        raise unsupported(node)
    if dtype.kind == "S":
        return np.bytes_(octets)
    if dtype.kind == "U":
        try:
            return np.str_(octets.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le"))
        except UnicodeDecodeError:
            raise unsupported(node) from None
    return np.frombuffer(octets, dtype).astype(dtype.newbyteorder("="))[0]


def pickled_of(value: Any) -> Any:
    """Return a plain value as ``build_pickle`` takes it, with calls for what is not of Python.

    Law: ``plain_of(parse_pickle(build_pickle(pickled_of(value)), is_typed=True)[0])`` is the value;
    a text of Orbax is then a text.
    """
    if isinstance(value, np.generic):
        return _scalar_call(value)
    make = _PICKLED.get(type(value))
    return value if make is None else make(value)


def _dict_of(items: Mapping[Any, Any]) -> dict[Any, Any]:
    return {pickled_of(key): pickled_of(value) for key, value in items.items()}


def _named_call(value: Tagged) -> Any:
    if value.kind == "torch.dtype":
        return Global(f"torch.{value.value}")
    if value.kind == "text":
        return value.value
    if value.kind == _DEVICE:
        return Call(_DEVICE, value.value)
    if value.kind == ARRAY:
        name, shape, octets = value.value
        dtype = np.dtype(name).newbyteorder("<").str
        state = 1, shape, Call("numpy.dtype", (dtype, False, True)), False, octets
        return Call(ARRAYS[0], (Global(ARRAY), (0,), b"b"), state)
    if value.kind == _NAMESPACE:
        return Instance(_NAMESPACE, _dict_of(value.value))
    return Call(f"__builtin__.{value.kind}", ([*map(pickled_of, value.value)],))


def _scalar_call(value: Any) -> Call:
    if isinstance(value, np.str_):
        octets = str(value).encode("utf-32-le", "surrogatepass")
        name = f"<U{len(octets) // 4}"
    elif isinstance(value, np.bytes_):
        octets, name = bytes(value), f"S{len(value)}"
    else:
        dtype = value.dtype.newbyteorder("<")
        octets, name = np.asarray(value, dtype).tobytes(), dtype.str
    return Call(_SCALARS[0], (Call("numpy.dtype", (name, False, True)), octets))


_PICKLED: dict[type, Callable[[Any], Any]] = {
    list: lambda items: [*map(pickled_of, items)],
    tuple: lambda items: tuple(map(pickled_of, items)),
    Size: lambda items: Call(SIZE, (tuple(map(pickled_of, items)),)),
    dict: _dict_of,
    OrderedMap: lambda items: OrderedMap(_dict_of(items)),
    complex: lambda value: Call("__builtin__.complex", (value.real, value.imag)),
    bytearray: lambda value: Call("__builtin__.bytearray", (value.decode("latin1"), "latin-1")),
    Tagged: _named_call,
}

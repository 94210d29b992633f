"""Literals of plain values: what Python writes, for people to read, compare and search.

A literal is not decoded again: ``wire.plain`` has the encoding that keeps types.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from shardvar.wire.inert import OrderedMap, Size
from shardvar.wire.plain import ARRAY, MAX_TEXT, Tagged, too_large

_TOLD = ("bool", "int64", "float64", "complex128")
"""The dtypes that NumPy gives elements of Python."""


def literal_of(value: Any) -> str:
    """Return a plain value as Python writes it, for people; ``UnsupportedError`` if it is too long.

    The literals of a tuple and of a ``torch.Size``, of a dict and of an ``OrderedDict`` are equal.

    >>> literal_of({"betas": (0.9, 0.99), "kind": Tagged("torch.dtype", "float32")})
    "{'betas': (0.9, 0.99), 'kind': torch.float32}"
    """
    parts: list[str] = []
    _Literal(parts).add(value)
    return "".join(parts)


class _Literal:
    """The parts of a literal, whose length is bounded while they are added."""

    def __init__(self, parts: list[str]) -> None:
        self.parts = parts
        self.length = 0

    def write(self, text: str) -> None:
        """Add a text."""
        self.length += len(text)
        if self.length > MAX_TEXT:
            raise too_large()
        self.parts.append(text)

    def add(self, value: Any) -> None:
        """Add the literal of a value."""
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
        """Add values with commas between them."""
        self.add_pairs(begin, [("", "", each) for each in items], end)

    def add_pairs(self, begin: str, pairs: Iterable[tuple[Any, str, Any]], end: str) -> None:
        """Add names or keys, each with its value after a sign; a pair without a sign has none."""
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

    def add_array(self, name: str, shape: tuple[int, ...], octets: bytes) -> None:
        """Add an array of NumPy, with its dtype unless the elements tell it, as NumPy does."""
        elements = np.frombuffer(octets, np.dtype(name).newbyteorder("<")).reshape(shape)
        self.write("array(")
        self.add(elements.tolist() if elements.size else [])
        if not elements.size and len(shape) != 1:
            self.write(f", shape={shape}")
        if not elements.size or name not in _TOLD:
            self.write(f", dtype={name}")
        self.write(")")

    def add_named(self, value: Tagged) -> None:
        """Add a value whose type Python's literals lack."""
        if value.kind == "text":
            self.write(value.value)
        elif value.kind == "torch.dtype":
            self.write(f"torch.{value.value}")
        elif value.kind == "torch.device":
            self.write(f"torch.device({':'.join(map(str, value.value))!r})")
        elif value.kind == ARRAY:
            self.add_array(*value.value)
        elif value.kind == "argparse.Namespace":
            pairs = [(name, "=", each) for name, each in value.value.items()]
            self.add_pairs("Namespace(", pairs, ")")
        else:
            self.add_items(f"{value.kind}([", value.value, "])")

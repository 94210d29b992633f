"""Pickles, written: plain values, names, calls, instances and references, the same bytes for the
same value.

    value                               opcodes
    None, bool, int, float, str         one opcode each
    bytes                               one opcode; in protocol 2 a call
    tuple, list, dict                   the items, then the opcode that collects them
    ``OrderedMap``                      a call of the class, then the items
    ``Global(name)``                    GLOBAL: the name is imported
    ``Call(name, args, state)``         GLOBAL, the arguments, REDUCE: the name is called; and with a
                                        state this and BUILD
    ``Instance(name, state)``           GLOBAL, EMPTY_TUPLE, NEWOBJ, the state, BUILD: an instance
                                        with that state
    ``Reference(value)``                the value, BINPERSID: an object outside of the pickle

Texts and names that come again are references to the first ones. In protocol 4, so are calls that
come again, and every value that Python would give a number has one, as readers of long indexes
expect (``pickle``). Nothing else is shared. Protocol 2 is the only one that
``torch.load(weights_only=True)`` takes.

Law: ``parse_pickle(build_pickle(value))`` is the value, with nodes for calls and instances
(``wire.plain``).

Values are made by shardvar and nested a few levels deep: writing recurses.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from shardvar.records import entity, frozen
from shardvar.wire.plain import ENCODE, ORDERED_DICT, Global, OrderedMap, Reference


@frozen
class Call:
    name: str  # with its module, such as "torch.Size"
    args: tuple[Any, ...]
    state: tuple[Any, ...] | None = None  # of the result


@entity
class LazyDict:
    """A dict of many values, each made when it is written, and dropped then."""

    items: Callable[[], Iterable[tuple[Any, Any]]]


@entity
class Instance:
    """An instance of a class that is made without arguments; it may be the key of a dict."""

    name: str  # of the class, with its module
    state: Any  # a dict of attributes, or the argument of ``__setstate__``


def build_pickle(value: Any, protocol: int = 2) -> bytes:
    writer = _Writer(protocol >= 4)
    writer.write(b"\x80" + bytes([protocol]))
    writer.push(value)
    writer.write(b".")
    return bytes(writer.out)


class _Writer:
    """The opcodes so far, and the numbers of the values that a later opcode can refer to."""

    def __init__(self, numbers_all: bool) -> None:
        # A list of the opcodes would take ten times as much memory as they do.
        self.out = bytearray()
        self.write = self.out.extend
        self.memo: dict[tuple[type, Any], int] = {}
        self.numbers_all = numbers_all
        """True in protocol 4: containers, calls and instances also have numbers."""
        self.count = 0  # the number of the next value

    def push(self, value: Any) -> None:
        _PUSH[type(value)](self, value)

    def push_once(self, kind: type, key: Any, push: Callable[[], object]) -> None:
        """Add the opcodes that push a value, or a reference to an equal one of that kind."""
        number = self.memo.get((kind, key))
        if number is None:
            push()
            self.memo[kind, key] = self.count
            self.write(b"\x94" if self.numbers_all else _numbered(b"q", b"r", self.count))
            self.count += 1
        else:
            self.write(_numbered(b"h", b"j", number))

    def number(self) -> None:
        """Give the last value a number, which nothing refers to."""
        if self.numbers_all:
            self.write(b"\x94")
            self.count += 1

    def push_name(self, name: str) -> None:
        def push() -> None:
            module, _, last = name.rpartition(".")
            if self.numbers_all:
                self.push_text(module)
                self.push_text(last)
            self.write(b"\x93" if self.numbers_all else f"c{module}\n{last}\n".encode("ascii"))

        self.push_once(Global, name, push)

    def push_text(self, text: str) -> None:
        def push() -> None:
            octets = text.encode("utf-8", "surrogatepass")
            if self.numbers_all and len(octets) < 1 << 8:
                self.write(b"\x8c" + bytes([len(octets)]) + octets)
            else:
                self.write(b"X" + struct.pack("<L", len(octets)) + octets)

        self.push_once(str, text, push)

    def push_bytes(self, octets: bytes) -> None:
        if self.numbers_all:
            self.write(b"B" + struct.pack("<L", len(octets)) + octets)
            self.number()
        else:  # as Python writes them in protocol 2, which has no opcode for bytes
            self.push_call(Call(ENCODE, (octets.decode("latin1"), "latin1")))

    def push_tuple(self, items: tuple[Any, ...]) -> None:
        short = _TUPLES.get(len(items))
        self.push_all(items) if short else self.push_marked(items, b"t")
        self.write(short or b"")
        if items:
            self.number()

    def push_marked(self, items: Any, collect: bytes) -> None:
        """Add a mark, the items, and the opcode that collects the values above the mark."""
        self.write(b"(")
        self.push_all(items)
        self.write(collect)

    def push_all(self, items: Any) -> None:
        for item in items:
            self.push(item)

    def push_dict(self, items: "dict[Any, Any] | LazyDict") -> None:
        self.write(b"}")
        self.number()
        self.push_marked((each for pair in items.items() for each in pair), b"u")

    def push_ordered(self, items: OrderedMap) -> None:
        self.push_new_call(Call(ORDERED_DICT, ()))
        self.number()
        if items:
            self.push_marked((each for pair in items.items() for each in pair), b"u")

    def push_list(self, items: list[Any]) -> None:
        self.write(b"]")
        self.number()
        self.push_marked(items, b"e")

    def push_call(self, call: Call) -> None:
        if self.numbers_all:
            self.push_once(Call, call, lambda: self.push_new_call(call))
        else:
            self.push_new_call(call)

    def push_new_call(self, call: Call) -> None:
        """Add the opcodes of a call, also if there was an equal one."""
        self.push_name(call.name)
        self.push_tuple(call.args)
        self.write(b"R")
        if call.state is not None:
            self.push_tuple(call.state)
            self.write(b"b")

    def push_instance(self, instance: Instance) -> None:
        self.push_name(instance.name)
        self.write(b")\x81")
        self.number()
        self.push(instance.state)
        self.write(b"b")

    def push_reference(self, reference: Reference) -> None:
        self.push(reference.value)
        self.write(b"Q")


def _numbered(short: bytes, wide: bytes, number: int) -> bytes:
    return short + bytes([number]) if number < 1 << 8 else wide + struct.pack("<L", number)


def _integer(value: int) -> bytes:
    """Return the shortest opcode of an integer."""
    if 0 <= value < 1 << 16:
        return b"K" + bytes([value]) if value < 1 << 8 else b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<l", value)
    # 200 has 8 bits and takes two bytes, since the highest bit is the sign; -128 has 8 bits too and
    # takes one, as ~-128 = 127 has 7.
    octets = value.to_bytes(
        (value if value >= 0 else ~value).bit_length() // 8 + 1, "little", signed=True
    )
    if len(octets) < 1 << 8:
        return b"\x8a" + bytes([len(octets)]) + octets
    return b"\x8b" + struct.pack("<L", len(octets)) + octets


_TUPLES = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
"""The opcodes of short tuples, which need no mark."""

_PUSH: dict[type, Callable[[_Writer, Any], object]] = {
    type(None): lambda w, _: w.write(b"N"),
    bool: lambda w, value: w.write(b"\x88" if value else b"\x89"),
    int: lambda w, value: w.write(_integer(value)),
    float: lambda w, value: w.write(b"G" + struct.pack(">d", value)),
    str: _Writer.push_text,
    bytes: _Writer.push_bytes,
    tuple: _Writer.push_tuple,
    list: _Writer.push_list,
    dict: _Writer.push_dict,
    LazyDict: _Writer.push_dict,
    OrderedMap: _Writer.push_ordered,
    Global: lambda w, value: w.push_name(value.name),
    Call: _Writer.push_call,
    Instance: _Writer.push_instance,
    Reference: _Writer.push_reference,
}

"""Pickles, read without running them: what a pickle would import or call becomes an inert node.

A pickle is a program for a stack machine. Its opcodes push plain values, import names, and call
them. This reader also pushes plain values, and nothing else happens:

    opcode                    Python's reader                    this reader
    GLOBAL, STACK_GLOBAL      imports a name                     ``Global(name)``
    REDUCE, NEWOBJ            calls it                           ``Node(name, args)``
    BUILD                     calls ``__setstate__``             sets ``Node.state``, once
    BINPERSID                 asks the caller for an object      ``Reference(value)``
    INST, OBJ, EXT1-4         imports or calls in other ways     refused
    text forms (protocol 0)                                      refused

Names are compared whole by the interpreter of the nodes; they are never split, imported or called.

Limits. Each opcode takes time and memory in proportion to its bytes: lengths are compared with what
is left before anything is sliced, the memo has no holes (CPython sizes it by the largest number in
the file), and values that are used twice are shared. Nothing recurses, and nothing may recurse over
the result: a file of 20,000 opening brackets is a value. Tuples that are keys of dicts have few
items, because hashing nested tuples recurses.

Speed. Where an index repeats one shape of opcodes a hundred thousand times, ``usual_opcodes`` reads
that shape in one step. It gives what the opcodes one by one give: a test compares the two.
"""

import struct
from collections.abc import Callable
from typing import Any

from shardvar.errors import MalformedCheckpoint, ShardvarError
from shardvar.limits import MAX_NBYTES, MAX_NESTING
from shardvar.wire.damage import DISTRUST, malformed, past_limit
from shardvar.wire.inert import (
    Global,
    Node,
    OrderedMap,
    Reference,
    call,
    extend,
    name_of,
    set_items,
)
from shardvar.wire.usual_opcodes import Known, read_usual


def parse_pickle(
    data: bytes,
    check: Callable[[str], object] = lambda _name: None,
    fast: bool = True,
    is_typed: bool = False,
    most: int = MAX_NBYTES,
    start: int = 0,
) -> tuple[Any, int]:
    """Return the value of a pickle, and the offset of the byte after it; ``MalformedCheckpoint`` if
    it is damaged.

    ``check`` is called with each name, and raises if the pickle is to be refused for it.
    ``fast=False`` reads each opcode by itself, with the same result. ``is_typed`` keeps the types
    of tuples and dicts that were of torch's or Python's subclasses (``inert.call``). ``most`` bounds
    the bytes outside of long texts, which take no more memory than in the file. The pickle begins at
    offset ``start``, and so do the offsets of errors.

    >>> parse_pickle(b"\\x80\\x02(K\\x01K\\x02t.")
    ((1, 2), 9)
    >>> parse_pickle(b"\\x80\\x02cposix\\nsystem\\nX\\x02\\x00\\x00\\x00ls\\x85R.")
    (Node('posix.system'), 26)
    """
    machine = _Machine(data, check, fast, is_typed, most)
    machine.position = start
    try:
        machine.run()
    except _Stop:
        return machine.stack[-1], machine.position
    except ShardvarError:
        raise
    except _DAMAGES:
        # A stack or a memo without the value that an opcode needs, an opcode that is not known,
        # text that is not UTF-8.
        if machine.position >= len(data):
            raise _cut(len(data)) from None
        raise malformed(f"The pickle cannot be decoded at offset {machine.position}.") from None
    if machine.position < len(data):
        raise past_limit(f"The pickle has {len(data)} bytes", "MAX_PICKLE_NBYTES")
    raise _cut(len(data))


def _cut(nbytes: int) -> MalformedCheckpoint:
    return malformed(f"The pickle is cut short at byte {nbytes}: it has no end.")


_DAMAGES = (IndexError, TypeError, ValueError, struct.error)
"""Errors that opcodes raise if the stack, the memo or a text is not as they need it."""


_LONG = 1 << 16
"""The bytes of a text or of bytes that the bound of a pickle does not count."""


class _Stop(Exception):
    """The opcode STOP."""


class _Machine:
    """The state of the stack machine, and the opcodes that are more than an expression."""

    def __init__(
        self, data: bytes, check: Callable[[str], object], fast: bool, is_typed: bool, most: int
    ) -> None:
        self.data = data
        self.bound = min(len(data), most)  # the offset at which no further opcode is read
        self.check = check
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.known: Known = {}
        self.fast = fast and not is_typed  # what is usual are indexes, which need no types
        self.is_typed = is_typed

    def run(self) -> None:
        """Read opcodes to the bound, or until STOP raises."""
        data, steps = self.data, _STEPS
        while self.position < self.bound:
            opcode = data[self.position]
            self.position += 1
            steps[opcode](self)

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take a value from the stack."""
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        """Return the values above the last mark, and take them from the stack."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes; refuse a length beyond the end before anything is sliced."""
        start, stop = self.position, self.position + nbytes
        if stop > len(self.data):
            cause = (
                f"The pickle is cut short, or a length in it is wrong: it claims {nbytes} bytes at "
                f"offset {start}, and ends at byte {len(self.data)}."
            )
            raise malformed(cause)
        if nbytes >= _LONG:
            self.bound = min(len(self.data), self.bound + nbytes)
        self.position = stop
        return self.data[start:stop]

    def count(self, nbytes: int) -> int:
        """Return the next unsigned integer of that many bytes."""
        return int.from_bytes(self.take(nbytes), "little")

    def integer(self, nbytes: int) -> int:
        """Return the next signed integer of that many bytes."""
        return int.from_bytes(self.take(nbytes), "little", signed=True)

    def text(self, nbytes: int) -> str:
        """Return the next bytes as text."""
        return self.take(nbytes).decode("utf-8", "surrogatepass")

    def line(self) -> str:
        """Return the next line, without its end."""
        start, stop = self.position, self.data.find(b"\n", self.position)
        self.position = stop + 1 if stop >= 0 else len(self.data)
        if stop < 0:
            raise ValueError  # a pickle that is cut short
        return self.data[start:stop].decode("ascii")

    def check_version(self) -> None:
        """Refuse protocols that torch does not write."""
        version = self.count(1)
        if not 2 <= version <= 5:
            raise MalformedCheckpoint(
                f"The pickle is of protocol {version}.", "Protocols 2 to 5 are read."
            )

    def check_frame(self) -> None:
        """Refuse a frame that reaches beyond the end."""
        nbytes = self.count(8)
        if nbytes > len(self.data) - self.position:
            raise malformed(f"A frame of {nbytes} bytes reaches beyond the end of the pickle.")

    def stop(self) -> None:
        """End."""
        if len(self.stack) != 1 or self.marks:
            raise malformed(f"The pickle ends at offset {self.position} with values left over.")
        raise _Stop

    def mark(self) -> None:
        """Begin a list of values."""
        if len(self.marks) == MAX_NESTING:
            raise malformed(
                f"The pickle has more than {MAX_NESTING} unfinished values in each other at offset "
                f"{self.position} (MAX_NESTING)."
            )
        self.marks.append(self.stack)
        self.stack = []

    def put(self, number: int) -> None:
        """Give the last value a number, which is the next one or was given before."""
        if number == len(self.memo):
            self.memo.append(self.stack[-1])
        else:
            self.fast = False  # the fast path counts on one value for each number
            self.memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        """Push the value of a number, or the instance that follows if it is a class."""
        value = self.memo[number]
        if type(value) is not Global or not self.fast or not self.push_call(value):
            self.stack.append(value)

    def push_call(self, called: Global) -> bool:
        """Push what the next opcodes make of a name, if they are usual ones; return False if
        not."""
        found = read_usual(called.name, self.data, self.position, self.memo, self.known)
        if found is None:
            return False
        self.stack += found.stack
        if found.begins:
            self.mark()
        self.position = found.stop
        return True

    def build(self) -> None:
        """Set the state of the last value, once."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is Node and target.state is None:
            target.state = state
        # The attributes of an OrderedDict are not its items, and are dropped.
        elif type(target) not in (dict, OrderedMap):
            raise malformed(
                f"The pickle sets a state at offset {self.position} that its object cannot have."
            )

    def push_name(self, module: str, name: str) -> None:
        """Push a name, which is checked first."""
        joined = f"{module}.{name}"
        self.check(joined)
        self.stack.append(Global(joined))

    def stack_name(self) -> None:
        """Push the name whose two parts are on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise malformed(f"A name at offset {self.position} of the pickle is not text.")
        self.push_name(module, name)

    def refuse(self) -> None:
        """Refuse an opcode that imports or calls in ways that torch does not use."""
        opcode = self.data[self.position - 1]
        cause = (
            f"The pickle has the opcode {opcode:#04x} at offset {self.position - 1}, which torch "
            "does not write."
        )
        raise MalformedCheckpoint(cause, DISTRUST)


def _get(machine: _Machine) -> None:
    number = machine.data[machine.position]
    machine.position += 1
    machine.get(number)


def _get_long(machine: _Machine) -> None:
    start = machine.position
    machine.position = stop = start + 4
    if stop > len(machine.data):
        raise IndexError
    machine.get(int.from_bytes(machine.data[start:stop], "little"))


def _push_byte(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.position])
    machine.position += 1


def _make_dict(items: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    set_items(made, items)
    return made


def _new(machine: _Machine, args: Any) -> None:
    machine.push(Node(name_of(machine.pop()), args))


def _reduce(machine: _Machine, args: Any) -> None:
    machine.push(call(machine.pop(), args, machine.is_typed))


def _make_tuple(machine: _Machine, count: int) -> None:
    if len(machine.stack) < count:
        raise IndexError
    machine.stack[-count:] = [tuple(machine.stack[-count:])]


def _set_item(machine: _Machine, value: Any) -> None:
    key = machine.pop()
    set_items(machine.stack[-1], [key, value])


def _set_all(machine: _Machine, items: list[Any]) -> None:
    set_items(machine.stack[-1], items)


def _append(machine: _Machine, values: list[Any]) -> None:
    extend(machine.stack[-1], values)


_OPCODES: dict[bytes, Callable[[_Machine], Any]] = {
    # The frame of the pickle.
    b"\x80": _Machine.check_version,
    b"\x95": _Machine.check_frame,
    b".": _Machine.stop,
    b"(": _Machine.mark,
    b"0": lambda m: m.pop() if m.stack else m.pop_mark(),
    b"1": _Machine.pop_mark,
    b"2": lambda m: m.push(m.stack[-1]),
    # The memo.
    b"\x94": lambda m: m.memo.append(m.stack[-1]),
    b"q": lambda m: m.put(m.count(1)),
    b"r": lambda m: m.put(m.count(4)),
    b"h": _get,
    b"j": _get_long,
    # Plain values.
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": _push_byte,
    b"M": lambda m: m.push(m.count(2)),
    b"J": lambda m: m.push(m.integer(4)),
    b"\x8a": lambda m: m.push(m.integer(m.count(1))),
    b"\x8b": lambda m: m.push(m.integer(m.count(4))),
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"\x8c": lambda m: m.push(m.text(m.count(1))),
    b"X": lambda m: m.push(m.text(m.count(4))),
    b"\x8d": lambda m: m.push(m.text(m.count(8))),
    b"C": lambda m: m.push(m.take(m.count(1))),
    b"B": lambda m: m.push(m.take(m.count(4))),
    b"\x8e": lambda m: m.push(m.take(m.count(8))),
    b"\x96": lambda m: m.push(m.take(m.count(8))),  # a bytearray
    # Containers.
    b")": lambda m: m.push(()),
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b"\x8f": lambda m: m.push(Node("builtins.set", ())),
    b"\x85": lambda m: _make_tuple(m, 1),
    b"\x86": lambda m: _make_tuple(m, 2),
    b"\x87": lambda m: _make_tuple(m, 3),
    b"t": lambda m: m.push(tuple(m.pop_mark())),
    b"l": lambda m: m.push(m.pop_mark()),
    b"d": lambda m: m.push(_make_dict(m.pop_mark())),
    b"\x91": lambda m: m.push(Node("builtins.frozenset", (m.pop_mark(),))),
    b"a": lambda m: _append(m, [m.pop()]),
    b"e": lambda m: _append(m, m.pop_mark()),
    b"\x90": lambda m: _append(m, m.pop_mark()),
    b"s": lambda m: _set_item(m, m.pop()),
    b"u": lambda m: _set_all(m, m.pop_mark()),
    # Names, and what would be calls.
    b"c": lambda m: m.push_name(m.line(), m.line()),
    b"\x93": _Machine.stack_name,
    b"R": lambda m: _reduce(m, m.pop()),
    b"\x81": lambda m: _new(m, m.pop()),
    b"b": _Machine.build,
    b"Q": lambda m: m.push(Reference(m.pop())),
}

_STEPS: list[Callable[[_Machine], Any]] = [
    _OPCODES.get(bytes([opcode]), _Machine.refuse) for opcode in range(256)
]

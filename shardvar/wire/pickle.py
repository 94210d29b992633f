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

Speed. Where an index repeats one shape of opcodes a hundred thousand times, that shape is read in
one step. It gives what the opcodes one by one give: a test compares the two. Each shape begins
after a reference to a name in the memo:

    size       tuple of integers, TUPLE1 MEMOIZE REDUCE MEMOIZE              the name is torch.Size
    instance   ) NEWOBJ MEMOIZE } MEMOIZE ( name value name value [name value] SETITEMS BUILD
    another    ) NEWOBJ MEMOIZE ( five references, or True, False or None, TUPLE MEMOIZE BUILD
    tensor     ) NEWOBJ MEMOIZE } MEMOIZE ( name class another, name value,
               name ] MEMOIZE class instance of two names and values, APPEND, SETITEMS BUILD
    beginning  ) NEWOBJ MEMOIZE [} MEMOIZE] (                                what follows is read opcode by opcode

A name is a reference to the memo. So is a value, a new text, an integer, or a size. The expressions
know no lengths: a text with the byte 0x94 in it, or of another length than in its first byte, is
left to the opcodes, and so is everything else that is unusual.

They need a memo whose numbers never change their values, and no PUT opcodes.
"""

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shardvar.errors import MalformedCheckpoint, ShardvarError
from shardvar.limits import MAX_NBYTES, MAX_NESTING
from shardvar.wire.damage import DISTRUST, malformed, past_limit
from shardvar.wire.plain import (
    SIZE,
    Global,
    Node,
    OrderedMap,
    Reference,
    call,
    extend,
    name_of,
    set_items,
)

_NEW_DICT, _NEW_TUPLE = b")\x81\x94}\x94(", b")\x81\x94("
_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|M..|J....)"
_TUPLE = rb"(?:\)|(?:" + _INT + rb"{1,3}[\x85-\x87]|\(" + _INT + rb"{4,16}t)\x94)"
_CALL = rb"\x85\x94R\x94"
_LONG_OPCODE = rb"\x8a\x05.....|\x8a\x06......"
_VALUE = (
    _GET
    + _TUPLE
    + _CALL
    + rb"|"
    + _GET
    + rb"|"
    + _INT
    + rb"|"
    + _LONG_OPCODE
    + rb"|\x8c.[^\x94]*\x94"
)
_FIELD = rb"(" + _GET + rb")(" + _VALUE + rb")"
_STATE = re.escape(_NEW_TUPLE) + rb"((?:" + _GET + rb"|[\x88\x89N]){5})t\x94b"
_LIST = rb"(" + _GET + rb")\]\x94(" + _GET + rb")" + re.escape(_NEW_DICT) + _FIELD * 2 + rb"uba"

_INSTANCE = re.compile(re.escape(_NEW_DICT) + _FIELD * 2 + rb"(?:" + _FIELD + rb")?ub", re.DOTALL)
_ANOTHER = re.compile(_STATE, re.DOTALL)
_TENSOR = re.compile(
    re.escape(_NEW_DICT) + rb"(" + _GET + rb")(" + _GET + rb")" + _STATE + _FIELD + _LIST + rb"ub",
    re.DOTALL,
)
_SIZE = re.compile(_TUPLE + _CALL, re.DOTALL)
_NUMBERS = re.compile(_INT, re.DOTALL)

_SIGNED, _LONG1, _TEXT1 = b"J\x8a\x8c"
_GETS, _INTS, _SHORT_GET, _LONG_GET = b"hj", b"KMJ", ord("h"), ord("j")
_CONSTANTS = {0x88: True, 0x89: False, ord("N"): None}
_LONGEST_GET = 5
"""Bytes of a reference to the memo with its opcode; longer values begin with a call."""
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}  # the number of items that TUPLE1, TUPLE2 and TUPLE3 take
_integer = int.from_bytes

Known = dict[bytes, tuple[Sequence[Any], Any]]
"""By opcodes that come again, the values that they add to the memo, and the value that they push."""


class Effect(NamedTuple):
    """The effect of opcodes, apart from the memo."""

    stack: list[Any]  # the values that they push
    begins: bool  # True if a mark follows
    stop: int  # the offset after them


def read_usual(
    name: str, data: bytes, position: int, memo: list[Any], known: Known
) -> Effect | None:
    """Return the effect of the opcodes after a name and extend the memo; None if unusual."""
    if data.startswith(_NEW_DICT, position):
        count, state = len(memo), dict[Any, Any]()
        node = Node(name, (), state)
        memo += node, state
        match, read = _INSTANCE.match(data, position), _read_fields
        if match is None:
            match, read = _TENSOR.match(data, position), _read_tensor
        if match is not None:
            if read(state, match.groups(), memo, known):
                return Effect([node], False, match.end())
            known.clear()  # its values may be of the memo that is dropped here
        del memo[count:]
        return _begin(name, {}, memo, position + len(_NEW_DICT))
    if name == SIZE:
        match = _SIZE.match(data, position)
        size = (known.get(match[0]) or _size(match[0], known)) if match else None
        if match is None or size is None:
            return None
        memo += size[0]
        return Effect([size[1]], False, match.end())
    if not data.startswith(_NEW_TUPLE, position):
        return None
    match = _ANOTHER.match(data, position)
    if match is None:
        return _begin(name, None, memo, position + len(_NEW_TUPLE))
    return Effect([_another(name, match[1], memo, known)], False, match.end())


def _begin(name: str, state: dict[Any, Any] | None, memo: list[Any], stop: int) -> Effect:
    """Return the beginning of an instance; its state is a dict, or a tuple that follows."""
    begun = [Node(name, ())] if state is None else [Node(name, ()), state]
    memo += begun
    return Effect(begun, True, stop)


def _read_fields(
    state: dict[Any, Any], texts: Sequence[Any], memo: list[Any], known: Known
) -> bool:
    """Set names and their values; return False to leave one of them to the opcodes."""
    pairs = iter(texts)
    for name, text in zip(pairs, pairs, strict=True):
        if name is None:
            break
        opcode = text[0]
        if opcode in _GETS and len(text) <= _LONGEST_GET:
            value = memo[_integer(text[1:], "little")]
        elif opcode in _INTS:
            value = _integer(text[1:], "little", signed=opcode == _SIGNED)
        else:
            # Sizes and the names of files come again and again.
            found = known.get(text) or _value(text, memo, known)
            if found is None:
                return False
            more, value = found
            memo += more
        key = known.get(name) or _key(name, memo, known)
        if key is None:
            return False
        state[key[1]] = value
    return True


def _read_tensor(
    state: dict[Any, Any], texts: Sequence[Any], memo: list[Any], known: Known
) -> bool:
    """Set an instance, a field, and a list of one instance; False leaves one to the opcodes."""
    name, called, values, field, text, list_name, item_called, *fields = texts
    classes = [memo[_integer(each[1:], "little")] for each in (called, item_called)]
    key, list_key = [known.get(each) or _key(each, memo, known) for each in (name, list_name)]
    if (
        key is None
        or list_key is None
        or any(type(each) is not Global or each.name == SIZE for each in classes)
    ):
        return False
    state[key[1]] = _another(classes[0].name, values, memo, known)
    if not _read_fields(state, (field, text), memo, known):
        return False
    item_state: dict[Any, Any] = {}
    item = Node(classes[1].name, (), item_state)
    items = [item]
    state[list_key[1]] = items
    memo += items, item, item_state
    return _read_fields(item_state, fields, memo, known)


def _another(name: str, text: bytes, memo: list[Any], known: Known) -> Node:
    """Return an instance whose state is a tuple of references and constants."""
    node = Node(name, ())
    memo.append(node)
    found = known.get(text)
    if found is None:
        # Equal references lead to the same values, so the tuple is the same each time.
        values, position = [], 0
        while position < len(text):
            opcode = text[position]
            size = {_SHORT_GET: 2, _LONG_GET: _LONGEST_GET}.get(opcode, 1)
            values.append(
                memo[_integer(text[position + 1 : position + size], "little")]
                if size > 1
                else _CONSTANTS[opcode]
            )
            position += size
        state = tuple(values)
        found = known[text] = (state,), state
    node.state = found[1]
    memo.append(node.state)
    return node


def _key(text: bytes, memo: list[Any], known: Known) -> tuple[Sequence[Any], Any] | None:
    """Return the text that a reference leads to; None to leave anything else to the opcodes."""
    value = memo[_integer(text[1:], "little")]
    if type(value) is not str:
        return None
    known[text] = (), value
    return known[text]


def _value(text: bytes, memo: list[Any], known: Known) -> tuple[Sequence[Any], Any] | None:
    """Return additions to the memo, and the value; None to leave them to the opcodes."""
    if text[0] == _LONG1:
        return (), _integer(text[2:], "little", signed=True)
    if text[0] == _TEXT1:
        content = text[2:-1]  # without opcode and length in front, and MEMOIZE behind
        if len(content) != text[1]:
            return None
        decoded = content.decode("utf-8", "surrogatepass")
        known[text] = (decoded,), decoded
        return known[text]
    name_nbytes = 2 if text[0] == _SHORT_GET else _LONGEST_GET
    called = memo[_integer(text[1:name_nbytes], "little")]
    if type(called) is not Global or called.name != SIZE:
        return None
    found = _size(text[name_nbytes:], known)
    if found is not None:
        known[text] = found
    return found


def _size(text: bytes, known: Known) -> tuple[Sequence[Any], Any] | None:
    """Return the same for a tuple of integers that becomes a ``torch.Size``: a tuple here."""
    numbers = text[: -len(b"\x85\x94R\x94")]
    items = [
        _integer(each[1:], "little", signed=each[0] == _SIGNED)
        for each in _NUMBERS.findall(numbers)
    ]
    # A tuple of more or fewer items than were pushed is left to the opcodes.
    if numbers != b")" and numbers[:1] != b"(" and _TUPLES.get(numbers[-2]) != len(items):
        return None
    size = tuple(items)
    known[text] = ((size, (size,), size) if size else ((size,), size)), size
    return known[text]


def parse_pickle(
    data: bytes,
    check: Callable[[str], object] = lambda _name: None,
    fast: bool = True,
    is_typed: bool = False,
    most: int = MAX_NBYTES,
    start: int = 0,
) -> tuple[Any, int]:
    """Return the value of the pickle that begins at ``start``, and the offset after it."""
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


_LONG = 1 << 16  # the bytes of a text or of bytes that the bound of a pickle does not count


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
        self.fast = fast and not is_typed  # indexes, which are usual, need no types
        self.is_typed = is_typed

    def run(self) -> None:
        data, steps = self.data, _STEPS
        while self.position < self.bound:
            opcode = data[self.position]
            self.position += 1
            steps[opcode](self)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes; refuse a length beyond the end before anything is sliced."""
        start, stop = self.position, self.position + nbytes
        if stop > len(self.data):
            raise malformed(
                f"The pickle is cut short, or a length in it is wrong: it claims {nbytes} bytes at "
                f"offset {start}, and ends at byte {len(self.data)}."
            )
        if nbytes >= _LONG:
            self.bound = min(len(self.data), self.bound + nbytes)
        self.position = stop
        return self.data[start:stop]

    def count(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def integer(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little", signed=True)

    def text(self, nbytes: int) -> str:
        return self.take(nbytes).decode("utf-8", "surrogatepass")

    def line(self) -> str:
        start, stop = self.position, self.data.find(b"\n", self.position)
        self.position = stop + 1 if stop >= 0 else len(self.data)
        if stop < 0:
            raise ValueError  # a pickle that is cut short
        return self.data[start:stop].decode("ascii")

    def check_version(self) -> None:
        version = self.count(1)
        if not 2 <= version <= 5:
            raise MalformedCheckpoint(
                f"The pickle is of protocol {version}.", "Protocols 2 to 5 are read."
            )

    def check_frame(self) -> None:
        nbytes = self.count(8)
        if nbytes > len(self.data) - self.position:
            raise malformed(f"A frame of {nbytes} bytes reaches beyond the end of the pickle.")

    def stop(self) -> None:
        if len(self.stack) != 1 or self.marks:
            raise malformed(f"The pickle ends at offset {self.position} with values left over.")
        raise _Stop

    def mark(self) -> None:
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
        if type(value) is Global and self.fast:
            effect = read_usual(value.name, self.data, self.position, self.memo, self.known)
            if effect is not None:
                self.stack += effect.stack
                if effect.begins:
                    self.mark()
                self.position = effect.stop
                return
        self.stack.append(value)

    def get_short(self) -> None:
        number = self.data[self.position]
        self.position += 1
        self.get(number)

    def get_long(self) -> None:
        start = self.position
        self.position = stop = start + 4
        if stop > len(self.data):
            raise IndexError
        self.get(int.from_bytes(self.data[start:stop], "little"))

    def push_byte(self) -> None:
        self.stack.append(self.data[self.position])
        self.position += 1

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def fill(self, change: Callable[[Any, list[Any]], None], values: list[Any]) -> None:
        """Append values to the last value, or set them in it."""
        change(self.stack[-1], values)

    def push_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        set_items(self.stack[-1], items)

    def new(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = Node(name_of(self.stack[-1]), args)

    def reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = call(self.stack[-1], args, self.is_typed)

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is Node and target.state is None:
            target.state = state
        # The attributes of an OrderedDict are not its items, and are dropped.
        elif type(target) not in (dict, OrderedMap):
            raise malformed(
                f"The pickle sets a state at offset {self.position} that its object cannot have."
            )

    def push_name(self, module: str, name: str) -> None:
        joined = f"{module}.{name}"
        self.check(joined)
        self.stack.append(Global(joined))

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise malformed(f"A name at offset {self.position} of the pickle is not text.")
        self.push_name(module, name)

    def refuse(self) -> None:
        """Refuse an opcode that torch does not use."""
        opcode = self.data[self.position - 1]
        cause = (
            f"The pickle has the opcode {opcode:#04x} at offset {self.position - 1}, which torch "
            "does not write."
        )
        raise MalformedCheckpoint(cause, DISTRUST)


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
    b"h": _Machine.get_short,
    b"j": _Machine.get_long,
    # Plain values.
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": _Machine.push_byte,
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
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"t": lambda m: m.push(tuple(m.pop_mark())),
    b"l": lambda m: m.push(m.pop_mark()),
    b"d": _Machine.push_dict,
    b"\x91": lambda m: m.push(Node("builtins.frozenset", (m.pop_mark(),))),
    b"a": lambda m: m.fill(extend, [m.pop()]),
    b"e": lambda m: m.fill(extend, m.pop_mark()),
    b"\x90": lambda m: m.fill(extend, m.pop_mark()),
    b"s": lambda m: m.fill(set_items, [m.pop(), m.pop()][::-1]),
    b"u": lambda m: m.fill(set_items, m.pop_mark()),
    # Names, and what would be calls.
    b"c": lambda m: m.push_name(m.line(), m.line()),
    b"\x93": _Machine.stack_name,
    b"R": _Machine.reduce,
    b"\x81": _Machine.new,
    b"b": _Machine.build,
    b"Q": lambda m: m.push(Reference(m.pop())),
}

_STEPS: list[Callable[[_Machine], Any]] = [
    _OPCODES.get(bytes([opcode]), _Machine.refuse) for opcode in range(256)
]

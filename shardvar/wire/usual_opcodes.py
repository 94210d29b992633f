"""Sequences of opcodes that fill the index of a checkpoint, each read in one step.

Each begins after a reference to a name in the memo:

    size       tuple of integers, TUPLE1 MEMOIZE REDUCE MEMOIZE              the name is torch.Size
    instance   ) NEWOBJ MEMOIZE } MEMOIZE ( name value name value [name value] SETITEMS BUILD
    another    ) NEWOBJ MEMOIZE ( five references, or True, False or None, TUPLE MEMOIZE BUILD
    tensor     ) NEWOBJ MEMOIZE } MEMOIZE ( name class another, name value,
               name ] MEMOIZE class instance of two names and values, APPEND, SETITEMS BUILD
    beginning  ) NEWOBJ MEMOIZE [} MEMOIZE] (                                what follows is read opcode by opcode

A name is a reference to the memo. So is a value, a new text, an integer, or a size. The expressions
know no lengths: a text with the byte 0x94 in it, or of another length than its first byte says, is
left to the opcodes, and so is everything else that is unusual.

They need a memo whose numbers never change their values, and no PUT opcodes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shardvar.wire.inert import SIZE, Global, Node

_NEW_DICT, _NEW_TUPLE = b")\x81\x94}\x94(", b")\x81\x94("
_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|M..|J....)"
_TUPLE = rb"(?:\)|(?:" + _INT + rb"{1,3}[\x85-\x87]|\(" + _INT + rb"{4,16}t)\x94)"
_CALL = rb"\x85\x94R\x94"
_LONG = rb"\x8a\x05.....|\x8a\x06......"
_VALUE = (
    _GET + _TUPLE + _CALL + rb"|" + _GET + rb"|" + _INT + rb"|" + _LONG + rb"|\x8c.[^\x94]*\x94"
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
"""Bytes of a reference to the memo with its opcode; a reference to ``torch.Size`` and its tuple
take more."""
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
"""The number of items that TUPLE1, TUPLE2 and TUPLE3 take."""
_integer = int.from_bytes

Known = dict[bytes, tuple[Sequence[Any], Any]]
"""By opcodes that come again, the values that they add to the memo, and the one that they push."""


class Effect(NamedTuple):
    """The effect of opcodes, in addition to what they add to the memo."""

    stack: list[Any]
    """The values that they push."""
    begins: bool
    """True if a mark follows."""
    stop: int
    """The offset after them."""


def read_usual(
    name: str, data: bytes, position: int, memo: list[Any], known: Known
) -> Effect | None:
    """Return what the opcodes after a name do, from offset ``position`` on, and extend the memo;
    None if not usual."""
    if data.startswith(_NEW_DICT, position):
        return _instance(name, data, position, memo, known) or _begin(
            name, {}, memo, position + len(_NEW_DICT)
        )
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


def _instance(
    name: str, data: bytes, position: int, memo: list[Any], known: Known
) -> Effect | None:
    """Return a whole instance that has a dict; None, and the memo is as before, if it is not one of
    the usual ones."""
    count = len(memo)
    state: dict[Any, Any] = {}
    node = Node(name, (), state)
    memo += node, state
    match, read = _INSTANCE.match(data, position), _read_fields
    if match is None:
        match, read = _TENSOR.match(data, position), _read_tensor
    if match is not None:
        if read(state, match.groups(), memo, known):
            return Effect([node], False, match.end())
        known.clear()  # it may lead to what is taken from the memo here
    del memo[count:]
    return None


def _read_fields(
    state: dict[Any, Any], texts: Sequence[Any], memo: list[Any], known: Known
) -> bool:
    """Set names and their values; return False if one of them is left to the opcodes."""
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
    """Set an instance, a field, and a list of one instance; return False if one of them is left to
    the opcodes."""
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
    """Return an instance that has a tuple of references and constants."""
    node = Node(name, ())
    memo.append(node)
    found = known.get(text)
    if found is None:
        # Equal references lead to the same values, so the tuple is the same each time.
        values = tuple(_values(text, memo))
        found = known[text] = (values,), values
    node.state = found[1]
    memo.append(node.state)
    return node


def _values(text: bytes, memo: list[Any]) -> Iterator[Any]:
    """Yield the values of references and constants that follow one another."""
    position = 0
    while position < len(text):
        opcode = text[position]
        size = {_SHORT_GET: 2, _LONG_GET: _LONGEST_GET}.get(opcode, 1)
        yield (
            memo[_integer(text[position + 1 : position + size], "little")]
            if size > 1
            else _CONSTANTS[opcode]
        )
        position += size


def _key(text: bytes, memo: list[Any], known: Known) -> tuple[Sequence[Any], Any] | None:
    """Return the text that a reference leads to; None if it is something else, and left to the
    opcodes."""
    value = memo[_integer(text[1:], "little")]
    if type(value) is not str:
        return None
    known[text] = (), value
    return known[text]


def _value(text: bytes, memo: list[Any], known: Known) -> tuple[Sequence[Any], Any] | None:
    """Return what the opcodes of a value add to the memo, and the value; None if they are left to
    the opcodes."""
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
    """Return the same for a tuple of integers that becomes a ``torch.Size``, which is a tuple
    here."""
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

"""Sequences of opcodes that fill the index of a checkpoint, each read in one step.

Each begins after a reference to a name in the memo:

    size       tuple of integers, TUPLE1 MEMOIZE REDUCE MEMOIZE              the name is torch.Size
    instance   ) NEWOBJ MEMOIZE } MEMOIZE ( name value name value [name value] SETITEMS BUILD
    another    ) NEWOBJ MEMOIZE ( five references, or True, False or None, TUPLE MEMOIZE BUILD
    beginning  ) NEWOBJ MEMOIZE [} MEMOIZE] (                                what follows is read opcode by opcode

A name is a reference to the memo. A value is one too, or a new text, an integer, or a size. The expressions know no
lengths: a text with the byte 0x94 in it, or of another length than its first byte says, is left to the opcodes, and so
is everything else that is unusual.

They need a memo whose numbers never change their values, and no PUT opcodes.
"""

import re
from typing import Any, NamedTuple

from shardvar.wire.inert import SIZE, Global, Node

_GET, _INT = rb"(?:h.|j....)", rb"(?:K.|M..|J....)"
_TUPLE = rb"(?:\)|(?:" + _INT + rb"{1,3}[\x85-\x87]|\(" + _INT + rb"{4,16}t)\x94)"
_CALL = rb"\x85\x94R\x94"
_LONG = rb"\x8a\x05.....|\x8a\x06......"
_VALUE = _GET + _TUPLE + _CALL + rb"|" + _GET + rb"|" + _INT + rb"|" + _LONG + rb"|\x8c.[^\x94]*\x94"
_FIELD = rb"(" + _GET + rb")(" + _VALUE + rb")"
_INSTANCE = re.compile(rb"\)\x81\x94\}\x94\(" + _FIELD * 2 + rb"(?:" + _FIELD + rb")?ub", re.DOTALL)
_ANOTHER = re.compile(rb"\)\x81\x94\((" + (rb"(?:" + _GET + rb"|[\x88\x89N])") * 5 + rb")t\x94b", re.DOTALL)
_SIZE = re.compile(_TUPLE + _CALL, re.DOTALL)
_NUMBERS = re.compile(_INT, re.DOTALL)
_BEGIN_DICT, _BEGIN_TUPLE = b")\x81\x94}\x94(", b")\x81\x94("

_SIGNED, _LONG1, _TEXT1 = b"J\x8a\x8c"
_GETS, _INTS, _SHORT_GET, _LONG_GET = b"hj", b"KMJ", ord("h"), ord("j")
_CONSTANTS = {0x88: True, 0x89: False, ord("N"): None}
_LONGEST_GET = 5
"""Bytes of a reference to the memo with its opcode; a reference to ``torch.Size`` and its tuple take more."""
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
"""The number of items that TUPLE1, TUPLE2 and TUPLE3 take."""
_integer = int.from_bytes

Known = dict[bytes, tuple[Any, ...]]
"""The values that some opcodes add to the memo, and last the one that they push; none if they are left alone."""


class Effect(NamedTuple):
    """The effect of opcodes."""

    memo: list[Any]
    """The values that they add to the memo."""
    stack: list[Any]
    """The values that they push."""
    begins: bool
    """True if a mark follows."""
    stop: int
    """The offset after them."""


def read_usual(name: str, data: bytes, position: int, memo: list[Any], known: Known) -> Effect | None:
    """Return what the opcodes after a name do, from offset ``position`` on; None if they are not usual."""
    if name == SIZE:
        match = _SIZE.match(data, position)
        found = (known.get(match[0]) or _size(match[0], known)) if match else ()
        return Effect([*found[:-1]], [found[-1]], False, match.end()) if match and found else None
    if data.startswith(_BEGIN_DICT, position):
        instance = _instance(name, data, position, memo, known)
        if instance is not None:
            return instance
        values = [Node(name, ()), {}]
        return Effect(values, values, True, position + len(_BEGIN_DICT))
    if not data.startswith(_BEGIN_TUPLE, position):
        return None
    another = _ANOTHER.match(data, position)
    if another is not None:
        state = _values(another[1], memo)
        node = Node(name, (), state)
        return Effect([node, state], [node], False, another.end())
    node = Node(name, ())
    return Effect([node], [node], True, position + len(_BEGIN_TUPLE))


def _instance(name: str, data: bytes, position: int, memo: list[Any], known: Known) -> Effect | None:
    match = _INSTANCE.match(data, position)
    if match is None:
        return None
    state: dict[Any, Any] = {}
    node = Node(name, (), state)
    added = [node, state]
    texts = iter(match.groups())
    for key_text, text in zip(texts, texts, strict=True):
        if text is None:
            break
        opcode = text[0]
        if opcode in _GETS and len(text) <= _LONGEST_GET:
            number = _integer(text[1:], "little") - len(memo)
            value = memo[number] if number < 0 else added[number]  # if the number is new, a value of this instance
        elif opcode in _INTS:
            value = _integer(text[1:], "little", signed=opcode == _SIGNED)
        else:
            # Sizes and the names of files come again and again.
            found = known.get(text) or _value(text, memo, known)
            if not found:
                return None
            *more, value = found
            added += more
        key = memo[_integer(key_text[1:], "little")]
        if type(key) is not str:
            return None
        state[key] = value
    return Effect(added, [node], False, match.end())


def _values(text: bytes, memo: list[Any]) -> tuple[Any, ...]:
    """Return the values of references and constants that follow one another."""
    found, position = [], 0
    while position < len(text):
        opcode = text[position]
        size = {_SHORT_GET: 2, _LONG_GET: _LONGEST_GET}.get(opcode, 1)
        found.append(memo[_integer(text[position + 1 : position + size], "little")] if size > 1 else _CONSTANTS[opcode])
        position += size
    return tuple(found)


def _value(text: bytes, memo: list[Any], known: Known) -> tuple[Any, ...]:
    """Return what the opcodes of a value add to the memo, and the value; empty if they are left to the opcodes."""
    found: tuple[Any, ...] = ()
    if text[0] == _LONG1:
        found = (_integer(text[2:], "little", signed=True),)
    elif text[0] == _TEXT1:
        content = text[2:-1]  # without opcode and length in front, and MEMOIZE behind
        if len(content) == text[1]:
            decoded = content.decode("utf-8", "surrogatepass")
            found = decoded, decoded
    else:
        name_nbytes = 2 if text[0] == _SHORT_GET else _LONGEST_GET
        called = memo[_integer(text[1:name_nbytes], "little")]
        if type(called) is Global and called.name == SIZE:
            found = _size(text[name_nbytes:], known)
    known[text] = found
    return found


def _size(text: bytes, known: Known) -> tuple[Any, ...]:
    """Return the same for a tuple of integers that becomes a ``torch.Size``, which is a tuple here."""
    numbers = text[: -len(b"\x85\x94R\x94")]
    items = [_integer(each[1:], "little", signed=each[0] == _SIGNED) for each in _NUMBERS.findall(numbers)]
    # A tuple of more or fewer items than were pushed is left to the opcodes.
    is_whole = numbers == b")" or numbers[:1] == b"(" or _TUPLES.get(numbers[-2]) == len(items)
    size = tuple(items)
    found = ((size, (size,), size, size) if size else ((size,), size, size)) if is_whole else ()
    known[text] = found
    return found

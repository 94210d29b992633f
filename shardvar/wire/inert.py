"""Names and calls of a pickle, as values that do nothing.

    Global      a name
    Node        a call of a name, with its arguments, its state, and what would be appended to it
    Reference   an object outside of the pickle, such as a storage

Three calls have no effect but a plain value, and are made at once: ``torch.Size`` becomes a tuple,
``collections.OrderedDict`` a dict, and ``_codecs.encode``, with which protocol 2 writes bytes,
bytes. Where the types of values matter, the first two become ``Size`` and ``OrderedMap``.

Lists, dicts and nodes may be nested without bounds, may be shared and may contain themselves. So
nothing here recurses, and nothing that gets them may: not ``repr``, not ``==``, not ``hash``.
"""

from typing import Any

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
        """The name that would be called; a ``Node`` where the result of another call would be."""
        self.args = args
        """The arguments, usually a tuple."""
        self.state = state
        """The state that BUILD would set; None if there is none."""
        self.items: list[Any] | None = None
        """Items that would be appended to it or set in it, flat; None if nothing."""

    def __repr__(self) -> str:
        return f"Node({self.name!r})"  # not its parts, which may be nested without bounds


class Reference:
    """An object outside of the pickle, such as the storage of a tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
        """The description that the pickle gives of it."""


_HASHED = (str, int, float, bool, bytes, type(None), Global, Node, Reference)
"""Types whose hash is quick; the last three compare by identity."""


def name_of(called: Any) -> Any:
    return called.name if type(called) is Global else called


def call(called: Any, args: Any, is_typed: bool = False) -> Any:
    """Return what a call gives: a plain value where the result is known, else a node.

    With ``is_typed``, a ``torch.Size`` and an ``OrderedDict`` are distinguished from a tuple and a
    dict.
    """
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
    """Set keys and values, which follow each other in ``items``."""
    keys, values = items[::2], items[1::2]
    if type(target) is Node:
        target.items = [*(target.items or ()), *items]
    elif type(target) in (dict, OrderedMap) and all(map(_is_key, keys)):
        target.update(zip(keys, values, strict=True))
    else:
        raise TypeError


def _is_key(value: Any) -> bool:
    """Return True if a value may be a key: hashing it is quick, and goes no deeper than a few
    tuples."""
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

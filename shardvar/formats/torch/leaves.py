"""The leaves of a saved value: tensors and objects, each with the path that leads to it, joined by
dots.

Dicts are entered, and lists that hold a tensor or a dict at any depth; a list of numbers or names
is one object. These are the keys that torch.distributed.checkpoint gives the same value. An empty
dict has no leaves, and one with a key that has no text, such as a dtype of torch, is an object.

Two paths may have one text: ``{0: …}`` and ``{"0": …}``, or ``{"a.b": …}`` and ``{"a": {"b": …}}``.
Then neither is the value of that key.

Values are shared, nested and cyclic as the file likes, so nothing recurses, and the number of
leaves has a bound.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.torch.tensors import is_tensor
from shardvar.wire.damage import DISTRUST, check_key_nbytes
from shardvar.wire.inert import Node

_MIN_LEAVES, _MAX_DEPTH, _MAX_EXPANSION = 1 << 12, 100, 64
"""Bounds: the values of any file, however small; levels; and the characters of all keys, for each
byte of a file."""
_MAPPINGS = {"collections.defaultdict", "collections.OrderedDict", "collections.Counter"}
_SCALARS = (int, float, bool, type(None))
_KEY_LENGTH = 256
"""The longest text in a tuple that is a key."""


def leaves_of(root: Any, nbytes: int = 0) -> tuple[dict[str, Any], set[str]]:
    """Return the leaves by key, and the keys that two leaves have.

    ``nbytes`` is the size of the pickle, and bounds the number of values: each takes a byte, unless
    it is shared.

    >>> leaves_of({"a": {"b": 1}, "c": [1, 2], "a.b": 3, "d": [{"e": None}]})
    ({'a.b': 1, 'c': [1, 2], 'd.0.e': None}, {'a.b'})
    """
    entered = _entered(root)
    leaves: dict[str, Any] = {}
    clashes: set[str] = set()
    for key, value in _walk(root, entered, max(nbytes, _MIN_LEAVES)):
        if key in leaves:
            clashes.add(key)
        leaves.setdefault(key, value)
    check_key_nbytes(max((len(key.encode("utf-8", "surrogatepass")) for key in leaves), default=0))
    return leaves, clashes


def _walk(root: Any, entered: set[int], most: int) -> Iterator[tuple[str, Any]]:
    """Yield the leaves in order, with their keys."""
    left: list[tuple[str, int, Any]] = [("", 0, root)]
    count = length = 0
    while left:
        key, depth, value = left.pop()
        # Values that are shared have many keys, and keys repeat the names of all levels above.
        count, length = count + 1, length + len(key)
        if count > most or depth > _MAX_DEPTH or length > most * _MAX_EXPANSION:
            cause = (
                f"The file describes more than {most} values, or more than {_MAX_DEPTH} levels of "
                "them."
            )
            raise InvalidCheckpoint(cause, DISTRUST)
        pairs = _pairs(value) if id(value) in entered else None
        if pairs is None:
            yield key, value
        else:
            prefix = f"{key}." if depth else ""
            left += [(prefix + step, depth + 1, each) for step, each in reversed([*pairs])]


def _entered(root: Any) -> set[int]:
    """Return the identities of the containers whose items are leaves: dicts, and lists that lead to
    one or a tensor."""
    # Every container once, with the containers that hold it; then upwards from dicts and tensors.
    holders: dict[int, list[int]] = {}
    leading: list[int] = []
    left, seen = [root], {id(root)}
    while left:
        value = left.pop()
        pairs = _pairs(value)
        if pairs is None:
            continue
        if type(value) not in (list, tuple):
            leading.append(id(value))
        for _, each in pairs:
            if is_tensor(each):
                leading.append(id(value))
            elif _pairs(each) is not None:
                holders.setdefault(id(each), []).append(id(value))
                if id(each) not in seen:
                    seen.add(id(each))
                    left.append(each)
    entered: set[int] = set()
    while leading:
        number = leading.pop()
        if number not in entered:
            entered.add(number)
            leading += holders.get(number, ())
    return entered


def _pairs(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the steps to the items of a container, and the items; None for everything else."""
    if type(value) in (list, tuple):
        return zip(map(str, range(len(value))), value, strict=True)
    if type(value) is dict:
        keys, values = [*value], [*value.values()]
    elif type(value) is Node and type(value.name) is str and value.name in _MAPPINGS:
        # A counter's items are its argument, the others' items are set afterwards.
        given = [each for each in _arguments(value) if type(each) is dict]
        items = [
            *(pair for each in given for item in each.items() for pair in item),
            *(value.items or ()),
        ]
        keys, values = items[::2], items[1::2]
    else:
        return None
    if not all(type(key) is str or _has_text(key) for key in keys):
        return None
    return zip(map(str, keys), values, strict=True)


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args if type(node.args) is tuple else ()


def _has_text(key: Any) -> bool:
    """Return True if a key that is not text is a short plain value, whose text is its name.

    >>> _has_text((1, "a")), _has_text(b"a"), _has_text(Node("torch.device", ()))
    (True, True, False)
    """
    return all(
        (type(item) in _SCALARS and (type(item) is not int or item.bit_length() <= 64))
        or (type(item) in (str, bytes) and len(item) <= _KEY_LENGTH)
        for item in (key if type(key) is tuple else (key,))
    )

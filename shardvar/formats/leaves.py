"""The leaves of a tree of containers, by keys: of what ``torch.save`` and Flax have saved.

The keys are the paths of the leaves, tensors and objects, joined by dots. Dicts are entered, and
lists that hold a tensor or a dict at any depth; a list of numbers or names is one object, and so is
the state of a generator of NumPy. These are the keys that torch.distributed.checkpoint gives the same
value. An empty dict has no leaves, and one with a key that has no text, such as a dtype of torch, is an
object.

Two paths may have one text: ``{0: …}`` and ``{"0": …}``, or ``{"a.b": …}`` and ``{"a": {"b": …}}``.
Then neither is the value of that key.

Values are shared, nested and cyclic as the file likes, so nothing recurses, and the number of
leaves has a bound.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from shardvar.limits import MAX_NESTING
from shardvar.wire.damage import check_key_nbytes, distrusted
from shardvar.wire.plain import Node, OrderedMap

_MIN_LEAVES, _MAX_EXPANSION, _LEAF_NBYTES = 1 << 12, 64, 4
"""Bounds: the values of any file, however small; the characters of all keys, for each byte of a
file; and the bytes of a value with its name. (An item of a list of numbers has fewer, but such a
list is one value.)"""
_MAPPINGS = {"collections.defaultdict", "collections.OrderedDict", "collections.Counter"}
_SCALARS = (int, float, bool, type(None))
_KEY_LENGTH = 256
"""The longest text in a tuple that is a key."""


def leaves_of(
    root: Any, is_tensor: Callable[[Any], bool], nbytes: int = 0, whole: Collection[str] = ()
) -> tuple[dict[str, Any], set[str]]:
    """Return the leaves by key, and the keys that two leaves have.

    Values of the keys ``whole`` are not entered. The file or its pickle has ``nbytes``, which bounds
    the number of values.
    >>> leaves_of({"a": {"b": 1}, "c": [1, 2], "a.b": 3, "d": [{"e": None}]}, lambda value: False)
    ({'a.b': 1, 'c': [1, 2], 'd.0.e': None}, {'a.b'})
    """
    entered = _entered(root, is_tensor)
    leaves: dict[str, Any] = {}
    clashes: set[str] = set()
    for key, value in _walk(root, entered, max(nbytes, _MIN_LEAVES), whole):
        if key in leaves:
            clashes.add(key)
        leaves.setdefault(key, value)
    check_key_nbytes(max((len(key.encode("utf-8", "surrogatepass")) for key in leaves), default=0))
    return leaves, clashes


def _walk(
    root: Any, entered: set[int], most: int, whole: Collection[str]
) -> Iterator[tuple[str, Any]]:
    # The items of each level that are still to come; the root is the item above the first.
    left: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([("", root)]))]
    count = length = 0
    while left:
        prefix, items = left[-1]
        step, value = next(items, ("", left))
        if value is left:
            left.pop()
            continue
        key, depth = prefix + step, len(left) - 1
        # Values that are shared have many keys, and keys repeat the names of all levels above.
        count, length = count + 1, length + len(key)
        is_deep = depth > MAX_NESTING or length > most * _MAX_EXPANSION
        if is_deep or count > max(most // _LEAF_NBYTES, _MIN_LEAVES):
            raise distrusted(
                f"The file describes more values than its {most} bytes can hold, or more than "
                f"{MAX_NESTING} levels of them."
            )
        is_entered = type(value) not in (list, tuple) or id(value) in entered
        keys, values = _items(value) if is_entered and not (depth and key in whole) else (None, ())
        if keys is None:
            yield key, value
        else:
            pairs = zip(map(str, keys), values, strict=True)
            left.append((f"{key}." if depth else "", pairs))


def _entered(root: Any, is_tensor: Callable[[Any], bool]) -> set[int]:
    """Return the identities of the lists that are entered, which lead to a dict or a tensor."""
    # Level by level every container once, with the lists that hold it; then upwards from dicts and
    # tensors. Empty containers lead nowhere: a byte of the file makes one, so none is kept.
    holders: dict[int, list[int]] = {}
    seen, leading = {id(root)}, list[int]()
    level = [root]
    for _ in range(MAX_NESTING):  # a deeper value is an object that cannot be read
        below = []
        for value in level:
            if is_generator_state(value):
                continue
            is_leading = False
            for each in _items(value)[1]:
                keys, values = _items(each)
                is_leading |= is_tensor(each) or (
                    keys is not None and type(each) not in (list, tuple)
                )
                if not values:
                    continue
                if type(each) in (list, tuple):
                    holders.setdefault(id(each), []).append(id(value))
                if id(each) not in seen:
                    seen.add(id(each))
                    below.append(each)
            if is_leading:
                leading.append(id(value))
        level = below
    entered: set[int] = set()
    while leading:
        number = leading.pop()
        if number not in entered:
            entered.add(number)
            leading += holders.get(number, ())
    return entered


_LEGACY = "MT19937", (int, float)
"""The name and the types of the numbers in the state of ``numpy.random.RandomState``."""
_WORDS = re.compile(r"(?:(.*)\.)?(?:state\.(?:key|state|counter)|buffer)", re.DOTALL)
"""The keys of the arrays in the dict of any other generator."""


def is_generator_state(value: Any) -> bool:
    """Return True for NumPy's state of a random generator: a tuple with its name, or a dict."""
    if type(value) in (list, tuple):
        name, kinds = _LEGACY
        is_state = len(value) in (3, 5) and type(value[0]) is str and value[0] == name
        return is_state and all(type(each) in kinds for each in value[2:])
    return isinstance(value, dict) and type(value.get("bit_generator")) is str and "state" in value


def is_in_generator(key: str, leaves: Mapping[str, Any]) -> bool:
    found = _WORDS.fullmatch(key)
    name = "bit_generator" if found is None or found[1] is None else f"{found[1]}.bit_generator"
    return found is not None and type(leaves.get(name)) is str


def _items(value: Any) -> tuple[Sequence[Any] | None, Sequence[Any]]:
    """Return the steps to the items of a list or a dict of names, and the items; else None."""
    if type(value) in (list, tuple):
        return range(len(value)), value
    if type(value) in (dict, OrderedMap):
        keys, values = [*value], [*value.values()]
    elif type(value) is Node and type(value.name) is str and value.name in _MAPPINGS:
        # A counter's items are its argument, the others' items are set afterwards.
        args = value.args if type(value.args) is tuple else ()
        given = [each for each in args if isinstance(each, dict)]
        items = [
            *(pair for each in given for item in each.items() for pair in item),
            *(value.items or ()),
        ]
        keys, values = items[::2], items[1::2]
    else:
        return None, ()
    if not all(type(key) is str or _has_text(key) for key in keys):
        return None, ()
    return keys, values


def _has_text(key: Any) -> bool:
    """Return True if a key that is not text is a short plain value, whose text is its name."""
    return all(
        (type(item) in _SCALARS and (type(item) is not int or item.bit_length() <= 64))
        or (type(item) in (str, bytes) and len(item) <= _KEY_LENGTH)
        for item in (key if isinstance(key, tuple) else (key,))
    )

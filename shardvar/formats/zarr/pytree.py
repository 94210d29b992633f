"""The index of a checkpoint of Orbax, ``_METADATA``: the leaves of a tree of Python containers.

    {"tree_metadata": {"('params', 'w')": {"key_metadata": [{"key": "params", "key_type": 2}, {"key": "w", ...}],
                                           "value_metadata": {"value_type": "jax.Array", "skip_deserialize": false}}},
     "use_ocdbt": true, "use_zarr3": false, "custom_metadata": {...}}

A leaf's key is its path joined by dots, and its array has the same name. Orbax itself does not tell
{"a.b": …} from {"a": {"b": …}} by these names. An empty container and None are leaves without an
array. Strings are in one file, ``_strings.json``.

Without ``_METADATA``, the arrays that are there are the leaves, and what is lost cannot be noticed.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardvar.errors import CheckpointError, InvalidCheckpoint, UnsupportedError
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.wire.damage import WRITE_AGAIN, check_key_nbytes, invalid, past_limit
from shardvar.wire.zarr_metadata import parse_object

_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")
"""Types of leaves that have no array."""
_STRING = "string"


@dataclass(frozen=True, slots=True)
class PyTree:
    """The leaves of a checkpoint."""

    arrays: list[str]
    """The keys of arrays."""
    strings: list[str] = field(default_factory=list)
    """The keys of strings."""
    empty: dict[str, str] = field(default_factory=dict)
    """The keys of leaves that have no array, each with its type."""
    faults: dict[str, CheckpointError] = field(default_factory=dict)
    """Keys that two leaves have."""
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    """The steps that lead to each key; the keys of lists are numbers."""
    custom: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user stored with it."""
    is_ocdbt: bool | None = None
    """True if the arrays are in a database; None if the index does not say."""


def parse_tree(data: bytes) -> PyTree:
    """Return the leaves that an index lists.

    >>> leaf = b'{"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "np.ndarray"}}'
    >>> parse_tree(b'{"tree_metadata": {"x": %s}, "use_ocdbt": false}' % leaf).arrays
    ['a']
    """
    if len(data) > MAX_TREE_NBYTES:
        raise past_limit(f"The index has {len(data)} bytes", "MAX_TREE_NBYTES")
    index = parse_object(data, "the index of a checkpoint of Orbax")
    leaves = index.get("tree_metadata")
    if type(leaves) is not dict:
        raise invalid("The index has no tree_metadata.")
    custom, is_ocdbt = index.get("custom_metadata"), index.get("use_ocdbt")
    tree = PyTree(
        [],
        custom=custom if type(custom) is dict else {},
        is_ocdbt=is_ocdbt if type(is_ocdbt) is bool else None,
    )
    seen: set[str] = set()
    for key, path, kind in map(_leaf, leaves.values()):
        tree.paths[key] = path
        if key in seen and kind not in _EMPTY:
            tree.faults[key] = InvalidCheckpoint(
                f"Two leaves have the key {key!r}, and one array.", WRITE_AGAIN
            )
        seen.add(key)
        if kind in _EMPTY:
            tree.empty[key] = kind
        elif kind == _STRING:
            tree.strings.append(key)
        elif key not in tree.faults:
            tree.arrays.append(key)
    check_key_nbytes(max((len(key.encode("utf-8", "surrogatepass")) for key in seen), default=0))
    return tree


def _leaf(leaf: Any) -> tuple[str, tuple[str | int, ...], str]:
    """Return the key, the path and the type of a leaf."""
    steps = leaf.get("key_metadata") if type(leaf) is dict else None
    value = leaf.get("value_metadata") if type(leaf) is dict else None
    kind = value.get("value_type") if type(value) is dict else None
    if type(steps) is not list or type(kind) is not str:
        raise invalid("A leaf of the index lacks key_metadata or value_metadata.")
    names = [step.get("key") if type(step) is dict else None for step in steps]
    if not all(type(name) in (str, int) for name in names):
        raise invalid("A leaf of the index has a path that is not a list of names.")
    path = tuple(_step(step) for step in steps)
    return ".".join(map(str, names)), path, kind


_DICT, _LIST = 2, 1
"""The types of the containers that a step of a path leads into."""


def _step(step: Mapping[str, Any]) -> str | int:
    """Return a step of a path: the number of an item of a list, or the name of one of a dict."""
    name = str(step["key"])
    return (
        int(name)
        if step.get("key_type") == _LIST and re.fullmatch(r"\d{1,9}", name, re.ASCII)
        else name
    )


def _apart(keys: Collection[str], empty: Mapping[str, str]) -> dict[str, str]:
    """Return the empty leaves that are neither above a key nor below one."""
    above = _above(keys)
    return {
        key: kind
        for key, kind in empty.items()
        if key not in above and _above([key]).isdisjoint(keys)
    }


def _above(keys: Iterable[str]) -> set[str]:
    """Return the keys that others lead through."""
    return {
        ".".join(parts[:count])
        for parts in (key.split(".") for key in keys)
        for count in range(1, len(parts))
    }


_MAX_GAPS = 1 << 16
"""The most items that lists may lack."""


def _gaps(paths: Iterable[tuple[str | int, ...]]) -> set[tuple[str | int, ...]]:
    """Return the paths of the items that lists lack before their last ones.

    >>> _gaps([("a", 2, "b"), ("a", 0)])
    {('a', 1)}
    """
    counts: dict[tuple[str | int, ...], int] = {}
    there: set[tuple[str | int, ...]] = set()
    for path in paths:
        for place, step in enumerate(path):
            if type(step) is int:
                counts[path[:place]] = max(counts.get(path[:place], 0), step)
            there.add(path[: place + 1])
    if sum(counts.values()) - len(there) > _MAX_GAPS:
        cause = f"The format orbax cannot hold lists that lack more than {_MAX_GAPS} items."
        raise UnsupportedError(cause, "Rename the tensors (--rename).")
    items = ((*above, number) for above, count in counts.items() for number in range(count))
    return {item for item in items if item not in there}


def build_tree(
    arrays: Sequence[str],
    paths: Mapping[str, tuple[str | int, ...]],
    custom: Mapping[str, str],
    strings: Sequence[str] = (),
    is_ocdbt: bool = False,
    empty: Mapping[str, str] | None = None,
) -> bytes:
    """Return the index of arrays, which are in a database if ``is_ocdbt``, of strings, and of
    ``empty`` leaves with their types.

    Leaves are in the order of Orbax: keys of dicts sorted, items of lists by number. A key is cut at
    its dots, unless ``paths`` has its steps. An item of a list without a key, such as an empty state of
    an optimizer, is None: Orbax counts items. ``UnsupportedError`` for a key that leads through
    another.

    >>> parse_tree(build_tree(["a.w", "b"], {}, {"by": "me"})).arrays
    ['a.w', 'b']
    """
    kinds = dict.fromkeys(arrays, "np.ndarray") | dict.fromkeys(strings, _STRING)
    kinds = _apart(kinds, empty or {}) | kinds
    leaves, keys = {}, [*kinds]
    steps_of = {}
    for key in keys:
        steps = paths.get(key, ())
        steps_of[key] = steps if ".".join(map(str, steps)) == key else tuple(key.split("."))
    for steps in _gaps(steps_of.values()):
        key = ".".join(map(str, steps))
        steps_of[key], kinds[key] = steps, _EMPTY[0]
    order = sorted(steps_of, key=lambda key: [(type(step) is str, step) for step in steps_of[key]])
    for key in order:
        steps, kind = steps_of[key], kinds[key]
        leaves[str(tuple(map(str, steps)))] = {
            "key_metadata": [
                {"key": str(step), "key_type": _LIST if type(step) is int else _DICT}
                for step in steps
            ],
            "value_metadata": {"value_type": kind, "skip_deserialize": kind in _EMPTY},
        }
    both = sorted(_above(keys).intersection(keys))
    if both:
        cause = (
            f"The format orbax cannot hold {both[0]!r} together with keys that begin with "
            f"{both[0] + '.'!r}."
        )
        raise UnsupportedError(cause, "Rename one of them (--rename).")
    index = {
        "tree_metadata": leaves,
        "use_ocdbt": is_ocdbt,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": dict(custom) or None,
    }
    return json.dumps(index).encode()

"""Attributes of a module: what may become one, and lists, tuples and dictionaries that are tracked with their items.

``self.blocks = [block, block]`` keeps being a list; it also is a child of the module, and its own children are its
items by their numbers, or by their keys. One that grows later tells the hook that waits for children, as an attribute
does. A tuple never changes: it stays what it is, and a node beside it has its children.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self, SupportsIndex

from shardvar.errors import ArgumentError
from shardvar.tracking import Trackable
from shardvar.variables import Variable


def as_attribute(value: Any) -> Any:
    """``value`` as it is kept: plain lists and dictionaries become tracked ones, all else is what it was.

    R-MODULE-1 (RFC 000): "We should disallow assigning component variables of a sharded variable to object attributes.
    It will result in unnecessary data duplications in checkpoints".
    """
    if isinstance(value, Variable) and value.container is not None:
        raise ArgumentError(
            f"{value.name} is a shard of {value.container.name}, and shards are no attributes: "
            "they would be saved twice, and could not be restored to another number of shards.",
            "Assign the sharded variable itself.",
        )
    if type(value) is list:
        return TrackedList(value)
    if type(value) is dict:
        return TrackedDict(value)
    if isinstance(value, tuple):
        for item in value:
            as_attribute(item)
    return value


def node_of(value: Any) -> Trackable | None:
    """The node that an attribute is in the graph of objects; None where it has no state."""
    if isinstance(value, tuple):
        node = TupleNode(value)
        return node if node.children else None
    return value if isinstance(value, Trackable) else None


class _Container(Trackable):
    """What the containers share: their children are their items of now."""

    def named_items(self) -> Iterator[tuple[str, Any]]:
        """The items, and the names that they have as children."""
        raise NotImplementedError

    @property
    def children(self) -> Mapping[str, Trackable]:
        nodes = ((name, node_of(item)) for name, item in self.named_items())
        return MappingProxyType({name: node for name, node in nodes if node is not None})

    def _announce(self) -> None:
        """Tell the hook of the children that it has not been told of; items that left are forgotten."""
        told: dict[str, Trackable] = self.__dict__.setdefault("_children", {})
        children = self.children
        for name in told.keys() - children.keys():
            self.untrack(name)
        for name, child in children.items():
            if told.get(name) is not child:
                self.track(name, child)


class TrackedList(list[Any], _Container):
    """A list whose items are children, named '0', '1', ..."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(map(as_attribute, items))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(number), item) for number, item in enumerate(self))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, [*map(as_attribute, value)] if isinstance(index, slice) else as_attribute(value))
        self._announce()

    def append(self, item: Any) -> None:
        self[len(self) :] = [item]

    def extend(self, items: Iterable[Any]) -> None:
        self[len(self) :] = items

    def insert(self, index: SupportsIndex, item: Any) -> None:
        self[index:index] = [item]

    def __iadd__(self, items: Iterable[Any]) -> Self:  # type: ignore[misc]  # list's own is narrower than its +
        self.extend(items)
        return self

    def __copy__(self) -> Self:
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        from copy import deepcopy

        twin = memo[id(self)] = type(self)()
        twin.extend([deepcopy(item, memo) for item in self])
        return twin


class TrackedDict(dict[Any, Any], _Container):
    """A dictionary whose values are children, named by their keys."""

    def __init__(self, items: Mapping[Any, Any] | None = None) -> None:
        super().__init__(_entries(items or {}))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(key), value) for key, value in self.items())

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({key: value})

    def update(self, *others: Any, **items: Any) -> None:
        entries = _entries({**self, **dict(*others, **items)})
        super().update(entries)
        self._announce()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # dict's own has an overload for each kind
        self.update(other)
        return self

    def __copy__(self) -> Self:
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        from copy import deepcopy

        twin = memo[id(self)] = type(self)()
        twin.update({deepcopy(key, memo): deepcopy(value, memo) for key, value in self.items()})
        return twin


def _entries(items: Mapping[Any, Any]) -> dict[Any, Any]:
    """The entries as they are kept, no two of them children of one name.

    R-MODULE-3: a child is saved under its name; of two that have one name, the second would be lost.
    """
    entries = {key: as_attribute(value) for key, value in items.items()}
    named: dict[str, Any] = {}
    for key, value in entries.items():
        if node_of(value) is not None and named.setdefault(str(key), key) is not key:
            raise ArgumentError(
                f"The keys {named[str(key)]!r} and {key!r} are both children named {str(key)!r}.",
                "Give keys that differ as text: of two children of one name, one would not be saved.",
            )
    return entries


class TupleNode(_Container):
    """The node of a tuple; its children are the items, named '0', '1', ..."""

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = tuple(map(as_attribute, items))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(number), item) for number, item in enumerate(self._items))

"""Plain dictionaries, lists and tuples as nodes of the graph of objects.

Their items are looked at anew whenever the graph is walked. They cannot tell when an item appears, as the attributes of
a module can; what appears in them is found by the next ``read``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.tracking import Trackable


class ContainerNode(Trackable):
    """A plain container; its children are those of its items of now that have state."""

    def __init__(self, items: Any, known: "dict[int, ContainerNode]") -> None:
        self._items = items
        self._known = known
        known[id(items)] = self

    @property
    def children(self) -> Mapping[str, Trackable]:
        nodes: dict[str, Trackable] = {}
        for name, item in self._items.items() if isinstance(self._items, Mapping) else enumerate(self._items):
            node = node_of(item, self._known)
            if node is None:
                continue
            if str(name) in nodes:
                raise ArgumentError(f"Two items of a dictionary have keys that read {str(name)!r}.", "Rename one.")
            nodes[str(name)] = node
        return MappingProxyType(nodes)


def node_of(value: Any, known: dict[int, ContainerNode]) -> Trackable | None:
    """The node that a value is, None for one without state; ``known`` keeps one node a container, even in a cycle."""
    if isinstance(value, Trackable):
        return value
    if not isinstance(value, Mapping | list | tuple):
        return None
    return known.get(id(value)) or ContainerNode(value, known)

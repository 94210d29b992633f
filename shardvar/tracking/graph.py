"""ObjectGraph: who is whose child, under which name, frozen at one moment.

Objects are compared by identity; a cycle, or an object with two parents, is one node. Breadth first, children in the
order of their names' appearance, so that the same program gives the same numbers.

Slots come last. A slot whose other object is in the graph is found by that object and not as a child: names of
variables may be alike, and in another program come in another order. One whose other object is not in the graph is a
child like any other.
"""

from dataclasses import dataclass
from typing import Final, Self

from shardvar.tracking.trackable import Trackable


class _Marker(str):
    """A step of a path that is no name."""

    __slots__ = ()


SLOT: Final = _Marker(".OPTIMIZER_SLOT")
"""Stands in the path of a slot between the path of the other object and that of whoever keeps the slot; spelt as
TensorFlow does, and told from a name by its identity."""


@dataclass(frozen=True, slots=True)
class SlotEdge:
    """That an object keeps a slot beside another; all three by their positions in ``objects``."""

    owner: int
    """Who keeps it."""
    beside: int
    """The other object."""
    name: str
    """The slot's name."""
    slot: int
    """The slot."""


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """The objects that are reachable from a root, and the edges between them."""

    objects: tuple[Trackable, ...]
    """The nodes; the root is the first."""
    edges: tuple[tuple[tuple[str, int], ...], ...]
    """For each node its children: name, and position in ``objects``."""
    slots: tuple[SlotEdge, ...] = ()
    """The slots beside objects of the graph."""

    @classmethod
    def of(cls, root: Trackable) -> Self:
        """The graph as it stands."""
        objects = [root]
        position = {id(root): 0}
        edges: list[list[tuple[str, int]]] = []
        delayed = []

        def number_of(node: Trackable) -> int:
            number = position.setdefault(id(node), len(objects))
            if number == len(objects):
                objects.append(node)
            return number

        def visit_new() -> None:
            for number in range(len(edges), 1 << 62):
                if number == len(objects):  # grows while it is walked
                    return
                parent = objects[number]
                slots = parent.child_slots
                row = []
                for name, child in parent.children.items():
                    if name in slots:
                        delayed.append((number, name, child, slots[name]))
                    else:
                        row.append((name, number_of(child)))
                edges.append(row)

        visit_new()
        found = []
        for owner, name, child, slot in delayed:  # grows where what a slot brings with it has slots
            beside = position.get(id(slot.beside))
            if beside is None:
                edges[owner].append((name, number_of(child)))
            else:
                found.append(SlotEdge(owner, beside, slot.name, number_of(child)))
            visit_new()
        return cls(tuple(objects), tuple(map(tuple, edges)), tuple(found))

    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The names on the shortest way from the root to each node; the root's is empty.

        A slot's is the path of the other object, ``SLOT``, the path of whoever keeps it, and its name.

        >>> root = Trackable()
        >>> _ = root.track("layer", Trackable()).track("again", root)
        >>> ObjectGraph.of(root).paths()
        ((), ('layer',))
        """
        paths: list[tuple[str, ...] | None] = [None] * len(self.objects)
        paths[0] = ()
        slots = {edge.slot: edge for edge in self.slots}
        for node, row in enumerate(self.edges):
            path = paths[node]
            if path is None and node in slots:
                edge = slots[node]
                path = paths[node] = (*(paths[edge.beside] or ()), SLOT, *(paths[edge.owner] or ()), edge.name)
            for name, child in row:
                if paths[child] is None:
                    paths[child] = (*(path or ()), name)
        return tuple(path or () for path in paths)

"""ObjectGraph: who is whose child, under which name, frozen at one moment.

Objects are compared by identity; a cycle, or an object with two parents, is one node. Breadth first, children in the
order of their names' appearance, so that the same program gives the same numbers.
"""

from dataclasses import dataclass
from typing import Self

from shardvar.tracking.trackable import Trackable


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """The objects that are reachable from a root, and the edges between them."""

    objects: tuple[Trackable, ...]
    """The nodes; the root is the first."""
    edges: tuple[tuple[tuple[str, int], ...], ...]
    """For each node its children: name, and position in ``objects``."""

    @classmethod
    def of(cls, root: Trackable) -> Self:
        """The graph as it stands."""
        objects = [root]
        position = {id(root): 0}
        edges = []
        for parent in objects:  # grows while it is walked
            row = []
            for name, child in parent.children.items():
                if id(child) not in position:
                    position[id(child)] = len(objects)
                    objects.append(child)
                row.append((name, position[id(child)]))
            edges.append(tuple(row))
        return cls(tuple(objects), tuple(edges))

    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The names on the shortest way from the root to each node; the root's is empty.

        >>> root = Trackable()
        >>> _ = root.track("layer", Trackable()).track("again", root)
        >>> ObjectGraph.of(root).paths()
        ((), ('layer',))
        """
        paths: list[tuple[str, ...] | None] = [None] * len(self.objects)
        paths[0] = ()
        for node, row in enumerate(self.edges):
            for name, child in row:
                if paths[child] is None:
                    paths[child] = (*(paths[node] or ()), name)
        return tuple(path or () for path in paths)

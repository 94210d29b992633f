"""Objects with named children, and the frozen graph that they form.

A restore may come before the objects that it restores. It leaves a hook on the parent, and
``track`` calls the hook with each child that appears; the hook may leave another one on that child.
So a variable is restored when it is attached, before other code can read it, and this layer need
not know what restoring is. Several restores may wait for the children of one object, so it may have
several hooks. They belong to the object, not to the process: restores of two models never meet.

The state of a variable is its value. The state of most objects is the state of their children.
``Stateful`` is for the rest (a vocabulary, the position in an input, a schedule): such an object
names arrays to save, and takes them back. Each array is a tensor of the checkpoint, under the key
``path/.ATTRIBUTES/name``.

Subclasses need not call ``__init__``: every attribute of this module is made in ``__dict__`` when
it is first needed.

Objects are compared by identity, so a cycle, or an object with two parents, is one node. The walk
is breadth first, with children in the order in which their names appeared: the same program gives
the same numbers.

Slots come last. A slot whose variable is in the graph is reached through that variable and not as a
child, because variables may share a name, and may come in another order in another program. A slot
whose variable is not in the graph is a child like any other.

Plain dictionaries, lists and tuples become nodes through ``node_of``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from itertools import count
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.records import entity, frozen

__all__ = ["SLOT", "ChildHook", "ObjectGraph", "Slot", "SlotEdge", "Stateful", "Trackable"]

_T = TypeVar("_T", bound="Trackable")

ChildHook = Callable[["Trackable", str, "Trackable"], None]
"""Called as ``hook(parent, name, child)`` once the child is in its parent's table."""


@entity
class Slot:
    """The role of a child that belongs to another object, as moments to a variable."""

    variable: "Trackable"
    """The object that the child belongs to."""
    name: str
    """The role, such as "momentum". The child is found by ``variable`` and this name, not by its
    own name."""


class Trackable:
    """An object whose state is its own and its named children's."""

    _children: dict[str, "Trackable"]
    _child_slots: dict[str, Slot]
    _child_hooks: tuple[ChildHook, ...]

    other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names of children and slots in other libraries, by their names here. Checkpoints are read and
    written under both."""

    @property
    def children(self) -> Mapping[str, "Trackable"]:
        """The tracked children by name, in the order of appearance; a read-only view."""
        return MappingProxyType(self.__dict__.get("_children", {}))

    @property
    def child_slots(self) -> Mapping[str, Slot]:
        """The roles of the children that are slots, by the children's names; a read-only view."""
        return MappingProxyType(self.__dict__.get("_child_slots", {}))

    def track_slot(self, name: str, child: _T, beside: "Trackable", slot_name: str) -> _T:
        """Track a child that belongs to another object as its slot.

        See ``track`` for the other parameters.

        Parameters
        ----------
        beside : Trackable
            The object that the child belongs to.
        slot_name : str
            The role of the child there, such as "momentum".
        """
        return _add(self, name, child, Slot(beside, slot_name))

    def track(self, name: str, child: _T) -> _T:
        """Add a child, in the place of an older one of its name, and call the hooks.

        Parameters
        ----------
        name : str
            The name of the child.
        child : Trackable
            The child.

        Returns
        -------
        Trackable
            The child.

        Raises
        ------
        ArgumentTypeError
            If ``child`` is not a ``Trackable``.
        """
        return _add(self, name, child, None)

    def untrack(self, name: str) -> None:
        """Remove a child, if there is one of that name.

        Parameters
        ----------
        name : str
            The name of the child.
        """
        self.__dict__.get("_children", {}).pop(name, None)
        self.__dict__.get("_child_slots", {}).pop(name, None)

    @property
    def child_hooks(self) -> tuple[ChildHook, ...]:
        """The hooks for children that appear, in the order in which they are called."""
        hooks: tuple[ChildHook, ...] = self.__dict__.get("_child_hooks", ())
        return hooks

    def await_children(self, *hooks: ChildHook) -> None:
        """Set the hooks for children that appear from now on, in the place of those before.

        Parameters
        ----------
        *hooks : callable
            Called as ``hook(parent, name, child)`` once the child is in its parent's table.
        """
        self.__dict__["_child_hooks"] = hooks


def _add(parent: Trackable, name: str, child: _T, role: Slot | None) -> _T:
    """Add a child, which is a slot if it has a role, and call the hooks."""
    if not isinstance(child, Trackable):
        raise ArgumentTypeError(
            f"The child {name!r} is {child!r}.", "Track objects that are Trackable."
        )
    # Child and role are in the tables before a hook runs, so that the hook may walk the graph from
    # here. A child in the place of a slot does not take over its role.
    tables = vars(parent)
    tables.setdefault("_children", {})[name] = child
    if role is not None:
        tables.setdefault("_child_slots", {})[name] = role
    else:
        tables.get("_child_slots", {}).pop(name, None)
    for hook in parent.child_hooks:
        hook(parent, name, child)
    return child


class Stateful(Trackable, ABC):
    """A trackable object with state in addition to its children's.

    Examples
    --------
    >>> import numpy as np
    >>> class Vocabulary(Stateful):
    ...     def __init__(self, words):
    ...         self.words = words
    ...
    ...     def state(self):
    ...         return {"words": np.array(self.words, dtype=object)}
    ...
    ...     def restore_state(self, values):
    ...         self.words = list(values["words"])
    >>> vocabulary = Vocabulary([b"a"])
    >>> vocabulary.restore_state(Vocabulary([b"b", b"c"]).state())
    >>> vocabulary.words
    [b'b', b'c']
    """

    @abstractmethod
    def state(self) -> Mapping[str, npt.ArrayLike]:
        """Return the arrays to save, by names that this object chooses.

        Notes
        -----
        Called once a save, in the thread that saves, before the values of variables are taken; the
        arrays are copied then. Also called before a restore: the answer goes back to
        ``restore_state`` if the restore fails.
        """

    @abstractmethod
    def restore_state(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the arrays of a checkpoint.

        Parameters
        ----------
        values : mapping of str to ndarray
            The arrays by their names, with the dtypes and shapes that they were stored with.

        Notes
        -----
        Called once a restore, before any variable is written. To refuse the arrays, raise any error
        and change nothing: the whole checkpoint is then refused, and objects that took theirs
        before get their old arrays back.
        """


class _Marker(str):
    """A step of a path that is not a child's name."""

    __slots__ = ()


SLOT: Final = _Marker(".OPTIMIZER_SLOT")
"""Separates, in the path of a slot, the path of the variable from the path of the optimizer. The
text is TensorFlow's. Code compares by identity, since a child may have a name of the same
letters."""


@frozen
class SlotEdge:
    """An edge from an object to a slot that it keeps for another, by their numbers."""

    owner: int
    """The object that keeps the slot, such as an optimizer."""
    variable: int
    """The object that the slot belongs to, such as a variable."""
    name: str
    """The role of the slot, such as "momentum"."""
    slot: int
    """The slot."""


@frozen
class ObjectGraph:
    """The objects that are reachable from a root, and the edges between them."""

    objects: tuple[Trackable, ...]
    """The nodes; the root is the first."""
    edges: tuple[tuple[tuple[str, int], ...], ...]
    """For each node its children: name, and position in ``objects``."""
    slots: tuple[SlotEdge, ...] = ()
    """The slots of objects of the graph."""

    @classmethod
    def of(cls, root: Trackable, added: Mapping[str, Trackable] = MappingProxyType({})) -> Self:
        """Return the graph of now; ``added`` are further children of the root."""
        objects, position = [root], {id(root): 0}
        edges: list[list[tuple[str, int]]] = []
        slots: list[SlotEdge] = []
        # Slots that were met: the owner's number, the name as a child, the slot and its role.
        delayed: list[tuple[int, str, Trackable, Slot]] = []

        def number_of(node: Trackable) -> int:
            # A new object gets the next number, a known one keeps its own. ``objects`` keeps them
            # alive, so ids stay unique.
            number = position.setdefault(id(node), len(objects))
            if number == len(objects):
                objects.append(node)
            return number

        def visit_new() -> None:
            # List the children of every object that has no row in ``edges`` yet.
            for number in count(len(edges)):
                if number == len(objects):  # ``objects`` grows while it is walked
                    return
                parent = objects[number]
                roles, children = parent.child_slots, parent.children
                row = []
                for name, child in (children if number else {**children, **added}).items():
                    if name in roles:
                        delayed.append((number, name, child, roles[name]))
                    else:
                        row.append((name, number_of(child)))
                edges.append(row)

        visit_new()
        # Slots come after all children: only now is it known which variables are in the graph. A
        # slot may bring new objects, and those new slots, so the list grows while it is walked.
        for owner, name, child, slot in delayed:
            variable = position.get(id(slot.variable))
            if variable is None:
                edges[owner].append((name, number_of(child)))
            else:
                slots.append(SlotEdge(owner, variable, slot.name, number_of(child)))
            visit_new()
        return cls(tuple(objects), tuple(map(tuple, edges)), tuple(slots))

    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the names on the shortest way from the root to each node; the root's is empty."""
        # The path of a slot is the path of its variable, ``SLOT``, the path of the slot's owner,
        # and the slot's name.
        paths: list[tuple[str, ...] | None] = [None] * len(self.objects)
        paths[0] = ()
        slots = {edge.slot: edge for edge in self.slots}
        # A node's number is above the number of the node that led to it, so one pass in order knows
        # every parent's path.
        for node, row in enumerate(self.edges):
            path = paths[node]
            if path is None and node in slots:
                edge = slots[node]
                path = paths[node] = (
                    *(paths[edge.variable] or ()),
                    SLOT,
                    *(paths[edge.owner] or ()),
                    edge.name,
                )
            for name, child in row:
                if paths[child] is None:
                    paths[child] = (*(path or ()), name)
        return tuple(path or () for path in paths)


class ContainerNode(Trackable):
    """The node of a plain dictionary, list or tuple, whose children are its items with state."""

    # It cannot call a hook for a new item, which is found when the graph is walked again.

    def __init__(self, items: Any, known: "MutableMapping[int, ContainerNode]") -> None:
        self._items = items
        self._known = known
        self._inner: tuple[ContainerNode, ...] = ()
        # Known before its items are looked at, so that a list which contains itself ends.
        # ``_items`` keeps the id taken.
        known[id(items)] = self

    @property
    def items(self) -> Any:
        return self._items

    @property
    def children(self) -> Mapping[str, Trackable]:
        nodes: dict[str, Trackable] = {}
        for name, item in (
            self._items.items() if isinstance(self._items, Mapping) else enumerate(self._items)
        ):
            node = node_of(item, self._known)
            if node is None:
                continue
            if str(name) in nodes:
                raise ArgumentError(
                    f"Two items of a dictionary have keys that read {str(name)!r}.", "Rename one."
                )
            nodes[str(name)] = node
        # ``_known`` may be weak, so each node keeps the nodes inside of it, which are then the same
        # at the next walk.
        self._inner = tuple(
            node for node in nodes.values() if isinstance(node, ContainerNode) and node is not self
        )
        return MappingProxyType(nodes)


def node_of(value: Any, known: MutableMapping[int, ContainerNode]) -> Trackable | None:
    """Return the node of a value, None without state; ``known`` keeps one node a container."""
    if isinstance(value, Trackable):
        return value
    if not isinstance(value, Mapping | list | tuple):
        return None
    return known.get(id(value)) or ContainerNode(value, known)

"""Matching of objects and stored objects: which object is which stored one.

Children are found by name, from the root on, and slots by the variable that they belong to. Objects
are referred to weakly: matching them keeps none of them alive, and forms no cycle with the hooks
that they keep.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from shardvar.reference.objects.stored_graph import StoredNode
from shardvar.reference.tracking import Slot, Trackable

Matches = list[tuple[Trackable, int]]
"""Objects, each with the number of the stored object that it met."""
NO_OBJECTS: Mapping[str, Trackable] = MappingProxyType({})
"""No children."""
_FoundSlot = tuple[Trackable, int, str, Slot]
"""A slot: its owner, the number of the owner, its name as a child, and its role."""
_WaitingSlot = tuple["weakref.ref[Trackable]", int, str]
"""A slot whose variable was not met: its owner, the owner's number, its name as a child."""


@dataclass(slots=True, eq=False)
class Matching:
    """The objects and stored objects that met so far.

    A stored object meets one object, the first under its names, breadth first in the order of the
    checkpoint, and they stay together. An object may meet several stored ones. A slot may come
    before the variable that it belongs to, and then waits for that.
    """

    nodes: list[StoredNode]
    """The stored objects; the first is the root."""
    objects: dict[int, "weakref.ref[Trackable]"] = field(default_factory=dict)
    """The object of each stored one, by its number; also if it is gone, since a stored object meets
    only one."""
    numbers: dict[int, int] = field(default_factory=dict)
    """The number of the first stored object that each object met, by its identity."""
    _waiting: dict[int, list[_WaitingSlot]] = field(default_factory=dict)
    """Slots of variables that have not been met, by the variable's identity."""

    def find(
        self, root: Trackable, number: int, added: Mapping[str, Trackable] = NO_OBJECTS
    ) -> Matches:
        """Return the matches that are new where the root is the stored object of that number.

        ``added`` are further children of the root, as in ``ObjectGraph.of``.
        """
        pairs: Matches = [(root, number)]
        met, taken, delayed = {id(root): number}, {number}, self._slots_for(root)

        def meet(child: Trackable, target: int | None) -> None:
            if target is None or target in taken or target in self.objects:
                return
            pairs.append((child, target))
            taken.add(target)
            if met.setdefault(id(child), target) == target:
                delayed.extend(self._slots_for(child))

        for parent, node in pairs:  # grows while it is walked
            stored = self.nodes[node]
            if not stored.children and not stored.slots:
                continue
            slots, children = parent.child_slots, parent.children
            if node == number and added:
                children = {**children, **added}
            for name, target in _edges(stored, parent):
                if name in children and name not in slots:
                    meet(children[name], target)
            delayed.extend((parent, node, name, slot) for name, slot in slots.items())
        # Slots after children: a slot is found by its variable, which may be reached later than the
        # optimizer. Where the variable has no match yet, the slot waits until the variable appears.
        for owner, node, name, slot in delayed:
            meet(
                owner.children[name],
                self._target_of(owner, node, name, slot, met.get(id(slot.variable))),
            )
        return pairs

    def find_child(self, number: int, parent: Trackable, name: str) -> int | None:
        """Return the number of the stored object of a child that just appeared; None without one,
        or with a match."""
        stored, slot = self.nodes[number], parent.child_slots.get(name)
        if slot is None:
            target = (
                dict(_edges(stored, parent)).get(name)
                if parent.other_names
                else stored.children.get(name)
            )
        else:
            target = self._target_of(parent, number, name, slot, None)
        return None if target in self.objects else target

    def accept(self, pairs: Matches) -> None:
        """Remember that these met."""
        for each, number in pairs:
            if self.number_of(each) is None:
                self.numbers[id(each)] = number
            self.objects[number] = weakref.ref(each)

    def number_of(self, each: Trackable) -> int | None:
        """Return the number of the first stored object that an object met, None without one."""
        # A new object may have the identity of one that is gone.
        number = self.numbers.get(id(each))
        return number if number is not None and self.objects[number]() is each else None

    def _target_of(
        self, owner: Trackable, node: int, name: str, slot: Slot, variable: int | None
    ) -> int | None:
        """Return the number of a stored slot; ``variable`` numbers its variable, if met just
        now."""
        if variable is None:
            variable = self.number_of(slot.variable)
        target = _slot(self.nodes[node], owner, name, slot, variable)
        if target is None and variable is None:
            self._waiting.setdefault(id(slot.variable), []).append((weakref.ref(owner), node, name))
        return target

    def _slots_for(self, variable: Trackable) -> list[_FoundSlot]:
        """Return the slots that wait for a variable."""
        found = []
        for reference, node, name in self._waiting.get(id(variable), ()):
            owner = reference()
            slot = None if owner is None else owner.child_slots.get(name)
            if owner is not None and slot is not None and slot.variable is variable:
                found.append((owner, node, name, slot))
        return found


def _edges(stored: StoredNode, parent: Trackable) -> Iterator[tuple[str, int]]:
    """Yield the stored children in order, by their names at ``parent``; then those stored under
    ``other_names``."""
    yield from stored.children.items()
    for name, other in parent.other_names.items():
        if name not in stored.children and other in stored.children:
            yield name, stored.children[other]


def _slot(
    stored: StoredNode, owner: Trackable, name: str, slot: Slot, variable: int | None
) -> int | None:
    """Return the slot of a stored object; without one it is a child like any other."""
    number = None
    if stored.slots and variable is not None:
        number = stored.slots.get((variable, slot.name))
        if number is None and slot.name in owner.other_names:
            number = stored.slots.get((variable, owner.other_names[slot.name]))
    return stored.children.get(name) if number is None else number

"""Which object is which stored one: children by name, slots by the object beside which they are kept.

An object and a stored object meet once, and stay together. Whoever comes first under a name, breadth first, is the
stored object; a slot may be seen before what it is beside, and then waits for it.
"""

from dataclasses import dataclass, field

from shardvar.checkpoint.objects.stored_graph import StoredNode
from shardvar.tracking import Slot, Trackable

Pairs = list[tuple[Trackable, int]]
"""Objects, each with the number of the stored object that it is."""
_Delayed = tuple[Trackable, int, str, Slot]
"""A slot: whoever keeps it and that one's number, its name as a child, and what it is."""


@dataclass(slots=True, eq=False)
class Matching:
    """The pairs that met so far."""

    nodes: list[StoredNode]
    """The stored objects; the first is the root."""
    objects: dict[int, Trackable] = field(default_factory=dict)
    """The object that each stored one is, by its number; kept alive, so that their identities stay theirs."""
    numbers: dict[int, int] = field(default_factory=dict)
    """The number of the stored object that each object is, by its identity."""
    _waiting: dict[int, list[_Delayed]] = field(default_factory=dict)
    """Slots whose other object was not met, by its identity."""

    def find(self, root: Trackable, number: int) -> Pairs:
        """The pairs that would meet, and have not met, where the root is the stored object of that number."""
        pairs: Pairs = [(root, number)]
        met, taken, delayed = {id(root): number}, {number}, list(self._waiting.get(id(root), ()))

        def meet(child: Trackable, target: int | None) -> None:
            identity = id(child)
            if target is None or target in taken or target in self.objects:
                return
            if identity not in met and identity not in self.numbers:
                pairs.append((child, target))
                met[identity] = target
                taken.add(target)
                delayed.extend(self._waiting.get(identity, ()))

        for parent, node in pairs:  # grows while it is walked
            stored = self.nodes[node]
            if not stored.children and not stored.slots:
                continue
            for name, child in parent.children.items():
                slot = parent.child_slots.get(name)
                if slot is None:
                    meet(child, _child(stored, parent, name))
                else:
                    delayed.append((parent, node, name, slot))
        for owner, node, name, slot in delayed:
            beside = met.get(id(slot.beside), self.numbers.get(id(slot.beside)))
            target = _slot(self.nodes[node], owner, name, slot, beside)
            if target is None and beside is None:
                self._waiting.setdefault(id(slot.beside), []).append((owner, node, name, slot))
            meet(owner.children[name], target)
        return pairs

    def find_child(self, number: int, parent: Trackable, name: str) -> int | None:
        """The number of the stored object that a child which just appeared is; None where it is none, or met one."""
        stored, slot = self.nodes[number], parent.child_slots.get(name)
        if slot is None:
            target = _child(stored, parent, name)
        else:
            beside = self.numbers.get(id(slot.beside))
            target = _slot(stored, parent, name, slot, beside)
            if target is None and beside is None:
                self._waiting.setdefault(id(slot.beside), []).append((parent, number, name, slot))
        is_new = target not in self.objects and id(parent.children[name]) not in self.numbers
        return target if is_new else None

    def accept(self, pairs: Pairs) -> None:
        """Remember that these met."""
        for each, number in pairs:
            self.objects[number] = each
            self.numbers[id(each)] = number


def _child(stored: StoredNode, parent: Trackable, name: str) -> int | None:
    """The child of that name, or of the name that it has in other libraries."""
    number = stored.children.get(name)
    if number is None and name in parent.other_names:
        number = stored.children.get(parent.other_names[name])
    return number


def _slot(stored: StoredNode, owner: Trackable, name: str, slot: Slot, beside: int | None) -> int | None:
    """The slot beside a stored object; without one it is a child like any other."""
    number = None
    if stored.slots and beside is not None:
        number = stored.slots.get((beside, slot.name))
        if number is None and slot.name in owner.other_names:
            number = stored.slots.get((beside, owner.other_names[slot.name]))
    return stored.children.get(name) if number is None else number

"""Restoring a checkpoint into a graph of objects, now and as objects appear.

match    Children by name, from the root on, as in the checkpoint's graph, and slots by the variable
         that they belong to. An object and a stored object meet once.
plan     Compare dtype and full shape of every variable that met a value, then read all values.
commit   Stateful objects take their state, and get the old one back if one of them refuses. Then
         all variables are written while no thread reads in between. Only then are the objects
         marked as restored.

An object that met a stored one keeps a hook for children that the checkpoint has and the object has
not. When such a child appears, the same three steps restore it, and what hangs on it, before other
code can see it. As long as there are values that no object took, the checkpoint stays open for
that. It may be replaced or removed, as a manager removes old ones, and what appears still gets the
values of then. Open files are kept, but no values.

Two rules are TensorFlow's. Where several restores have a value for one object, the restore that was
called last determines it, whichever attached the object. Two stored objects may meet in one object,
which then has the children of both; if both have a value for it, it takes the first, breadth first,
and the other stays unmatched.

An object refers to a restoration by its hooks, and the restoration to objects only by weak
references: there is no cycle, so a model is freed when it is dropped.

A program asserts by the status that a restore did as it expects. ``restore(None)``, the first run of a
program that restores its latest checkpoint, also has a status.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from types import MappingProxyType
from typing import Self

from shardvar.errors import UnmatchedObjects, log_warning
from shardvar.layout.dtypes import Array
from shardvar.pictures.words import named
from shardvar.records import entity, field, mutable
from shardvar.reference.objects.stored_graph import (
    GRAPH_KEY,
    Keyed,
    StoredNode,
    decode_graph,
    nodes_of_keys,
    read_writes,
)
from shardvar.reference.tracking import ChildHook, ObjectGraph, Slot, Stateful, Trackable
from shardvar.reference.variables import VariableInterface
from shardvar.reference.variables.values import commit
from shardvar.verbs.arguments import as_array
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid

Matches = list[tuple[Trackable, int]]
"""Objects, each with the number of the stored object that it met."""
NO_OBJECTS: Mapping[str, Trackable] = MappingProxyType({})
"""No children."""
_FoundSlot = tuple[Trackable, int, str, Slot]
"""A slot: its owner, the number of the owner, its name as a child, and its role."""
_WaitingSlot = tuple["weakref.ref[Trackable]", int, str]
"""A slot whose variable was not met: its owner, the owner's number, its name as a child."""


@mutable
class Matching:
    """The objects and stored objects that met so far; objects are referred to weakly."""

    # A stored object meets one object, the first under its names, breadth first, and they stay
    # together. An object may meet several. A slot may come before its variable, and waits for it.

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
        """Return the new matches where the root is that stored object and has ``added`` children."""
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
        """Return the number of the stored object of a new child; None without one, or with a match."""
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
        """Return the number of a stored slot; ``variable`` numbers its variable, if met just now."""
        if variable is None:
            variable = self.number_of(slot.variable)
        stored, target = self.nodes[node], None
        if stored.slots and variable is not None:
            target = stored.slots.get((variable, slot.name))
            if target is None and slot.name in owner.other_names:
                target = stored.slots.get((variable, owner.other_names[slot.name]))
        # Without a slot it is a child like any other.
        if target is None:
            target = stored.children.get(name)
        if target is None and variable is None:
            self._waiting.setdefault(id(slot.variable), []).append((weakref.ref(owner), node, name))
        return target

    def _slots_for(self, variable: Trackable) -> list[_FoundSlot]:
        found = []
        for reference, node, name in self._waiting.get(id(variable), ()):
            owner = reference()
            slot = None if owner is None else owner.child_slots.get(name)
            if owner is not None and slot is not None and slot.variable is variable:
                found.append((owner, node, name, slot))
        return found


def _edges(stored: StoredNode, parent: Trackable) -> Iterator[tuple[str, int]]:
    """Yield the stored children by their names at ``parent``, then those under ``other_names``."""
    yield from stored.children.items()
    for name, other in parent.other_names.items():
        if name not in stored.children and other in stored.children:
            yield name, stored.children[other]


States = Sequence[tuple[Stateful, Mapping[str, str]]]
"""Stateful objects, each with the keys of its arrays by their names."""
_State = tuple[Stateful, Mapping[str, Array]]
"""An object, and the arrays that it takes."""

_IGNORED = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"
"""The end of keys that Keras 2 wrote for each layer. Objects need not take them."""
_TURN = "_restore_turn"
"""The attribute of an object with the turn of the restore whose value it has."""
_turns = count(1)


# Restore.


@mutable
class UnmatchedKeys:
    """The values of a checkpoint that no object took; outlives the restoration, to log them."""

    path: str
    keys: set[str]
    """The keys whose values no object took."""
    is_expected: bool = False

    def log(self) -> None:
        """Log a warning with the keys, unless they are expected."""
        if self.keys and not self.is_expected:
            what = (
                f"{self.path} has values that no object took: {named(sorted(self.keys))}. If that "
                "is intended, call "
            )
            log_warning(what + "expect_partial() on the status of the restore.")


@mutable(weakref_slot=True)
class Restoration:
    """One checkpoint that is being restored into one graph of objects."""

    reader: Reader
    """The checkpoint, open while values of it may still be needed."""
    matching: Matching
    unmatched: UnmatchedKeys
    """The values that no object took yet."""
    turn: int = field(default_factory=_turns.__next__)
    """The place of this restore among all: a later one has a greater number."""
    _restored: set[int] = field(default_factory=set)
    """The numbers of the stored objects whose objects took a value, each object's first."""
    _covered: dict[int, bool] = field(default_factory=dict)
    """By the turns of older restores: True if this checkpoint has all values that they had left."""

    @property
    def path(self) -> str:
        return self.unmatched.path

    def restore(
        self, root: Trackable, number: int, added: Mapping[str, Trackable] = NO_OBJECTS
    ) -> None:
        """Restore an object, with ``added`` children, from that stored object, and all below them."""
        # Check and plan. Nothing has changed until all values are read; a first restore that fails
        # closes the files.
        pairs = self.matching.find(root, number, added)
        variables, states = self._wanted(pairs)
        # What a later restore has given a value keeps it, and counts as restored here too.
        late_variables = [(key, each) for key, each in variables if _turn_of(each) < self.turn]
        late_states = [(each, keys) for each, keys in states if _turn_of(each) < self.turn]
        is_first = not self.matching.objects
        try:
            with self.reader.explain_policy():
                writes = read_writes(self.reader, late_variables)
                values = read_states(self.reader, late_states)
            # Commit. Objects may refuse their state, variables cannot: so the variables come last.
            take_states(values)
            commit(writes)
        except BaseException:
            if is_first:
                self.reader.close()
            raise
        if is_first:  # a first restore that failed has raised, and need not warn as well
            weakref.finalize(self, self.unmatched.log).atexit = False
        # Remember, and wait for what the checkpoint still has.
        self.matching.accept(pairs)
        self._remember(variables, states)
        for each, node in pairs:
            self.wait(each, node)
        # The files stay open for what may appear, but the tables of entries need not stay.
        if self.unmatched.keys:
            self.reader.drop_tables()
        else:
            self.reader.close()

    def wait(self, each: Trackable, number: int) -> None:
        """Leave a hook on an object for the remaining children of its stored object."""
        stored = self.matching.nodes[number]
        older = each.child_hooks
        if not older and not (stored.children or stored.slots):
            return
        # The restore that was called last comes first, so that the others find its values there; of
        # one restore, the stored object that this object met first.
        hook = _Waiting(self, number)
        hooks: list[ChildHook] = [*(other for other in older if not hook.replaces(other)), hook]
        hooks.sort(
            key=lambda each: each.restoration.turn if isinstance(each, _Waiting) else 0,
            reverse=True,
        )
        each.await_children(*hooks)

    def is_restored(self, each: Trackable) -> bool:
        return self.matching.number_of(each) in self._restored

    def covers(self, older: "Restoration") -> bool:
        """Return True if this checkpoint has every value that an older restore has left."""
        if older.turn not in self._covered:
            there = {
                key for node in self.matching.nodes for key in (node.key, *node.states.values())
            }
            self._covered[older.turn] = older.unmatched.keys <= there
        return self._covered[older.turn]

    @property
    def num_met(self) -> int:
        """The number of objects that met a stored one, the root included."""
        return len(self.matching.objects)

    def _wanted(self, pairs: Matches) -> tuple[Keyed, States]:
        """Return the variables that met a value, and the objects that met their own state."""
        variables: list[tuple[str, VariableInterface]] = []
        states: list[tuple[Stateful, Mapping[str, str]]] = []
        taken: set[int] = set()
        for each, number in pairs:
            node = self.matching.nodes[number]
            has_key = node.key is not None and isinstance(each, VariableInterface)
            has_state = bool(node.states) and isinstance(each, Stateful)
            if not (has_key or has_state) or id(each) in taken or self.is_restored(each):
                continue
            taken.add(id(each))
            if node.key is not None and isinstance(each, VariableInterface):
                variables.append((node.key, each))
            if node.states and isinstance(each, Stateful):
                states.append((each, node.states))
        return variables, states

    def _remember(self, variables: Keyed, states: States) -> None:
        """Remember that these objects took their values, here or by a later restore."""
        number_of = self.matching.number_of
        for each in (*(each for _, each in variables), *(each for each, _ in states)):
            number = number_of(each)
            if number is not None:
                self._restored.add(number)
            each.__dict__[_TURN] = max(self.turn, _turn_of(each))
        self.unmatched.keys.difference_update(
            [key for key, _ in variables], [key for _, keys in states for key in keys.values()]
        )


def _turn_of(each: Trackable) -> int:
    """Return the turn of the restore whose value an object has; 0 without one."""
    turn: int = each.__dict__.get(_TURN, 0)
    return turn


@entity
class _Waiting:
    """A hook that restores children as they appear; it keeps the files open while the parent lives."""

    restoration: Restoration
    number: int

    def __call__(self, parent: Trackable, name: str, child: Trackable) -> None:
        node = self.restoration.matching.find_child(self.number, parent, name)
        if node is not None:
            self.restoration.restore(child, node)

    def __deepcopy__(self, memo: object) -> "_Waiting":
        return self  # a copy of an object waits for the same checkpoint

    def replaces(self, other: ChildHook) -> bool:
        """Return True if an object needs this hook only, which lets the other's checkpoint close."""
        if not isinstance(other, _Waiting):
            return False
        older, newer = other.restoration, self.restoration
        if older is newer:
            return other.number == self.number
        if not older.unmatched.keys:
            return True
        is_same = older.matching.nodes[other.number] == newer.matching.nodes[self.number]
        return older.turn < newer.turn and is_same and newer.covers(older)


def read_states(reader: Reader, wanted: States) -> list[_State]:
    """Read the arrays that each object takes, under its names, all together."""
    every = [(key, None) for _, keys in wanted for key in keys.values()]
    arrays = iter(reader.read_many(every))
    return [(each, {name: next(arrays) for name in keys}) for each, keys in wanted]


def take_states(states: Sequence[_State]) -> None:
    """Have each object take its state; if one refuses, those before it get theirs back."""
    # The old states are copied before any object takes a new one, since an object may change its
    # arrays in place.
    before = [
        {name: as_array(name, value).copy() for name, value in each.state().items()}
        for each, _ in states
    ]
    with ExitStack() as undo:
        for (each, values), old in zip(states, before, strict=True):
            each.restore_state(values)
            undo.callback(each.restore_state, old)
        undo.pop_all()  # all took theirs: there is nothing to undo


# Open.


def open_restoration(reader: Reader) -> Restoration:
    try:
        wanted = {key for key in reader if not is_bookkeeping(key)}
        return Restoration(reader, Matching(graph_of(reader)), UnmatchedKeys(reader.path, wanted))
    except BaseException:
        reader.close()
        raise


def graph_of(reader: Reader) -> list[StoredNode]:
    """Return the stored objects of a checkpoint: from its message, or without one from its keys."""
    keys = dict.fromkeys(reader)
    if GRAPH_KEY not in keys:
        return nodes_of_keys(keys)
    message = reader.read(GRAPH_KEY)
    if message.shape or not isinstance(message.item(), bytes):
        raise invalid(
            f"{GRAPH_KEY} is {message.dtype}{list(message.shape)}, and should be one string."
        )
    return decode_graph(message.item(), keys)


def is_bookkeeping(key: str) -> bool:
    """Return True for keys that describe how objects are stored, and hold no object's value."""
    return key == GRAPH_KEY or key.endswith(_IGNORED)


class RestoreStatus:
    """The result of one restore, as of when it is asked: what appears later is restored later."""

    # Without a ``restoration`` it is the result of ``restore(None)``: objects keep their initial
    # values, and, as in TensorFlow, each assertion fails.
    def __init__(self, restoration: Restoration | None, graph: Callable[[], ObjectGraph]) -> None:
        self._restoration = restoration
        self._graph = graph

    @property
    def unmatched_keys(self) -> list[str]:
        """The keys of the checkpoint whose values no object took."""
        return sorted(self._restoration.unmatched.keys) if self._restoration else []

    @property
    def unmatched_objects(self) -> list[str]:
        """The paths of variables and objects with state of their own that took no value."""
        # Of now: objects may have appeared, and taken their values, since the restore.
        graph = self._graph()
        return [
            "/".join(path) or "the root"
            for node, path in zip(graph.objects, graph.paths(), strict=True)
            if not (self._restoration and self._restoration.is_restored(node))
            and (
                isinstance(node, VariableInterface) or (isinstance(node, Stateful) and node.state())
            )
        ]

    def assert_consumed(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every value found its variable and the
        other way round."""
        self._check(self.unmatched_objects, self.unmatched_keys)
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every existing variable took a value."""
        self._check(self.unmatched_objects, [])
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise ``UnmatchedObjects`` where no object but the root met a stored one."""
        if self._restoration is None or self._restoration.num_met <= 1:
            self._check(self.unmatched_objects or ["all but the root"], self.unmatched_keys)
        return self

    def expect_partial(self) -> Self:
        """Declare that unmatched values are intended, so that they are not logged."""
        if self._restoration is not None:
            self._restoration.unmatched.is_expected = True
        return self

    def run_restore_ops(self) -> None:
        """Do nothing, since values are restored already; for programs written for TensorFlow. Fails
        without a path."""
        self._check([], [])

    def initialize_or_restore(self) -> None:
        """Do nothing, for TensorFlow's programs: variables are restored already."""

    def _check(self, objects: list[str], keys: list[str]) -> None:
        restoration = self._restoration
        if restoration is None:
            raise UnmatchedObjects(
                "No checkpoint was given (the path is None), and nothing was restored.",
                "Assert this only after a checkpoint was restored.",
            )
        unmatched = []
        if objects:
            unmatched.append(f"objects without a value: {', '.join(objects)}")
        if keys:
            unmatched.append(f"values without an object: {', '.join(keys)}")
        if unmatched:
            raise UnmatchedObjects(
                f"{restoration.path} and the objects do not match; {'; '.join(unmatched)}.",
                "Name the objects as they were when it was written, or do not assert this. "
                f"{restoration.reader.policy_sentence}".rstrip(),
            )

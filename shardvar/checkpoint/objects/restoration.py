"""Restoring a checkpoint into a graph of objects, now and as objects appear.

match    Children by name, from the root on, as in the checkpoint's graph, and slots by the variable that they belong
         to. An object and a stored object meet once.
plan     Compare dtype and full shape of every variable that met a value, then read all values.
commit   Stateful objects take their state, and get the old one back if one of them refuses. Then all variables are
         written while no thread reads in between. Only then are the objects marked as restored.

An object that met a stored one keeps a hook for children that the checkpoint has and the object has not. When such a
child appears, the same three steps restore it, and what hangs on it, before other code can see it. As long as there are
values that no object took, the checkpoint stays open for that. It may be replaced or removed meanwhile, as a manager
removes old ones, and what appears still gets the values of then. Open files are kept, but no values.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, StoredNode, decode_graph, nodes_of_keys
from shardvar.checkpoint.objects.values import Keyed, read_writes
from shardvar.checkpoint.reader import Reader
from shardvar.errors import UnmatchedObjects
from shardvar.tracking import ChildHook, ObjectGraph, Slot, Stateful, Trackable
from shardvar.variables import VariableInterface
from shardvar.variables.writes import commit
from shardvar.wire.damage import invalid

Matches = list[tuple[Trackable, int]]
"""Objects, each with the number of the stored object that it met."""
States = Sequence[tuple[Stateful, Mapping[str, str]]]
"""Stateful objects, each with the keys of its arrays by their names."""
_State = tuple[Stateful, Mapping[str, npt.NDArray[Any]]]
"""An object, and the arrays that it takes."""
_WaitingSlot = tuple[Trackable, int, str, Slot]
"""A slot: its owner, the number of the owner, its name as a child, and its role."""

_LOG = logging.getLogger("shardvar.checkpoint")
_IGNORED = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"
"""The end of keys that Keras 2 wrote beside each layer. As in TensorFlow, objects need not take them."""


class RestoreStatus:
    """The result of one restore, as of when it is asked: what appears later is restored later."""

    def __init__(self, restoration: "Restoration", graph: Callable[[], ObjectGraph]) -> None:
        self._restoration = restoration
        self._graph = graph

    @property
    def unmatched_keys(self) -> list[str]:
        """The keys of the checkpoint whose values no object took."""
        return sorted(self._restoration.unmatched.keys)

    @property
    def unmatched_objects(self) -> list[str]:
        """The paths of variables and objects with state of their own that took no value."""
        graph = self._graph()  # of now: objects may have appeared, and taken their values, since the restore
        return [
            "/".join(path) or "the root"
            for node, path in zip(graph.objects, graph.paths(), strict=True)
            if not self._restoration.is_restored(node) and _has_values(node)
        ]

    def assert_consumed(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every value found its variable and the other way round."""
        self._check(self.unmatched_objects, self.unmatched_keys)
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise ``UnmatchedObjects``, naming all, unless every existing variable took a value."""
        self._check(self.unmatched_objects, [])
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise ``UnmatchedObjects`` where no object but the root met a stored one."""
        if self._restoration.num_met <= 1:
            self._check(self.unmatched_objects or ["all but the root"], self.unmatched_keys)
        return self

    def expect_partial(self) -> Self:
        """Declare that unmatched values are intended, so that they are not logged."""
        self._restoration.unmatched.is_expected = True
        return self

    def _check(self, objects: list[str], keys: list[str]) -> None:
        unmatched = []
        if objects:
            unmatched.append(f"objects without a value: {', '.join(objects)}")
        if keys:
            unmatched.append(f"values without an object: {', '.join(keys)}")
        if unmatched:
            restoration = self._restoration
            raise UnmatchedObjects(
                f"{restoration.path} and the objects do not match; {'; '.join(unmatched)}.",
                "Name the objects as they were when it was written, or do not assert this. "
                f"{restoration.reader.policy_sentence}".rstrip(),
            )


def _has_values(node: Trackable) -> bool:
    return isinstance(node, VariableInterface) or (isinstance(node, Stateful) and bool(node.state()))


# Match: which object is which stored one.


@dataclass(slots=True, eq=False)
class Matching:
    """The objects and stored objects that met so far.

    They meet once, and stay together. The first object under a name, breadth first, is the stored object. A slot may
    come before the variable that it belongs to, and then waits for that.
    """

    nodes: list[StoredNode]
    """The stored objects; the first is the root."""
    objects: dict[int, Trackable] = field(default_factory=dict)
    """The object of each stored one, by its number; kept alive, so that no other object gets its identity."""
    numbers: dict[int, int] = field(default_factory=dict)
    """The number of the stored object of each object, by its identity."""
    _waiting: dict[int, list[_WaitingSlot]] = field(default_factory=dict)
    """Slots of variables that have not been met, by the variable's identity."""

    def find(self, root: Trackable, number: int) -> Matches:
        """Return the matches that are new where the root is the stored object of that number."""
        pairs: Matches = [(root, number)]
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
        # Slots after children: a slot is found by its variable, which may be reached later than the optimizer. Where
        # the variable has no match yet, the slot waits until the variable appears.
        for owner, node, name, slot in delayed:
            beside = met.get(id(slot.beside), self.numbers.get(id(slot.beside)))
            target = _slot(self.nodes[node], owner, name, slot, beside)
            if target is None and beside is None:
                self._waiting.setdefault(id(slot.beside), []).append((owner, node, name, slot))
            meet(owner.children[name], target)
        return pairs

    def find_child(self, number: int, parent: Trackable, name: str) -> int | None:
        """Return the number of the stored object of a child that just appeared; None without one, or with a match."""
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

    def accept(self, pairs: Matches) -> None:
        """Remember that these met."""
        for each, number in pairs:
            self.objects[number] = each
            self.numbers[id(each)] = number


def _child(stored: StoredNode, parent: Trackable, name: str) -> int | None:
    """Return the child of that name, or of its name in other libraries."""
    number = stored.children.get(name)
    if number is None and name in parent.other_names:
        number = stored.children.get(parent.other_names[name])
    return number


def _slot(stored: StoredNode, owner: Trackable, name: str, slot: Slot, beside: int | None) -> int | None:
    """Return the slot beside a stored object; without one it is a child like any other."""
    number = None
    if stored.slots and beside is not None:
        number = stored.slots.get((beside, slot.name))
        if number is None and slot.name in owner.other_names:
            number = stored.slots.get((beside, owner.other_names[slot.name]))
    return stored.children.get(name) if number is None else number


# Restore.


@dataclass(slots=True)
class UnmatchedKeys:
    """The values of a checkpoint that no object took; outlives the restoration, to log them."""

    path: str
    """The checkpoint."""
    keys: set[str]
    """The keys whose values no object took."""
    is_expected: bool = False
    """True if the user declared it by ``expect_partial``."""

    def log(self) -> None:
        """Log a warning with the keys, unless they are expected."""
        if self.keys and not self.is_expected:
            _LOG.warning("%s has values that no object took: %s.", self.path, ", ".join(sorted(self.keys)))


@dataclass(slots=True, weakref_slot=True, eq=False)
class Restoration:
    """One checkpoint that is being restored into one graph of objects."""

    reader: Reader
    """The checkpoint, open while values of it may still be needed."""
    matching: Matching
    """Its graph, and the objects that met in it."""
    unmatched: UnmatchedKeys
    """The values that no object took yet."""
    _restored: set[int] = field(default_factory=set)
    """The identities of the objects that took a value."""

    @property
    def path(self) -> str:
        """The path of the checkpoint."""
        return self.unmatched.path

    def restore(self, root: Trackable, number: int) -> None:
        """Restore an object from the stored object of that number, and everything that hangs on both."""
        # Check and plan. Nothing has changed until all values are read; a first restore that fails closes the files.
        pairs = self.matching.find(root, number)
        variables, states = self._wanted(pairs)
        is_first = not self.matching.objects
        try:
            with self.reader.explain_policy():
                writes = read_writes(self.reader, variables)
                values = read_states(self.reader, states)
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
        self._restored.update([id(each) for _, each in variables], [id(each) for each, _ in states])
        self.unmatched.keys.difference_update(
            [key for key, _ in variables], [key for _, keys in states for key in keys.values()]
        )
        # Only objects for which the checkpoint has more children get a hook; an older hook of the others is removed.
        self.matching.accept(pairs)
        for each, node in pairs:
            stored = self.matching.nodes[node]
            each.await_children(self.hook(node) if stored.children or stored.slots else None)
        if self.unmatched.keys:  # the files stay open for what may appear, but the tables of entries need not stay
            self.reader.drop_tables()
        else:
            self.reader.close()

    def hook(self, number: int) -> ChildHook:
        """Return a hook that restores the children of a stored object as they appear."""

        # The hook keeps this restoration alive, and so the files open, as long as the parent lives.
        def appear(parent: Trackable, name: str, child: Trackable) -> None:
            node = self.matching.find_child(number, parent, name)
            if node is not None:
                self.restore(child, node)

        return appear

    def is_restored(self, each: Trackable) -> bool:
        """Return True if the object took a value."""
        return id(each) in self._restored

    @property
    def num_met(self) -> int:
        """The number of objects that met a stored one, the root included."""
        return len(self.matching.objects)

    def _wanted(self, pairs: Matches) -> tuple[Keyed, States]:
        """Return the variables that met a value, and the objects that met their own state."""
        variables: list[tuple[str, VariableInterface]] = []
        states: list[tuple[Stateful, Mapping[str, str]]] = []
        for each, number in pairs:
            node = self.matching.nodes[number]
            if node.key is not None and isinstance(each, VariableInterface):
                variables.append((node.key, each))
            if node.states and isinstance(each, Stateful):
                states.append((each, node.states))
        return variables, states


def read_states(reader: Reader, wanted: States) -> list[_State]:
    """Read the arrays that each object takes: the values of its keys, under its names."""
    return [(each, {name: reader.read(key) for name, key in keys.items()}) for each, keys in wanted]


def take_states(states: Sequence[_State]) -> None:
    """Have each object take its state; if one refuses, those before it get back what they had."""
    # The old states are copied before any object takes a new one, since an object may change its arrays in place.
    before = [{name: as_array(name, value).copy() for name, value in each.state().items()} for each, _ in states]
    with ExitStack() as undo:
        for (each, values), old in zip(states, before, strict=True):
            each.restore_state(values)
            undo.callback(each.restore_state, old)
        undo.pop_all()  # all took theirs: there is nothing to undo


# Open.


def open_restoration(reader: Reader, ignored: Iterable[str] = ()) -> Restoration:
    """Return the restoration of an open checkpoint, which has met nothing yet; ``ignored`` keys are not missed.

    The restoration closes the checkpoint, at once where the graph cannot be decoded.
    """
    try:
        wanted = {key for key in reader if not is_bookkeeping(key)}.difference(ignored)
        return Restoration(reader, Matching(graph_of(reader)), UnmatchedKeys(reader.path, wanted))
    except BaseException:
        reader.close()
        raise


def graph_of(reader: Reader) -> list[StoredNode]:
    """Return the stored objects of a checkpoint: from its message, or without one from its keys."""
    keys = dict.fromkeys(reader.keys())
    if GRAPH_KEY not in keys:
        return nodes_of_keys(keys)
    message = reader.read(GRAPH_KEY)
    if message.shape or not isinstance(message.item(), bytes):
        raise invalid(f"{GRAPH_KEY} is {message.dtype}{list(message.shape)}, and should be one string.")
    return decode_graph(message.item(), keys)


def is_bookkeeping(key: str) -> bool:
    """Return True for keys that say how objects are stored, and hold no object's value."""
    return key == GRAPH_KEY or key.endswith(_IGNORED)

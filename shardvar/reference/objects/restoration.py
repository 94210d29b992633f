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
that. It may be replaced or removed meanwhile, as a manager removes old ones, and what appears still
gets the values of then. Open files are kept, but no values.

Two rules are TensorFlow's. Where several restores have a value for one object, the restore that was
called last determines it, whichever attached the object. Two stored objects may meet in one object,
which then has the children of both; if both have a value for it, it takes the first, breadth first,
and the other stays unmatched.

An object refers to a restoration by its hooks, and the restoration to objects only by weak
references: there is no cycle, so a model is freed when it is dropped.
"""

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy.typing as npt

from shardvar.pictures.words import message, named
from shardvar.reference.objects.matching import NO_OBJECTS, Matches, Matching
from shardvar.reference.objects.stored_graph import (
    GRAPH_KEY,
    StoredNode,
    decode_graph,
    nodes_of_keys,
)
from shardvar.reference.objects.values import Keyed, read_writes
from shardvar.reference.tracking import ChildHook, Stateful, Trackable
from shardvar.reference.variables import VariableInterface
from shardvar.reference.variables.writes import commit
from shardvar.verbs.arguments import as_array
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid

States = Sequence[tuple[Stateful, Mapping[str, str]]]
"""Stateful objects, each with the keys of its arrays by their names."""
_State = tuple[Stateful, Mapping[str, npt.NDArray[Any]]]
"""An object, and the arrays that it takes."""

_LOG = logging.getLogger("shardvar.checkpoint")
_IGNORED = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"
"""The end of keys that Keras 2 wrote for each layer. Objects need not take them."""
_TURN = "_restore_turn"
"""The attribute of an object with the turn of the restore whose value it has."""
_turns = count(1)


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
            what = (
                f"{self.path} has values that no object took: {named(sorted(self.keys))}. If that "
                "is intended, call "
            )
            _LOG.warning("%s", message(what + "expect_partial() on the status of the restore."))


@dataclass(slots=True, weakref_slot=True, eq=False)
class Restoration:
    """One checkpoint that is being restored into one graph of objects."""

    reader: Reader
    """The checkpoint, open while values of it may still be needed."""
    matching: Matching
    """Its graph, and the objects that met in it."""
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
        """The path of the checkpoint."""
        return self.unmatched.path

    def restore(
        self, root: Trackable, number: int, added: Mapping[str, Trackable] = NO_OBJECTS
    ) -> None:
        """Restore an object from the stored object of that number, and everything that hangs on
        both.

        ``added`` are further children of the root, as in ``ObjectGraph.of``.
        """
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
        hooks: list[ChildHook] = [*(other for other in older if not _replaces(hook, other)), hook]
        each.await_children(*sorted(hooks, key=_turn_of_hook, reverse=True))

    def is_restored(self, each: Trackable) -> bool:
        """Return True if the object took a value."""
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
        """Return the variables that met a value, and the objects that met their own state, each
        with the first."""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A hook that restores the children of a stored object as they appear.

    It keeps the restoration alive, and so the files open, as long as the parent lives.
    """

    restoration: Restoration
    """The restoration."""
    number: int
    """The number of the stored object."""

    def __call__(self, parent: Trackable, name: str, child: Trackable) -> None:
        node = self.restoration.matching.find_child(self.number, parent, name)
        if node is not None:
            self.restoration.restore(child, node)

    def __deepcopy__(self, memo: object) -> "_Waiting":
        return self  # a copy of an object waits for the same checkpoint


def _turn_of_hook(hook: ChildHook) -> int:
    return hook.restoration.turn if isinstance(hook, _Waiting) else 0


def _replaces(hook: _Waiting, other: ChildHook) -> bool:
    """Return True if an object does not need an older hook in addition to a newer one.

    Without this, a program that restores one checkpoint after the other into a part of its objects
    would keep all of them open.
    """
    if not isinstance(other, _Waiting):
        return False
    older, newer = other.restoration, hook.restoration
    if older is newer:
        return other.number == hook.number
    if not older.unmatched.keys:
        return True
    is_same = older.matching.nodes[other.number] == newer.matching.nodes[hook.number]
    return older.turn < newer.turn and is_same and newer.covers(older)


def read_states(reader: Reader, wanted: States) -> list[_State]:
    """Read the arrays that each object takes, all together: the values of its keys, under its
    names."""
    every = [(key, None) for _, keys in wanted for key in keys.values()]
    arrays = iter(reader.read_many(every))
    return [(each, {name: next(arrays) for name in keys}) for each, keys in wanted]


def take_states(states: Sequence[_State]) -> None:
    """Have each object take its state; if one refuses, those before it get back what they had."""
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


def open_restoration(reader: Reader, ignored: Iterable[str] = ()) -> Restoration:
    """Return the restoration of an open checkpoint, which has met nothing yet; ``ignored`` keys are
    not missed.

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
        raise invalid(
            f"{GRAPH_KEY} is {message.dtype}{list(message.shape)}, and should be one string."
        )
    return decode_graph(message.item(), keys)


def is_bookkeeping(key: str) -> bool:
    """Return True for keys that say how objects are stored, and hold no object's value."""
    return key == GRAPH_KEY or key.endswith(_IGNORED)

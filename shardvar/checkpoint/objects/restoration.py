"""A checkpoint that is being restored into a graph of objects, now and as objects appear.

match    children by name, from the root on, as the checkpoint's graph has them, and slots by what they are kept beside;
         an object and a stored object meet once
plan     dtype and full shape of every variable that met a value are compared, then all values are read
commit   objects with a state of their own take it, and give it back where one of them refuses; then all variables are
         written while nobody reads in between; only then are the objects marked as restored

An object that met a stored one keeps a hook for children that the checkpoint has and it has not. When one appears, the
same three steps restore it and what hangs on it, before anybody else can see it. As long as there are values that no
object took, the checkpoint stays open for that: it may be replaced or removed meanwhile, as a manager removes old ones,
and what appears still gets the values of then. What is kept are open files and no values.
"""

import logging
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardvar.checkpoint.objects.filling import Keyed, read_writes
from shardvar.checkpoint.objects.matching import Matching, Pairs
from shardvar.checkpoint.objects.own_state import States, read_states, take_states
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, StoredNode, decode_graph, nodes_of_keys
from shardvar.checkpoint.reader import Reader
from shardvar.tracking import ChildHook, Stateful, Trackable
from shardvar.variables import VariableInterface
from shardvar.variables.resource import commit
from shardvar.wire.damage import invalid

_LOG = logging.getLogger("shardvar.checkpoint")
_IGNORED = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"
"""How keys end that Keras 2 wrote beside each layer: as TensorFlow has it, nobody's value and nobody's loss."""


@dataclass(slots=True)
class Unmatched:
    """What is left of a checkpoint; outlives the restoration, to tell of it."""

    path: str
    """The checkpoint."""
    keys: set[str]
    """The keys whose values no object took."""
    is_expected: bool = False
    """Whether the user knows."""

    def tell(self) -> None:
        """Say what was never restored, unless that is expected."""
        if self.keys and not self.is_expected:
            _LOG.warning("%s has values that no object took: %s.", self.path, ", ".join(sorted(self.keys)))


@dataclass(slots=True, weakref_slot=True, eq=False)
class Restoration:
    """The meeting of one checkpoint with one graph of objects."""

    reader: Reader
    """The checkpoint, open while anything may still be asked of it."""
    matching: Matching
    """Its graph, and what met in it."""
    unmatched: Unmatched
    """What no object took yet."""
    _restored: set[int] = field(default_factory=set)
    """The identities of the objects that took a value."""

    @property
    def path(self) -> str:
        """The checkpoint."""
        return self.unmatched.path

    def restore(self, root: Trackable, number: int) -> None:
        """Restore an object that is a stored one, and all that hang on both."""
        pairs = self.matching.find(root, number)
        variables, states = self._wanted(pairs)
        try:
            self._fill(variables, states)
        except BaseException:
            if not self.matching.objects:
                self.reader.close()
            raise
        if not self.matching.objects:  # a restore that failed has told so already
            weakref.finalize(self, self.unmatched.tell).atexit = False
        self._restored.update([id(each) for _, each in variables], [id(each) for each, _ in states])
        self.unmatched.keys.difference_update(
            [key for key, _ in variables], [key for _, keys in states for key in keys.values()]
        )
        self.matching.accept(pairs)
        for each, node in pairs:
            stored = self.matching.nodes[node]
            each.await_children(self.hook(node) if stored.children or stored.slots else None)
        if self.unmatched.keys:
            self.reader.forget()
        else:
            self.reader.close()

    def _fill(self, variables: Keyed, states: States) -> None:
        with self.reader.telling_policy():
            writes = read_writes(self.reader, variables)
            values = read_states(self.reader, states)
        take_states(values)
        commit(writes)

    def hook(self, number: int) -> ChildHook:
        """What restores the children of a stored object as they appear."""

        def appear(parent: Trackable, name: str, child: Trackable) -> None:
            node = self.matching.find_child(number, parent, name)
            if node is not None:
                self.restore(child, node)

        return appear

    def is_restored(self, each: Trackable) -> bool:
        """Whether the object took a value."""
        return id(each) in self._restored

    @property
    def num_met(self) -> int:
        """The objects that met a stored one, the root included."""
        return len(self.matching.objects)

    def _wanted(self, pairs: Pairs) -> tuple[Keyed, States]:
        """The variables that met a value, and the objects that met a state of their own."""
        variables: list[tuple[str, VariableInterface]] = []
        states: list[tuple[Stateful, Mapping[str, str]]] = []
        for each, number in pairs:
            node = self.matching.nodes[number]
            if node.key is not None and isinstance(each, VariableInterface):
                variables.append((node.key, each))
            if node.states and isinstance(each, Stateful):
                states.append((each, node.states))
        return variables, states


def open_restoration(reader: Reader, ignored: Iterable[str] = ()) -> Restoration:
    """The restoration of an open checkpoint, which has met nothing yet; ``ignored`` keys are nobody's.

    It closes the checkpoint: at once where it cannot be understood.
    """
    try:
        return _open(reader, ignored)
    except BaseException:
        reader.close()
        raise


def _open(reader: Reader, ignored: Iterable[str]) -> Restoration:
    wanted = {key for key in reader if not is_no_value(key)}.difference(ignored)
    return Restoration(reader, Matching(graph_of(reader)), Unmatched(reader.path, wanted))


def graph_of(reader: Reader) -> list[StoredNode]:
    """The stored objects of a checkpoint: as its message tells them, or where there is none its keys."""
    keys = dict.fromkeys(reader.keys())
    return decode_graph(_message(reader), keys) if GRAPH_KEY in keys else nodes_of_keys(keys)


def is_no_value(key: str) -> bool:
    """Whether a key is part of how objects are stored, and no object's value."""
    return key == GRAPH_KEY or key.endswith(_IGNORED)


def _message(reader: Reader) -> bytes:
    message = reader.read(GRAPH_KEY)
    if message.shape or not isinstance(message.item(), bytes):
        raise invalid(f"{GRAPH_KEY} is {message.dtype}{list(message.shape)}, and should be one string.")
    octets: bytes = message.item()
    return octets

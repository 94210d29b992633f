"""A checkpoint that is being restored into a graph of objects, now and as objects appear.

match    children by name, from the root on, as the checkpoint's graph has them: an object and a stored object meet once
plan     dtype and full shape of every variable that met a value are compared, then all values are read
commit   all are written while nobody reads in between; only then are the objects marked as restored

An object that met a stored one keeps a hook for children that the checkpoint has and it has not. When one appears, the
same three steps restore it and what hangs on it, before anybody else can see it. The checkpoint is opened again for
that, and must still be where it was.
"""

import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardvar.checkpoint.objects.state import read_writes
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, StoredNode, decode_graph, nodes_of_keys
from shardvar.checkpoint.reader import Reader, open_checkpoint
from shardvar.tracking import ChildHook, Trackable
from shardvar.variables import VariableInterface
from shardvar.variables.resource import commit
from shardvar.wire.damage import invalid

_LOG = logging.getLogger("shardvar.checkpoint")

_Match = list[tuple[Trackable, int]]
"""Objects, each with the number of the stored object that it is."""


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

    path: str
    """The checkpoint."""
    nodes: list[StoredNode]
    """Its graph; the first is the root."""
    unmatched: Unmatched
    """What no object took yet."""
    _objects: dict[int, Trackable] = field(default_factory=dict)
    """The object that each stored one is, by its number."""
    _met: set[int] = field(default_factory=set)
    """The identities of the objects that met a stored one."""
    _restored: set[int] = field(default_factory=set)
    """The identities of the variables that took a value."""

    def restore(self, root: Trackable, number: int, reader: Reader) -> None:
        """Restore an object that is a stored one, and all that hang on both."""
        match = self._match(root, number)
        wanted = [
            (key, each)
            for each, node in match
            if (key := self.nodes[node].key) is not None and isinstance(each, VariableInterface)
        ]
        commit(read_writes(reader, wanted))
        if not self._met:  # a restore that failed has told so already
            weakref.finalize(self, self.unmatched.tell).atexit = False
        self.unmatched.keys.difference_update(key for key, _ in wanted)
        self._restored.update(id(each) for _, each in wanted)
        for each, node in match:
            self._objects[node] = each
            self._met.add(id(each))
            each.await_children(self.hook(node))

    def hook(self, number: int) -> ChildHook:
        """What restores the children of a stored object as they appear."""
        children = self.nodes[number].children

        def appear(parent: Trackable, name: str, child: Trackable) -> None:
            node = children.get(name)
            if node is None or node in self._objects or id(child) in self._met:
                return
            with open_checkpoint(self.path) as reader:
                self.restore(child, node, reader)

        return appear

    def is_restored(self, variable: VariableInterface) -> bool:
        """Whether the variable took a value."""
        return id(variable) in self._restored

    @property
    def num_met(self) -> int:
        """The objects that met a stored one, the root included."""
        return len(self._met)

    def _match(self, root: Trackable, number: int) -> _Match:
        """The pairs that meet now, breadth first; whoever comes first under a name is the stored object."""
        match = [(root, number)]
        met, taken = {id(root)}, {number}
        for parent, node in match:  # grows while it is walked
            stored = self.nodes[node].children
            for name, child in parent.children.items() if stored else ():
                target = stored.get(name)
                if target is None or target in taken or target in self._objects:
                    continue
                if id(child) not in met and id(child) not in self._met:
                    match.append((child, target))
                    met.add(id(child))
                    taken.add(target)
        return match


def open_restoration(reader: Reader, ignored: Iterable[str] = ()) -> Restoration:
    """The restoration of an open checkpoint, which has met nothing yet; ``ignored`` keys are nobody's."""
    keys = dict.fromkeys(reader.keys())
    nodes = decode_graph(_message(reader), keys) if GRAPH_KEY in keys else nodes_of_keys(keys)
    return Restoration(reader.path, nodes, Unmatched(reader.path, set(keys).difference(ignored, [GRAPH_KEY])))


def _message(reader: Reader) -> bytes:
    message = reader.read(GRAPH_KEY)
    if message.shape or not isinstance(message.item(), bytes):
        raise invalid(f"{GRAPH_KEY} is {message.dtype}{list(message.shape)}, and should be one string.")
    octets: bytes = message.item()
    return octets

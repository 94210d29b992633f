"""sv.Checkpoint: a root object whose variables are written and read by the names that lead to them.

R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to possibly a different number
of shards": a sharded variable is one key, and its shards are slices of it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardvar.checkpoint.arguments import texts_of
from shardvar.checkpoint.locate import Path, find_target
from shardvar.checkpoint.objects.containers import ContainerNode, node_of
from shardvar.checkpoint.objects.keys import key_of
from shardvar.checkpoint.objects.restoration import open_restoration
from shardvar.checkpoint.objects.state import snapshot
from shardvar.checkpoint.objects.status import RestoreStatus
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, encode_graph
from shardvar.checkpoint.options import CheckpointOptions, policy_of
from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.save import WRITER, check_keys
from shardvar.checkpoint.writing import carry_out, draft
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import STRING
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.tracking import ChildHook, ObjectGraph, Trackable
from shardvar.variables import Variable, VariableInterface

SAVE_COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
"""Where TensorFlow's numbered checkpoints keep their number."""


class Checkpoint(Trackable):
    """The objects to write and read: ``root`` with its children, and whatever else is named.

    Objects are modules, variables, sharded ones, other trackable objects, and dictionaries, lists and tuples of these.
    An attribute that is set later is one more.

    >>> import os, tempfile
    >>> from shardvar.variables import Variable, create_sharded_variable
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = Checkpoint(w=create_sharded_variable([1.0, 2.0, 3.0, 4.0], 4)).write(path)
    >>> w = create_sharded_variable([0.0, 0.0, 0.0, 0.0], 3)
    >>> _ = Checkpoint(w=w).read(path).assert_consumed()
    >>> w.numpy()
    array([1., 2., 3., 4.], dtype=float32)
    """

    _root: Trackable | None
    _known: dict[int, ContainerNode]

    def __init__(self, root: Any = None, **objects: Any) -> None:
        self.__dict__["_known"] = {}
        self.__dict__["_root"] = None if root is None else self._node("root", root)
        for name in sorted(objects):
            setattr(self, name, objects[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(f"A checkpoint has no place for an object named {name!r}.", "Choose another name.")
        node = self._node(name, value)
        there = node if self._root is None else self._root.children.get(name, node)
        if there is not node:
            raise ArgumentError(f"The root has another child named {name!r}.", "Choose another name.")
        if isinstance(self._root, VariableInterface):
            raise ArgumentError(f"The root is a variable, and has no child {name!r}.", "Give it a name too.")
        super().__setattr__(name, value)
        self.track(name, node)

    @property
    def children(self) -> Mapping[str, Trackable]:
        """The children of the root, and then the objects that are named."""
        root = {} if self._root is None else self._root.children
        return MappingProxyType({**root, **super().children})

    def await_children(self, hook: ChildHook | None) -> None:
        super().await_children(hook)
        if self._root is not None:
            self._root.await_children(hook)

    def write(
        self,
        path: Path,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        options: CheckpointOptions | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> WriteReport:
        """Write the values of all variables, as of one moment, and commit them; a report of what was written.

        The arguments and errors are those of ``sv.save``; ``options`` may have the policy instead. Keys are
        TensorFlow's, and in formats that hold strings the graph of objects is stored too, so that TensorFlow restores
        what the format "tensorflow" holds.
        """
        target = find_target(path, format, otherwise="shardvar")
        policy = policy_of(policy, options)
        graph = self._graph()
        paths = graph.paths()
        keyed = _keyed(graph, paths)
        has_strings = STRING in target.format.capabilities.dtypes
        source = snapshot(keyed, [(GRAPH_KEY, encode_graph(graph, paths))] if has_strings else [])
        work = draft(
            target,
            source.index.entries,
            policy=policy,
            partition=None,
            metadata=Metadata(writer=WRITER, user=texts_of(metadata)),
            force=force,
            replace_atomically=True,
        )
        return carry_out(work, source, None, lambda nbytes: None)

    def read(self, path: Path) -> RestoreStatus:
        """Restore what the checkpoint and the objects both have, and go on as objects appear; what did not match.

        All variables that there are get their values, or none does: ``InconsistentTensor`` where dtype or full shape
        differ, and the errors of ``sv.load``. A layout is never an error: shards take the rows that they hold.
        """
        return self._read(path, ())

    def restore(self, path: Path) -> RestoreStatus:
        """``read``, of a checkpoint that may be one of a numbered series: its number is nobody's value."""
        return self._read(path, (SAVE_COUNTER,))

    def _read(self, path: Path, ignored: tuple[str, ...]) -> RestoreStatus:
        top = self._top
        restoration = open_restoration(open_checkpoint(path), ignored)
        restoration.restore(top, 0)
        if top is not self:
            super().await_children(restoration.hook(0))
        return RestoreStatus(restoration, self._graph)

    @property
    def _top(self) -> Trackable:
        """The root of the graph: the object that was given as such, where nothing is named beside it."""
        return self if self._root is None or super().children else self._root

    def _graph(self) -> ObjectGraph:
        return ObjectGraph.of(self._top)

    def _node(self, name: str, value: Any) -> Trackable:
        node = node_of(value, self._known)
        if node is None:
            raise ArgumentTypeError(
                f"{name!r} is a {type(value).__name__}, which has no variables.",
                "Give modules, variables, trackable objects, or dictionaries and lists of these.",
            )
        return node


def _keyed(graph: ObjectGraph, paths: tuple[tuple[str, ...], ...]) -> list[tuple[str, VariableInterface]]:
    """The variables of a graph with their keys."""
    found: dict[str, VariableInterface] = {}
    for node, path in zip(graph.objects, paths, strict=True):
        if not isinstance(node, VariableInterface):
            continue
        if isinstance(node, Variable) and node.container is not None:
            # R-MODULE-1 (RFC 000): "It will result in unnecessary data duplications in checkpoints".
            raise ArgumentError(
                f"{'/'.join(path)} is a shard of {node.container.name}, and could not be restored to other shards.",
                "Track the sharded variable itself.",
            )
        key = key_of(path)
        if key in found:
            raise ArgumentError(f"Two objects have the key {key!r}.", "Give none of them an empty name.")
        found[key] = node
    check_keys(list(found))
    return list(found.items())

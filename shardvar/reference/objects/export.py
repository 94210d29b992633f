"""sv.export and sv.load_exported: objects in the form in which they are served, without a trace of
their sharding.

R-EXPORT-1 (RFC 000): "being able to be saved to SavedModel as a single variable for fast
inference". A sharded variable is written as one whole tensor: its shards are read where they lie
and put side by side in the file, so that the single variable exists nowhere else. RFC 000: "The
single variable will not be initialized at saving time (since no one reads it), and it will be
restored to the full value at loading time." An export is a checkpoint like any other, with one more
fact in its graph of objects: which variables are not trainable.

R-EXPORT-2 (RFC 000): "When the variable is recreated at loading time, the creation will be subject
to the enclosed variable creation scope, for example a saved_model produced by a model with
ParameterServerStrategy can be loaded under a MirroredStrategy, resulting in MirroredVariable." Each
is created by ``sv.Variable`` from an initial value that reads the region that the creator wants, so
that a shard reads its own rows.

R-EXPORT-3 (RFC 000): "One drawback of this per-layer partitioning is that it is not preserved in
SavedModel": it is not preserved here either.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from shardvar.engine.read import read_arrays
from shardvar.errors import ArgumentError, ArgumentTypeError, UnknownKey
from shardvar.layout.dtypes import Array
from shardvar.pictures.words import named
from shardvar.planning.plan import plan_copies
from shardvar.planning.policies import Policy
from shardvar.reference.objects.image import SaveOptions, hold_image
from shardvar.reference.objects.options import CheckpointOptions, policy_of
from shardvar.reference.objects.restoration import graph_of, is_bookkeeping
from shardvar.reference.objects.saved_model import VARIABLES, write_saved_model
from shardvar.reference.objects.stored_graph import StoredNode
from shardvar.reference.objects.values import entries_of
from shardvar.reference.tracking import ObjectGraph, Stateful, Trackable
from shardvar.reference.tracking.graph import node_of
from shardvar.reference.variables import ShardedVariable, Variable, VariableInterface
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.locate import Path, find_target
from shardvar.verbs.reader import Reader, open_checkpoint
from shardvar.verbs.reports import WriteReport
from shardvar.wire.damage import invalid


def export(
    obj: Any,
    path: Path,
    *,
    as_shards: bool = False,
    policy: Policy | None = None,
    options: CheckpointOptions | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> WriteReport:
    """Write an object with all that it reaches for serving, and commit it. ``sv.load_exported``
    reads it.

    Parameters
    ----------
    obj : object
        A module, a variable, another trackable object, or a dictionary or list of these.
    path : path_like
        The checkpoint to write; with ``format='tensorflow'`` the folder of a SavedModel, which
        TensorFlow's servers open.
    as_shards : bool, default False
        Write each sharded variable as a slice a shard, for serving in parts. By default it is one
        whole tensor.
    policy : policy, optional
        The policy that says which slices share a file.
    options : CheckpointOptions, optional
        TensorFlow's options, which may have the policy instead.
    format : str, optional
        The format, as in ``sv.save``.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    force : bool, default False
        Replace an existing checkpoint also where the format cannot do that in one step.

    Returns
    -------
    WriteReport
        The report of what was written.

    Raises
    ------
    ArgumentTypeError
        If ``obj`` has no variables, or an argument has a wrong type.
    ArgumentError
        If there is nothing to export, or an argument is invalid.
    TargetExists
        If a checkpoint exists that cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If the format cannot hold a tensor.
    StorageError
        If the disk is full, or the file system refuses.

    Notes
    -----
    R-EXPORT-4 (RFC 000): "Users can also choose to save sharded variable as it is by specifying a
    SaveOption."

    The values are not copied, but read where they lie, so other threads that write a variable wait.
    Memory: a few blocks of 4 MiB for a variable of any size.

    Examples
    --------
    >>> import os, tempfile
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> with sv.ParameterServerStrategy(4, sv.FixedShardsPartitioner(4)).scope():
    ...     report = sv.export({"w": sv.Variable([1.0, 2.0, 3.0, 4.0])}, path)
    >>> report.num_tensors, report.num_slices
    (2, 2)
    """
    if not isinstance(as_shards, bool):
        raise ArgumentTypeError(f"as_shards is {as_shards!r}.", "Give True or False.")
    chosen, graph, is_folder = policy_of(policy, options), _graph_of(obj), format == "tensorflow"
    save_options = SaveOptions(
        chosen, texts_of(metadata), force, is_for_serving=True, as_shards=as_shards
    )
    target = find_target(
        os.path.join(path, *VARIABLES) if is_folder else path, format, otherwise="shardvar"
    )
    with hold_image(graph, target, save_options) as image:
        if not image.trackables:
            raise ArgumentError(
                "There is nothing to export.",
                "Build the model first: variables may come with a call.",
            )
        return write_saved_model(path, graph, image) if is_folder else image.write()


def _graph_of(obj: Any) -> ObjectGraph:
    """Return the graph of an object, a dictionary or a list."""
    root = node_of(obj, WeakValueDictionary())
    if root is None:
        raise ArgumentTypeError(
            f"A {type(obj).__name__} has no variables.", "Give a module, or another trackable."
        )
    return ObjectGraph.of(root)


# Loading.


class ExportedObject(Stateful):
    """An object whose children are known and whose class is not; children are attributes, or items
    by name.

    Items of lists are ``exported.blocks[0]``, items of dictionaries ``exported.heads["a"]``.
    """

    _own_state: Mapping[str, Array] = {}

    # Called only for names that are not attributes: a child cannot hide a method, and a child named
    # "state" is ``exported["state"]``.
    def __getattr__(self, name: str) -> Trackable:
        children: Mapping[str, Trackable] = self.__dict__.get("_children", {})
        if name not in children:
            raise AttributeError(
                f"Unknown child {name!r}. The children are {', '.join(children) or 'none'}."
            )
        return children[name]

    def __getitem__(self, name: str | int) -> Trackable:
        if str(name) not in self.children:
            raise UnknownKey(
                f"Unknown child {name!r}.",
                f"The children are {', '.join(self.children) or 'none'}.",
            )
        return self.children[str(name)]

    def __len__(self) -> int:
        return len(self.children)

    def __bool__(self) -> bool:
        return True  # an object without children has the length 0, but is not empty as a value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.children})

    @property
    def variables(self) -> tuple[VariableInterface, ...]:
        """All variables under this object, each once, nearest first; of sharded ones the shards, as
        in a module."""
        found = [
            node for node in ObjectGraph.of(self).objects if isinstance(node, VariableInterface)
        ]
        return tuple(
            each
            for one in found
            for each in (one.variables if isinstance(one, ShardedVariable) else [one])
        )

    @property
    def trainable_variables(self) -> tuple[VariableInterface, ...]:
        """The trainable ones of ``variables``."""
        return tuple(variable for variable in self.variables if variable.trainable)

    def state(self) -> Mapping[str, Array]:
        """Return the state of the object that was exported, empty if it had none."""
        return dict(self._own_state)

    def restore_state(self, values: Mapping[str, Array]) -> None:
        self.__dict__["_own_state"] = dict(values)


def load_exported(path: Path) -> Any:
    """Create the objects that were exported, with their values.

    Parameters
    ----------
    path : path_like
        The export, or any checkpoint of objects, also TensorFlow's.

    Returns
    -------
    ExportedObject or Variable
        The root; a variable if that was exported.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    AmbiguousPath
        If ``path`` matches several checkpoints.
    InvalidCheckpoint
        If a value belongs to no object.
    CheckpointError
        If the checkpoint is damaged.

    Notes
    -----
    Inside a strategy's scope variables are created by the strategy, else they are plain. A format
    without strings, such as npz, gives variables the names of their keys, and all count as
    trainable.

    Examples
    --------
    >>> import os, tempfile
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = sv.export({"blocks": [sv.Variable([1.0, 2.0])]}, path)
    >>> sv.load_exported(path).blocks[0].numpy()
    array([1., 2.], dtype=float32)
    """
    with open_checkpoint(path) as reader:
        # Check: every stored value belongs to an object.
        nodes = graph_of(reader)
        _check_all_reached(reader, nodes)
        # Move: each value is read when the variable that wants it is created.
        values = _StoredValues(reader, [node.key for node in nodes if node.key is not None])
        made = [_create(reader, node, values) for node in nodes]
    # Children may come before or after their parents, and graphs may have cycles: create all first,
    # then connect.
    for node, parent in zip(nodes, made, strict=True):
        for name, child in node.children.items():
            parent.track(name, made[child])
        # A slot is found by its variable and its role; its name as a child only has to be unique,
        # so it has the number.
        for (variable, name), slot in node.slots.items():
            parent.track_slot(f"{variable}.{name}", made[slot], made[variable], name)
    return made[0]


_SMALL_NBYTES = 1 << 16
"""Tensors of at most this size are read in batches, because reading one by itself costs 0.1 ms."""
_BATCH_NBYTES = 1 << 22
"""Size of a batch, 4 MiB."""


@dataclass(slots=True, eq=False)
class _StoredValues:
    """The stored values, read on demand: small ones in batches, in the order of the keys."""

    reader: Reader
    """The open checkpoint."""
    keys: Sequence[str]
    """The keys in the order in which their values will be needed."""
    _batches: dict[str, int] = field(default_factory=dict)
    """The number of the batch of each small tensor."""
    _at: int = -1
    """The number of the batch in memory."""
    _batch: dict[str, Array] = field(default_factory=dict)
    """The values of the batch in memory, by key."""
    _tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Dtype and shape of each tensor, by key."""

    def __post_init__(self) -> None:
        slices = entries_of(self.reader, self.keys).slices
        sizes = dict(zip(slices.tensors.keys, slices.nbytes_of_tensors().tolist(), strict=True))
        rows = slices.tensors.rows()
        # A batch ends with the tensor that fills it above 4 MiB, so it holds at most 4 MiB and one
        # small tensor.
        batch = filled = 0
        for key in self.keys:
            self._tensors[key] = slices.tensors.dtype(rows[key]), slices.tensors.shape(rows[key])
            if sizes[key] <= _SMALL_NBYTES:
                self._batches[key] = batch
                filled += sizes[key]
                if filled > _BATCH_NBYTES:
                    batch, filled = batch + 1, 0

    def initial(self, key: str) -> dict[str, Any]:
        """Return the arguments of ``sv.Variable`` for the value of a key."""
        dtype, shape = self._tensors[key]
        return {"initial_value": _StoredValue(self, key), "dtype": dtype, "shape": shape}

    def read(self, key: str, partition: Any = None) -> Array:
        """Return a value or a region of it, as a new array."""
        if key not in self._batches:
            return self.reader.read(key) if partition is None else self.reader.read(key, partition)
        # Values are needed in the order of the keys, and each batch is a range of them: so one
        # batch at a time is kept, and each is read once.
        if self._batches[key] != self._at:
            self._at = self._batches[key]
            wanted = [each for each in self.keys if self._batches.get(each) == self._at]
            entries = entries_of(self.reader, wanted)
            rows = entries.slices.tensors.rows()
            tensors = entries.slices.tensors.take(np.array([rows[each] for each in wanted]))
            plan = plan_copies(entries.slices, tensors.whole())
            self._batch = dict(
                zip(wanted, read_arrays(plan, self.reader.source, entries), strict=True)
            )
        value = self._batch[key]
        return value.copy() if partition is None else value[partition.slices].copy()


@dataclass(frozen=True, slots=True)
class _StoredValue:
    """A stored value as an initial value: a callable that knows partitions, as initializers do."""

    values: _StoredValues
    """The values of the checkpoint."""
    key: str
    """The key of the value."""
    makes_new_arrays: ClassVar[bool] = True
    """Every call returns an array that no other code refers to."""

    def __call__(self, partition: Any = None) -> Array:
        return self.values.read(self.key, partition)


def _create(reader: Reader, node: StoredNode, values: _StoredValues) -> Trackable:
    """Create the object of a node, without its children."""
    if node.key is None:
        made = ExportedObject()
        if node.states:
            made.restore_state({name: reader.read(key) for name, key in node.states.items()})
        return made
    variable: Trackable = Variable(
        trainable=node.is_trainable, name=node.name or None, **values.initial(node.key)
    )
    return variable


def _check_all_reached(reader: Reader, nodes: Sequence[StoredNode]) -> None:
    """Raise ``InvalidCheckpoint`` if a value belongs to no object."""
    # As ``_create`` reads them: a variable only by its value, another object by its attributes.
    reached = {node.key for node in nodes} | {
        key for node in nodes if not node.key for key in node.states.values()
    }
    lost = [key for key in reader if key not in reached and not is_bookkeeping(key)]
    if lost:
        raise invalid(f"{reader.path} has values that belong to no object: {named(lost)}.")

"""Objects in the form in which they are served: export, SavedModel, and loading.

A SavedModel has a program, graphs that restore the variables and look rows up. A server of the
older kind runs the nodes of one graph. A program of TensorFlow 2 creates the variables itself, and
calls functions of a library. Both get the same lookup: ``ResourceGather``, which refuses ids out of
range on a CPU.

    GraphDef      1 node, 2 library (1 function), 4 versions (1 producer)
    NodeDef       1 name, 2 op, 3 input, 5 attr (map)
    AttrValue     1 list (6 type), 2 s, 6 type, 7 shape, 8 tensor (1 dtype, 2 shape, 8 string_val)
    FunctionDef   1 signature, 3 node_def, 4 ret (map of text)
    OpDef         1 name, 2 input_arg, 3 output_arg (each 1 name, 3 type, 7 handle_data), 17
                  is_stateful
    SignatureDef  1 inputs, 2 outputs (maps; 1 name, 2 dtype, 3 shape), 3 method_name
    SaverDef      1 filename_tensor_name, 2 save_tensor_name, 3 restore_op_name, 7 version

The variables of a SavedModel are a checkpoint of TensorFlow's format.

    PATH/saved_model.pb                    the graph of objects, and graphs that restore variables
                                           and look rows up
    PATH/variables/variables.index, …      the values

    SavedModel        1 saved_model_schema_version, 2 meta_graphs
    MetaGraphDef      1 meta_info_def (4 tags, 5 tensorflow_version), 2 graph_def, 3 saver_def, 4
                      collection_def (map), 5 signature_def (map), 7 object_graph_def
    SavedObjectGraph  1 nodes, 2 concrete_functions (map)
    SavedObject       1 children (1 node_id, 2 local_name), 4 user_object (1 identifier, 2 version),
                      7 variable (1 dtype, 2 shape, 3 trainable, 6 name), 8 bare_concrete_function

R-EXPORT-5 (RFC 000): "can be saved to a SavedModel and served in both TF 1.x serving and TF 2.x
serving APIs." The variables of a session are restored by nodes of its graph. R-EXPORT-5: "Sharded
variable saving will be made compatible with TensorFlow Serving (TF 1.x style session based APIs)".

Each variable of two axes or more can be looked up: its signature takes ids and returns rows. The
signature of the only such variable has a second name, ``serving_default``. Functions of modules are
not written, because they are programs of Python that shardvar does not trace.

Slots of optimizers are in the checkpoint and not in the graph of objects: TensorFlow would want the
optimizer's class.

The variables come first and ``saved_model.pb`` last, so a folder with this file has them.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from shardvar.engine.read import read_arrays
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    TargetExists,
    UnknownKey,
    UnsupportedError,
)
from shardvar.formats.files import discard_files, put_in_place, write_file
from shardvar.formats.tensorflow.contents import ENUMS
from shardvar.formats.unfinished import ASIDE
from shardvar.layout.dtypes import Array, Shape, dtype_name
from shardvar.pictures.words import named
from shardvar.planning.plan import plan_copies
from shardvar.planning.policies import Policy
from shardvar.records import field, frozen, mutable, replace
from shardvar.reference.objects.checkpoint import (
    CheckpointOptions,
    Image,
    ObjectOptions,
    hold_image,
    policy_of,
)
from shardvar.reference.objects.restoration import graph_of, is_bookkeeping
from shardvar.reference.objects.stored_graph import entries_of, key_of
from shardvar.reference.tracking import ContainerNode, ObjectGraph, Stateful, Trackable, node_of
from shardvar.reference.variables import ShardedVariable, Variable, VariableInterface
from shardvar.storage.local import LocalStorage, split_path
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path, find_target
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import WriteReport
from shardvar.wire.damage import invalid
from shardvar.wire.protobuf import encode_bytes_field, encode_varint
from shardvar.wire.protobuf import encode_map_field as map_field
from shardvar.wire.protobuf import encode_message_field as message
from shardvar.wire.protobuf import encode_text_field as text
from shardvar.wire.protobuf import encode_varint_field as number

RESOURCE, STRING, INT64 = 20, ENUMS["string"], ENUMS["int64"]
IDS, ROWS = "ids", "rows"
"""The argument of a lookup, and its answer."""
_UNKNOWN = (1 << 64) - 1
"""The extent -1 in two's complement: any."""
_PRODUCER = 1205
"""The version of graphs of TensorFlow 2.10, which later ones read as it was meant."""
_PREDICT = "tensorflow/serving/predict"
_FILENAME, _NAMES, _WHOLE = "saver_filename", "save/tensor_names", "save/shape_and_slices"
_INIT = "init"


@frozen
class ServedVariable:
    node: int
    """Its number in the graph of objects."""
    name: str
    key: str
    dtype: int
    """TensorFlow's number for its dtype."""
    shape: Shape
    lookups: tuple[str, ...] = ()
    """The names of the signature that looks its rows up; none without a signature."""

    @property
    def handle(self) -> str:
        return f"variable_{self.node}"

    @property
    def function(self) -> str:
        return f"__inference_lookup_rows_{self.node}"

    @property
    def rows(self) -> tuple[int, ...]:
        return (-1, *self.shape[1:])


def shape_fields(shape: Sequence[int]) -> bytes:
    """Return the fields of a TensorShapeProto; an extent of -1 is any."""
    return b"".join(message(2, number(1, extent if extent >= 0 else _UNKNOWN)) for extent in shape)


def graph_fields(variables: Sequence[ServedVariable]) -> bytes:
    functions = []
    for each in variables:
        if each.lookups:
            # A function that looks rows up: ids and a handle in, rows out.
            handle = message(7, number(1, each.dtype), message(2, shape_fields(each.shape)))
            arguments = [
                message(2, text(1, IDS), number(3, INT64)),
                message(2, text(1, "table"), number(3, RESOURCE), handle),
                message(3, text(1, ROWS), number(3, each.dtype)),
            ]
            signature = message(1, text(1, each.function), *arguments, number(17, 1))
            answer = message(4, text(1, ROWS), text(2, "gather:output:0"))
            lookup = _gather("gather", each, IDS, "table", field=3)
            functions.append(message(1, signature, lookup, answer))
    return b"".join([*_nodes(variables), message(2, *functions), message(4, number(1, _PRODUCER))])


def signature_entries(variables: Sequence[ServedVariable]) -> Iterator[tuple[str, bytes]]:
    """Yield the signatures of a server: name, and the fields of a SignatureDef."""
    nothing = text(1, _INIT) + message(3, number(3, 1))
    yield "__saved_model_init_op", map_field(2, "__saved_model_init_op", nothing)
    for each in variables:
        if each.lookups:
            ids = _tensor(f"{each.handle}/{IDS}:0", INT64, (-1,))
            rows = _tensor(f"{each.handle}/{ROWS}:0", each.dtype, each.rows)
            fields = map_field(1, IDS, ids) + map_field(2, ROWS, rows) + text(3, _PREDICT)
            yield from ((name, fields) for name in each.lookups)


def _tensor(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    return text(1, name) + number(2, dtype) + message(3, shape_fields(shape))


def _nodes(variables: Sequence[ServedVariable]) -> Iterator[bytes]:
    """Yield the nodes of the graph of a server: variables, saving, restoring, lookups."""
    dtypes = message(1, *(number(6, each.dtype) for each in variables))
    for each in variables:
        dtype, shape = number(6, each.dtype), message(7, shape_fields(each.shape))
        shared = text(2, each.handle)
        yield _node(each.handle, "VarHandleOp", dtype=dtype, shape=shape, shared_name=shared)
        yield _node(f"{each.handle}/read", "ReadVariableOp", each.handle, dtype=dtype)
    yield _node(_FILENAME, "Placeholder", dtype=number(6, STRING), shape=message(7))
    yield _strings(_NAMES, [each.key for each in variables])
    yield _strings(_WHOLE, [""] * len(variables))
    reads = [f"{each.handle}/read" for each in variables]
    yield _node("save", "SaveV2", _FILENAME, _NAMES, _WHOLE, *reads, dtypes=dtypes)
    yield _node("save/done", "Identity", _FILENAME, "^save", T=number(6, STRING))
    yield _node("restore", "RestoreV2", _FILENAME, _NAMES, _WHOLE, dtypes=dtypes)
    for row, each in enumerate(variables):
        dtype = number(6, each.dtype)
        yield _node(
            f"{each.handle}/restore", "AssignVariableOp", each.handle, f"restore:{row}", dtype=dtype
        )
    yield _node("restore_all", "NoOp", *(f"^{each.handle}/restore" for each in variables))
    yield _node(_INIT, "NoOp")
    for each in variables:
        if each.lookups:
            ids = f"{each.handle}/{IDS}"
            yield _node(
                ids, "Placeholder", dtype=number(6, INT64), shape=message(7, shape_fields((-1,)))
            )
            yield _gather(f"{each.handle}/{ROWS}", each, ids, each.handle)


def _gather(name: str, variable: ServedVariable, ids: str, handle: str, field: int = 1) -> bytes:
    dtype, indices = number(6, variable.dtype), number(6, INT64)
    return _node(name, "ResourceGather", handle, ids, field=field, dtype=dtype, Tindices=indices)


def _strings(name: str, values: Sequence[str]) -> bytes:
    tensor = number(1, STRING) + message(2, shape_fields((len(values),)))
    content = message(8, tensor, *(text(8, value) for value in values))
    return _node(name, "Const", dtype=number(6, STRING), value=content)


def _node(name: str, operation: str, *inputs: str, field: int = 1, **attributes: bytes) -> bytes:
    """Return a node of a graph, or with ``field=3`` of a function."""
    entries = (map_field(5, key, value) for key, value in attributes.items())
    return message(
        field, text(1, name), text(2, operation), *(text(3, each) for each in inputs), *entries
    )


VARIABLES = ("variables", "variables")
"""The folder of the checkpoint, and its prefix there."""
_FILE, _ASIDE = "saved_model.pb", f"saved_model.pb{ASIDE}"
_DEFAULT = "serving_default"
_SIGNATURES = "signatures"
_PLAIN = "_generic_user_object"
_VERSION = message(2, number(1, 1), number(2, 1))


def write_saved_model(path: Path, graph: ObjectGraph, image: Image) -> WriteReport:
    """Write the variables of an image, then the file that describes them."""
    # Check, and plan.
    split_path(path)  # raises if it is a URL
    storage = LocalStorage(os.fsdecode(path))
    content = build_saved_model(graph)
    write = image.plan()
    storage.make()
    with storage.lock("saved_model"):
        if _FILE in storage.names() and not image.options.force:
            remedy = (
                "Choose another name, or pass force=True: a crash in between leaves new values "
                "with an old graph."
            )
            raise TargetExists(f"{storage.path} has a {_FILE}.", remedy)
        # Move: the file first under another name, so that a full disk is noticed while the old
        # model is whole.
        write_file(storage, _ASIDE, content)
        try:
            report = write()
        except BaseException:
            discard_files(storage, [_ASIDE])
            raise
        # Commit.
        put_in_place(storage, [], (_ASIDE, _FILE))
    return replace(report, path=storage.path)


def build_saved_model(graph: ObjectGraph) -> bytes:
    if isinstance(graph.objects[0], VariableInterface):
        raise ArgumentError(
            "A SavedModel has a variable as its root.", "Export a dictionary: {'name': variable}."
        )
    variables = _variables(graph)
    saver = text(1, f"{_FILENAME}:0"), text(2, "save/done:0"), text(3, "restore_all"), number(7, 2)
    meta = (
        message(1, text(4, "serve"), text(5, "2.10.0")),
        message(2, graph_fields(variables)),
        message(3, *saver),
        map_field(4, "saved_model_main_op", message(1, text(1, _INIT))),
        *(map_field(5, name, fields) for name, fields in signature_entries(variables)),
        message(7, *_objects(graph, variables)),
    )
    return number(1, 1) + message(2, *meta)


def _variables(graph: ObjectGraph) -> list[ServedVariable]:
    """Return the variables of a graph that names lead to, and the signatures of those with rows."""
    named = {child for row in graph.edges for _, child in row}
    paths = graph.paths()
    variables = {
        number: each
        for number, each in enumerate(graph.objects)
        if isinstance(each, VariableInterface) and number in named
    }
    tables = [number for number, each in variables.items() if len(each.shape) > 1]
    found = []
    for position, each in variables.items():
        dtype, path = dtype_name(each.dtype), "/".join(paths[position])
        if dtype not in ENUMS:
            raise UnsupportedError(
                f"TensorFlow does not have the dtype {dtype} of {path!r}.", "Cast the variable."
            )
        lookups = (
            (path, _DEFAULT) if tables == [position] else (path,) if position in tables else ()
        )
        key = key_of(paths[position])
        found.append(
            ServedVariable(position, each.name, key, ENUMS[dtype], tuple(each.shape), lookups)
        )
    return found


def _objects(graph: ObjectGraph, variables: Sequence[ServedVariable]) -> Iterator[bytes]:
    """Yield the fields of a SavedObjectGraph: the objects, the map of signatures, then functions."""
    served = {each.node: each for each in variables}
    tables = [each for each in variables if each.lookups]
    count = len(graph.objects)
    for position, (each, edges) in enumerate(zip(graph.objects, graph.edges, strict=True)):
        children = [_child(name, child) for name, child in edges]
        if position == 0:
            children.append(_child(_SIGNATURES, count))
        variable = served.get(position)
        if variable is not None:
            trainable = isinstance(each, VariableInterface) and each.trainable
            dtype, shape = number(1, variable.dtype), message(2, shape_fields(variable.shape))
            fields = dtype, shape, number(3, int(trainable)), text(6, variable.name)
            yield message(1, *children, message(7, *fields))
            continue
        # TensorFlow's name for the class of an object that is not a variable.
        container, kind = each.items if isinstance(each, ContainerNode) else each, _PLAIN
        if position and isinstance(container, Mapping):
            kind = "trackable_dict_wrapper"
        elif position and isinstance(container, list | tuple):
            kind = "trackable_list_wrapper"
        yield message(1, *children, _user_object(kind))
    # The functions have the numbers after the map's.
    names = [(name, count + 1 + row) for row, each in enumerate(tables) for name in each.lookups]
    yield message(
        1, *(_child(name, number) for name, number in names), _user_object("signature_map")
    )
    for table in tables:
        fields = text(1, table.function), text(2, IDS), number(3, 1), message(4, _FUNCTION_SPEC)
        yield message(1, message(8, *fields))
    for table in tables:
        yield map_field(2, table.function, _concrete_function(table))


def _child(name: str, node: int) -> bytes:
    return message(1, number(1, node), text(2, name))


def _user_object(identifier: str) -> bytes:
    return message(4, text(1, identifier), _VERSION)


# The messages of struct.proto, which describe arguments and answers: each value has the field of
# its kind.


def _tensor_spec(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    return message(_TENSOR_SPEC, text(1, name), message(2, shape_fields(shape)), number(3, dtype))


def _concrete_function(variable: ServedVariable) -> bytes:
    ids = map_field(1, IDS, _tensor_spec(IDS, INT64, (-1,)))
    rows = map_field(1, ROWS, _tensor_spec(ROWS, variable.dtype, variable.rows))
    arguments = message(1, message(_TUPLE)) + message(1, message(_DICT, ids))
    bound = encode_bytes_field(2, encode_varint(variable.node))
    return bound + message(3, message(_TUPLE, arguments)) + message(4, message(_DICT, rows))


_NONE, _TENSOR_SPEC, _LIST, _TUPLE, _DICT, _NAMED_TUPLE = 1, 33, 51, 52, 53, 54
"""The fields of a StructuredValue."""

_FUNCTION_SPEC = message(
    1,
    message(
        _NAMED_TUPLE,
        text(1, "FullArgSpec"),
        *(
            message(2, text(1, key), message(2, value))
            for key, value in {
                "args": message(_LIST),
                "varargs": message(_NONE),
                "varkw": message(_NONE),
                "defaults": message(_NONE),
                "kwonlyargs": message(_LIST, message(1, text(13, IDS))),
                "kwonlydefaults": message(_NONE),
                "annotations": message(_DICT),
            }.items()
        ),
    ),
) + message(5, message(_NONE))
"""A function whose only argument is given by its name."""


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
        The policy that chooses the slices of each file.
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
    chosen, is_folder = policy_of(policy, options), format == "tensorflow"
    root = node_of(obj, WeakValueDictionary())
    if root is None:
        raise ArgumentTypeError(
            f"A {type(obj).__name__} has no variables.", "Give a module, or another trackable."
        )
    graph = ObjectGraph.of(root)
    save_options = ObjectOptions(
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


# Loading.


class ExportedObject(Stateful):
    """An object of an unknown class; children are attributes, or items: ``exported.blocks[0]``."""

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
        """All variables under this object, each once, nearest first; of sharded ones the shards."""
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
        """The ``variables`` that are trainable."""
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
        # Check: every stored value belongs to an object, of a variable its value, of another object
        # its attributes.
        nodes = graph_of(reader)
        reached = {node.key for node in nodes}
        reached.update(key for node in nodes if not node.key for key in node.states.values())
        lost = [key for key in reader if key not in reached and not is_bookkeeping(key)]
        if lost:
            raise invalid(f"{reader.path} has values that belong to no object: {named(lost)}.")
        # Move: each value is read when the variable that wants it is created.
        values = _StoredValues(reader, [node.key for node in nodes if node.key is not None])
        made: list[Trackable] = []
        for node in nodes:
            if node.key is not None:
                given = values.initial(node.key)
                made.append(Variable(trainable=node.is_trainable, name=node.name or None, **given))
                continue
            exported = ExportedObject()
            if node.states:
                exported.restore_state(
                    {name: reader.read(key) for name, key in node.states.items()}
                )
            made.append(exported)
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


@mutable
class _StoredValues:
    """The stored values, read on demand: small ones in batches, in the order of the keys."""

    reader: Reader
    keys: Sequence[str]
    """The keys in the order in which their values will be needed."""
    _batches: dict[str, int] = field(default_factory=dict)
    """The number of the batch of each small tensor."""
    _at: int = -1
    """The number of the batch in memory."""
    _batch: dict[str, Array] = field(default_factory=dict)
    _tensors: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    """Dtype and shape of each tensor, by key."""

    def __post_init__(self) -> None:
        slices = entries_of(self.reader, self.keys).slices
        sizes = dict(zip(slices.tensors.keys, slices.nbytes_of_tensors().tolist(), strict=True))
        rows = slices.tensors.rows()
        # A batch ends with the tensor that fills it above 4 MiB, so it holds at most 4 MiB and one
        # small tensor.
        batch = filled = 0
        for key in self.keys:
            self._tensors[key] = slices.tensors.fact(rows[key])
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


@frozen
class _StoredValue:
    """A stored value as an initial value: a callable that knows partitions, as initializers do."""

    values: _StoredValues
    key: str
    makes_new_arrays: ClassVar[bool] = True
    """Every call returns an array that no other code refers to."""

    def __call__(self, partition: Any = None) -> Array:
        return self.values.read(self.key, partition)

"""The folder that TensorFlow serves: a SavedModel, whose variables are a checkpoint of TensorFlow's
format.

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
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardvar.errors import ArgumentError, TargetExists, UnsupportedError
from shardvar.formats.files import discard_files, put_in_place, write_file
from shardvar.formats.tensorflow.protos import ENUMS
from shardvar.layout.dtypes import dtype_name
from shardvar.reference.objects.image import Image
from shardvar.reference.objects.keys import key_of
from shardvar.reference.objects.serving_graph import (
    IDS,
    INT64,
    ROWS,
    ServedVariable,
    graph_fields,
    saver_fields,
    shape_fields,
    signature_entries,
)
from shardvar.reference.tracking import ObjectGraph, Trackable
from shardvar.reference.tracking.graph import ContainerNode
from shardvar.reference.variables import VariableInterface
from shardvar.storage.local import LocalStorage, split_path
from shardvar.verbs.locate import Path
from shardvar.verbs.reports import WriteReport
from shardvar.wire.protobuf import encode_bytes_field
from shardvar.wire.protobuf import encode_map_field as map_field
from shardvar.wire.protobuf import encode_message_field as message
from shardvar.wire.protobuf import encode_text_field as text
from shardvar.wire.protobuf import encode_varint_field as number
from shardvar.wire.varint import encode_varint

VARIABLES = ("variables", "variables")
"""The folder of the checkpoint, and its prefix there."""
_FILE, _ASIDE = "saved_model.pb", "saved_model.pb.shardvar.tmp"
_DEFAULT = "serving_default"
_SIGNATURES = "signatures"
_PLAIN = "_generic_user_object"
_VERSION = message(2, number(1, 1), number(2, 1))


def write_saved_model(path: Path, graph: ObjectGraph, image: Image) -> WriteReport:
    """Write the variables of an image and the file that describes them; ``TargetExists`` without
    ``force``."""
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
    """Return the content of ``saved_model.pb`` for a graph of objects."""
    if isinstance(graph.objects[0], VariableInterface):
        raise ArgumentError(
            "A SavedModel has a variable as its root.", "Export a dictionary: {'name': variable}."
        )
    variables = _variables(graph)
    about = message(1, text(4, "serve"), text(5, "2.10.0"))
    main = map_field(4, "saved_model_main_op", message(1, text(1, "init")))
    signatures = [map_field(5, name, fields) for name, fields in signature_entries(variables)]
    objects = message(7, *_objects(graph, variables))
    meta = (
        about,
        message(2, graph_fields(variables)),
        message(3, saver_fields()),
        main,
        *signatures,
        objects,
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
    """Yield the fields of a SavedObjectGraph: the objects, then the map of signatures, then
    functions."""
    served = {each.node: each for each in variables}
    tables = [each for each in variables if each.lookups]
    count = len(graph.objects)
    for position, (each, edges) in enumerate(zip(graph.objects, graph.edges, strict=True)):
        children = [_child(name, child) for name, child in edges]
        if position == 0:
            children.append(_child(_SIGNATURES, count))
        if position in served:
            yield message(1, *children, _variable(each, served[position]))
        else:
            yield message(1, *children, _user_object(_kind(each) if position else _PLAIN))
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


def _kind(node: Trackable) -> str:
    """Return TensorFlow's name for the class of an object that is not a variable."""
    container = node.items if isinstance(node, ContainerNode) else node
    if isinstance(container, Mapping):
        return "trackable_dict_wrapper"
    return "trackable_list_wrapper" if isinstance(container, list | tuple) else _PLAIN


def _variable(node: Trackable, variable: ServedVariable) -> bytes:
    trainable = isinstance(node, VariableInterface) and node.trainable
    shape = message(2, shape_fields(variable.shape))
    return message(
        7, number(1, variable.dtype), shape, number(3, int(trainable)), text(6, variable.name)
    )


# The messages of struct.proto, which describe arguments and answers: each value has the field of
# its kind.


def _structured(kind: int, *fields: bytes) -> bytes:
    return message(kind, *fields)


def _tensor_spec(name: str, dtype: int, shape: Sequence[int]) -> bytes:
    return _structured(
        _TENSOR_SPEC, text(1, name), message(2, shape_fields(shape)), number(3, dtype)
    )


def _concrete_function(variable: ServedVariable) -> bytes:
    """Return the fields of a SavedConcreteFunction: the variable that it reads, its argument and
    its answer."""
    ids = map_field(1, IDS, _tensor_spec(IDS, INT64, (-1,)))
    rows = map_field(1, ROWS, _tensor_spec(ROWS, variable.dtype, variable.rows))
    arguments = message(1, _structured(_TUPLE)) + message(1, _structured(_DICT, ids))
    bound = encode_bytes_field(2, encode_varint(variable.node))
    return bound + message(3, _structured(_TUPLE, arguments)) + message(4, _structured(_DICT, rows))


def _pair(key: str, value: bytes) -> bytes:
    return message(2, text(1, key), message(2, value))


_NONE, _TENSOR_SPEC, _LIST, _TUPLE, _DICT, _NAMED_TUPLE = 1, 33, 51, 52, 53, 54
"""The fields of a StructuredValue."""

_FUNCTION_SPEC = message(
    1,
    _structured(
        _NAMED_TUPLE,
        text(1, "FullArgSpec"),
        _pair("args", _structured(_LIST)),
        _pair("varargs", _structured(_NONE)),
        _pair("varkw", _structured(_NONE)),
        _pair("defaults", _structured(_NONE)),
        _pair("kwonlyargs", _structured(_LIST, message(1, text(13, IDS)))),
        _pair("kwonlydefaults", _structured(_NONE)),
        _pair("annotations", _structured(_DICT)),
    ),
) + message(5, _structured(_NONE))
"""A function whose only argument is given by its name."""

"""The program of a SavedModel: graphs that restore the variables and look rows up, in TensorFlow's
words.

A server of the older kind runs the nodes of one graph. A program of TensorFlow 2 creates the
variables itself, and calls functions of a library. Both get the same lookup: ``ResourceGather``,
which refuses ids out of range on a CPU.

    GraphDef      1 node, 2 library (1 function), 4 versions (1 producer)
    NodeDef       1 name, 2 op, 3 input, 5 attr (map)
    AttrValue     1 list (6 type), 2 s, 6 type, 7 shape, 8 tensor (1 dtype, 2 shape, 8 string_val)
    FunctionDef   1 signature, 3 node_def, 4 ret (map of text)
    OpDef         1 name, 2 input_arg, 3 output_arg (each 1 name, 3 type, 7 handle_data), 17
                  is_stateful
    SignatureDef  1 inputs, 2 outputs (maps; 1 name, 2 dtype, 3 shape), 3 method_name
    SaverDef      1 filename_tensor_name, 2 save_tensor_name, 3 restore_op_name, 7 version
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardvar.formats.tensorflow.protos import ENUMS
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


@dataclass(frozen=True, slots=True)
class ServedVariable:
    """A variable of a SavedModel."""

    node: int
    """Its number in the graph of objects."""
    name: str
    """Its name."""
    key: str
    """The key of its value."""
    dtype: int
    """TensorFlow's number for its dtype."""
    shape: tuple[int, ...]
    """Its shape."""
    lookups: tuple[str, ...] = ()
    """The names of the signature that looks its rows up; none without a signature."""

    @property
    def handle(self) -> str:
        """The name of its node in the graph of a server."""
        return f"variable_{self.node}"

    @property
    def function(self) -> str:
        """The name of the function that looks its rows up."""
        return f"__inference_lookup_rows_{self.node}"

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of an answer; the number of ids is not known."""
        return (-1, *self.shape[1:])


def shape_fields(shape: Sequence[int]) -> bytes:
    """Return the fields of a TensorShapeProto; an extent of -1 is any."""
    return b"".join(message(2, number(1, extent if extent >= 0 else _UNKNOWN)) for extent in shape)


def graph_fields(variables: Sequence[ServedVariable]) -> bytes:
    """Return the fields of a GraphDef: the graph of a server, and the functions."""
    functions = [message(1, _function(each)) for each in variables if each.lookups]
    return b"".join([*_nodes(variables), message(2, *functions), message(4, number(1, _PRODUCER))])


def saver_fields() -> bytes:
    """Return the fields of a SaverDef: the names of what saves and restores."""
    return (
        text(1, f"{_FILENAME}:0") + text(2, "save/done:0") + text(3, "restore_all") + number(7, 2)
    )


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
        dtype, shape, shared = (
            number(6, each.dtype),
            message(7, shape_fields(each.shape)),
            text(2, each.handle),
        )
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


def _function(variable: ServedVariable) -> bytes:
    """Return the fields of the function that looks rows up: ids and a handle in, rows out."""
    handle = message(7, number(1, variable.dtype), message(2, shape_fields(variable.shape)))
    arguments = [
        message(2, text(1, IDS), number(3, INT64)),
        message(2, text(1, "table"), number(3, RESOURCE), handle),
        message(3, text(1, ROWS), number(3, variable.dtype)),
    ]
    signature = message(1, text(1, variable.function), *arguments, number(17, 1))
    answer = message(4, text(1, ROWS), text(2, "gather:output:0"))
    return signature + _gather("gather", variable, IDS, "table", field=3) + answer

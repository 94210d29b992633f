"""The tensors of an ONNX model: where a ``ModelProto`` has them, and their descriptions.

    ModelProto       producer_name 2, producer_version 3, graph 7, metadata_props 14,
                     training_info 20, functions 25
    GraphProto       node 1, initializer 5 (TensorProto), sparse_initializer 15
    FunctionProto    name 1, node 7
    NodeProto        output 2, name 3, op_type 4, attribute 5
    AttributeProto   name 1, t 5 (TensorProto), g 6 (GraphProto), tensors 10, graphs 11,
                     sparse_tensor 22, sparse_tensors 23
    TensorProto      dims 1, data_type 2, segment 3, float_data 4, int32_data 5, string_data 6,
                     int64_data 7, name 8, raw_data 9, double_data 10, uint64_data 11,
                     external_data 13 (key 1, value 2), data_location 14: 1 is a file next to the model
    SparseTensorProto   values 1 (TensorProto)

An initializer has the name of a value of its graph. The value of a node ``Constant`` is called by
the node's output, which is what other nodes call it. Any other tensor of an attribute is called
OUTPUT/ATTRIBUTE, with a number in a list of tensors, and the initializers of a graph within a node
are OUTPUT/ATTRIBUTE/NAME, after the node's first output.

``parse_model`` passes over the structure once, and skips the elements. A message is believed to be
one only where its field is one, and every length is compared with the rest of its message.

Of messages that go on behind the end of a file that is cut off, a tensor keeps its name, and has an
error; the names in a node or a function may be lost, and it is passed over.
"""

from collections.abc import Callable, Iterator

from shardvar.errors import (
    CheckpointError,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.limits import MAX_KEY_NBYTES, MAX_NBYTES, MAX_NESTING, MAX_RANK
from shardvar.records import field, mutable
from shardvar.wire.damage import check_key, incomplete, invalid, malformed, past_limit
from shardvar.wire.plain import MAX_TEXT
from shardvar.wire.protobuf import decode_varint, walk_fields

_ReadAt = Callable[[int, int], bytes]

FLOATS, INT32S, STRINGS, INT64S, RAW, DOUBLES, UINT64S = 4, 5, 6, 7, 9, 10, 11
"""The fields of a tensor that may have its elements."""
_DATA = (FLOATS, INT32S, INT64S, RAW, DOUBLES, UINT64S)
_SPARSE = UnsupportedError(
    "It is a sparse tensor: the model has only its indices and its values.",
    "Leave it out with a filter (--exclude), or make it dense where the model was exported.",
)
_CUT = "The file is cut off in it, or in front of it."
_KEYS_EXPANSION = 64
"""The characters of all names, for each byte of a file: names repeat the names of the nodes around."""
_FREE_LENGTH = 1 << 20


@mutable
class OnnxTensor:
    name: str  # with the names of the nodes around it
    kind: int = 0  # the number of its data type
    dims: tuple[int, ...] = ()
    data: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The first byte and the end of its elements in the file, by the number of the field."""
    strings: list[tuple[int, int]] = field(default_factory=list)  # the same of each string
    external: dict[str, str] | None = None
    """The file, the offset and the length of its elements outside of the model, as texts."""
    error: ShardvarError | None = None


@mutable
class OnnxModel:
    tensors: list[OnnxTensor] = field(default_factory=list)  # in the order of the file
    producer: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    has_training: bool = False
    """True if it also has graphs for training, whose tensors are not listed."""
    fault: CheckpointError | None = None
    """The fault of a file that is cut off, or has other bytes behind the fields."""


@mutable
class _Parser:
    read: _ReadAt
    nbytes: int  # of the file
    room: int  # the characters that names may still have

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        return walk_fields(self.read, start, stop, self.nbytes)

    def text(self, start: int, stop: int) -> str:
        if stop - start > MAX_TEXT:
            raise malformed(
                f"The text at offset {start} has {stop - start} bytes, more than {MAX_TEXT}."
            )
        return (
            self.read(start, stop - start).decode("utf-8", "surrogateescape")
            if stop > start
            else ""
        )

    def name(self, start: int, stop: int) -> str:
        if stop - start > MAX_KEY_NBYTES:
            raise past_limit(f"A name has {stop - start} bytes", "MAX_KEY_NBYTES")
        return self.text(start, stop)

    def pair(self, start: int, stop: int) -> tuple[str, str]:
        texts = {1: "", 2: ""}
        for number, begin, end in self.fields(start, stop):
            if number in texts and end >= 0:
                texts[number] = self.text(begin, end)
        return texts[1], texts[2]

    def tensor(self, path: str, start: int, stop: int, name: str | None = None) -> OnnxTensor:
        found, own, location, external = OnnxTensor(path), "", 0, dict[str, str]()
        dims: list[int] = []
        for number, begin, end in self.fields(start, stop):
            if number == 1 and end < 0:
                dims.append(begin)
            elif number == 1 and end <= self.nbytes:
                # Packed varints, a few more than a shape can have at most.
                end = min(end, begin + 10 * (MAX_RANK + 1))
                octets, at = self.read(begin, end - begin), 0
                count = len(dims) + MAX_RANK
                while at < len(octets) and len(dims) <= count:
                    value, at = decode_varint(octets, at)
                    dims.append(value)
            elif number == 2 and end < 0:
                found.kind = begin
            elif number == 3:
                found.error = UnsupportedError(
                    "It is one segment of a tensor, which ONNX has given up.",
                    "Export the model again.",
                )
            elif number == 8 and 0 <= end <= self.nbytes:
                own = self.name(begin, end)
            elif number == STRINGS and end >= 0:
                found.strings.append((begin, end))
            elif number in _DATA:
                if end < 0 or number in found.data:
                    found.error = UnsupportedError(
                        "Its numbers are in many fields, which no exporter writes.",
                        "Export the model again, or load and save it with onnx.",
                    )
                else:
                    found.data[number] = begin, end
            elif number == 13 and 0 <= end <= self.nbytes:
                external.update([self.pair(begin, end)])
            elif number == 14 and end < 0:
                location = begin
        found.dims = tuple(each - (1 << 64) if each >> 63 else each for each in dims)
        found.external = external if location == 1 else None
        found.name = self.named(path + (own if name is None else name))
        if stop > self.nbytes:
            found.error = incomplete(_CUT)
        if len(dims) > MAX_RANK:
            found.error = invalid(f"It has {len(dims)} axes or more; NumPy has at most {MAX_RANK}.")
        return found

    def named(self, name: str) -> str:
        """Return the whole name of a tensor, if all names together are not too long."""
        self.room -= len(name)
        if self.room < 0:
            raise invalid(
                "The names of its tensors repeat the names around them more often than a file can need."
            )
        check_key(name)
        return name

    def sparse(self, path: str, start: int, stop: int, name: str | None = None) -> OnnxTensor:
        """Return a sparse tensor, which is named and not read."""
        for number, begin, end in self.fields(start, stop):
            if number == 1 and end >= 0:
                found = self.tensor(path, begin, end, name)
                break
        else:
            found = OnnxTensor(self.named(path + (name or "")))
        found.error = _SPARSE
        return found

    def graph(self, path: str, start: int, stop: int, depth: int) -> Iterator[OnnxTensor]:
        if depth > MAX_NESTING:
            raise past_limit(f"It has {depth} graphs in each other", "MAX_NESTING")
        for number, begin, end in self.fields(start, stop):
            if end < 0:
                continue
            if number == 1:
                yield from self.node(path, begin, end, depth)
            elif number in (5, 15):
                found = (self.tensor if number == 5 else self.sparse)(path, begin, end)
                if found.name != path or end <= self.nbytes:  # its name may be behind the cut
                    yield found

    def function(self, start: int, stop: int) -> Iterator[OnnxTensor]:
        name, nodes = "", list[tuple[int, int]]()
        if stop > self.nbytes:
            return
        for number, begin, end in self.fields(start, stop):
            if number == 1 and end >= 0:
                name = self.name(begin, end)
            elif number == 7 and end >= 0:
                nodes.append((begin, end))
        for begin, end in nodes:
            yield from self.node(f"{name}/", begin, end, 0)

    def node(self, path: str, start: int, stop: int, depth: int) -> Iterator[OnnxTensor]:
        output = name = operator = ""
        attributes: list[tuple[int, int]] = []
        if stop > self.nbytes:
            return
        for number, begin, end in self.fields(start, stop):
            if end < 0:
                continue
            if number == 2:
                output = output or self.name(begin, end)
            elif number == 3:
                name = self.name(begin, end)
            elif number == 4:
                operator = self.name(begin, end)
            elif number == 5:
                attributes.append((begin, end))
        for begin, end in attributes:
            yield from self.attribute(path, output or name, operator, begin, end, depth)

    def attribute(
        self, path: str, node: str, operator: str, start: int, stop: int, depth: int
    ) -> Iterator[OnnxTensor]:
        name, held = "", list[tuple[int, int, int]]()
        for number, begin, end in self.fields(start, stop):
            if number == 1 and end >= 0:
                name = self.name(begin, end)
            elif number in (5, 6, 10, 11, 22, 23) and end >= 0:
                held.append((number, begin, end))
        whole = node if operator == "Constant" else f"{node}/{name}"
        for place, (number, begin, end) in enumerate(held):
            is_list = number in (10, 11, 23)
            own = f"{whole}/{place}" if is_list else whole
            if number in (6, 11):
                yield from self.graph(f"{path}{own}/", begin, end, depth + 1)
            else:
                read = self.tensor if number in (5, 10) else self.sparse
                yield read(path, begin, end, own)


def parse_model(read: _ReadAt, nbytes: int) -> OnnxModel:
    """Return the tensors of a model and its metadata; ``MalformedCheckpoint`` without a graph."""
    model, has_graph, producer = OnnxModel(), False, {2: "", 3: ""}
    parser = _Parser(read, nbytes, _KEYS_EXPANSION * nbytes + _FREE_LENGTH)
    fields = parser.fields(0, MAX_NBYTES)
    while True:
        try:
            number, begin, end = next(fields, (0, 0, 0))
        except MalformedCheckpoint as error:
            if not has_graph:
                raise
            model.fault = error
            break
        if end > nbytes:
            model.fault = incomplete(
                f"It has {nbytes} bytes, and ends within a field: it is cut off."
            )
        if not number:
            break
        if number == 7 and end >= 0:
            has_graph = True
            model.tensors += parser.graph("", begin, end, 0)
        elif end > nbytes or end < 0:
            continue
        elif number in producer:
            producer[number] = parser.text(begin, end)
        elif number == 14:
            model.properties.update([parser.pair(begin, end)])
        elif number == 20:
            model.has_training = True
        elif number == 25:
            model.tensors += parser.function(begin, end)
    if not has_graph:
        raise malformed("The model has no graph.")
    model.producer = " ".join(filter(None, producer.values()))
    return model

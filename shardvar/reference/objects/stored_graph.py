"""The graph of objects in a checkpoint, its keys, and the values of objects.

Keys of the values of objects, as TensorFlow spells them.

    key  := path "/.ATTRIBUTES/" attribute      "layers/0/w/.ATTRIBUTES/VARIABLE_VALUE"
    path := edge ("/" edge)*                    the names from the root to the object; empty for the
                                                root itself
         |  path? "/.OPTIMIZER_SLOT/" path      a slot: the variable, and then the optimizer and the
                                                slot's name
    edge := the name, with "." written ".." and then "/" written ".S"

In an escaped edge a single dot comes only before S, so no name can look like ``.ATTRIBUTES`` or
``.OPTIMIZER_SLOT``.

Formats with strings keep the graph as TensorFlow does, as a protobuf message under one key:

    TrackableObjectGraph  1 nodes (repeated); the first is the root
    TrackableObject       1 children (repeated: 1 node_id, 2 local_name)
                          2 attributes (repeated: 1 name, 2 full_name, 3 checkpoint_key)
                          3 slot_variables (repeated: 1 original_variable_node_id, 2 slot_name, 3 slot_variable_node_id)
                          1001 is 1 if a variable is not trainable: shardvar's addition, in exports
                          other fields are skipped

So either reads what the other wrote, and an object that was saved once is found under each of its
names. Without the message, the keys spell the graph: a tree, in which an object has one name.

A message has about a dozen fields for each object, and there may be a hundred thousand objects. So
decoding works on spans of the message, without a copy of each submessage, and makes one
``StoredNode`` for each object.

A plain variable is one whole slice. A sharded one is one tensor, with a slice for each shard: "13
rows in 5 shards" and "13 rows in 3" are the same tensor, and restoring into another number of
shards needs nothing else. A mirrored variable is stored once.

store    ``snapshot`` copies the values, ``in_place`` takes the memory itself; both return a source
         of arrays.
restore  ``read_writes`` reads the regions of all variables by the plan of a resharding, then plans
         their writes.

Loops here are over variables. There may be a hundred thousand, so the loops make few objects for
each.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from shardvar.engine.arrays import ArraySource, array_source
from shardvar.engine.read import read_arrays
from shardvar.layout.dtypes import STRING, Array, DType, Shape, dtype_name
from shardvar.layout.region import Region
from shardvar.limits import MAX_NODES
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad
from shardvar.records import field, frozen, mutable, replace
from shardvar.reference.tracking import SLOT, ObjectGraph
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    ResourceVariable,
    ShardedVariable,
    VariableInterface,
)
from shardvar.reference.variables.operations import plan_replacements
from shardvar.reference.variables.values import REPLACE, Resource, Write, holding
from shardvar.verbs.arguments import stored_dtype
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid, malformed, past_limit
from shardvar.wire.protobuf import (
    decode_spans,
    decode_varint,
    encode_bytes_field,
    encode_varint_field,
)

VARIABLE_VALUE = "VARIABLE_VALUE"
"""The attribute under which the value of a variable is stored."""
SAVE_COUNTER = "save_counter"
"""The name of the variable that counts numbered checkpoints."""
_ATTRIBUTES = "/.ATTRIBUTES/"
_ESCAPED = re.compile(r"\.(.?)", re.DOTALL)


def key_of(path: Iterable[str], attribute: str = VARIABLE_VALUE) -> str:
    edges = [
        name.replace(".", "..").replace("/", ".S")
        if ("." in name or "/" in name) and name is not SLOT
        else name
        for name in path
    ]
    return "/".join(edges) + _ATTRIBUTES + attribute


def split_key(key: str) -> tuple[tuple[str, ...], str] | None:
    """Return the path and the attribute of a key of an object; None for any other key."""
    head, separator, attribute = key.partition(_ATTRIBUTES)
    if not separator:
        return None
    path: list[str] = []
    # "a.Sb..c" is the edge of "a/b.c". An edge with any other character after a dot was not written
    # by ``key_of``.
    for edge in head.split("/") if head else ():
        if edge == SLOT:
            path.append(SLOT)
        elif "." not in edge:
            path.append(edge)
        elif any(found[1] not in (".", "S") for found in _ESCAPED.finditer(edge)):
            return None
        else:
            path.append(_ESCAPED.sub(lambda found: "/" if found[1] == "S" else ".", edge))
    # A slot's path has one marker, with a path after it: of ".OPTIMIZER_SLOT/optimizer/m" the
    # variable is the root.
    slots = [number for number, name in enumerate(path) if name is SLOT]
    if slots and (len(slots) > 1 or slots[0] == len(path) - 1):
        return None
    return tuple(path), attribute


GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of the message, a string tensor of rank 0."""
_VALUE_FIELD = encode_bytes_field(1, VARIABLE_VALUE.encode())
_UNTRAINABLE = 1001
_UNTRAINABLE_FIELD = encode_varint_field(_UNTRAINABLE, 1)
_TRAINABLE = "_trainable_variables"
"""The child of a Keras 3 optimizer that lists its variables, in the order of its slots."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The children and states of a node without any: most nodes are variables, and a dictionary is
larger than a node."""


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


@mutable(eq=True)
class StoredNode:
    key: str | None = None
    """The key of its value as a variable, where one is stored."""
    children: Mapping[str, int] = field(default_factory=_nothing)
    states: Mapping[str, str] = field(default_factory=_nothing)
    """The keys of its other values, by the names of attributes; the stored ones."""
    slots: Mapping[tuple[int, str], int] = field(default_factory=_nothing)
    """The numbers of its slots, by the number of the slot's variable and the slot's name."""
    name: str = ""
    is_trainable: bool = True
    """False for a variable that is known not to be trainable."""


def nodes_of_keys(keys: Iterable[str]) -> list[StoredNode]:
    """Return the tree that keys spell; keys that belong to no object are ignored."""
    tree = _Tree()
    tree.grow()
    for key in keys:
        found = split_key(key)
        if found is not None:
            path, attribute = found
            tree.keys[tree.number_of(path)][attribute] = key
    # The variable's value is taken out of the keys first; the other attributes are left.
    return [
        StoredNode(
            keys.pop(VARIABLE_VALUE, None),
            children or _NOTHING,
            keys or _NOTHING,
            slots or _NOTHING,
        )
        for keys, children, slots in zip(tree.keys, tree.children, tree.slots, strict=True)
    ]


@frozen
class _Tree:
    children: list[dict[str, int]] = field(default_factory=list)
    slots: list[dict[tuple[int, str], int]] = field(default_factory=list)
    keys: list[dict[str, str]] = field(default_factory=list)
    """The keys of the values of each, by the names of attributes."""

    def grow(self) -> int:
        self.children.append({})
        self.slots.append({})
        self.keys.append({})
        return len(self.keys) - 1

    def number_of(self, path: tuple[str, ...]) -> int:
        """Return the number of the node at the end of the path, which is added if it is new."""
        # A slot's path is (*variable, SLOT, *owner, name): ("w", SLOT, "optimizer", "m").
        at = next((position for position, name in enumerate(path) if name is SLOT), None)
        if at is not None:
            variable, owner = self.number_of(path[:at]), self.number_of(path[at + 1 : -1])
            slot = self.slots[owner].get((variable, path[-1]))
            if slot is None:
                slot = self.slots[owner][variable, path[-1]] = self.grow()
            return slot
        number = 0
        for name in path:
            child = self.children[number].get(name)
            if child is None:
                child = self.children[number][name] = self.grow()
            number = child
        return number


def encode_graph(
    graph: ObjectGraph,
    paths: Sequence[tuple[str, ...]],
    states: Mapping[int, Iterable[str]],
    *,
    with_trainable: bool,
) -> bytes:
    """Return the message of a graph; ``states`` are names of other attributes, by their objects."""
    # Slots are written by their owner.
    slots: dict[int, list[bytes]] = {}
    for slot in graph.slots:
        name = encode_bytes_field(2, _octets(slot.name))
        fields = encode_varint_field(1, slot.variable) + name + encode_varint_field(3, slot.slot)
        slots.setdefault(slot.owner, []).append(encode_bytes_field(3, fields))
    nodes = []
    for number, (node, edges, path) in enumerate(
        zip(graph.objects, graph.edges, paths, strict=True)
    ):
        # The fields of one object: children, values, slots. Children come also under their names in
        # other libraries, as far as those are free.
        named = list(edges)
        if edges and node.other_names:
            taken = {name for name, _ in edges}
            others = [(node.other_names.get(name), child) for name, child in edges]
            named += [
                (other, child)
                for other, child in others
                if other is not None and other not in taken
            ]
        parts = [
            encode_bytes_field(
                1, encode_varint_field(1, child) + encode_bytes_field(2, _octets(name))
            )
            for name, child in named
        ]
        if isinstance(node, VariableInterface):
            parts.append(_encode_value(VARIABLE_VALUE, node.name, key_of(path)))
            if with_trainable and not node.trainable:
                parts.append(_UNTRAINABLE_FIELD)
        parts += [
            _encode_value(attribute, "", key_of(path, attribute))
            for attribute in states.get(number, ())
        ]
        parts += slots.get(number, ())
        nodes.append(encode_bytes_field(1, parts[0] if len(parts) == 1 else b"".join(parts)))
    return b"".join(nodes)


def _encode_value(attribute: str, full_name: str, key: str) -> bytes:
    fields = (
        encode_bytes_field(number, _octets(text)) for number, text in ((2, full_name), (3, key))
    )
    name = (
        _VALUE_FIELD if attribute == VARIABLE_VALUE else encode_bytes_field(1, _octets(attribute))
    )
    return encode_bytes_field(2, name + b"".join(fields))


def decode_graph(message: bytes, keys: Collection[str]) -> list[StoredNode]:
    """Return the nodes of a message; a value whose key is not among ``keys`` is not stored."""
    nodes: list[StoredNode] = []
    for number, start, stop in decode_spans(message, 0, len(message)):
        if number == 1:
            if len(nodes) == MAX_NODES:
                raise past_limit("The graph has more objects", "MAX_NODES")
            nodes.append(_decode_node(message, start, _stop(stop), keys))
    if not nodes:
        raise malformed("The graph of objects has no root.")
    # Nodes refer to each other by number, in either direction, so the numbers are checked once all
    # nodes are known.
    count = len(nodes)
    for number, node in enumerate(nodes):
        if not (node.children or node.slots):
            continue
        for name, child in node.children.items():
            if not 0 <= child < count:
                raise invalid(
                    f"Child {name!r} of object {number} is object {child}, and there are {count}."
                )
        for (variable, name), slot in node.slots.items():
            if not (0 <= variable < count and 0 <= slot < count):
                raise invalid(
                    f"Slot {name!r} of object {number} is {slot}, of {variable}, and there are "
                    f"{count} objects."
                )
    # After the check, since the lists of a Keras 3 optimizer are found by following numbers.
    compared: set[int] = set()
    for node in nodes:
        if _TRAINABLE in node.children:
            _find_slots_of_keras(node, nodes, compared)
    return nodes


def _decode_node(message: bytes, start: int, stop: int, keys: Collection[str]) -> StoredNode:
    own: str | None = None
    full_name, is_trainable = "", True
    children: dict[str, int] = {}
    states: dict[str, str] = {}
    slots: dict[tuple[int, str], int] = {}
    for number, first, last in decode_spans(message, start, stop):
        if number == 1:
            child, name, _ = _decode_link(message, first, _stop(last))
            children[name] = child
        elif number == 2:
            attribute, text, key = _decode_value(message, first, _stop(last))
            if key not in keys:
                # the graph may list more than the file holds: a reshard can drop optimizer slots
                pass
            elif attribute == VARIABLE_VALUE:
                own, full_name = key, text
            else:
                states[attribute] = key
        elif number == 3:
            variable, name, slot = _decode_link(message, first, _stop(last))
            slots[variable, name] = slot
        elif number == _UNTRAINABLE:
            is_trainable = not first
    # The shared empty mapping cannot be written to, and dictionaries are as large as nodes.
    return StoredNode(
        own, children or _NOTHING, states or _NOTHING, slots or _NOTHING, full_name, is_trainable
    )


def _decode_value(message: bytes, start: int, stop: int) -> tuple[str, str, str]:
    """Return the name of an attribute, the full name, and the key of its value."""
    # Nearly all are of a variable, with fields 1, 2 and 3 in this order, the last two of at most
    # 127 bytes:
    #
    #     0a 0e "VARIABLE_VALUE" 12 03 "m/w" 1a 1e "m/w/.ATTRIBUTES/VARIABLE_VALUE"
    #
    # ``middle`` is the offset of the tag 1a. Any other form takes the long way.
    name = start + len(_VALUE_FIELD) + 2
    if name < stop and message[name - 2] == 0x12 and message.startswith(_VALUE_FIELD, start):
        middle = name + message[name - 1]
        is_short = middle + 1 < stop and (message[name - 1] | message[middle + 1]) < 0x80
        if is_short and message[middle] == 0x1A and middle + 2 + message[middle + 1] == stop:
            return VARIABLE_VALUE, _text(message[name:middle]), _text(message[middle + 2 : stop])
    attribute = key = full_name = ""
    for part, first, last in decode_spans(message, start, stop):
        if part == 1:
            attribute = _text(message[first : _stop(last)])
        elif part == 2:
            full_name = _text(message[first : _stop(last)])
        elif part == 3:
            key = _text(message[first : _stop(last)])
    return attribute, full_name, key


def _decode_link(message: bytes, start: int, stop: int) -> tuple[int, str, int]:
    """Return fields 1 and 3, which are numbers of objects, with field 2 between them, a name."""
    # Nearly all are a child with a short name, such as ``08 05 12 01 "w"``. Any other form takes
    # the long way.
    if stop - start > 3 and message[start] == 0x08:
        number, at = message[start + 1], start + 2
        if number >= 0x80:
            number, at = decode_varint(message, start + 1, stop)
        is_child = at + 1 < stop and message[at] == 0x12 and at + 2 + message[at + 1] == stop
        if is_child and message[at + 1] < 0x80 and not number >> 63:
            return number, _text(message[at + 2 : stop]), 0
    first_number = second_number = 0
    name = ""
    for part, first, last in decode_spans(message, start, stop):
        if part == 2:
            name = _text(message[first : _stop(last)])
        elif part in (1, 3):
            if last >= 0:
                raise malformed(
                    f"Field {part} at offset {first} holds bytes where a number belongs."
                )
            # The fields are int32. protobuf writes their negative values as 64 bits in two's
            # complement: -1 comes as 2^64 - 1, and is refused as -1.
            number = first - (1 << 64) if first >> 63 else first
            if part == 1:
                first_number = number
            else:
                second_number = number
    return first_number, name, second_number


def _stop(stop: int) -> int:
    """Return the end of a field of bytes; for a number ``decode_spans`` gives -1."""
    if stop < 0:
        raise malformed("The graph of objects holds a number where bytes belong.")
    return stop


def _find_slots_of_keras(node: StoredNode, nodes: list[StoredNode], compared: set[int]) -> None:
    """Add the slots of a Keras 3 optimizer: a list of each kind, in the order of its variables."""
    # With variables {"0": 7, "1": 9} and a child "_momentums" with the children {"0": 12, "1": 15},
    # object 12 is the slot "_momentums" of variable 7. Each list is compared once: a message could
    # name one long list a thousand times.
    variables = nodes[node.children[_TRAINABLE]].children
    slots = dict(node.slots)
    for name, number in node.children.items():
        row = nodes[number].children
        if name == _TRAINABLE or len(row) != len(variables) or number in compared:
            continue
        compared.add(number)
        if row.keys() == variables.keys():
            slots.update({(variables[at], name): slot for at, slot in row.items()})
    node.slots = slots


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


Keyed = Sequence[tuple[str, VariableInterface]]
"""Variables, each with the key of its value; keys and variables differ."""
_Parts = list[tuple[Region, VariableInterface]]
"""Regions of a tensor, each with the variable or shard that has its values."""
_FEW_KEYS = 30
"""Fewer keys are looked up; for more, all entries are scanned. Of 3,000 variables, a scan takes 1
ms, and looking up takes 2 ms for 30 keys and 20 ms for 100. Of 30,000, a scan takes as long as
looking up some 150."""


# Store.


def snapshot(keyed: Keyed, others: Sequence[tuple[str, Array]]) -> ArraySource:
    """Copy the values of all variables, as of one moment, and return them with other arrays."""
    rows = [_stored_parts(variable) for _, variable in keyed]
    with holding(resources_of(keyed)):
        # No other code refers to the values that these two kinds return.
        arrays = [
            each.read_value()
            if isinstance(each, ResourceVariable | ShardedVariable)
            else np.array(each.read_value())
            for row in rows
            for _, each in row
        ]
    return _source(keyed, rows, arrays, others)


def in_place(keyed: Keyed, others: Sequence[tuple[str, Array]]) -> ArraySource:
    """Return a ``snapshot`` without a copy; the caller holds the mutexes of ``resources_of``."""
    rows = [_stored_parts(variable) for _, variable in keyed]
    arrays = [
        each.resource.array if isinstance(each, ResourceVariable) else np.asarray(each.read_value())
        for row in rows
        for _, each in row
    ]
    return _source(keyed, rows, arrays, others)


def resources_of(keyed: Keyed) -> list[Resource]:
    return [resource for _, variable in keyed for resource in variable.resources]


def _source(
    keyed: Keyed,
    rows: Sequence[_Parts],
    arrays: Sequence[Array],
    others: Sequence[tuple[str, Array]],
) -> ArraySource:
    """Return the values in their regions, then the other arrays whole, in order."""
    tensors = [(key, dtype_name(variable.dtype), variable.shape) for key, variable in keyed]
    tensors += [(key, stored_dtype(key, array), array.shape) for key, array in others]
    parts = [part for row in rows for part in row]
    regions = [region for region, _ in parts] + [Region.whole(array.shape) for _, array in others]
    counts = [len(row) for row in rows] + [1] * len(others)
    # The devices. Variables without memory, and other arrays, are the coordinator's.
    resources = [variable.resources for _, variable in parts]
    devices = [own[0].device.name if own else LOCAL_DEVICE for own in resources]
    devices += [LOCAL_DEVICE] * len(others)
    names = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    slices = SliceTable.of(
        TensorTable.of(tensors),
        np.repeat(np.arange(len(tensors)), counts),
        pad([region.offset for region in regions], fill=0)[1],
        pad([region.shape for region in regions], fill=1)[1],
    )
    slices = replace(
        slices,
        device=np.fromiter(map(names.__getitem__, devices), np.int64, len(devices)),
        devices=tuple(names),
    )
    return array_source(slices, [*arrays, *(array for _, array in others)])


def _stored_parts(variable: VariableInterface) -> _Parts:
    """Return the regions to store, each with its variable; string tensors are never split."""
    # Shards without elements are left out, unless the whole variable has none: the tensor must be
    # listed.
    # R-CKPT-2 (RFC 002): "In these cases, we'll need to update AggregatingVariable and
    # MirroredVariable's" saving: one copy is stored, or the variable that an AggregatingVariable
    # wraps, in its own parts.
    while isinstance(variable, MirroredVariable | AggregatingVariable):
        variable = (
            variable.copies[0] if isinstance(variable, MirroredVariable) else variable.variable
        )
    parts: _Parts = []
    if isinstance(variable, ShardedVariable) and dtype_name(variable.dtype) != STRING:
        shards = zip(variable.partition, variable.variables, strict=True)
        parts = [(region, shard) for region, shard in shards if region.size]
    return parts or [(Region.whole(variable.shape), variable)]


# Restore.


def read_writes(reader: Reader, keyed: Keyed) -> list[Write]:
    """Read the values of variables, and return the writes that assign them."""
    if not keyed:
        return []
    # Plan. The stored slices and the regions of the shards need not agree: this is a resharding
    # into arrays.
    targets, filled = _targets(keyed)
    entries = entries_of(reader, targets.tensors.keys)
    plan = plan_copies(entries.slices, targets)
    # Move: into arrays, not into the variables, which no reader may see half restored. The caller
    # commits one write of all variables of the default kind, and the writes of all others.
    resources, arrays, writes = [], [], []
    for each, value in zip(filled, read_arrays(plan, reader.source, entries), strict=True):
        if type(each) is ResourceVariable:
            resources.append(each.resource)
            arrays.append(value)
        else:
            writes += each.plan_writes(REPLACE, value)
    return [*plan_replacements(resources, arrays), *writes]


def _targets(keyed: Keyed) -> tuple[SliceTable, list[VariableInterface]]:
    """Return the slices to read, and the variable or shard of each; strings are not split."""
    tensor: list[int] = []
    filled: list[VariableInterface] = []
    offsets: list[tuple[int, ...]] = []
    shapes: list[Shape] = []
    names: dict[DType, str] = {}
    tensors = []
    for row, (key, variable) in enumerate(keyed):
        dtype, shape = variable.dtype, variable.shape
        name = names.get(dtype) or names.setdefault(dtype, dtype_name(dtype))
        tensors.append((key, name, shape))
        if not isinstance(variable, ShardedVariable) or name == STRING:
            tensor.append(row)
            filled.append(variable)
            offsets.append(())
            shapes.append(shape)
        else:
            regions = variable.partition
            tensor += [row] * len(regions)
            filled += variable.variables
            offsets += [region.offset for region in regions]
            shapes += [region.shape for region in regions]
    table = TensorTable.of(tensors)
    # Whole variables have the offset (), which needs no tuple of zeros: the columns beyond the
    # shards' are 0 anyway.
    offset = np.zeros((len(tensor), table.shapes.shape[1]), np.int64)
    padded = pad(offsets, fill=0)[1]
    offset[:, : padded.shape[1]] = padded
    return SliceTable.of(table, np.array(tensor), offset, pad(shapes, fill=1)[1]), filled


def entries_of(reader: Reader, keys: Sequence[str]) -> EntryTable:
    """Return entries that include the keys'; raise the fault of a key that has one."""
    if len(keys) < _FEW_KEYS:
        return reader.find_many(dict.fromkeys(keys))
    for error in filter(None, map(reader.faults.get, keys)):
        raise error.at()
    return reader.entries()

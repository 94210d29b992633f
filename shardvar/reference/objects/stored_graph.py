"""The stored graph of objects: the children of each object, and the keys of its values.

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
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from shardvar.limits import MAX_NODES
from shardvar.reference.objects.keys import VARIABLE_VALUE, key_of, split_key
from shardvar.reference.tracking import SLOT, ObjectGraph, Trackable
from shardvar.reference.variables import VariableInterface
from shardvar.wire.damage import invalid, malformed, past_limit
from shardvar.wire.protobuf import decode_spans, encode_bytes_field, encode_varint_field
from shardvar.wire.varint import decode_varint

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The key of the message, a string tensor of rank 0."""
_VALUE_FIELD = encode_bytes_field(1, VARIABLE_VALUE.encode())
_UNTRAINABLE = 1001
_UNTRAINABLE_FIELD = encode_varint_field(_UNTRAINABLE, 1)
_owner_of = attrgetter("owner")
_TRAINABLE = "_trainable_variables"
"""The child of a Keras 3 optimizer that lists its variables, in the order of its slots."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The children and states of a node without any: most nodes are variables, and a dictionary is
larger than a node."""


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


@dataclass(slots=True)
class StoredNode:
    """An object of the graph."""

    key: str | None = None
    """The key of its value as a variable, where one is stored."""
    children: Mapping[str, int] = field(default_factory=_nothing)
    """The numbers of its children, by name."""
    states: Mapping[str, str] = field(default_factory=_nothing)
    """The keys of its other values, by the names of attributes; the stored ones."""
    slots: Mapping[tuple[int, str], int] = field(default_factory=_nothing)
    """The numbers of its slots, by the number of the slot's variable and the slot's name."""
    name: str = ""
    """The name of a variable, where that is known."""
    is_trainable: bool = True
    """False for a variable that is known not to be trainable."""


def nodes_of_keys(keys: Iterable[str]) -> list[StoredNode]:
    """Return the tree that keys spell; keys that belong to no object are ignored.

    >>> [node.children for node in nodes_of_keys(["a/b/.ATTRIBUTES/VARIABLE_VALUE", "step"])]
    [{'a': 1}, {'b': 2}, mappingproxy({})]
    """
    tree = _Tree()
    tree.grow()
    for key in keys:
        found = split_key(key)
        if found is not None:
            path, attribute = found
            tree.keys[tree.number_of(path)][attribute] = key
    # The variable's value is taken out of the keys first; what is left are the other attributes.
    return [
        StoredNode(
            keys.pop(VARIABLE_VALUE, None),
            children or _NOTHING,
            keys or _NOTHING,
            slots or _NOTHING,
        )
        for keys, children, slots in zip(tree.keys, tree.children, tree.slots, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Tree:
    """Nodes that are added as names lead to them; the first is the root."""

    children: list[dict[str, int]] = field(default_factory=list)
    """The children of each."""
    slots: list[dict[tuple[int, str], int]] = field(default_factory=list)
    """The slots that each keeps."""
    keys: list[dict[str, str]] = field(default_factory=list)
    """The keys of the values of each, by the names of attributes."""

    def grow(self) -> int:
        """Add a node, and return its number."""
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
    states: Mapping[int, Iterable[str]] = _NOTHING,
    *,
    with_trainable: bool = False,
) -> bytes:
    """Return the message of a graph whose variables are stored under the keys of these paths.

    ``states`` are the names of other attributes that are stored, by the positions of their objects.
    """
    # Slots are written by their owner, so they are grouped by it; groupby wants them sorted.
    by_owner = groupby(sorted(graph.slots, key=_owner_of), key=_owner_of)
    slots = {
        owner: [_encode_slot(e.variable, e.name, e.slot) for e in edges]
        for owner, edges in by_owner
    }
    nodes = []
    for number, (node, edges, path) in enumerate(
        zip(graph.objects, graph.edges, paths, strict=True)
    ):
        # The fields of one object: children, values, slots.
        parts = (
            [_encode_child(name, child) for name, child in (*edges, *_other_edges(node, edges))]
            if edges
            else []
        )
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


def _other_edges(node: Trackable, edges: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the children under their names in other libraries, as far as those are free."""
    if not node.other_names:
        return []
    taken = {name for name, _ in edges}
    others = [(node.other_names.get(name), child) for name, child in edges]
    return [(other, child) for other, child in others if other is not None and other not in taken]


def _encode_child(name: str, number: int) -> bytes:
    return encode_bytes_field(
        1, encode_varint_field(1, number) + encode_bytes_field(2, _octets(name))
    )


def _encode_slot(variable: int, name: str, slot: int) -> bytes:
    numbers = encode_varint_field(1, variable), encode_varint_field(3, slot)
    return encode_bytes_field(3, numbers[0] + encode_bytes_field(2, _octets(name)) + numbers[1])


def _encode_value(attribute: str, full_name: str, key: str) -> bytes:
    fields = (
        encode_bytes_field(number, _octets(text)) for number, text in ((2, full_name), (3, key))
    )
    name = (
        _VALUE_FIELD if attribute == VARIABLE_VALUE else encode_bytes_field(1, _octets(attribute))
    )
    return encode_bytes_field(2, name + b"".join(fields))


def decode_graph(message: bytes, keys: Collection[str]) -> list[StoredNode]:
    """Return the nodes of a message; a value whose key is not among ``keys`` is not stored, and is
    ignored."""
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
    for number, node in enumerate(nodes):
        if node.children or node.slots:
            _check_numbers(number, node, len(nodes))
    # After the check, since the lists of a Keras 3 optimizer are found by following numbers.
    compared: set[int] = set()
    for node in nodes:
        if _TRAINABLE in node.children:
            _find_slots_of_keras(node, nodes, compared)
    return nodes


def _check_numbers(number: int, node: StoredNode, count: int) -> None:
    """Raise ``InvalidCheckpoint`` where a node refers to an object that is not among the ``count``
    of the graph."""
    for name, child in node.children.items():
        if not 0 <= child < count:
            raise invalid(
                f"Child {name!r} of object {number} is object {child}, and there are {count}."
            )
    for (variable, name), slot in node.slots.items():
        if not (0 <= variable < count and 0 <= slot < count):
            raise invalid(
                f"Slot {name!r} of object {number} is {slot}, of {variable}, and there are {count} "
                "objects."
            )


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
            # complement: -1 comes as 2^64 - 1. ``_check_number`` then refuses it as -1.
            number = first - (1 << 64) if first >> 63 else first
            if part == 1:
                first_number = number
            else:
                second_number = number
    return first_number, name, second_number


def _stop(stop: int) -> int:
    """Return the end of a field of bytes; ``malformed`` for a number, which ``decode_spans`` gives
    the end -1."""
    if stop < 0:
        raise malformed("The graph of objects holds a number where bytes belong.")
    return stop


def _find_slots_of_keras(node: StoredNode, nodes: list[StoredNode], compared: set[int]) -> None:
    """Add the slots of a Keras 3 optimizer, which has a list of each kind of slot, in the order of
    its variables.

    ``compared`` are the lists that were compared with some optimizer's variables. Each is compared
    once: Keras keeps a list under one name of one optimizer, and a message could name one long list
    a thousand times.

    With variables {"0": 7, "1": 9} and a child "_momentums" with the children {"0": 12, "1": 15},
    object 12 is the slot "_momentums" of variable 7.
    """
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

"""The graph of objects as a checkpoint tells it: which object is whose child, and which keys hold its values.

Formats with strings keep it as TensorFlow does, a message under a key of its own:

    TrackableObjectGraph  1 nodes (repeated); the first is the root
    TrackableObject       1 children (repeated: 1 node_id, 2 local_name)
                          2 attributes (repeated: 1 name, 2 full_name, 3 checkpoint_key)
                          3 slot_variables (repeated: 1 original_variable_node_id, 2 slot_name, 3 slot_variable_node_id)
                          1001 whether a variable is not trainable: shardvar's own, in what is exported
                          others are passed over

so that either reads what the other wrote, and an object that was saved once is found under each of its names. Where the
message is missing, the keys tell the graph: a tree, in which an object has one name.

A message has a dozen fields an object, so decoding looks at each byte of a tag once and makes an object a node.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from shardvar.checkpoint.objects.keys import VARIABLE_VALUE, key_of, split_key
from shardvar.tracking import SLOT, ObjectGraph, Trackable
from shardvar.variables import VariableInterface
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.protobuf import decode_spans, encode_bytes_field, encode_varint_field

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Where the message is stored, as a string tensor without axes."""
_VALUE_FIELD = encode_bytes_field(1, VARIABLE_VALUE.encode())
_UNTRAINABLE = 1001
_UNTRAINABLE_FIELD = encode_varint_field(_UNTRAINABLE, 1)
_owner_of = attrgetter("owner")
_TRAINABLE = "_trainable_variables"
"""The child of an optimizer of Keras 3 in whose order its lists of slots are."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""What a node without children, or without states, has: most are variables, and a dictionary costs more than a node."""


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
    """The keys of its other values, by the names of attributes; those that are stored."""
    slots: Mapping[tuple[int, str], int] = field(default_factory=_nothing)
    """The numbers of the slots that it keeps, by the number of the variable beside which it does, and by name."""
    name: str = ""
    """What a variable was called, where that is known."""
    is_trainable: bool = True
    """False where it is known to have been no variable that is trained."""


def nodes_of_keys(keys: Iterable[str]) -> list[StoredNode]:
    """The tree that keys spell; what is no key of an object has no part in it."""
    tree = _Tree()
    tree.grow()
    for key in keys:
        found = split_key(key)
        if found is not None:
            path, attribute = found
            tree.keys[tree.number_of(path)][attribute] = key
    return [
        StoredNode(keys.pop(VARIABLE_VALUE, None), children or _NOTHING, keys or _NOTHING, slots or _NOTHING)
        for keys, children, slots in zip(tree.keys, tree.children, tree.slots, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Tree:
    """Nodes that are made as names lead to them; the first is the root."""

    children: list[dict[str, int]] = field(default_factory=list)
    """The children of each."""
    slots: list[dict[tuple[int, str], int]] = field(default_factory=list)
    """The slots that each keeps."""
    keys: list[dict[str, str]] = field(default_factory=list)
    """The keys of the values of each, by the names of attributes."""

    def grow(self) -> int:
        """The number of a new node."""
        self.children.append({})
        self.slots.append({})
        self.keys.append({})
        return len(self.keys) - 1

    def number_of(self, path: tuple[str, ...]) -> int:
        """The number of the node at the end of the path, which is made where there is none."""
        at = next((position for position, name in enumerate(path) if name is SLOT), None)
        if at is not None:
            beside, owner = self.number_of(path[:at]), self.number_of(path[at + 1 : -1])
            slot = self.slots[owner].get((beside, path[-1]))
            if slot is None:
                slot = self.slots[owner][beside, path[-1]] = self.grow()
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
    says_trainable: bool = False,
) -> bytes:
    """The message of a graph whose variables are stored under the keys of these paths.

    ``states`` are the names of other attributes that are stored, by the positions of their objects.
    """
    by_owner = groupby(sorted(graph.slots, key=_owner_of), key=_owner_of)
    slots = {owner: [_encode_slot(e.beside, e.name, e.slot) for e in edges] for owner, edges in by_owner}
    nodes = []
    for number, (node, edges, path) in enumerate(zip(graph.objects, graph.edges, paths, strict=True)):
        parts = [_encode_child(name, child) for name, child in (*edges, *_other_edges(node, edges))] if edges else []
        if isinstance(node, VariableInterface):
            parts.append(_encode_value(VARIABLE_VALUE, node.name, key_of(path)))
            if says_trainable and not node.trainable:
                parts.append(_UNTRAINABLE_FIELD)
        parts += [_encode_value(attribute, "", key_of(path, attribute)) for attribute in states.get(number, ())]
        parts += slots.get(number, ())
        nodes.append(encode_bytes_field(1, parts[0] if len(parts) == 1 else b"".join(parts)))
    return b"".join(nodes)


def _other_edges(node: Trackable, edges: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The children once more, under the names by which other libraries look for them."""
    if not node.other_names:
        return []
    taken = {name for name, _ in edges}
    others = [(node.other_names.get(name), child) for name, child in edges]
    return [(other, child) for other, child in others if other is not None and other not in taken]


def _encode_child(name: str, number: int) -> bytes:
    return encode_bytes_field(1, encode_varint_field(1, number) + encode_bytes_field(2, _octets(name)))


def _encode_slot(beside: int, name: str, slot: int) -> bytes:
    numbers = encode_varint_field(1, beside), encode_varint_field(3, slot)
    return encode_bytes_field(3, numbers[0] + encode_bytes_field(2, _octets(name)) + numbers[1])


def _encode_value(attribute: str, full_name: str, key: str) -> bytes:
    fields = (encode_bytes_field(number, _octets(text)) for number, text in ((2, full_name), (3, key)))
    name = _VALUE_FIELD if attribute == VARIABLE_VALUE else encode_bytes_field(1, _octets(attribute))
    return encode_bytes_field(2, name + b"".join(fields))


def decode_graph(message: bytes, keys: Collection[str]) -> list[StoredNode]:
    """The nodes that the message tells; a value whose key is not among ``keys`` was not stored, or left out since."""
    nodes = []
    for number, start, stop in decode_spans(message, 0, len(message)):
        if number == 1:
            nodes.append(_decode_node(message, start, _stop(stop), keys))
    if not nodes:
        raise malformed("The graph of objects has no root.")
    for number, node in enumerate(nodes):
        for name, child in node.children.items():
            _check_number(child, len(nodes), f"Child {name!r} of object {number}")
        for (beside, name), slot in node.slots.items():
            _check_number(beside, len(nodes), f"What slot {name!r} of object {number} is beside")
            _check_number(slot, len(nodes), f"Slot {name!r} of object {number}")
    for node in nodes:
        if _TRAINABLE in node.children:
            _find_slots_of_keras(node, nodes)
    return nodes


def _check_number(number: int, count: int, what: str) -> None:
    if not 0 <= number < count:
        raise invalid(f"{what} is object {number}, and there are {count}.")


def _decode_node(message: bytes, start: int, stop: int, keys: Collection[str]) -> StoredNode:
    node = StoredNode()
    children: dict[str, int] = {}
    slots: dict[tuple[int, str], int] = {}
    for number, first, last in decode_spans(message, start, stop):
        if number == 1:
            child, name, _ = _decode_link(message, first, _stop(last))
            children[name] = child
        elif number == 2:
            _decode_value(message, first, _stop(last), node, keys)
        elif number == 3:
            beside, name, slot = _decode_link(message, first, _stop(last))
            slots[beside, name] = slot
        elif number == _UNTRAINABLE:
            node.is_trainable = not first
    node.children, node.slots = children or _NOTHING, slots or _NOTHING
    return node


def _decode_value(message: bytes, start: int, stop: int, node: StoredNode, keys: Collection[str]) -> None:
    """Give the node the key of an attribute, where it is stored."""
    attribute = key = full_name = ""
    for part, first, last in decode_spans(message, start, stop):
        if part == 1:
            attribute = _text(message[first : _stop(last)])
        elif part == 2:
            full_name = _text(message[first : _stop(last)])
        elif part == 3:
            key = _text(message[first : _stop(last)])
    if key not in keys:
        return
    if attribute == VARIABLE_VALUE:
        node.key, node.name = key, full_name
    else:
        node.states = {**node.states, attribute: key}


def _decode_link(message: bytes, start: int, stop: int) -> tuple[int, str, int]:
    """Fields 1 and 3, which are numbers of objects, and field 2 between them, a name."""
    numbers, name = {1: 0, 3: 0}, ""
    for part, first, last in decode_spans(message, start, stop):
        if part == 2:
            name = _text(message[first : _stop(last)])
        elif part in numbers:
            if last >= 0:
                raise malformed(f"Field {part} at offset {first} holds bytes where a number belongs.")
            numbers[part] = first - (1 << 64) if first >> 63 else first
    return numbers[1], name, numbers[3]


def _stop(stop: int) -> int:
    """Where a field of bytes ends; ``malformed`` where it is a number."""
    if stop < 0:
        raise malformed("The graph of objects holds a number where bytes belong.")
    return stop


def _find_slots_of_keras(node: StoredNode, nodes: list[StoredNode]) -> None:
    """Keras 3 keeps slots in lists, one a kind of slot, in the order of a list of variables: slots by another name."""
    variables = nodes[node.children[_TRAINABLE]].children
    slots = dict(node.slots)
    for name, number in node.children.items():
        row = nodes[number].children
        if name != _TRAINABLE and row.keys() == variables.keys():
            slots.update({(variables[at], name): slot for at, slot in row.items()})
    node.slots = slots


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")

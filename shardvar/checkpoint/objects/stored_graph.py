"""The graph of objects as a checkpoint tells it: which object is whose child, and which keys hold its values.

Formats with strings keep it as TensorFlow does, a message under a key of its own:

    TrackableObjectGraph  1 nodes (repeated); the first is the root
    TrackableObject       1 children (repeated: 1 node_id, 2 local_name)
                          2 attributes (repeated: 1 name, 2 full_name, 3 checkpoint_key)
                          3 slot_variables (repeated: 1 original_variable_node_id, 2 slot_name, 3 slot_variable_node_id)
                          others are passed over

so that either reads what the other wrote, and an object that was saved once is found under each of its names. Where the
message is missing, the keys tell the graph: a tree, in which an object has one name.

A message has a dozen fields an object, so decoding looks at each byte of a tag once and makes an object a node.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from shardvar.checkpoint.objects.keys import VARIABLE_VALUE, key_of, path_of
from shardvar.tracking import SLOT, ObjectGraph, Trackable
from shardvar.variables import VariableInterface
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.protobuf import decode_spans, encode_bytes_field, encode_varint_field

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Where the message is stored, as a string tensor without axes."""
_TRAINABLE = "_trainable_variables"
"""The child of an optimizer of Keras 3 in whose order its lists of slots are."""

_Slots = dict[tuple[int, str], int]


@dataclass(slots=True)
class StoredNode:
    """An object of the graph."""

    children: dict[str, int] = field(default_factory=dict)
    """The numbers of its children, by name."""
    keys: dict[str, str] = field(default_factory=dict)
    """The keys of its values, by the names of attributes; those that are stored."""
    slots: _Slots | None = None
    """The numbers of the slots that it keeps, by the number of the variable beside which it does, and by name."""

    @property
    def key(self) -> str | None:
        """The key of its value as a variable, where one is stored."""
        return self.keys.get(VARIABLE_VALUE)


def nodes_of_keys(keys: Iterable[str]) -> list[StoredNode]:
    """The tree that keys spell; what is no key of a variable has no part in it."""
    nodes = [StoredNode()]
    for key in keys:
        path = path_of(key)
        if path is None:
            continue
        if SLOT in path and any(name is SLOT for name in path):
            at = next(number for number, name in enumerate(path) if name is SLOT)
            beside, owner = _walk(nodes, path[:at]), _walk(nodes, path[at + 1 : -1])
            slots = nodes[owner].slots = nodes[owner].slots or {}
            number = slots.setdefault((beside, path[-1]), len(nodes))
            if number == len(nodes):
                nodes.append(StoredNode())
        else:
            number = _walk(nodes, path)
        nodes[number].keys[VARIABLE_VALUE] = key
    return nodes


def _walk(nodes: list[StoredNode], path: tuple[str, ...]) -> int:
    """The number of the node at the end of the path, which is made where there is none."""
    number = 0
    for name in path:
        number = nodes[number].children.setdefault(name, len(nodes))
        if number == len(nodes):
            nodes.append(StoredNode())
    return number


def encode_graph(
    graph: ObjectGraph,
    paths: Sequence[tuple[str, ...]],
    states: Mapping[int, Iterable[str]] | None = None,
) -> bytes:
    """The message of a graph whose variables are stored under the keys of these paths.

    ``states`` are the names of other attributes that are stored, by the positions of their objects.
    """
    by_owner = groupby(sorted(graph.slots, key=lambda edge: edge.owner), key=lambda edge: edge.owner)
    slots = {owner: b"".join(_encode_slot(e.beside, e.name, e.slot) for e in edges) for owner, edges in by_owner}
    nodes = []
    for number, (node, edges, path) in enumerate(zip(graph.objects, graph.edges, paths, strict=True)):
        parts = [_encode_child(name, child) for name, child in edges]
        parts += [_encode_child(other, child) for other, child in _other_edges(node, edges)]
        if isinstance(node, VariableInterface):
            parts.append(_encode_value(VARIABLE_VALUE, node.name, key_of(path)))
        for attribute in (states or {}).get(number, ()):
            parts.append(_encode_value(attribute, "", key_of(path, attribute)))
        if number in slots:
            parts.append(slots[number])
        nodes.append(encode_bytes_field(1, b"".join(parts)))
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
    texts = (attribute, full_name, key)
    message = b"".join([encode_bytes_field(number, _octets(text)) for number, text in enumerate(texts, start=1)])
    return encode_bytes_field(2, message)


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
        for (beside, name), slot in (node.slots or {}).items():
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
    for number, first, last in decode_spans(message, start, stop):
        if number == 1:
            child, name, _ = _decode_link(message, first, _stop(last))
            node.children[name] = child
        elif number == 2:
            texts = {
                part: _text(message[a : _stop(b)])
                for part, a, b in decode_spans(message, first, _stop(last))
                if part in (1, 3)
            }
            key = texts.get(3)
            if key in keys and key is not None:
                node.keys[texts.get(1, "")] = key
        elif number == 3:
            beside, name, slot = _decode_link(message, first, _stop(last))
            if node.slots is None:
                node.slots = {}
            node.slots[beside, name] = slot
    return node


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
    slots = node.slots = node.slots or {}
    for name, number in node.children.items():
        row = nodes[number].children
        if name != _TRAINABLE and row.keys() == variables.keys() and not nodes[number].keys:
            slots.update({(variables[at], name): slot for at, slot in row.items()})


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")

"""The graph of objects as a checkpoint tells it: which object is whose child, and which key holds its value.

Formats with strings keep it as TensorFlow does, a message under a key of its own:

    TrackableObjectGraph  1 nodes (repeated); the first is the root
    TrackableObject       1 children (repeated: 1 node_id, 2 local_name), 2 attributes (repeated: 1 name, 2 full_name,
                          3 checkpoint_key), 3 slot_variables, which are passed over

so that either reads what the other wrote, and an object that was saved once is found under each of its names. Where the
message is missing, the keys tell the graph: a tree, in which an object has one name.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shardvar.checkpoint.objects.keys import VARIABLE_VALUE, key_of, path_of
from shardvar.tracking import ObjectGraph
from shardvar.variables import VariableInterface
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.protobuf import decode_fields, encode_bytes_field, encode_varint_field

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Where the message is stored, as a string tensor without axes."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """An object of the graph."""

    children: dict[str, int] = field(default_factory=dict)
    """The numbers of its children, by name."""
    key: str | None = None
    """The key of its value, where one is stored."""


def nodes_of_keys(keys: Iterable[str]) -> list[StoredNode]:
    """The tree that keys spell; what is no key of a variable has no part in it."""
    nodes = [StoredNode()]
    for key in keys:
        path = path_of(key)
        if path is None:
            continue
        number = 0
        for name in path:
            child = nodes[number].children.setdefault(name, len(nodes))
            if child == len(nodes):
                nodes.append(StoredNode())
            number = child
        nodes[number] = StoredNode(nodes[number].children, key)
    return nodes


def encode_graph(graph: ObjectGraph, paths: Sequence[tuple[str, ...]]) -> bytes:
    """The message of a graph whose variables are stored under the keys of these paths."""
    return b"".join(
        encode_bytes_field(
            1,
            b"".join(_encode_child(name, child) for name, child in edges)
            + (_encode_value(node.name, key_of(path)) if isinstance(node, VariableInterface) else b""),
        )
        for node, edges, path in zip(graph.objects, graph.edges, paths, strict=True)
    )


def _encode_child(name: str, number: int) -> bytes:
    return encode_bytes_field(1, encode_varint_field(1, number) + encode_bytes_field(2, _octets(name)))


def _encode_value(full_name: str, key: str) -> bytes:
    texts = (VARIABLE_VALUE, full_name, key)
    message = b"".join(encode_bytes_field(number, _octets(text)) for number, text in enumerate(texts, start=1))
    return encode_bytes_field(2, message)


def decode_graph(message: bytes, keys: Collection[str]) -> list[StoredNode]:
    """The nodes that the message tells; a value whose key is not among ``keys`` was not stored, or left out since."""
    nodes = [_decode_node(part.octets(), keys) for part in decode_fields(message) if part.number == 1]
    if not nodes:
        raise malformed("The graph of objects has no root.")
    for number, node in enumerate(nodes):
        for name, child in node.children.items():
            if not 0 <= child < len(nodes):
                raise invalid(f"Child {name!r} of object {number} is object {child}, and there are {len(nodes)}.")
    return nodes


def _decode_node(message: bytes, keys: Collection[str]) -> StoredNode:
    children: dict[str, int] = {}
    key = None
    for part in decode_fields(message):
        if part.number == 1:
            inner = {each.number: each for each in decode_fields(part.octets())}
            children[_text(inner[2].octets()) if 2 in inner else ""] = inner[1].int64() if 1 in inner else 0
        elif part.number == 2:
            texts = {each.number: _text(each.octets()) for each in decode_fields(part.octets()) if each.number <= 3}
            if texts.get(1) == VARIABLE_VALUE and texts.get(3) in keys:
                key = texts.get(3)
    return StoredNode(children, key)


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")

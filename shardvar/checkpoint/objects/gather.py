"""What of a graph of objects is saved, and under which keys: values of variables, and states of other objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array, check_mapping, check_string
from shardvar.checkpoint.objects.keys import key_of
from shardvar.checkpoint.save import check_keys
from shardvar.errors import ArgumentError
from shardvar.tracking import ObjectGraph, Stateful
from shardvar.variables import Variable, VariableInterface


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The values of a graph of objects, each with its key. Keys differ, and a file can hold them."""

    variables: list[tuple[str, VariableInterface]]
    """The variables, whose values are not looked at yet."""
    states: list[tuple[str, npt.NDArray[Any]]]
    """What other objects said of themselves: copies."""
    attributes: dict[int, list[str]]
    """The names by which they said it, by the positions of the objects in the graph."""


def gather(graph: ObjectGraph, paths: Sequence[tuple[str, ...]]) -> Gathered:
    """Ask every object of a graph, in order; ``ArgumentError`` where two values would have one key."""
    found = Gathered([], [], {})
    keys: dict[str, None] = {}
    for position, (node, path) in enumerate(zip(graph.objects, paths, strict=True)):
        if isinstance(node, VariableInterface):
            _check_stands_alone(node, path)
            found.variables.append((_claim(key_of(path), keys), node))
        if isinstance(node, Stateful):
            state = _state(node, path)
            found.states.extend((_claim(key_of(path, name), keys), array) for name, array in state.items())
            found.attributes[position] = list(state)
    check_keys(list(keys))
    return found


def _claim(key: str, keys: dict[str, None]) -> str:
    if key in keys:
        raise ArgumentError(f"Two objects have the key {key!r}.", "Give none of them an empty name.")
    keys[key] = None
    return key


def _check_stands_alone(node: VariableInterface, path: tuple[str, ...]) -> None:
    if isinstance(node, Variable) and node.container is not None:
        # R-MODULE-1 (RFC 000): "It will result in unnecessary data duplications in checkpoints".
        raise ArgumentError(
            f"{'/'.join(path)} is a shard of {node.container.name}, and could not be restored to other shards.",
            "Track the sharded variable itself.",
        )


def _state(node: Stateful, path: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    """What an object says of itself, copied: it may go on to change its arrays."""
    state = node.state()
    check_mapping(state, "names to arrays")
    for name in state:
        check_string(name, "names in a state")
        if not name:
            raise ArgumentError(f"{'/'.join(path) or 'The root'} has a state without a name.", "Name it.")
    return {name: np.array(as_array(key_of(path, name), value)) for name, value in state.items()}

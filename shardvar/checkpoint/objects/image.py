"""Image: the values of a graph of objects as of one moment, held apart from the objects, and where they are to go.

Whatever may be slow (a policy, the files) works on the image, so that training can go on beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.arguments import as_array, check_mapping, check_string
from shardvar.checkpoint.locate import Location
from shardvar.checkpoint.objects.keys import key_of
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, encode_graph
from shardvar.checkpoint.objects.values import Keyed, in_place, resources_of, snapshot
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.save import WRITER, check_keys
from shardvar.checkpoint.writing import carry_out, draft
from shardvar.engine.arrays import ArraySource
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import STRING
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.tracking import ObjectGraph, Stateful
from shardvar.variables import Variable, VariableInterface
from shardvar.variables.resource import holding


@dataclass(frozen=True, slots=True, eq=False)
class Manner:
    """How a checkpoint of objects is to be written."""

    policy: Policy | None
    """Which slices share a file."""
    metadata: Mapping[str, str]
    """What the user has to say about it."""
    force: bool
    """Whether whatever stands there may be replaced."""
    is_for_serving: bool = False
    """Whether it is exported, sharded variables being written whole, and it is said what is trainable."""
    as_shards: bool = False
    """Whether shards stay slices in what is exported."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A checkpoint that is yet to be written."""

    target: Location
    """Where it goes."""
    source: ArraySource
    """The values: copies which nobody else holds, or memory which nobody writes."""
    manner: Manner
    """How."""
    trackables: Mapping[str, VariableInterface]
    """The variable that each key is saved for, of which policies are told."""

    def write(self) -> WriteReport:
        """Decide which slice goes where, write them and commit."""
        is_whole = self.manner.is_for_serving and not self.manner.as_shards
        work = draft(
            self.target,
            self.source.index.entries,
            policy=self.manner.policy,
            partition=1 if is_whole and self.target.format.capabilities.slice_dtypes else None,
            metadata=Metadata(writer=WRITER, user=dict(self.manner.metadata)),
            force=self.manner.force,
            replace_atomically=True,
            source=self.source,
            trackables=self.trackables,
        )
        return carry_out(work, self.source, None, lambda nbytes: None)


def take_image(
    graph: ObjectGraph, target: Location, manner: Manner, counted: tuple[VariableInterface, int] | None = None
) -> Image:
    """Copy the values of now; of the one that is ``counted``, the value that it is to have when this is written.

    Formats that hold strings get the graph itself too.
    """
    kept, others, trackables = _gather(graph, target, manner, counted)
    return Image(target, snapshot(kept, others), manner, trackables)


@contextmanager
def hold_image(
    graph: ObjectGraph, target: Location, manner: Manner, counted: tuple[VariableInterface, int] | None = None
) -> Iterator[Image]:
    """The same without a copy: until the block ends, whoever else writes a variable waits."""
    kept, others, trackables = _gather(graph, target, manner, counted)
    with holding(resources_of(kept)):
        yield Image(target, in_place(kept, others), manner, trackables)


def _gather(
    graph: ObjectGraph, target: Location, manner: Manner, counted: tuple[VariableInterface, int] | None
) -> tuple[Keyed, list[tuple[str, npt.NDArray[Any]]], dict[str, VariableInterface]]:
    """The variables whose values are those of now, other arrays, and all variables by their keys."""
    paths = graph.paths()
    found = collect_values(graph, paths)
    others = list(found.states)
    if STRING in target.format.capabilities.dtypes:
        message = encode_graph(graph, paths, found.attributes, says_trainable=manner.is_for_serving)
        others.append((GRAPH_KEY, np.array(message, dtype=object)))
    counter, number = counted or (None, 0)
    others.extend((key, np.array(number, each.dtype)) for key, each in found.variables if each is counter)
    kept = [(key, each) for key, each in found.variables if each is not counter]
    return kept, others, dict(found.variables)


# What of a graph of objects is saved, and under which keys: values of variables, and states of other objects.


@dataclass(frozen=True, slots=True, eq=False)
class GraphValues:
    """The values of a graph of objects, each with its key. Keys differ, and a file can hold them."""

    variables: list[tuple[str, VariableInterface]]
    """The variables, whose values are not looked at yet."""
    states: list[tuple[str, npt.NDArray[Any]]]
    """What other objects said of themselves: copies."""
    attributes: dict[int, list[str]]
    """The names by which they said it, by the positions of the objects in the graph."""


def collect_values(graph: ObjectGraph, paths: Sequence[tuple[str, ...]]) -> GraphValues:
    """Ask every object of a graph, in order; ``ArgumentError`` where two values would have one key."""
    found = GraphValues([], [], {})
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

"""Image: the values of a graph of objects as of one moment, held apart from the objects, and where they are to go.

Whatever may be slow (a policy, the files) works on the image, so that training can go on beside it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.locate import Found
from shardvar.checkpoint.objects.gather import gather
from shardvar.checkpoint.objects.state import Keyed, in_place, resources_of, snapshot
from shardvar.checkpoint.objects.stored_graph import GRAPH_KEY, encode_graph
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.save import WRITER
from shardvar.checkpoint.writing import carry_out, draft
from shardvar.engine.arrays import ArraySource
from shardvar.layout.dtypes import STRING
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.tracking import ObjectGraph
from shardvar.variables import VariableInterface
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

    target: Found
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
    graph: ObjectGraph, target: Found, manner: Manner, counted: tuple[VariableInterface, int] | None = None
) -> Image:
    """Copy the values of now; of the one that is ``counted``, the value that it is to have when this is written.

    Formats that hold strings get the graph itself too.
    """
    kept, others, trackables = _gather(graph, target, manner, counted)
    return Image(target, snapshot(kept, others), manner, trackables)


@contextmanager
def hold_image(
    graph: ObjectGraph, target: Found, manner: Manner, counted: tuple[VariableInterface, int] | None = None
) -> Iterator[Image]:
    """The same without a copy: until the block ends, whoever else writes a variable waits."""
    kept, others, trackables = _gather(graph, target, manner, counted)
    with holding(resources_of(kept)):
        yield Image(target, in_place(kept, others), manner, trackables)


def _gather(
    graph: ObjectGraph, target: Found, manner: Manner, counted: tuple[VariableInterface, int] | None
) -> tuple[Keyed, list[tuple[str, npt.NDArray[Any]]], dict[str, VariableInterface]]:
    """The variables whose values are those of now, other arrays, and all variables by their keys."""
    paths = graph.paths()
    found = gather(graph, paths)
    others = list(found.states)
    if STRING in target.format.capabilities.dtypes:
        message = encode_graph(graph, paths, found.attributes, says_trainable=manner.is_for_serving)
        others.append((GRAPH_KEY, np.array(message, dtype=object)))
    counter, number = counted or (None, 0)
    others.extend((key, np.array(number, each.dtype)) for key, each in found.variables if each is counter)
    kept = [(key, each) for key, each in found.variables if each is not counter]
    return kept, others, dict(found.variables)

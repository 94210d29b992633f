"""Image: the values of a graph of objects as of one moment, held apart from the objects, and where they are to go.

Whatever may be slow (a policy, the files) works on the image, so that training can go on beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardvar.checkpoint.locate import Found
from shardvar.checkpoint.objects.gather import gather
from shardvar.checkpoint.objects.state import snapshot
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


@dataclass(frozen=True, slots=True, eq=False)
class Manner:
    """How a checkpoint of objects is to be written."""

    policy: Policy | None
    """Which slices share a file."""
    metadata: Mapping[str, str]
    """What the user has to say about it."""
    force: bool
    """Whether whatever stands there may be replaced."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A checkpoint that is yet to be written."""

    target: Found
    """Where it goes."""
    source: ArraySource
    """Copies of the values, which nobody else holds."""
    manner: Manner
    """How."""
    trackables: Mapping[str, VariableInterface]
    """The variable that each key is saved for, of which policies are told."""

    def write(self) -> WriteReport:
        """Decide which slice goes where, write them and commit."""
        work = draft(
            self.target,
            self.source.index.entries,
            policy=self.manner.policy,
            partition=None,
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
    paths = graph.paths()
    found = gather(graph, paths)
    others = list(found.states)
    if STRING in target.format.capabilities.dtypes:
        others.append((GRAPH_KEY, np.array(encode_graph(graph, paths, found.attributes), dtype=object)))
    counter, number = counted or (None, 0)
    others.extend((key, np.array(number, each.dtype)) for key, each in found.variables if each is counter)
    kept = [(key, each) for key, each in found.variables if each is not counter]
    return Image(target, snapshot(kept, others), manner, dict(found.variables))

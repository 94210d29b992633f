"""Images of the values of a graph of objects, and the options for writing them.

1. ``_collect`` walks the graph, and finds the variables and the state of other objects, each with
   its key.
2. ``take_image`` copies the values, or ``hold_image`` locks the variables and takes their memory.
3. ``Image.write`` does the slow work (a policy, the files). It needs the image only, so that after
   ``take_image`` training can go on.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import ArgumentError, ArgumentTypeError, TargetExists
from shardvar.layout.dtypes import STRING, Array
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.records import entity, fields, frozen
from shardvar.reference.objects.stored_graph import (
    GRAPH_KEY,
    Keyed,
    encode_graph,
    in_place,
    key_of,
    resources_of,
    snapshot,
)
from shardvar.reference.tracking import ObjectGraph, Stateful
from shardvar.reference.variables import Variable, VariableInterface
from shardvar.reference.variables.values import holding
from shardvar.verbs.arguments import as_array, check_mapping, check_policy, check_string
from shardvar.verbs.locate import Location
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER, check_keys
from shardvar.verbs.writing import WritePlan, carry_out, check_new_folder, plan_checkpoint

_REFUSED = {
    "experimental_io_device": "Every task writes by itself; give a ShardByDevicePolicy to keep devices apart.",
    "enable_async": "Give `background=True` to `Checkpoint.save`.",
    "experimental_write_callbacks": "Call them once `write` has returned; the checkpoint is committed then.",
    "experimental_skip_slot_variables": "Leave the optimizer out of the checkpoint.",
}
"""TensorFlow's other options, each with what to do instead."""


@frozen
class CheckpointOptions:
    """Options of ``Checkpoint.write``.

    R-POLICY-18 (RFC 001): "I propose adding an `experimental_sharding_callback` option to
    `CheckpointOptions`."

    The fields have the names of ``tf.train.CheckpointOptions``. Fields without a meaning here
    accept only TensorFlow's defaults.

    Examples
    --------
    >>> import shardvar as sv
    >>> sv.CheckpointOptions(experimental_sharding_callback=sv.MaxShardSizePolicy(500 * 2**20)).policy.max_shard_size
    524288000
    """

    experimental_sharding_callback: Policy | None = None
    """The policy that puts slices in files, as ``policy=`` takes it; None for a file a task."""
    experimental_io_device: None = None
    """Refused."""
    enable_async: bool = False
    """Refused."""
    experimental_write_callbacks: None = None
    """Refused."""
    experimental_skip_slot_variables: bool = False
    """Refused."""

    def __post_init__(self) -> None:
        check_policy(self.experimental_sharding_callback)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _REFUSED and value is not field.default:
                raise ArgumentError(
                    f"{field.name}={value!r} means nothing here.", _REFUSED[field.name]
                )

    @property
    def policy(self) -> Policy | None:
        """The policy, under the name that it has elsewhere."""
        return self.experimental_sharding_callback


def policy_of(policy: Policy | None, options: CheckpointOptions | None) -> Policy | None:
    """Return the policy, given in one of two ways; ``ArgumentError`` if in both."""
    check_policy(policy)
    if options is None:
        return policy
    given: Any = options
    if not isinstance(given, CheckpointOptions):
        raise ArgumentTypeError(f"{given!r} are not options.", "Give a CheckpointOptions.")
    if policy is not None and options.policy is not None:
        raise ArgumentError(
            "A policy is given twice, by itself and in the options.", "Give it once."
        )
    return policy or options.policy


@entity
class ObjectOptions:
    policy: Policy | None
    metadata: Mapping[str, str]
    force: bool
    """True if existing files may be replaced where that takes more than one step."""
    is_for_serving: bool = False
    """True for an export: sharded variables are written whole, and the graph marks variables that
    are not trainable."""
    as_shards: bool = False
    is_new: bool = False
    """True if the target had no checkpoint when it was chosen: a later one is kept."""


@entity
class Image:
    target: Location
    source: ArraySource
    """The values: copies, or the memory of locked variables."""
    options: ObjectOptions
    trackables: Mapping[str, VariableInterface]

    def write(self) -> WriteReport:
        """Plan which slice goes to which file, write the files and commit."""
        return self.plan()()

    def plan(self) -> Callable[[], WriteReport]:
        """Plan the file of each slice; return a function that writes the files and commits."""
        # An export writes sharded variables whole: one part for each tensor. A format without
        # slices joins them anyway.
        is_whole = self.options.is_for_serving and not self.options.as_shards
        work = plan_checkpoint(
            self.target,
            self.source.index.entries,
            policy=self.options.policy,
            partition=1 if is_whole and self.target.format.capabilities.slice_dtypes else None,
            metadata=Metadata(writer=WRITER, user=dict(self.options.metadata)),
            force=self.options.force,
            replace_atomically=not self.options.is_new,
            source=self.source,
            trackables=self.trackables,
        )
        check_new_folder(work)
        return partial(self._carry_out, work)

    def _carry_out(self, work: WritePlan) -> WriteReport:
        try:
            return carry_out(work, self.source, None, lambda _nbytes: None)
        except TargetExists as error:
            if self.options.is_new:
                raise TargetExists(
                    error.cause, "Save again: the first number that is free then is taken."
                ) from None
            raise


def take_image(
    graph: ObjectGraph,
    target: Location,
    options: ObjectOptions,
    counter: tuple[VariableInterface, int] | None = None,
) -> Image:
    """Copy the values of now; of the ``counter``, a variable and a number, the number is stored."""
    kept, others, trackables = _collect(graph, target, options, counter)
    return Image(target, snapshot(kept, others), options, trackables)


@contextmanager
def hold_image(
    graph: ObjectGraph,
    target: Location,
    options: ObjectOptions,
    counter: tuple[VariableInterface, int] | None = None,
) -> Iterator[Image]:
    """Yield the image without a copy; until the ``with`` block ends, other writers of a variable wait."""
    kept, others, trackables = _collect(graph, target, options, counter)
    with holding(resources_of(kept)):
        yield Image(target, in_place(kept, others), options, trackables)


def _collect(
    graph: ObjectGraph,
    target: Location,
    options: ObjectOptions,
    counter: tuple[VariableInterface, int] | None,
) -> tuple[Keyed, list[tuple[str, Array]], dict[str, VariableInterface]]:
    paths = graph.paths()
    trackables: dict[str, VariableInterface] = {}
    others: dict[str, Array] = {}
    attributes: dict[int, list[str]] = {}

    def unused(key: str) -> str:
        # The root, whose path is (), and its child named "" have the same key.
        if key in trackables or key in others:
            raise ArgumentError(
                f"Two objects have the key {key!r}.", "Give none of them an empty name."
            )
        return key

    for position, (node, path) in enumerate(zip(graph.objects, paths, strict=True)):
        # The values of a shard would be stored here and again in the sharded variable. R-MODULE-1
        # (RFC 000): "It will result in unnecessary data duplications in checkpoints".
        if isinstance(node, Variable) and node.container is not None:
            raise ArgumentError(
                f"{'/'.join(path)} is a shard of {node.container.name}, and could not be restored "
                "to other shards.",
                "Track the sharded variable itself.",
            )
        if isinstance(node, VariableInterface):
            trackables[unused(key_of(path))] = node
        if isinstance(node, Stateful):
            state = _state(node, path)
            for name, array in state.items():
                others[unused(key_of(path, name))] = array
            attributes[position] = list(state)
    check_keys([*trackables, *others])
    if STRING in target.format.capabilities.dtypes:
        message = encode_graph(graph, paths, attributes, with_trainable=options.is_for_serving)
        others[GRAPH_KEY] = np.array(message, dtype=object)
    # The save counter counts checkpoints that are committed, so it is assigned after the commit.
    # But checkpoint 7 holds the number 7: the number is stored in place of the counter's value,
    # which is still 6.
    counted, number = counter or (None, 0)
    others |= {
        key: np.array(number, each.dtype) for key, each in trackables.items() if each is counted
    }
    kept = [(key, each) for key, each in trackables.items() if each is not counted]
    return kept, list(others.items()), trackables


def _state(node: Stateful, path: tuple[str, ...]) -> dict[str, Array]:
    """Return copies of an object's arrays, which the object may change after the call."""
    state = node.state()
    check_mapping(state, "names to arrays")
    for name in state:
        check_string(name, "names in a state")
        if not name:
            raise ArgumentError(
                f"{'/'.join(path) or 'The root'} has a state without a name.", "Name it."
            )
    return {name: np.array(as_array(key_of(path, name), value)) for name, value in state.items()}

"""sv.Checkpoint: a root object whose variables are written and read by the names that lead to them.

R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to possibly
a different number of shards": a sharded variable is one key, and its shards are slices of it.

``write`` and ``read`` are for one checkpoint; ``save`` and ``restore`` are for a numbered series,
and count.

The root object is the root of the graph, even if other objects are given names: in the graph they
are its children.

Images of the values of a graph of objects, and the options for writing them.

1. ``_collect`` walks the graph, and finds the variables and the state of other objects, each with
   its key.
2. ``take_image`` copies the values, or ``hold_image`` locks the variables and takes their memory.
3. ``Image.write`` does the slow work (a policy, the files). It needs the image only, so that after
   ``take_image`` training can go on.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self, overload

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import ArgumentError, ArgumentTypeError, TargetExists
from shardvar.layout.dtypes import STRING, Array
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.records import entity, fields, frozen
from shardvar.reference.objects.restoration import RestoreStatus, open_restoration
from shardvar.reference.objects.series import (
    SaveSteps,
    find_series,
    next_number,
    record_newest,
    target_of,
)
from shardvar.reference.objects.stored_graph import (
    GRAPH_KEY,
    SAVE_COUNTER,
    Keyed,
    encode_graph,
    in_place,
    key_of,
    resources_of,
    snapshot,
)
from shardvar.reference.tracking import ContainerNode, ObjectGraph, Stateful, Trackable, node_of
from shardvar.reference.variables import ResourceVariable, Variable, VariableInterface
from shardvar.reference.variables.values import holding
from shardvar.verbs.arguments import as_array, check_mapping, check_policy, check_string, texts_of
from shardvar.verbs.background import PendingSave, Turn, check_background, start_save
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Location, Path, find_target
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
            return carry_out(work)
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
    counter: tuple[VariableInterface, int] | None,
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


class Checkpoint(Trackable):
    """A root object with its children, and objects given by name, to write and read together.

    Parameters
    ----------
    root : object, optional
        A module, a variable, another trackable object, or a dictionary, list or tuple of these. A
        ``weakref.ref`` is kept as it is, so that the root may own its checkpoint.
    **objects : object
        More objects by name, of the same kinds. An attribute that is set later is one more object.

    Raises
    ------
    ArgumentTypeError
        If an object has no variables.
    ArgumentError
        If another child of the root, or a method, has the name.

    Examples
    --------
    >>> import os, tempfile
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> with sv.ParameterServerStrategy(4, sv.FixedShardsPartitioner(4)).scope():
    ...     _ = sv.Checkpoint(w=sv.Variable([1.0, 2.0, 3.0, 4.0])).write(path)
    >>> with sv.ParameterServerStrategy(3, sv.FixedShardsPartitioner(3)).scope():
    ...     w = sv.Variable([0.0, 0.0, 0.0, 0.0])
    >>> _ = sv.Checkpoint(w=w).read(path).assert_consumed()
    >>> w.numpy()
    array([1., 2., 3., 4.], dtype=float32)
    """

    _known: "weakref.WeakValueDictionary[int, ContainerNode]"
    _turn: Turn
    _held_root: "Trackable | weakref.ref[Trackable] | None"

    def __init__(self, root: Any = None, **objects: Any) -> None:
        self._begin(root)
        for name in sorted(objects):
            setattr(self, name, objects[name])

    def _begin(self, root: Any) -> None:
        # Past ``__setattr__``, for which every attribute is an object to save.
        self.__dict__["_known"] = weakref.WeakValueDictionary()
        self.__dict__["_turn"] = Turn()
        if isinstance(root, weakref.ref):
            self.__dict__["_held_root"] = root
            self._node("root", self._root)
        else:
            self.__dict__["_held_root"] = None if root is None else self._node("root", root)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a checkpoint of copies of the objects; a weak root stays the same."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        held = self._held_root
        twin._begin(deepcopy(held.items if isinstance(held, ContainerNode) else held, memo))
        for name, node in super().children.items():
            if name in self.__dict__:
                setattr(twin, name, deepcopy(self.__dict__[name], memo))
            else:  # the counter, and what was tracked without an attribute
                twin.track(name, deepcopy(node, memo))
        return twin

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(
                f"A checkpoint has no place for an object named {name!r}.", "Choose another name."
            )
        node = self._node(name, value)
        # A child of the root may be named once more, under its name there: Checkpoint(model,
        # w=model.w).
        root = self._root
        if root is None or root.children.get(name) is not node:
            self._check_has_place(name)
        super().__setattr__(name, value)
        self.track(name, node)

    @property
    def children(self) -> Mapping[str, Trackable]:
        """The children of the root, and then the objects that are named."""
        root = self._root
        return MappingProxyType({**({} if root is None else root.children), **super().children})

    @property
    def save_counter(self) -> Variable:
        """The number of saved numbered checkpoints: an int64 variable, created on demand."""
        counter: Any = super().children.get(SAVE_COUNTER)
        if counter is None:
            self._check_has_place(SAVE_COUNTER)
            # Created directly, not by sv.Variable: no scope places it on a server, cuts it or names
            # it after a layer.
            counter = ResourceVariable(np.int64(0), trainable=False, name=SAVE_COUNTER)
            self.track(SAVE_COUNTER, counter)
        return counter  # type: ignore[no-any-return]

    def write(
        self,
        path: Path,
        options: CheckpointOptions | None = None,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> WriteReport:
        """Write the values of all variables, as of one moment, and commit them.

        Parameters
        ----------
        path : path_like
            The checkpoint to write, as in ``sv.save``.
        options : CheckpointOptions, optional
            TensorFlow's options, which may have the policy.
        format : str, optional
            The format, as in ``sv.save``.
        policy : policy, optional
            The policy that chooses the slices of each file.
        metadata : mapping of str to str, optional
            Texts to keep in the checkpoint.
        force : bool, default False
            Replace an existing checkpoint also where the format cannot do that in one step.

        Returns
        -------
        WriteReport
            The report of what was written.

        Raises
        ------
        TargetExists
            If a checkpoint exists that cannot be replaced in one step, and ``force`` is not set.
        UnsupportedError
            If the format cannot hold a tensor.
        ArgumentError
            If an argument is invalid, or the policy is given twice.
        StorageError
            If the disk is full, the file system refuses, or another writer holds the checkpoint
            (``LockHeld``).

        Notes
        -----
        Keys are TensorFlow's, and in formats that hold strings the graph of objects is also stored,
        so that TensorFlow restores what the format "tensorflow" holds. Waits for a save of this
        checkpoint that is in progress. Other threads that write a variable wait until it is done.
        """
        target = find_target(path, format, otherwise="shardvar")
        save_options = ObjectOptions(policy_of(policy, options), texts_of(metadata), force)
        with (
            self._turn.taken(target.path),
            hold_image(self._graph(), target, save_options) as image,
        ):
            return image.write()

    @overload
    def save(
        self,
        file_prefix: Path,
        options: CheckpointOptions | None = None,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
        background: Literal[False] = False,
    ) -> WriteReport: ...
    @overload
    def save(
        self,
        file_prefix: Path,
        options: CheckpointOptions | None = None,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
        background: bool,
    ) -> WriteReport | PendingSave: ...
    def save(
        self,
        file_prefix: Path,
        options: CheckpointOptions | None = None,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        metadata: Mapping[str, str] | None = None,
        force: bool = False,
        background: bool = False,
    ) -> WriteReport | PendingSave:
        """Write the next checkpoint of a series, ``file_prefix-1``, ``file_prefix-2`` and so on.

        See ``write`` for the other parameters.

        Parameters
        ----------
        file_prefix : path_like
            The path before the number.
        force : bool, default False
            Replace the checkpoint of that number, if another process has saved it.
        background : bool, default False
            Copy the values, and write them in another thread. Values that are assigned after the
            call are not in the checkpoint. Another save, write or restore of this checkpoint waits
            for it.

        Returns
        -------
        WriteReport or PendingSave
            The report, which has the path; with ``background``, at once, the save in progress, to
            be joined for the report.

        Raises
        ------
        TargetExists
            If another process has saved that number, and ``force`` is not set.
        UnsupportedError
            If the format cannot hold a tensor, or its checkpoints are folders, which are not
            numbered.
        ArgumentError
            If ``file_prefix`` has the ending of a file, or another argument is invalid.

        Notes
        -----
        The number is the first above ``save_counter`` that no checkpoint of that prefix has, in any
        format. The counter is also saved, and becomes that number once the checkpoint is committed.
        The file ``checkpoint`` in the same directory names the newest one, for
        ``sv.latest_checkpoint`` and for TensorFlow.

        Examples
        --------
        >>> import os, tempfile
        >>> import shardvar as sv
        >>> checkpoint, prefix = sv.Checkpoint(w=sv.Variable([1.0])), os.path.join(tempfile.mkdtemp(), "ckpt")
        >>> [os.path.basename(checkpoint.save(prefix)) for _ in range(2)]
        ['ckpt-1', 'ckpt-2']
        """
        check_background(background)
        series = find_series(file_prefix, format)
        save_options = ObjectOptions(
            policy_of(policy, options), texts_of(metadata), force, is_new=not force
        )

        def choose(count: int) -> tuple[int, Location]:
            number = next_number(series, count)
            return number, target_of(series, number)

        return self.save_numbered(choose, record_newest, save_options, background)

    # For ``save`` and ``CheckpointManager.save``. ``choose`` returns, for the counter's value, the
    # value that it gets and the checkpoint to write.
    def save_numbered(
        self,
        choose: Callable[[int], tuple[int, Location]],
        steps: SaveSteps,
        save_options: ObjectOptions,
        background: bool,
    ) -> WriteReport | PendingSave:
        def chosen() -> tuple[Location, tuple[Variable, int]]:
            counter = self.save_counter
            number, target = choose(int(counter))
            self._turn.name(target.path)
            return target, (counter, number)

        def write(image: Image, counted: tuple[Variable, int]) -> WriteReport:
            counter, number = counted

            def plan() -> Callable[[], WriteReport]:
                carry_out = image.plan()

                def commit() -> WriteReport:
                    report = carry_out()
                    # Only now: a save that fails is tried again under the same number.
                    counter.assign(number)
                    return report

                return commit

            return steps(image.target, plan)

        # In the foreground: lock the variables, and write their memory.
        if not background:
            with self._turn.taken():
                target, counted = chosen()
                with hold_image(self._graph(), target, save_options, counted) as locked:
                    return write(locked, counted)
        # In the background: copy the values, then write the copies. The thread that writes gives
        # the turn back.
        self._turn.take()
        try:
            target, counted = chosen()
            image = take_image(self._graph(), target, save_options, counted)
        except BaseException:
            self._turn.give_back()
            raise
        return start_save(image.target.path, partial(write, image, counted), self._turn)

    def read(self, path: Path | None, options: CheckpointOptions | None = None) -> RestoreStatus:
        """Restore the values that the checkpoint and the objects share, including objects that
        appear later.

        Parameters
        ----------
        path : path_like or None
            The checkpoint. None restores nothing, as in
            ``restore(sv.latest_checkpoint(directory))`` at the first run.
        options : CheckpointOptions, optional
            Not used in reading; the parameter exists because TensorFlow has it.

        Returns
        -------
        RestoreStatus
            The parts that did not match, and assertions about them. If ``path`` is None every
            assertion fails.

        Raises
        ------
        CheckpointNotFound
            If there is no checkpoint at ``path``.
        AmbiguousPath
            If ``path`` matches several checkpoints.
        InconsistentTensor
            If a dtype or a full shape differs.
        CheckpointError
            If the checkpoint is damaged.

        Notes
        -----
        All existing variables get their values, or none does. The number of shards is never an
        error: shards take the rows that they hold.
        """
        policy_of(None, options)  # checked, though nothing uses it
        return self._read(path, is_numbered=False)

    def restore(self, path: Path | None, options: CheckpointOptions | None = None) -> RestoreStatus:
        """Read a checkpoint that may be one of a numbered series: the next ``save`` has a number
        after it.

        See ``read`` for the parameters.
        """
        policy_of(None, options)
        return self._read(path, is_numbered=True)

    def _read(self, path: Path | None, is_numbered: bool) -> RestoreStatus:
        if path is None:
            return RestoreStatus(None, self._graph)
        with self._turn.taken():
            restoration = open_restoration(open_checkpoint(path))
            self._turn.name(restoration.path)
            has_counter = key_of([SAVE_COUNTER]) in restoration.unmatched.keys
            if is_numbered and has_counter and SAVE_COUNTER not in self.children:
                _ = self.save_counter  # created by being read, so that it takes the stored number
            root = self._root
            if root is None:
                restoration.restore(self, 0)
            else:
                # The named objects are the root's children there. Objects that are named later
                # appear as children of this checkpoint.
                restoration.restore(root, 0, super().children)
                restoration.wait(self, 0)
        return RestoreStatus(restoration, self._graph)

    @property
    def _root(self) -> Trackable | None:
        """The root, or None; ``ArgumentError`` if it was given weakly and is gone."""
        held = self._held_root
        if not isinstance(held, weakref.ref):
            return held
        root = held()
        if root is None:
            raise ArgumentError(
                "The root of a checkpoint, a weak reference, is gone.", "Keep the root elsewhere."
            )
        return root

    def _check_has_place(self, name: str) -> None:
        root = self._root
        if root is not None and name in root.children:
            raise ArgumentError(
                f"The root has another child named {name!r}.", "Choose another name."
            )

    def _graph(self) -> ObjectGraph:
        root = self._root
        return ObjectGraph.of(self) if root is None else ObjectGraph.of(root, super().children)

    def _node(self, name: str, value: Any) -> Trackable:
        node = node_of(value, self._known)
        if node is None:
            raise ArgumentTypeError(
                f"{name!r} is of type {type(value).__name__}, which has no variables.",
                "Give modules, variables, trackable objects, or dictionaries and lists of these.",
            )
        return node

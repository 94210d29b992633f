"""sv.Checkpoint: a root object whose variables are written and read by the names that lead to them.

R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to possibly
a different number of shards": a sharded variable is one key, and its shards are slices of it.

``write`` and ``read`` are for one checkpoint; ``save`` and ``restore`` are for a numbered series,
and count.

The root object is the root of the graph, even if other objects are given names: in the graph they
are its children.
"""

import weakref
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self, overload

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.planning.policies import Policy
from shardvar.reference.objects.image import (
    CheckpointOptions,
    Image,
    ObjectOptions,
    hold_image,
    policy_of,
    take_image,
)
from shardvar.reference.objects.restoration import RestoreStatus, open_restoration
from shardvar.reference.objects.series import (
    SaveSteps,
    find_series,
    next_number,
    record_newest,
    target_of,
)
from shardvar.reference.objects.stored_graph import SAVE_COUNTER, key_of
from shardvar.reference.tracking import ContainerNode, ObjectGraph, Trackable, node_of
from shardvar.reference.variables import ResourceVariable, Variable
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.background import PendingSave, Turn, check_background, start_save
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Location, Path, find_target
from shardvar.verbs.reports import WriteReport


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

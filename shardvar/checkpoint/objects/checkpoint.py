"""sv.Checkpoint: a root object whose variables are written and read by the names that lead to them.

R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to possibly a different number
of shards": a sharded variable is one key, and its shards are slices of it.

``write`` and ``read`` are for one checkpoint; ``save`` and ``restore`` are for a numbered series, and count. A save in
the background writes in another thread, which is not a daemon: the interpreter waits for it at exit. An error is raised
where the save is joined. If a save is never joined, its error is logged, once its handle is gone or at exit.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, overload

import numpy as np

from shardvar.checkpoint.arguments import CheckpointOptions, policy_of, texts_of
from shardvar.checkpoint.locate import Location, Path, find_target
from shardvar.checkpoint.objects.image import Image, SaveOptions, hold_image, take_image
from shardvar.checkpoint.objects.keys import SAVE_COUNTER, key_of
from shardvar.checkpoint.objects.restoration import RestoreStatus, open_restoration
from shardvar.checkpoint.objects.series import SaveSteps, find_series, record_newest, target_of
from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import WriteReport
from shardvar.errors import ArgumentError, ArgumentTypeError, StillSaving
from shardvar.planning.policies import Policy
from shardvar.tracking import ChildHook, ObjectGraph, Stateful, Trackable
from shardvar.tracking.graph import ContainerNode, node_of
from shardvar.variables import ResourceVariable, Variable, VariableInterface

_LOG = logging.getLogger("shardvar.checkpoint")


class PendingSave:
    """A save in progress: ``done()`` says if it has ended, ``join()`` waits and returns its report."""

    def __init__(self, path: str, future: "Future[WriteReport]") -> None:
        self._path = path
        self._future = future
        self._finalizer = weakref.finalize(self, future.add_done_callback, partial(_log_failure, path))

    @property
    def path(self) -> str:
        """The checkpoint that is being written; it does not exist before the save is done."""
        return self._path

    def done(self) -> bool:
        """Return True if the save has ended, by success or by an error."""
        return self._future.done()

    def join(self, timeout: float | None = None) -> WriteReport:
        """Wait for ``timeout`` seconds at most and return the report, or raise the error of the save, at each call.

        ``StillSaving`` where the time was too short; the save goes on.
        """
        wait([self._future], timeout)
        if not self._future.done():
            raise StillSaving(f"{self._path} is still being written.", "Join it again, or give it more time.")
        self._finalizer.detach()  # the caller sees the error, so it need not be logged
        return self._future.result()


def start_save(path: str, work: Callable[[], WriteReport], release: Callable[[], None]) -> PendingSave:
    """Do the work in a new thread. ``release`` is called once it has ended, or if the thread cannot start."""
    future: Future[WriteReport] = Future()
    thread = threading.Thread(target=_work, args=(work, release, future), name=f"save {path}", daemon=False)
    try:
        thread.start()
    except BaseException:
        release()
        raise
    return PendingSave(path, future)


def _work(work: Callable[[], WriteReport], release: Callable[[], None], future: "Future[WriteReport]") -> None:
    # Release first: a thread that joined may save again at once, and must find the checkpoint free.
    try:
        report = work()
    except BaseException as error:  # noqa: BLE001 - every error goes to the thread that joins
        release()
        future.set_exception(error)
    else:
        release()
        future.set_result(report)


def _log_failure(path: str, future: "Future[WriteReport]") -> None:
    """Log the error of a save that can no longer be joined."""
    error = future.exception()
    if error is not None:
        _LOG.error("%s was not saved: %s", path, error, exc_info=error)


_CHILDLESS = (VariableInterface, Stateful)
"""Kinds of roots that have a value themselves, and cannot have other objects beside it."""


class Checkpoint(Trackable):
    """The objects to write and read: ``root`` with its children, and the objects given by name.

    Objects are modules, variables, sharded ones, other trackable objects, and dictionaries, lists and tuples of these.
    An attribute that is set later is one more object.

    >>> import os, tempfile
    >>> from shardvar.variables import Variable, create_sharded_variable
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = Checkpoint(w=create_sharded_variable([1.0, 2.0, 3.0, 4.0], 4)).write(path)
    >>> w = create_sharded_variable([0.0, 0.0, 0.0, 0.0], 3)
    >>> _ = Checkpoint(w=w).read(path).assert_consumed()
    >>> w.numpy()
    array([1., 2., 3., 4.], dtype=float32)
    """

    _root: Trackable | None
    _known: dict[int, ContainerNode]
    _turn: Lock

    def __init__(self, root: Any = None, **objects: Any) -> None:
        # Past ``__setattr__``, for which every attribute is an object to save.
        self.__dict__["_known"] = {}
        self.__dict__["_turn"] = Lock()
        self.__dict__["_root"] = None if root is None else self._node("root", root)
        for name in sorted(objects):
            setattr(self, name, objects[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(f"A checkpoint has no place for an object named {name!r}.", "Choose another name.")
        node = self._node(name, value)
        # A child of the root may be named once more, under its name there: Checkpoint(model, w=model.w).
        if self._root is None or self._root.children.get(name) is not node:
            self._check_has_place(name)
        super().__setattr__(name, value)
        self.track(name, node)

    @property
    def children(self) -> Mapping[str, Trackable]:
        """The children of the root, and then the objects that are named."""
        root = {} if self._root is None else self._root.children
        return MappingProxyType({**root, **super().children})

    def await_children(self, hook: ChildHook | None) -> None:
        super().await_children(hook)
        if self._root is not None:
            self._root.await_children(hook)

    @property
    def save_counter(self) -> Variable:
        """The number of numbered checkpoints that were saved: an int64 variable, created when it is first needed."""
        counter: Variable | None = self.__dict__.get("_counter")
        if counter is None:
            counter = self.__dict__["_counter"] = self._new_counter()
        return counter

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
        """Write the values of all variables, as of one moment, commit them, and return a report.

        Other threads that write a variable meanwhile wait, as for ``save`` without ``background``.

        The arguments and errors are those of ``sv.save``; ``options`` may have the policy instead. Keys are
        TensorFlow's, and in formats that hold strings the graph of objects is stored too, so that TensorFlow restores
        what the format "tensorflow" holds. Waits for a save of this checkpoint that is in progress.
        """
        target = find_target(path, format, otherwise="shardvar")
        save_options = SaveOptions(policy_of(policy, options), texts_of(metadata), force)
        with self._turn, hold_image(self._graph(), target, save_options) as image:
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
        """Write the next checkpoint of a series, ``file_prefix-1``, ``file_prefix-2``; return a report with its path.

        The number is that of ``save_counter``, which is saved too and counts once the checkpoint is committed. The file
        ``checkpoint`` in the same directory names the newest one, for ``sv.latest_checkpoint`` and for TensorFlow.

        With ``background`` the values are copied, and another thread does the rest. The call returns a ``PendingSave``
        at once, to be joined for the report. Values that are assigned after the call are not in the checkpoint. Another
        save, write or restore of this checkpoint waits for it.

        >>> import os, tempfile
        >>> checkpoint, prefix = Checkpoint(w=Variable([1.0])), os.path.join(tempfile.mkdtemp(), "ckpt")
        >>> [os.path.basename(checkpoint.save(prefix)) for _ in range(2)]
        ['ckpt-1', 'ckpt-2']
        """
        series = find_series(file_prefix, format)
        save_options = SaveOptions(policy_of(policy, options), texts_of(metadata), force)
        return self.save_numbered(lambda number: target_of(series, number), record_newest, save_options, background)

    def save_numbered(
        self, target_for: Callable[[int], Location], steps: SaveSteps, save_options: SaveOptions, background: bool
    ) -> WriteReport | PendingSave:
        """Take the values and write them by ``steps``, for ``save`` and ``CheckpointManager.save``.

        ``target_for`` returns the target of a number.
        """
        counter = self.save_counter

        def write(image: Image, number: int) -> WriteReport:
            report = image.write()
            counter.assign(number)  # only now: a save that fails is tried again under the same number
            return report

        # In the foreground: lock the variables, and write their memory.
        if not background:
            with self._turn:
                number = int(counter) + 1
                with hold_image(self._graph(), target_for(number), save_options, (counter, number)) as locked:
                    return steps(locked.target, lambda: write(locked, number))
        # In the background: copy the values, then write the copies. The thread that writes releases ``_turn``.
        self._turn.acquire()
        try:
            number = int(counter) + 1
            image = take_image(self._graph(), target_for(number), save_options, (counter, number))
        except BaseException:
            self._turn.release()
            raise
        work = partial(steps, image.target, lambda: write(image, number))
        return start_save(image.target.path, work, self._turn.release)

    def read(self, path: Path, options: CheckpointOptions | None = None) -> RestoreStatus:
        """Restore what the checkpoint and the objects both have, and later what appears; return what did not match.

        All existing variables get their values, or none does: ``InconsistentTensor`` where dtype or full shape differ,
        and the errors of ``sv.load``. The number of shards is never an error: shards take the rows that they hold. The
        ``options`` do not concern reading; the argument exists because TensorFlow has it.
        """
        policy_of(None, options)  # checked, though nothing uses it
        with self._turn:
            return self._read(path, is_numbered=False)

    def restore(self, path: Path, options: CheckpointOptions | None = None) -> RestoreStatus:
        """``read`` a checkpoint that may be one of a numbered series: the next ``save`` has the number after it."""
        policy_of(None, options)
        with self._turn:
            return self._read(path, is_numbered=True)

    def _read(self, path: Path, is_numbered: bool) -> RestoreStatus:
        counter = key_of([SAVE_COUNTER])
        # A variable as the root cannot have a counter beside it here. TensorFlow saves one, which is not missed.
        ignored = (counter,) if is_numbered and isinstance(self._root, _CHILDLESS) else ()
        restoration = open_restoration(open_checkpoint(path), ignored)
        if is_numbered and counter in restoration.unmatched.keys and SAVE_COUNTER not in self.children:
            _ = self.save_counter  # created by being read, so that it takes the stored number
        top = self._top
        restoration.restore(top, 0)
        # Where the root object is the top, objects may still be named beside it; they appear as children of this one.
        if top is not self:
            super().await_children(restoration.hook(0))
        return RestoreStatus(restoration, self._graph)

    @property
    def _top(self) -> Trackable:
        """The root of the graph: ``root`` if no other object is named, else this checkpoint."""
        return self if self._root is None or super().children else self._root

    def _new_counter(self) -> Variable:
        self._check_has_place(SAVE_COUNTER)
        # Created directly, not by sv.Variable: no scope places it on a server, cuts it or names it after a layer.
        counter = ResourceVariable(np.int64(0), trainable=False, name=SAVE_COUNTER)
        return self.track(SAVE_COUNTER, counter)

    def _check_has_place(self, name: str) -> None:
        """Raise ``ArgumentError`` where the root cannot have one more child of that name beside its own."""
        if self._root is not None and name in self._root.children:
            raise ArgumentError(f"The root has another child named {name!r}.", "Choose another name.")
        if isinstance(self._root, _CHILDLESS):
            kind = "is a variable" if isinstance(self._root, VariableInterface) else "has its own state"
            raise ArgumentError(f"The root {kind}, and has no child {name!r}.", "Give it a name too.")

    def _graph(self) -> ObjectGraph:
        return ObjectGraph.of(self._top)

    def _node(self, name: str, value: Any) -> Trackable:
        node = node_of(value, self._known)
        if node is None:
            raise ArgumentTypeError(
                f"{name!r} is of type {type(value).__name__}, which has no variables.",
                "Give modules, variables, trackable objects, or dictionaries and lists of these.",
            )
        return node

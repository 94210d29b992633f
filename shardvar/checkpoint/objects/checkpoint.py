"""sv.Checkpoint: a root object whose variables are written and read by the names that lead to them.

R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to possibly a different number
of shards": a sharded variable is one key, and its shards are slices of it.
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
from shardvar.checkpoint.objects.image import Image, Manner, hold_image, take_image
from shardvar.checkpoint.objects.keys import SAVE_COUNTER, key_of
from shardvar.checkpoint.objects.restoration import RestoreStatus, open_restoration
from shardvar.checkpoint.objects.series import Steps, find_series, numbered, record_newest
from shardvar.checkpoint.reader import open_checkpoint
from shardvar.checkpoint.reports import WriteReport
from shardvar.errors import ArgumentError, ArgumentTypeError, StillSaving
from shardvar.planning.policies import Policy
from shardvar.tracking import ChildHook, ObjectGraph, Stateful, Trackable
from shardvar.tracking.graph import ContainerNode, node_of
from shardvar.variables import ResourceVariable, Variable, VariableInterface

# A save that goes on beside the program that began it.
#
# The thread that writes is no daemon: the interpreter waits for it at its exit. What went wrong is raised where the
# save is joined. Of a save that nobody joins it is logged: once its handle is gone, or when the interpreter exits.


_LOG = logging.getLogger("shardvar.checkpoint")


class PendingSave:
    """A save under way: ask whether it is ``done()``, or ``join()`` it for its report."""

    def __init__(self, path: str, future: "Future[WriteReport]") -> None:
        self._path = path
        self._future = future
        self._lose = weakref.finalize(self, future.add_done_callback, partial(_tell, path))

    @property
    def path(self) -> str:
        """The checkpoint that is being written; it is not there before the save is done."""
        return self._path

    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self._future.done()

    def join(self, timeout: float | None = None) -> WriteReport:
        """Wait, so many seconds at most, and return what was written; raises what went wrong, as often as it is asked.

        ``StillSaving`` where the time was too short; the save goes on.
        """
        wait([self._future], timeout)
        if not self._future.done():
            raise StillSaving(f"{self._path} is still being written.", "Join it again, or give it more time.")
        self._lose.detach()
        return self._future.result()


def begin(path: str, work: Callable[[], WriteReport], release: Callable[[], None]) -> PendingSave:
    """Do the work in a thread of its own. ``release`` is called once it has ended, or where no thread can begin."""
    future: Future[WriteReport] = Future()
    thread = threading.Thread(target=_run, args=(work, release, future), name=f"save {path}", daemon=False)
    try:
        thread.start()
    except BaseException:
        release()
        raise
    return PendingSave(path, future)


def _run(work: Callable[[], WriteReport], release: Callable[[], None], future: "Future[WriteReport]") -> None:
    try:
        report = work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, whoever joins gets it
        release()
        future.set_exception(error)
    else:
        release()
        future.set_result(report)


def _tell(path: str, future: "Future[WriteReport]") -> None:
    """Log what nobody can be told any more."""
    error = future.exception()
    if error is not None:
        _LOG.error("%s was not saved: %s", path, error, exc_info=error)


_CHILDLESS = (VariableInterface, Stateful)
"""Roots that have a value of their own, and beside which nothing can be named."""


class Checkpoint(Trackable):
    """The objects to write and read: ``root`` with its children, and whatever else is named.

    Objects are modules, variables, sharded ones, other trackable objects, and dictionaries, lists and tuples of these.
    An attribute that is set later is one more.

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
        self.__dict__["_known"] = {}
        self.__dict__["_turn"] = Lock()
        self.__dict__["_root"] = None if root is None else self._node("root", root)
        for name in sorted(objects):
            setattr(self, name, objects[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(f"A checkpoint has no place for an object named {name!r}.", "Choose another name.")
        node = self._node(name, value)
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
        """How many numbered checkpoints were saved: an int64 variable, made when it is first needed."""
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
        """Write the values of all variables, as of one moment, and commit them; a report of what was written.

        Whoever else writes a variable meanwhile waits, as for ``save`` without ``background``.

        The arguments and errors are those of ``sv.save``; ``options`` may have the policy instead. Keys are
        TensorFlow's, and in formats that hold strings the graph of objects is stored too, so that TensorFlow restores
        what the format "tensorflow" holds. Waits for a save of this checkpoint that is under way.
        """
        target = find_target(path, format, otherwise="shardvar")
        manner = Manner(policy_of(policy, options), texts_of(metadata), force)
        with self._turn, hold_image(self._graph(), target, manner) as image:
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
        """Write the next checkpoint of a series: ``file_prefix-1``, ``file_prefix-2``; a report with its path.

        The number is that of ``save_counter``, which is saved too and counts once the checkpoint is committed. The file
        ``checkpoint`` beside it says that it is the newest, to ``sv.latest_checkpoint`` and to TensorFlow.

        With ``background`` the values are copied, and the rest is done beside the program: what is returned at once is
        a ``PendingSave``, to be joined for the report. What is assigned from then on is not in the checkpoint. Another
        save, write or restore of this checkpoint waits for it.

        >>> import os, tempfile
        >>> checkpoint, prefix = Checkpoint(w=Variable([1.0])), os.path.join(tempfile.mkdtemp(), "ckpt")
        >>> [os.path.basename(checkpoint.save(prefix)) for _ in range(2)]
        ['ckpt-1', 'ckpt-2']
        """
        series = find_series(file_prefix, format)
        manner = Manner(policy_of(policy, options), texts_of(metadata), force)
        return self.save_numbered(lambda number: numbered(series, number), record_newest, manner, background)

    def save_numbered(
        self, place: Callable[[int], Location], steps: Steps, manner: Manner, background: bool
    ) -> WriteReport | PendingSave:
        """What ``save`` and a ``CheckpointManager`` have in common: take the values, and write them by some steps.

        ``place`` says where the checkpoint of a number goes.
        """
        counter = self.save_counter

        def write(image: Image, number: int) -> WriteReport:
            report = image.write()
            counter.assign(number)
            return report

        if not background:
            with self._turn:
                number = int(counter) + 1
                with hold_image(self._graph(), place(number), manner, (counter, number)) as held:
                    return steps(held.target, lambda: write(held, number))
        self._turn.acquire()  # given back by the thread that writes
        try:
            number = int(counter) + 1
            image = take_image(self._graph(), place(number), manner, (counter, number))
        except BaseException:
            self._turn.release()
            raise
        return begin(image.target.path, lambda: steps(image.target, lambda: write(image, number)), self._turn.release)

    def read(self, path: Path, options: CheckpointOptions | None = None) -> RestoreStatus:
        """Restore what the checkpoint and the objects both have, and go on as objects appear; what did not match.

        All variables that there are get their values, or none does: ``InconsistentTensor`` where dtype or full shape
        differ, and the errors of ``sv.load``. A layout is never an error: shards take the rows that they hold. None of
        the ``options`` that there are concerns reading; they are taken as TensorFlow takes them.
        """
        policy_of(None, options)
        with self._turn:
            return self._read(path, is_numbered=False)

    def restore(self, path: Path, options: CheckpointOptions | None = None) -> RestoreStatus:
        """``read``, of a checkpoint that may be one of a numbered series: saving goes on with the number after its."""
        policy_of(None, options)
        with self._turn:
            return self._read(path, is_numbered=True)

    def _read(self, path: Path, is_numbered: bool) -> RestoreStatus:
        counter = key_of([SAVE_COUNTER])
        # A root that has no children here was saved under a number nevertheless, by TensorFlow.
        ignored = (counter,) if is_numbered and isinstance(self._root, _CHILDLESS) else ()
        restoration = open_restoration(open_checkpoint(path), ignored)
        if is_numbered and counter in restoration.unmatched.keys and SAVE_COUNTER not in self.children:
            _ = self.save_counter
        top = self._top
        restoration.restore(top, 0)
        if top is not self:
            super().await_children(restoration.hook(0))
        return RestoreStatus(restoration, self._graph)

    @property
    def _top(self) -> Trackable:
        """The root of the graph: the object that was given as such, where nothing is named beside it."""
        return self if self._root is None or super().children else self._root

    def _new_counter(self) -> Variable:
        self._check_has_place(SAVE_COUNTER)
        # In no scope: it is neither placed on a server nor cut, nor has it the name of a layer.
        counter = ResourceVariable(np.int64(0), trainable=False, name=SAVE_COUNTER)
        return self.track(SAVE_COUNTER, counter)

    def _check_has_place(self, name: str) -> None:
        """Raise ``ArgumentError`` where the root cannot have one more child of that name beside its own."""
        if self._root is not None and name in self._root.children:
            raise ArgumentError(f"The root has another child named {name!r}.", "Choose another name.")
        if isinstance(self._root, _CHILDLESS):
            kind = "is a variable" if isinstance(self._root, VariableInterface) else "has a state of its own"
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

"""sv.CheckpointManager: numbered checkpoints in one directory; the newest are kept.

Names, order and meaning of the arguments follow ``tf.train.CheckpointManager``. Each of the two can
take over the other's directory.

A save writes one checkpoint and removes others. Its steps are ordered so that a crash at any of
them harms nothing:

    check     collect the names that a save may leave without a checkpoint: its own, should it fail,
              and those to remove
    note      write these names to the file ``checkpoint.unfinished``, before any other file is
              written or removed
    save      write the checkpoint, and then the state file, which no longer names those to remove
    remove    remove the files of those, each index first, and then the note

A name in the state file always belongs to a checkpoint, even if it is in the note as well. So a
crash leaves the old checkpoints or the new ones, and a note by which the next save removes the
rest. The note has the form of a state file. Its newest checkpoint was the newest when it was
written. If the state file names another one by now, which is not in the note either,
another program has saved here, and the note is void: no file of another program is removed.
Example, with ``max_to_keep=2``, a crash while checkpoint 4 is written:

    state file   newest ckpt-3, kept ckpt-2 ckpt-3
    note         newest ckpt-3, names ckpt-2 ckpt-4        ckpt-2 is in the state file, so only
                                                           ckpt-4 is removed
"""

import operator
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError, LockHeld, log_warning
from shardvar.planning.policies import Policy
from shardvar.reference.objects.checkpoint import (
    Checkpoint,
    CheckpointOptions,
    ObjectOptions,
    policy_of,
)
from shardvar.reference.objects.series import (
    PlanWrite,
    Retention,
    check_is_new,
    check_series,
    check_state_file,
    next_number,
    plan_rotation,
    read_note,
    remove_checkpoints,
    target_of,
    write_note,
)
from shardvar.reference.variables import VariableInterface
from shardvar.storage.protocol import Storage
from shardvar.verbs.arguments import check_string, texts_of
from shardvar.verbs.background import PendingSave
from shardvar.verbs.locate import Location, Path, find_target
from shardvar.verbs.newest import SeriesState, read_state, resolve, write_state
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.writing import is_new_folder

_LOCK = "checkpoint.manager"
"""The lock that a manager holds while it saves. No file has this name."""


class CheckpointManager:
    """Numbered checkpoints in a directory; the oldest are removed.

    Parameters
    ----------
    checkpoint : Checkpoint
        The objects to save.
    directory : path_like
        The directory of the checkpoints.
    max_to_keep : int or None
        The number of the newest checkpoints to keep; None for all.
    keep_checkpoint_every_n_hours : float, optional
        The hours after which one more of the others is kept for good.
    checkpoint_name : str, default 'ckpt'
        The name before the numbers.
    step_counter : int or Variable, optional
        An integer variable that counts the steps of training.
    checkpoint_interval : int, optional
        The steps by which ``step_counter`` must advance between two checkpoints; other saves are
        left out.
    init_fn : callable, optional
        Called by ``restore_or_initialize`` if there is no checkpoint to restore.
    last_checkpoint_step : int, optional
        The step of the last checkpoint, for ``checkpoint_interval``.
    format : str, optional
        The format, as in ``sv.save``.
    policy : policy, optional
        The policy that chooses the slices of each file.
    metadata : mapping of str to str, optional
        Texts to keep in each checkpoint.
    clock : callable, optional
        Returns the time in seconds since the Epoch; ``time.time`` by default.

    Raises
    ------
    ArgumentTypeError
        If ``checkpoint`` is not a ``Checkpoint``, or another argument has a wrong type.
    ArgumentError
        If a limit is invalid, or ``checkpoint_interval`` is given without ``step_counter``.
    MalformedCheckpoint
        If the state file in the directory cannot be decoded.

    Notes
    -----
    A manager takes over the checkpoints in the directory that the state file lists as saved by a
    manager under this ``checkpoint_name``; other checkpoints and files are never touched. Opening a
    manager changes nothing on the disk, so that another process may open one to restore. Only one
    may save in a directory: ``save`` raises ``LockHeld``, and writes nothing, if another manager is
    saving there, or has saved there since this one read or wrote the state file.

    Examples
    --------
    >>> import os, tempfile
    >>> import shardvar as sv
    >>> manager = sv.CheckpointManager(sv.Checkpoint(w=sv.Variable([1.0])), tempfile.mkdtemp(), max_to_keep=2)
    >>> reports = [manager.save() for _ in range(3)]
    >>> [os.path.basename(path) for path in manager.checkpoints], manager.latest_checkpoint == os.fspath(reports[-1])
    (['ckpt-2', 'ckpt-3'], True)
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], object] | None = None,
        last_checkpoint_step: int | None = None,
        *,
        format: str | None = None,
        policy: Policy | None = None,
        metadata: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentTypeError(
                f"{checkpoint!r} is not a checkpoint.", "Give sv.Checkpoint(model=model)."
            )
        if checkpoint_interval is not None and step_counter is None:
            raise ArgumentError(
                "checkpoint_interval is given without a step_counter.",
                "Give the variable that counts steps.",
            )
        self._checkpoint = checkpoint
        self._retention = Retention(max_to_keep, keep_checkpoint_every_n_hours)
        self._step_counter = step_counter
        self._checkpoint_interval = checkpoint_interval
        self._last_step = last_checkpoint_step
        self._init_fn = init_fn
        self._format, self._name = format, checkpoint_name
        self._save_options = ObjectOptions(policy_of(policy, None), texts_of(metadata), force=False)
        self._clock = clock
        try:
            self._directory = os.fsdecode(directory)
        except TypeError:
            raise ArgumentTypeError(
                f"{directory!r} is not a path.", "Give the path of a directory."
            ) from None
        check_string(checkpoint_name, "names of checkpoints")
        storage = self._series().storage
        self._own = re.compile(re.escape(checkpoint_name) + r"-\d+", re.DOTALL | re.ASCII)
        there = read_state(storage)
        self._state = _take_over(there, self._own, clock(), self._directory)
        # The content that the state file may have if only this manager saves.
        self._known = {there: self._state}

    @property
    def checkpoint(self) -> Checkpoint:
        """The objects that the manager saves."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The directory of the checkpoints, as it was given."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """The least number of steps between two checkpoints; None where every save is done."""
        return self._checkpoint_interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, None without one.

        ``MissingFile``, which names them, where the directory has checkpoints of this name and no
        state file: None would mean that training has not begun.
        """
        newest = self._state.newest
        if newest:
            return resolve(self._directory, newest)
        series = self._series()
        check_is_new(series, self._unfinished(series.storage, None))
        return None

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the kept checkpoints, oldest first, without permanently preserved ones."""
        return [os.path.join(self._directory, name) for name in self._state.kept]

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
        *,
        background: bool = False,
    ) -> WriteReport | PendingSave | None:
        """Save a checkpoint, and remove those beyond the limit.

        Parameters
        ----------
        checkpoint_number : int or Variable, optional
            The number, whose checkpoint is replaced if it exists. By default the next of the
            checkpoint's ``save_counter`` that no checkpoint has. The counter counts in either case.
        check_interval : bool, default True
            Leave the save out until ``checkpoint_interval`` steps have passed. Otherwise save at
            every new step.
        options : CheckpointOptions, optional
            TensorFlow's options, which may have the policy.
        background : bool, default False
            Write in another thread, as in ``Checkpoint.save``. Checkpoints are removed once the new
            one is committed.

        Returns
        -------
        WriteReport, PendingSave or None
            The report; with ``background`` the save in progress; None if it is not yet time.

        Raises
        ------
        ArgumentError
            If a number is not an integer >= 0.
        LockHeld
            If another manager is saving in the directory, or has saved there since this one did.
        StorageError
            If the disk is full, or the file system refuses.
        """
        policy = policy_of(None, options) or self._save_options.policy
        number = (
            None if checkpoint_number is None else _integer(checkpoint_number, "checkpoint_number")
        )
        interval, last, step = self._checkpoint_interval, self._last_step, None
        if interval is not None:
            # The same step is never saved twice. With an interval of 100 and the last save at step
            # 250, the next is at 350.
            step = _integer(self._step_counter, "step_counter")
            if last is not None and (step == last or (check_interval and step < last + interval)):
                return None
        series = self._series()

        def steps(target: Location, plan: PlanWrite) -> WriteReport:
            return self._rotate(series, target, plan, step)

        def choose(count: int) -> tuple[int, Location]:
            if number is not None:
                return count + 1, target_of(series, number)
            ended = self._unfinished(series.storage, read_state(series.storage))
            chosen = next_number(series, count, ended)
            return chosen, target_of(series, chosen)

        return self._checkpoint.save_numbered(
            choose,
            steps,
            replace(self._save_options, policy=policy, is_new=number is None),
            background,
        )

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint; without one, call ``init_fn``.

        Returns
        -------
        str or None
            The path of the checkpoint, None if there was none.

        Raises
        ------
        MissingFile
            If the directory has checkpoints of this name and no state file.
        InconsistentTensor
            If a dtype or a full shape differs.
        CheckpointError
            If the checkpoint is damaged. Nothing is initialized then.
        """
        newest = self.latest_checkpoint
        if newest is not None:
            self._checkpoint.restore(newest)
            if self._checkpoint_interval is not None:
                self._last_step = _integer(self._step_counter, "step_counter")
        elif self._init_fn is not None:
            self._init_fn()
        return newest

    def _series(self) -> Location:
        """The target that numbers are added to; the working directory may change between saves."""
        path = os.path.join(self._directory, f"{self._name}-0")
        example = find_target(path, self._format, "shardvar", is_prefix=True)
        check_series(example)
        if os.sep in self._name:
            raise ArgumentError(
                f"checkpoint_name={self._name!r} leads to another directory.", "Give a bare name."
            )
        return replace(example, name=self._name)

    def _unfinished(self, storage: Storage, state: SeriesState | None) -> list[str]:
        """The checkpoints that a killed save of this series left unfinished."""
        return list(filter(self._own.fullmatch, read_note(storage, state)))

    def _rotate(
        self, series: Location, target: Location, plan: PlanWrite, step: int | None
    ) -> WriteReport:
        """Save a checkpoint in the steps that the module's docstring explains."""
        # Check. Before a folder is made, the checkpoint is planned: a refused one leaves no new
        # folder.
        check_state_file(target)
        storage = target.storage
        planned = plan() if is_new_folder(storage) else None
        storage.make()
        with storage.lock(_LOCK):
            there = read_state(storage)
            if there not in self._known:
                newest = (
                    f"the newest there is {there.newest}" if there else "its state file is gone"
                )
                raise LockHeld(
                    f"{self._directory}: another manager or program has saved here since this "
                    f"manager did: {newest}. Nothing was written.",
                    "Let one manager save in a directory. To go on with this one, stop the other "
                    "one, and make the manager again.",
                )
            self._known = {there: self._known[there]}
            # Plan: the checkpoint, and the names that go. What an earlier save left is removed
            # first, to make room for the new one.
            write = planned or plan()
            state, gone = plan_rotation(
                self._known[there], target.name, self._clock(), self._retention
            )
            left = remove_checkpoints(series, self._unfinished(storage, there))
            # Note. A checkpoint that is overwritten exists already, and stays if the save fails.
            is_new = there is None or target.name not in (there.newest, *there.kept)
            write_note(storage, there, [*left, *gone, *([target.name] if is_new else [])])
            # Commit: the checkpoint, then the state file.
            report = write()
            self._known[state] = state  # before it is written: an error may leave either
            write_state(storage, state)
            self._state, self._known = state, {state: state}
            if step is not None:
                self._last_step = step
            # Remove, and keep in the note only what could not be removed.
            write_note(storage, state, remove_checkpoints(series, [*left, *gone]))
        return report


def _take_over(
    state: SeriesState | None, own: re.Pattern[str], now: float, directory: str
) -> SeriesState:
    """Return the part of a state file that a manager saved under the names ``own``, and the newest."""
    # As in TensorFlow: a manager gives times, ``Checkpoint.save`` does not; no time is later than
    # now; and a checkpoint that is not later than the last preserved one is also preserved.
    if state is None:
        return SeriesState("", (), (), now - 1.0)
    # If the clock was set back, the file has times in the future, which would block preserving for
    # long: cut to now. Without times, all checkpoints count as preserved, and none of them is ever
    # removed.
    if state.preserved > now:
        behind = state.preserved - now
        what = (
            f"{directory}: the clock is {behind:.0f} seconds behind the last preserved checkpoint."
        )
        log_warning(what)
    preserved = min(state.preserved, now)
    times = state.times or (preserved,) * len(state.kept)
    kept = [
        (each, min(saved, now))
        for each, saved in zip(state.kept, times, strict=True)
        if min(saved, now) > preserved and own.fullmatch(each)
    ]
    return SeriesState(
        state.newest, tuple(each for each, _ in kept), tuple(saved for _, saved in kept), preserved
    )


def _integer(value: Any, what: str) -> int:
    """Return a number or a variable's value; ``ArgumentError`` unless an integer >= 0."""
    try:
        number = operator.index(value.numpy() if isinstance(value, VariableInterface) else value)
    except TypeError:
        raise ArgumentTypeError(
            f"Invalid {what}={value!r}.", "Give an integer, or a variable of one."
        ) from None
    if isinstance(value, bool) or number < 0:
        raise ArgumentError(f"Invalid {what}={value!r}.", "Give an integer >= 0.")
    return number

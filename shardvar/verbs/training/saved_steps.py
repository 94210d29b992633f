"""The saved steps of a training loop: numbered checkpoints in one directory, shared by all
processes of a job.

A restarted job finds all in the directory: the numbers in the names, the values in the metadata.
No process sends a message, and process 0 removes. These races end well:

    a process looks while another commits    A save is committed when all processes have written
                                             their shares, so all have looked before: they find the
                                             same newest step.
    process 0 removes a step that another    It removes after a commit. Each process took part in
    process restores                         it, so each had ended its restore.
    a save in the background is under way    A process that restores, or saves again, waits for its
    where a process restores                 own share of it first; so it has one end for all.
    an old job commits, or damage is met,    The processes tell each other their steps, and then
    while a new one resumes                  whether they could load, in the directory (``resuming``):
                                             they load the newest step that all have and can load.
    process 0 dies while it removes          The index goes first; a later save removes the rest.
    it dies while it copies a step           A copy is committed whole or not at all. The step stays in
                                             the directory, and the next one is copied.
    a step is to be removed before           It stays until it is copied, or a newer one is to be.
    its copy is made
    two jobs save in one directory           A job that finds a step of the other refuses to save.

With ``shared=False`` each process has its own directory, with parts of the steps (``saving_parts``):

    one step, two saves of it                Process 0 draws a number in each restore, and all know it.
                                             Each save of the job has a number that follows from it, in the
                                             part and in the copy; only what has one number is restored.
    a disk is lost, or a part is damaged     The process loads the copy that has the number of the save.
    a part of a step is on some disks only   The step is not whole for all: the one before is restored.
    the copy was not finished                The parts are whole. Another number of processes needs a copy.
    processes save at different times        Process 0 begins a copy, of the newest step that it has then,
                                             and the others follow. No part is removed before a copy of
                                             its step, or of a newer one, shows that all have had it.

A step that is broken is passed over and never removed; neither is a file that is not of a step.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import Any, Self, cast

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    LockHeld,
    ShardvarError,
    StorageError,
    UnsupportedError,
    log_warning,
)
from shardvar.formats.table import format_named, names_of_target, usual_name
from shardvar.layout.region import read_integer
from shardvar.planning.index import PART
from shardvar.records import replace
from shardvar.verbs.arguments import check_string, texts_of
from shardvar.verbs.background import Aftercare, Turn, fail, save_next
from shardvar.verbs.locate import Path
from shardvar.verbs.remove import remove_found, remove_leftovers
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.together.run import Run, SaveOptions, saving_parts
from shardvar.verbs.training.carrier import Carrier, called, copy_step, run_of_copy, save_part
from shardvar.verbs.training.resuming import Meetings, resume
from shardvar.verbs.training.step_records import (
    DAMAGED,
    SAVE,
    VALUE,
    Arrays,
    Framework,
    RestoredStep,
    SavedStep,
    StepKey,
    StepRecord,
    StepRules,
    best_steps,
    check_takes,
    check_value,
    find_leftovers,
    find_steps,
    plan_removal,
    read_value,
    steps_storage,
    takes,
)


class SavedSteps:
    """Numbered checkpoints in one directory; a job resumes from the newest.

    Parameters
    ----------
    directory : path_like
        The directory, or a URL, the same in all processes. It may hold other files.
    using : module, optional
        The functions that save and load: ``shardvar.torch``, ``shardvar.jax``, or any object with
        ``save``, ``load`` and ``processes`` as these have them. By default ``sv.save`` and
        ``sv.load``, in one process.
    keep_last : int, optional
        The number of the newest steps that stay; all by default, and then none is removed.
    keep_every : int, optional
        Steps whose numbers are multiples of it also stay.
    keep_best : int, default 0
        The number of the steps with the best values that also stay.
    mode : {'min', 'max'}, default 'min'
        Whether small values are good, or large ones.
    name : str, default 'step'
        The name before the numbers: ``step-1000``.
    timeout : float, default 600.0
        The seconds that ``restore`` waits for other processes.
    durable : path_like or SavedSteps, optional
        A second directory, such as a bucket, to which process 0 copies each step in the background. All
        steps stay there, unless it is a ``SavedSteps`` with other rules. Restoring
        takes the newest step of both, and the copy where the step in the directory is lost or damaged.
    shared : bool, default True
        All processes see the same ``directory``. With False it is on a disk of each node, and
        ``durable`` is what they share: see the notes.
    on_error : {'raise', 'warn'}, default 'raise'
        With ``'warn'``, a save or a copy that fails, such as on a full disk or in a bucket that refuses, is
        a warning in the log. The report of the save has the ``error``, and the training goes on.
    on_saved : callable, optional
        Called with the report of each save, in the thread in which it ends: when it is durable, or has
        failed. In a process that copies to ``durable``, that is when the copy is whole; not of a step
        that is passed over, or whose copy fails.

    Raises
    ------
    ArgumentError
        If a number is not positive, ``mode`` is unknown, ``name`` leads to another directory, or
        ``durable`` is the same directory or has another ``name``, or is not given with ``shared=False``.

    Notes
    -----
    Every process of a job makes one with the same arguments, and calls the same methods in the same
    order. Making one reads and writes nothing. One job saves in a directory at a time.

    With ``shared=False``, each process keeps in ``directory/process-NUMBER`` what it holds of a step,
    also of tensors that others hold, and ``save`` waits for no other process. All processes call
    ``restore`` first: there they agree on a number, through ``gather`` or by small files in ``durable``,
    so that two saves of one step are never mixed. In the background they save the step together in
    ``durable``, in the native format.

    ``restore`` loads the newest step that each process has, on its disk or in ``durable``: a process
    whose disk is lost, or whose part is damaged, loads from ``durable``, and the others from their
    disks. A step that was not copied is restored by the same number of processes, each on its disk: so
    give each node the same processes again. If no step is left, ``restore`` is an error, unless the job
    was killed in its first save. Each process removes old parts by the rules of this object once a copy
    is as new, and process 0 copies by the rules of ``durable``. With ``replicas="first"``, a process
    gets its own values from its disk, and the values of process 0 from ``durable``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> steps = sv.SavedSteps(tempfile.mkdtemp(), keep_last=2, keep_best=1)
    >>> for number, loss in [(1, 0.5), (2, 0.1), (3, 0.3), (4, 0.2)]:
    ...     report = steps.save(number, {"w": np.full(3, number)}, value=loss)
    >>> [step.number for step in steps.steps()], steps.best().number
    ([2, 3, 4], 2)
    >>> found = steps.restore()
    >>> found.number, found.loaded["w"].tolist()
    (4, [4, 4, 4])
    """

    def __init__(
        self,
        directory: Path,
        *,
        using: Framework | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: int = 0,
        mode: str = "min",
        name: str = "step",
        timeout: float = 600.0,
        durable: "Path | SavedSteps | None" = None,
        shared: bool = True,
        on_error: str = "raise",
        on_saved: Callable[[WriteReport], object] | None = None,
    ) -> None:
        try:
            self._directory = os.fsdecode(directory)
        except TypeError:
            cause = f"{directory!r} is not a path."
            raise ArgumentTypeError(cause, "Give the path of a directory.") from None
        check_string(name, "names of steps")
        if not name or "/" in name or os.sep in name or name.startswith("."):
            cause = f"name={name!r} cannot begin the names of steps."
            raise ArgumentError(cause, "Give a bare name, such as 'step'.")
        self._rules = StepRules(keep_last, keep_every, keep_best, mode)
        self._using: Framework = Arrays() if using is None else using
        self._after = Aftercare(on_error, on_saved)
        for option, is_given in (("on_error", on_error != "raise"), ("on_saved", on_saved)):
            if is_given:
                check_takes(self._using.save, option, f"{option}=", "Leave it out.")
        self._name = name
        self._known: dict[int, StepRecord] = {}
        self._damaged: set[int] = set()
        self._last: int | None = None
        self._loose: set[str] = set()
        self._pending: Any = None
        if durable is not None and not isinstance(durable, SavedSteps):
            durable = SavedSteps(durable, using=self._using, name=name)
        if durable is not None and (
            durable._name != name
            or os.path.realpath(durable._directory) == os.path.realpath(self._directory)
        ):
            cause = f"durable={durable.directory!r} cannot hold copies of the steps of {self._directory!r}."
            raise ArgumentError(cause, "Give another directory, with the same name=.")
        if durable is None and not shared:
            cause = f"The processes do not share {self._directory!r}, and durable is not given."
            raise ArgumentError(cause, "Give durable=, a directory or a URL that they share.")
        self._durable, self._shared, self._timeout = durable, shared, timeout
        meeting = self._directory if durable is None or shared else durable._directory
        self._meetings = Meetings(meeting, name, self._using, timeout)
        self._session = 0
        self._saves: dict[int, tuple[int, SaveOptions]] = {}
        self._made_carrier: Carrier | None = None

    @property
    def directory(self) -> str:
        """The directory, as it was given."""
        return self._directory

    @property
    def _here(self) -> str:
        """The directory of the steps that this process finds."""
        own = "" if self._shared else f"process-{self._using.processes()[0]}"
        return os.path.join(self._directory, own) if own else self._directory

    @property
    def _part(self) -> str:
        """The mark of what this process has written; empty if it writes whole steps."""
        return "" if self._shared else " ".join(map(str, self._using.processes()))

    @property
    def _carrier(self) -> Carrier | None:
        """The thread that copies, in the processes that do."""
        if self._durable is None or (self._shared and self._using.processes()[0]):
            return None
        if self._made_carrier is None:
            follows = bool(self._using.processes()[0])
            choose = partial(called, run_of=self._run_of) if follows else None
            self._made_carrier = Carrier(self._durable.path_of, self._copy, choose)
        return self._made_carrier

    def path_of(self, number: int) -> str:
        """Return the path of the checkpoint of a step, saved or not.

        Parameters
        ----------
        number : int
            The number of the step.

        Returns
        -------
        str
            The directory, and the name with the number; with ``shared=False`` of this process's part.
        """
        return os.path.join(self._here, f"{self._name}-{_number(number)}")

    def steps(self) -> list[SavedStep]:
        """Return the whole steps that the directory holds, the newest last.

        Returns
        -------
        list of SavedStep
            The steps whose index and files are all there. Their bytes are not read. Left out are
            steps that ``restore`` found damaged.
        """
        return [self._public(each) for each in self._whole()]

    def newest(self) -> SavedStep | None:
        """Return the newest whole step; None without one.

        Returns
        -------
        SavedStep or None
            The last of ``steps``.
        """
        return next(reversed(self.steps()), None)

    def best(self) -> SavedStep | None:
        """Return the whole step with the best value; None if no step has one.

        Returns
        -------
        SavedStep or None
            The best by ``mode``; of equal values the earliest.
        """
        whole = {each.number: each for each in self._whole()}
        values = {number: each.value for number, each in whole.items()}
        best = best_steps(values, self._rules, 1)
        return self._public(whole[best[0]]) if best else None

    def save(
        self,
        number: int,
        state: Any,
        value: Any = None,
        *,
        incremental: bool = False,
        metadata: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Any:
        """Save a step, and then remove the steps that no rule keeps; every process calls this.

        Parameters
        ----------
        number : int
            The number of the step, larger than the numbers of all whole steps. The step that this job has
            saved or restored last may be saved again, which replaces it.
        state : Any
            The state, as the function that saves takes it.
        value : float, optional
            The value by which steps are compared, such as a loss; stored with the step. All
            processes give the same, or only some give one.
        incremental : bool, default False
            Pass the newest whole step as ``base``: values that are as in it are not written again, and
            the step refers to the files that hold them. The first step keeps the digests of its tensors, so
            that the next one reads no values of it. Damage to such a file is damage to all steps
            that refer to it, so save a whole step from time to time.
        metadata : mapping of str to str, optional
            More texts to keep in the checkpoint.
        **options : Any
            More arguments of the function that saves, such as ``format``, or ``background=True`` or
            ``'process'``, as ``shardvar.torch.save`` has it.

        Returns
        -------
        Any
            The result of the function that saves. With ``background``, the save in progress:
            steps are removed once it is done, by the next call of ``save``, ``restore`` or
            ``wait``, which also raises its error unless you have seen it.

        Raises
        ------
        ArgumentError
            If the number is not larger than those in the directory, or ``value`` is not a number.
        UnsupportedError
            If a value is given and the format cannot keep it, or the function that saves has no
            ``base``; with ``shared=False``, if another format than the native one is given, or
            ``incremental``.
        LockHeld
            If another job has saved in the directory since this one did.
        ShardvarError
            What the function that saves raises. No step is removed then.
        """
        number, given = _number(number), read_value(value)
        texts = dict(texts_of(metadata))
        if given is not None:
            check_value(options.get("format"))
            texts[VALUE] = repr(given)
        if given is not None and given != given:
            self._warn(f"step {number} has the value NaN, and is never the best")
        if incremental:
            remedy = "Leave it out, and save whole steps."
            check_takes(self._using.save, "base", "incremental=True", remedy)
        self._wait_for_save()
        if not self._shared:
            self._check_takes_parts(options.get("format"), incremental)
        try:
            whole = self._whole()
        except StorageError as error:
            if not self._after.is_borne(error):
                raise
            is_later, failed = bool(options.get("background")), partial(fail, error)
            how: dict[str, Any] = {"busy": "wait", "background": is_later, "after": self._after}
            return save_next(Turn(), self.path_of(number), lambda: None, failed, **how)
        self._check_order(number, whole)
        texts |= self._marks(number, options)
        damaged = sorted(self._damaged - {number})
        if damaged and self._shared:
            texts[DAMAGED] = " ".join(map(str, damaged))
        bases = [each for each in whole if each.number < number and self._is_here(each)]
        if incremental and bases:
            options["base"] = self.path_of(bases[-1].number)
        elif incremental and not options.get("format") and takes(self._using.save, "digest"):
            options.setdefault("digest", True)  # the next step reads these, and not the values
        path = self.path_of(number)
        run = f"{self._name}-{number}"
        form = options.get("format") or ""
        # A path without an ending would be a folder of a format with a usual name.
        place = names_of_target(path, form)[1] if usual_name(form) else path
        after, copied = self._aftercare(perf_counter())
        with nullcontext() if self._shared else saving_parts():
            result = self._using.save(place, state, run=run, metadata=texts, **{**after, **options})
        if getattr(result, "error", None) is not None:
            return result
        self._last = number
        self._damaged.discard(number)
        if options.get("background"):
            self._pending = result
        else:
            self._remove_others()
        if self._carrier and self._durable:
            self._carrier.take(number, self._pending, copied)
        return result

    def _aftercare(self, began: float) -> tuple[dict[str, Any], Callable[[], None]]:
        """Return arguments of the function that saves, and what is done after the copy."""
        on_saved = self._after.on_saved
        saved = list[WriteReport]()

        def keep(report: WriteReport) -> None:
            saved.append(report)
            if on_saved and report.error is not None:
                on_saved(report)

        def copied() -> None:
            if on_saved:
                on_saved(replace(saved[-1], durable_seconds=perf_counter() - began))

        after = {"on_error": self._after.on_error} if self._after.on_error != "raise" else {}
        hook = keep if self._carrier else on_saved
        return after | ({"on_saved": hook} if on_saved else {}), copied

    def restore(self, *arguments: Any, step: int | None = None, **options: Any) -> Any:
        """Load the newest whole step; every process calls this.

        A step that is broken, or found to be damaged by any process, is passed over by all, with a
        warning in the log, and is never removed.

        Parameters
        ----------
        *arguments : Any
            The arguments of the function that loads, after the path: of ``shardvar.torch.load`` the
            state.
        step : int, optional
            The number of the step to load, such as ``steps.best().number``. By default the newest.
        **options : Any
            More arguments of the function that loads.

        Returns
        -------
        RestoredStep or None
            The step, with the result of the function that loads; None if no step was ever whole:
            the training begins.

        Raises
        ------
        CorruptCheckpoint
            If there are steps, and all of them are broken or damaged.
        CheckpointError
            If ``step`` is given, and broken or damaged.
        StorageError
            If the file system refuses, another process failed, or processes find other steps.
        IncompleteCheckpoint
            If a process did not come within ``timeout``.
        ShardvarError
            What the function that loads raises for arguments that do not fit the step.

        Notes
        -----
        With several processes, all of them load the same step. They agree through ``gather``, which
        ``shardvar.torch`` and ``shardvar.jax`` have, and write nothing. Without it they agree by small files
        of the directory, ``.step-restore-*``, and remove these. If they cannot write there either, each
        one reads the newest step whole, and raises an error if another one is saved in that time.
        """
        self.wait()
        if step is not None and self._shared:
            return self._load_one(_number(step), arguments, options)
        wanted = None if step is None else _number(step)
        try:
            self._begin_session()
            resumed = resume(
                self._directory,
                lambda: self._candidates(wanted),
                self._damaged,
                self._meetings,
                lambda record: self._load(record, arguments, options),
                shared=self._shared,
            )
            has_lost = resumed.record is None and (step is not None or self._has_lost())
        finally:
            self._meetings.close()
        for passed, reason in resumed.passed.items():
            self._warn(f"passed over {self._name}-{passed}: {reason}")
        self._damaged.update(resumed.damaged)
        record = resumed.record
        self._leave_out(record)
        if record is not None:
            self._last = record.number
            self._damaged.update(record.damaged)
            return RestoredStep(
                record.number, self._public(record).path, record.value, resumed.loaded
            )
        if has_lost:
            what = "No step" if step is None else f"No save of step {step}"
            cause = f"{what} of {self._directory} can be restored."
            for last, reason in [*resumed.passed.items()][-1:]:
                cause = f"{cause} {self._name}-{last}: {reason}"
            remedy = "Repair a step, or move them all away to begin the training again."
            raise CorruptCheckpoint(cause, remedy)
        return None

    def wait(self) -> None:
        """Wait for a save in the background and the copy to ``durable``, and then remove the steps that no
        rule keeps.

        Raises
        ------
        ShardvarError
            The error of that save, and no step is removed then; or the error of the last copy.
        """
        self._wait_for_save()
        if self._carrier:
            try:
                self._carrier.wait()
            except Exception as error:  # which is in the log
                if not self._after.is_borne(error):
                    raise
            self._remove_others()

    def _wait_for_save(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and getattr(pending.result(), "error", None) is None:
            self._remove_others()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.wait()
        except Exception as failed:
            if error is None:
                raise
            self._warn(f"the last save failed: {failed}")  # the error of the block counts

    # --- What the directory holds

    def _find(self) -> dict[int, StepRecord]:
        """The steps: of several saves of one, the one that is whole, and here."""
        found = self._candidates(None).values()

        def rank(each: StepRecord) -> tuple[int, bool, bool, int]:
            return each.number, each.is_whole, self._is_here(each), each.save

        return {each.number: each for each in sorted(found, key=rank)}

    def _candidates(self, wanted: int | None) -> dict[StepKey, StepRecord]:
        """The steps, or the saves of one of them, and copies of saves that are not whole here."""
        known = find_steps(self._here, self._name, self._known)
        self._known = {number: each.for_part(self._part) for number, each in known.items()}
        found = {} if self._durable is None else self._durable._candidates(wanted)
        for each in self._known.values():
            if each.is_whole or each.key not in found or not found[each.key].is_whole:
                found[each.key] = each
        return {key: found[key] for key in sorted(found) if wanted in (None, key[0])}

    def _is_here(self, record: StepRecord) -> bool:
        """Return True if this is a step of the directory, and not its copy in ``durable``."""
        return self._known.get(record.number) is record

    def _load(self, record: StepRecord, arguments: Any, options: Mapping[str, Any]) -> Any:
        """Load a step, or its copy where it is lost or damaged, or a part is not all that is needed."""
        path = self._public(record).path
        try:
            return self._using.load(path, *arguments, **options)
        except ShardvarError as error:
            is_damage = isinstance(error, CheckpointError)
            if not (is_damage or record.part) or self._durable is None:
                raise
            copies = self._durable._whole() if self._is_here(record) else []
            if all(each.key != record.key for each in copies):
                if is_damage:
                    raise
                raise IncompleteCheckpoint(f"{path}: {error.cause}", error.remedy) from error
            copy = self._durable.path_of(record.number)
            log_warning(f"{copy} is loaded instead of {path}: {error}")
            return self._using.load(copy, *arguments, **options)

    def _whole(self) -> list[StepRecord]:
        found = [each for each in self._find().values() if each.is_whole]
        if found and self._last is None:
            self._damaged.update(found[-1].damaged)
        return [each for each in found if each.number not in self._damaged]

    def _public(self, record: StepRecord) -> SavedStep:
        steps = self if self._durable is None or self._is_here(record) else self._durable
        return SavedStep(record.number, steps.path_of(record.number), record.value)

    # --- Own disks

    def _begin_session(self) -> None:
        """Agree on a number that no other job has; saves are numbered from it on."""
        if not self._shared:
            told = self._meetings.hold([time.time_ns()])
            if len(told) != self._using.processes()[1]:
                cause = f"The processes can write nothing in {self._meetings.directory} to agree."
                raise StorageError(cause, "Give functions with gather, as shardvar.torch has it.")
            self._session, self._saves = told[0][0], {}

    def _has_lost(self) -> bool:
        """Return True if there are steps that cannot be restored, in any process."""
        if self._shared:
            return any(each.location for each in self._known.values())
        # An odd number is of a first save: without it, the training begins again.
        has = any(each.location and not each.save % 2 for each in self._candidates(None).values())
        return any(map(any, self._meetings.hold([int(has)])))

    def _leave_out(self, record: StepRecord | None) -> None:
        """Leave out parts of steps that are not whole in all processes, until they are saved again."""
        if not self._shared:
            last = -1 if record is None else record.number
            self._damaged.update(number for number in self._known if number > last)

    def _marks(self, number: int, options: dict[str, Any]) -> dict[str, str]:
        """Return the texts that tell a save from others; of a part, take the options of its copy."""
        form = options.get("format")
        if self._carrier is None or (form and not format_named(form).capabilities.holds_texts):
            return {}
        self._carrier.wait_for(number)
        first = 2 * (time.time_ns() if self._shared else self._session) | (self._last is None)
        save = (self._saves[number][0] | 1) + 1 if number in self._saves else first
        names = set() if self._shared else options.keys() & {"digest", "replicas", "timeout"}
        own = {"timeout": self._timeout} | {name: options.pop(name) for name in names}
        self._saves[number] = save, SaveOptions(**own, is_state=True)
        return {SAVE: str(save)} | ({} if self._shared else {PART: self._part})

    def _check_takes_parts(self, form: str | None, incremental: bool) -> None:
        if not self._session:
            cause = "The processes have not agreed on a number for their saves."
            raise ArgumentError(cause, "Call restore first, in all processes.")
        if form not in (None, "shardvar") or incremental:
            what = "incremental=True" if incremental else f"format={form!r}"
            cause = f"{what} is not possible where processes do not share their disks."
            raise UnsupportedError(cause, "Leave it out.")

    def _run_of(self, number: int) -> Run:
        """The save in ``durable``, as this process sees it."""
        path = cast("SavedSteps", self._durable).path_of(number)
        return run_of_copy(path, self._using.processes()[1], *self._saves[number])

    def _copy(self, number: int) -> None:
        durable, process = cast("SavedSteps", self._durable), self._using.processes()[0]
        if self._shared:
            copy_step(self.path_of(number), durable.path_of(number))
        else:
            save_part(self.path_of(number), self._run_of(number), process)
        if not process:
            durable._remove_others()

    # --- Saving and removing

    def _check_order(self, number: int, whole: list[StepRecord]) -> None:
        """Raise unless a step comes after all that are there, and these are of this job."""
        if not whole:
            return
        newest = whole[-1].number
        if self._last is not None and newest > self._last:
            cause = (
                f"{self._public(whole[-1]).path} was saved by another job since this one has saved or "
                f"restored step {self._last}."
            )
            raise LockHeld(cause, "Let one job save in a directory, and restart the other one.")
        if number > newest or number == newest == self._last:
            return
        cause = f"Step {number} does not come after step {newest} of {self._directory}."
        remedy = "Restore before you save, or use another directory; or sv.remove the later steps."
        raise ArgumentError(cause, remedy)

    def _remove_others(self) -> None:
        """Remove, as process 0, steps that no rule keeps, and what killed jobs left; log errors."""
        if self._shared and self._using.processes()[0]:
            return
        with self._warning("old steps"):
            whole = {each.number: each for each in self._whole() if self._is_here(each)}
            newest = max(whole, default=0)
            if not self._shared and self._durable:  # also parts of steps that are not whole for all
                last, known = self._last or 0, self._known.items()
                whole = {
                    n: r for n, r in known if n <= last and (r.is_whole or r.part != self._part)
                }
                newest = max((n for n, r in self._durable._known.items() if r.is_whole), default=-1)
            storage = steps_storage(self._here)
            left = find_leftovers(storage, self._name, self._known, self._loose)
            values = {number: each.value for number, each in whole.items()}
            awaited = self._carrier.awaited if self._carrier else ()
            for number in plan_removal(values, self._rules):
                # Another process may have no newer part than a copy.
                is_over = number <= newest and number not in awaited
                if is_over and (at := whole[number].location):
                    with self._warning(whole[number].name), suppress(CheckpointNotFound):
                        remove_found(at)
            for name in left:
                with self._warning(name):
                    remove_leftovers(storage, name)

    @contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        try:
            yield
        except ShardvarError as error:
            self._warn(f"{what} could not be removed: {error}")

    def _load_one(self, number: int, arguments: Any, options: Mapping[str, Any]) -> RestoredStep:
        record = self._find().get(number)
        if record is not None and record.fault is not None:
            raise record.fault
        if record is None:
            loaded = self._using.load(self.path_of(number), *arguments, **options)
            step = SavedStep(number, self.path_of(number), None)
        else:
            loaded, step = self._load(record, arguments, options), self._public(record)
        newest = self.newest()
        self._last = newest.number if newest else number
        return RestoredStep(number, step.path, step.value, loaded)

    def _warn(self, text: str) -> None:
        if not self._using.processes()[0]:
            log_warning(f"{self._directory}: {text}")


def _number(number: Any) -> int:
    found = read_integer(number, "number of a step")
    if not 0 <= found < 10**18:
        raise ArgumentError(f"Step {found} is not a number of a step.", "Give an integer >= 0.")
    return found

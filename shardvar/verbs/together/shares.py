"""Shares: a checkpoint that many processes write together, without messages between them.

    each process   local shards --save_shards--> its share: data files, and an index of what it
                   holds
    any of them    all shares present --merge--> entries, proven whole --commit--> the checkpoint,
                   its index last

find     the run: its target, and its token, a digest of its name and of the checkpoint that is
         there now (``run``)
move     the process's tensors into its share: a file of the target's format, and an index
         (``share_format``)
wait     until each process has committed its share; every process looks only at the directory
commit   under the lock of the target: merge the shares (``share_merge``), and put one index in
         place

Until the commit the old checkpoint stays as it is. A process that dies leaves at most its share,
which is not read: the shares of another run, or of one that began with another checkpoint in place,
have another token.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import isnan
from numbers import Real

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    IncompleteCheckpoint,
    LockHeld,
    ServerError,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.protocol import Format
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.layout.region import read_integer
from shardvar.planning.capabilities import Capabilities, cuttable_rows
from shardvar.planning.decision import Decision
from shardvar.planning.index import Metadata
from shardvar.planning.merging import check_replicas, check_share, name_processes
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.planning.slices import SliceTable, sum_by
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.locate import Location, Path
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER
from shardvar.verbs.together.local_shards import LocalTensors, source_of_shards
from shardvar.verbs.together.run import SAVE_AGAIN, Run, find_run, has_index, indexes_of
from shardvar.verbs.together.share_merge import entries_of_share, is_same_share, merge_shares
from shardvar.verbs.writing import PEAK_NBYTES, WritePlan, carry_out, check_may_write

_DESCRIPTION = "One file for each process."

_POLL_SECONDS = 0.02, 1.0
"""The first and the longest pause between two looks at the directory; each is half as long again as
the one before."""


def save_shards(
    path: Path,
    tensors: LocalTensors,
    *,
    process: int,
    num_processes: int,
    run: str,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: str = "equal",
    force: bool = False,
    commit: bool = True,
    timeout: float = 600.0,
) -> WriteReport:
    """Write what this process holds of a checkpoint that many processes write.

    Parameters
    ----------
    path : path_like
        The checkpoint, the same in every process.
    tensors : mapping of str to array_like, LocalShard or iterable of LocalShard
        What this process holds: arrays are whole tensors, local shards regions of one.
    process : int
        The number of this process, from 0 on.
    num_processes : int
        The number of processes, the same in every process.
    run : str
        A text that no other save of this path has, the same in every process: a step and the number
        of the restart, for example.
    format : str, optional
        The format, as in ``save``.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    replicas : {'equal', 'first'}, default 'equal'
        Slices that several processes hold alike are replicas; the lowest process's is written.
        Values must be equal, or with ``'first'`` may differ.
    force : bool, default False
        Replace an existing checkpoint also where the format cannot do that in one step.
    commit : bool, default True
        Wait until all processes have saved and one has committed. Otherwise return when the share
        is written, and call ``commit_shards`` later.
    timeout : float, default 600.0
        The seconds to wait for other processes.

    Returns
    -------
    WriteReport
        The report of this process's share.

    Raises
    ------
    IncompleteCheckpoint
        If a process did not save within ``timeout``, or a tensor has holes.
    OverlappingSlices
        If slices of two processes overlap and are not replicas.
    InconsistentTensor
        If processes disagree on the dtype or the full shape of a tensor.
    ArgumentError
        If two processes have one number, the run is committed already, or an argument is invalid.
    TargetExists
        If the checkpoint exists, cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If several processes cannot write the format, or it cannot hold a region.
    StorageError
        If another writer replaced the checkpoint meanwhile or holds it (``LockHeld``), or the file
        system refuses.

    Notes
    -----
    An error leaves the checkpoint that was there before.

    Examples
    --------
    >>> import tempfile
    >>> import shardvar as sv
    >>> tensors = {"w": sv.LocalShard(np.ones((5, 4)), offset=(0, 0), full_shape=(5, 4))}
    >>> sv.save_shards(f"{tempfile.mkdtemp()}/model", tensors, process=0, num_processes=1, run="step-7").num_slices
    1
    """
    check_replicas(replicas)
    _check_timeout(timeout)
    saved = find_run(path, run, num_processes, format)
    report = _save(saved, process, tensors, texts_of(metadata), force)
    if commit:
        _commit(saved, replicas, timeout)
    return report


def commit_shards(
    path: Path,
    *,
    num_processes: int,
    run: str,
    format: str | None = None,
    replicas: str = "equal",
    timeout: float = 0.0,
) -> WriteReport:
    """Make one checkpoint of the shares that the processes of a run have written.

    For processes that called ``save_shards`` with ``commit=False`` and have met at a barrier since.
    One of them calls this, or several: the first one commits.

    Parameters
    ----------
    path : path_like
        The checkpoint, as in ``save_shards``.
    num_processes : int
        The number of processes.
    run : str
        The name of the run.
    format : str, optional
        The format, as in ``save_shards``.
    replicas : {'equal', 'first'}, default 'equal'
        As in ``save_shards``.
    timeout : float, default 0.0
        The seconds to wait for shares that are missing.

    Returns
    -------
    WriteReport
        The report of the checkpoint.

    Raises
    ------
    IncompleteCheckpoint
        If a process did not save within ``timeout``, or a tensor has holes.
    OverlappingSlices
        If slices of two processes overlap and are not replicas.
    InconsistentTensor
        If processes disagree on the dtype or the full shape of a tensor.
    ArgumentError
        If processes disagree on ``num_processes``, or an argument is invalid.
    StorageError
        If another writer replaced the checkpoint meanwhile or holds it (``LockHeld``).

    Notes
    -----
    An error leaves the checkpoint that was there before.
    """
    check_replicas(replicas)
    _check_timeout(timeout)
    saved = find_run(path, run, num_processes, format)
    _commit(saved, replicas, timeout)
    target = saved.refreshed().target
    return _report(next(iter(indexes_of(target).values()), target))


# --- One process's share


def _save(
    saved: Run, process: int, tensors: LocalTensors, user: dict[str, str], force: bool
) -> WriteReport:
    """Write the share of one process."""
    # Check.
    process = read_integer(process, "process number")
    if not 0 <= process < saved.count:
        cause = f"process={process} is not one of {saved.count} processes."
        raise ArgumentError(cause, f"Give 0 to {saved.count - 1}.")
    if saved.is_committed():
        raise ArgumentError(
            f"The run {saved.name!r} of {saved.path} is committed already.",
            "Give each save its own.",
        )
    # Plan.
    source = source_of_shards(tensors)
    check_share(source.index.entries, process)
    _check_cuts(source.index.entries.slices, saved.target.format)
    about = Metadata(_DESCRIPTION, WRITER, user, generation=saved.generation)
    work = _plan_share(saved.share(process), source, about)
    _check_target(saved, work, force)
    # Move.
    return replace(_write_share(saved, work, source, process), path=saved.path)


def _check_timeout(timeout: object) -> None:
    """Raise ``ArgumentTypeError`` unless a time to wait is a number; infinity is one."""
    if not isinstance(timeout, Real) or isnan(timeout):
        raise ArgumentTypeError(f"timeout is {timeout!r}.", "Give a number of seconds.")


def _check_target(saved: Run, work: WritePlan, force: bool) -> None:
    """Raise ``TargetExists`` if the checkpoint of all shares may not replace what is there."""
    assignment = replace(work.assignment, num_files=saved.count)
    decision = replace(work.decision, assignment=assignment)
    check_may_write(
        replace(work, target=saved.target, force=force, replace_atomically=True, decision=decision)
    )


def _check_cuts(slices: SliceTable, form: Format) -> None:
    """Raise ``UnsupportedError`` for a region of a tensor that the format holds whole only."""
    cut = ~slices.is_whole() & (slices.shape > 0).all(axis=1) & (ITEMSIZES[slices.codes()] > 0)
    cut &= ~cuttable_rows(slices, form.capabilities)
    for row in np.flatnonzero(cut).tolist()[:1]:
        cause = (
            f"The format {form.name} cannot hold the region {slices.region(row)} of "
            f"{slices.key(row)!r}."
        )
        remedy = (
            "Give the whole tensor in one process, or save in the format shardvar and convert it "
            "with sv.reshard."
        )
        raise UnsupportedError(cause, remedy)


def _plan_share(target: Location, source: ArraySource, metadata: Metadata) -> WritePlan:
    """Every local shard as one slice of the one file of this process; the target need not be
    covered, so no policy."""
    stored = source.index.entries.slices
    rows, slices = _held_slices(stored, target.format.capabilities)
    numbers = np.arange(len(rows))
    assignment = Assignment(slices, np.zeros_like(rows), int(len(rows) > 0), metadata.description)
    # There is nothing to copy into the others.
    filled = np.flatnonzero((slices.shape > 0).all(axis=1))
    copies = CopyTable(rows, numbers, slices.offset, slices.shape).take(filled)
    decision = Decision(assignment, Plan(stored, slices, copies), 0.0)
    return WritePlan(target, source.index.entries, metadata, False, False, decision)


def _held_slices(stored: SliceTable, capabilities: Capabilities) -> tuple[Ints, SliceTable]:
    """The rows of the slices that a share holds, and these slices.

    Slices without elements, such as in processes without rows, are left out if a format cannot hold
    them. A tensor that has no elements at all is held whole.
    """
    rows = np.arange(len(stored))
    if capabilities.empty_slices:
        return rows, stored
    is_filled = (stored.shape > 0).all(axis=1)
    is_empty = ~np.asarray((stored.tensors.shapes > 0).all(axis=1))[stored.tensor]
    first = rows[is_empty][np.unique(stored.tensor[is_empty], return_index=True)[1]]
    kept = np.sort(np.concatenate([np.flatnonzero(is_filled), first]))
    slices, whole = stored.take(kept), is_empty[kept][:, None]
    shape = np.where(whole, stored.tensors.shapes[slices.tensor], slices.shape)
    return kept, replace(slices, offset=np.where(whole, 0, slices.offset), shape=shape)


def _write_share(saved: Run, work: WritePlan, source: ArraySource, process: int) -> WriteReport:
    """Write the share, or find that an earlier attempt of this run has written the same."""
    what = f"Process {process} of the run {saved.name!r} of {saved.path}"
    share = saved.share(process)
    if not has_index(share, set(share.storage.names())):
        try:
            return carry_out(work, source, None, lambda _: None)
        except LockHeld as error:
            raise ArgumentError(
                f"{what} is saving already.", "Give each process its own number."
            ) from error
        except StorageError:
            # The commit of another checkpoint of this name has removed the files of this share:
            # that says more.
            saved.refreshed().is_committed()
            raise
    # The number was given twice, or the run was killed and is repeated: only the values can tell.
    if not is_same_share(share, source, work):
        cause = f"{what} has saved already, and other values."
        raise ArgumentError(
            cause, "Give each process its own number, and a new run to each save and each restart."
        )
    return _report(share)


# --- The commit


def _commit(saved: Run, replicas: str, timeout: float) -> None:
    """Wait for all shares, and merge them unless another process has; ``IncompleteCheckpoint``
    names missing ones."""
    deadline, pause, held = time.monotonic() + timeout, _POLL_SECONDS[0], None
    while True:
        saved = saved.refreshed()
        if saved.is_committed():
            return
        missing = saved.missing()
        if not missing:
            try:
                with saved.target.storage.lock(saved.target.stem):
                    if not saved.is_committed():
                        about = Metadata(_DESCRIPTION, WRITER, generation=saved.generation)
                        merge_shares(
                            saved.target,
                            [saved.share(each) for each in range(saved.count)],
                            about,
                            replicas,
                        )
                    return
            except LockHeld as error:
                # by the process that commits, or by a writer of another checkpoint of this name
                held = error
            except (CheckpointError, StorageError) as error:
                # In a bucket nothing is locked: another process may have committed, and removed the
                # shares, meanwhile.
                # The error before says more: the outcome of the commit may not be known.
                with suppress(ServerError):
                    if saved.refreshed().is_committed():
                        return
                raise error
        if time.monotonic() >= deadline:
            # By the one who held it, since it was tried.
            if held is not None and saved.refreshed().is_committed():
                return
            raise _late(saved, missing, timeout, held)
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _POLL_SECONDS[1])


def _late(saved: Run, missing: list[int], timeout: float, held: LockHeld | None) -> Exception:
    """The error for missing shares, or for a commit that another writer prevents."""
    if missing:
        who = name_processes(missing)
        cause = f"{who[:1].upper()}{who[1:]} of {saved.count} did not save within {timeout:g} s."
        cause = f"{cause} {saved.path} is as it was before the run {saved.name!r}."
        return IncompleteCheckpoint(cause, f"Find out why. {SAVE_AGAIN}")
    # By a claim, which the error names.
    if held is not None and saved.target.storage.local_path is None:
        return held
    cause = (
        f"{saved.path} is held for {timeout:g} s, by another writer or by a process that commits "
        "this run."
    )
    return LockHeld(
        cause, "Let it finish. sv.commit_shards says then what became of this run, or commits it."
    )


def _report(found: Location) -> WriteReport:
    """Return the report of a checkpoint, or of a share, that is in place."""
    source = found.open()
    try:
        entries, metadata, num_files = (
            entries_of_share(source),
            source.index.metadata,
            len(source.index.files),
        )
    finally:
        source.close()
    nbytes = int(entries.slices.nbytes.sum())
    return WriteReport(
        path=found.path,
        format=found.format.name,
        description=metadata.description,
        num_tensors=len(entries.slices.tensors),
        num_slices=len(entries),
        nbytes=nbytes,
        file_nbytes=tuple(sum_by(entries.file, entries.slices.nbytes, num_files).tolist()),
        num_copies=len(entries),
        read_nbytes=nbytes,
        peak_nbytes=PEAK_NBYTES,
        free_nbytes=found.storage.free_nbytes(),
    )

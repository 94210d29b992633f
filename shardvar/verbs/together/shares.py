"""Shares: a checkpoint that many processes write together, without messages between them.

    each process   local shards --save_shards--> its share: data files, and an index of what it
                   holds
    process 0      all shares present --merge--> entries, proven whole --commit--> the checkpoint,
                   its index last

find     the run: its target, and the beginning of its tokens, digests of its name and of the
         checkpoint that is there now (``run``)
call     process 0 begins an attempt, and the others follow it (``fence``)
move     the process's tensors into its share: a file of the target's format, and an index
         (``share_format``)
wait     until the attempt has an end; every process looks only at the directory (``fence``)
commit   under the lock of the target: merge the shares (``share_merge``), and put one index in
         place

Until the commit the old checkpoint stays as it is. A process that dies leaves at most its share,
which is not read: the shares of another attempt have another token.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from math import isnan
from numbers import Real

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import ArgumentTypeError, UnsupportedError
from shardvar.formats.deferred import outline_of
from shardvar.formats.protocol import Format, SharedFormat
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.capabilities import Capabilities, cuttable_rows
from shardvar.planning.decision import Decision
from shardvar.planning.index import Metadata, concatenate_entries
from shardvar.planning.merging import check_replicas, check_share
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.planning.slices import SliceTable, sum_by
from shardvar.verbs.arguments import texts_of
from shardvar.verbs.locate import Location, Path
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER
from shardvar.verbs.together.attempts import (
    commit_left,
    has_begun,
    save_called,
    save_known,
    save_open,
    telling,
)
from shardvar.verbs.together.fence import DESCRIPTION
from shardvar.verbs.together.local_shards import LocalTensors, source_of_shards
from shardvar.verbs.together.run import Run, find_run, indexes_of
from shardvar.verbs.together.share_base import OlderIndex, ShareBase, find_older
from shardvar.verbs.together.share_format import NOT_WRITTEN, Holding, plan_file
from shardvar.verbs.writing import PEAK_NBYTES, WritePlan, check_may_write, report_of


def save_shards(
    path: Path,
    tensors: LocalTensors,
    *,
    process: int,
    num_processes: int,
    run: str,
    attempt: str | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: str = "equal",
    force: bool = False,
    commit: bool = True,
    timeout: float = 600.0,
    digest: bool = False,
    base: Path | None = None,
) -> WriteReport:
    """Write what this process holds of a checkpoint that many processes write.

    Parameters
    ----------
    path : path_like
        The checkpoint, the same in every process.
    tensors : mapping of str to array_like, LocalShard or iterable of LocalShard
        What this process holds: arrays are whole tensors, local shards regions of one. Each may be
        lazy, as in ``save``.
    process : int
        The number of this process, from 0 on.
    num_processes : int
        The number of processes, the same in every process.
    run : str
        A text that no other save of this path has, the same in every process, such as the step.
    attempt : str, optional
        A text that is new for each attempt at the run, the same in every process: what one process
        has drawn and broadcast, for example. Without one, process 0 begins an attempt if
        ``commit`` is True.
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
        is written, and call ``commit_shards`` later. Without an ``attempt``, give all processes
        the same.
    timeout : float, default 600.0
        The seconds to wait for other processes.
    digest : bool, default False
        Keep the digest of each tensor in the checkpoint, as ``sv.digest`` computes it; the same in
        every process.
    base : path_like, optional
        A checkpoint in the same directory, such as the one before, the same in every process. Local
        shards that lie in it unchanged are not written: the new checkpoint refers to the files that
        hold them. Only the format ``'shardvar'`` can do this.

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
        If two processes have one number, a share of an earlier attempt has other values and
        ``commit`` is False, or an argument is invalid.
    TargetExists
        If the checkpoint exists, cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If several processes cannot write the format, or it cannot hold a region.
    CorruptCheckpoint
        If the base was replaced or removed meanwhile, or bytes of it are damaged that are compared.
    StorageError
        If another writer replaced the checkpoint meanwhile or holds it (``LockHeld``), or the file
        system refuses.

    Notes
    -----
    An error leaves the checkpoint that was there before, and all processes that wait get the same
    error. A job that died in a save may restart and save under the same ``run``, with the same
    values or others: all processes get the checkpoint of one attempt, or all get an error.

    A digest does not depend on how a tensor is cut. Each process hashes its values in memory, and
    the process that commits reads what lies between two processes: of a tensor in rows at most
    2 MiB for each shard, and a tensor in columns whole.

    With a base, each process compares its own shards, by checksums and digests; the new checkpoint
    carries the digest of each slice. Of a base without these the bytes are read. A shard refers to one
    slice of the base, or is cut into several. One that is a part of a slice, or overlaps slices, is
    written. A lazy array is made to be compared, and once more if it is written.

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
    saved = find_run(path, run, num_processes, format, attempt)
    about = Metadata(user=texts_of(metadata))
    return save_with_objects(
        saved,
        process,
        tensors,
        about,
        replicas,
        force=force,
        commit=commit,
        timeout=timeout,
        digest=digest,
        base=base,
    )


def save_with_objects(
    saved: Run,
    process: int,
    tensors: LocalTensors,
    about: Metadata,
    replicas: str = "equal",
    *,
    force: bool = False,
    commit: bool = True,
    timeout: float = 600.0,
    digest: bool = False,
    is_state: bool = False,
    base: Path | None = None,
) -> WriteReport:
    """Write what this process holds, and the objects of ``about``; otherwise as ``save_shards``.

    With ``is_state``, the tensors and objects are all values of a training state. What other
    processes write has no shards here, and the checkpoint says which keys not all processes have.
    """
    # Check, and plan.
    about = replace(about, description=DESCRIPTION, writer=WRITER)
    # Of a file of safetensors, the metadata are written before all digests are known.
    can_carry = saved.form.capabilities.holds_digests and saved.form.adopts_objects()
    if digest and not can_carry:
        name = saved.target.format.name
        cause = f"Several processes cannot write the digests of tensors in the format {name}."
        raise UnsupportedError(cause, "Save in the format shardvar, or call sv.digest afterwards.")
    process = saved.read_process(process)
    with telling(lambda: saved, process, timeout) if commit else nullcontext():
        older = None if base is None else find_older(base, saved.target)
        held, work = _plan(saved, process, tensors, about, older, force)
    keys = frozenset({*tensors, *about.objects, *about.ties}) if is_state else None
    held = replace(held, digests=digest, keys=keys)
    # Move, and commit.
    if not commit:
        save_open(saved, held)
    elif saved.attempt is not None or has_begun(saved):
        save_known(saved, held, replicas, timeout)
    else:
        save_called(saved, held, replicas, timeout)
    return _report_of_share(held, work)


def commit_shards(
    path: Path,
    *,
    num_processes: int,
    run: str,
    attempt: str | None = None,
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
    attempt : str, optional
        The attempt, as in ``save_shards``.
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
    saved = find_run(path, run, num_processes, format, attempt)
    commit_left(saved, replicas, timeout)
    target = saved.refreshed().target
    return _report(next(iter(indexes_of(target).values()), target))


# --- One process's share


def _plan(
    saved: Run,
    process: int,
    tensors: LocalTensors,
    about: Metadata,
    older: OlderIndex | None,
    force: bool,
) -> tuple[Holding, WritePlan]:
    """Check what one process is to write, and plan it."""
    # Check.
    _check_objects(saved.target.format.name, saved.form, about)
    # Plan.
    source = source_of_shards(tensors)
    check_share(source.index.entries, process)
    _check_cuts(source.index.entries.slices, saved.target.format)
    base = None if older is None else ShareBase.of(older, source)
    source = source if base is None else base.source
    work = _plan_share(saved.target, source, about)
    if saved.target.storage.local_path is None:
        saved.target.storage.check_writable(saved.target.stem)
    _check_target(saved, work, force)
    rows, slices = _held_slices(source.index.entries.slices, saved.target.format.capabilities)
    plan_file(saved, slices, about, NOT_WRITTEN)
    return Holding(process, source, rows, slices, about, base=base), work


def _check_objects(name: str, form: SharedFormat, about: Metadata) -> None:
    """Raise ``UnsupportedError`` for an object that the format cannot hold."""
    for key, octets in about.objects.items():
        if not form.adopts_objects():
            cause = f"Several processes cannot write an object, {key!r}, in the format {name}."
            raise UnsupportedError(cause, "Save in the format shardvar or torch.")
        if octets.startswith(b"PK") and name != "torch":
            cause = f"The format {name} cannot hold the object {key!r}, whose class is not plain."
            raise UnsupportedError(cause, "Save in the format torch.")


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


# --- Reports


def _report_of_share(held: Holding, work: WritePlan) -> WriteReport:
    """Return the report of a share that is written; what it refers to is not."""
    free = work.target.storage.free_nbytes()
    if held.base is None or not held.base.is_equal.any():
        return replace(report_of(work, free), dry_run=False)
    slices, is_equal = work.assignment.slices, held.base.is_equal
    rows = np.flatnonzero(~is_equal)
    file = np.zeros(len(rows), np.int64)
    assignment = replace(
        work.assignment, slices=slices.take(rows), file=file, num_files=int(len(rows) > 0)
    )
    found = report_of(replace(work, decision=replace(work.decision, assignment=assignment)), free)
    return replace(
        found,
        num_copies=int((~is_equal[work.plan.copies.target]).sum()),
        num_referred=len(np.setdiff1d(slices.tensor[is_equal], slices.tensor[rows])),
        dry_run=False,
    )


def _report(found: Location) -> WriteReport:
    """Return the report of a checkpoint, or of a share, that is in place."""
    source = found.open()
    try:
        index = outline_of(source.index)
        entries = concatenate_entries(list(index.scan()))
        metadata, num_files = source.index.metadata, len(source.index.files)
    finally:
        source.close()
    nbytes = int(entries.slices.nbytes.sum())
    # Objects of the metadata have the number of the first file, also if there is none.
    sizes = sum_by(entries.file, entries.slices.nbytes, max(num_files, 1))
    return WriteReport(
        path=found.path,
        format=found.format.name,
        description=metadata.description,
        num_tensors=len(entries.slices.tensors),
        num_slices=len(entries),
        nbytes=nbytes,
        file_nbytes=tuple(sizes[:num_files].tolist()),
        num_copies=len(entries),
        read_nbytes=nbytes,
        peak_nbytes=PEAK_NBYTES,
        free_nbytes=found.storage.free_nbytes(),
    )

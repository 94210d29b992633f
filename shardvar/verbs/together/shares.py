"""Shares: a checkpoint that many processes write together, without messages between them.

    each process   local shards --save_shards--> its share: data files, and an index of what it
                   holds
    any of them    all shares present --merge--> entries, proven whole --commit--> the checkpoint,
                   its index last

find     the target, and the token of the run: a digest of its name and of the checkpoint that is
         there now
move     the process's tensors into its share: a file of the target's format, and an index
         (``share_format``)
wait     until each process has committed its share; every process looks only at the directory
commit   under the lock of the target: merge the shares (``share_merge``), and put one index in
         place

Until the commit the old checkpoint stays as it is. A process that dies leaves at most its share,
which is not read: the shares of another run, or of one that began with another checkpoint in place,
have another token.
"""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isnan
from numbers import Real
from typing import Self, cast

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
from shardvar.formats.protocol import Format, SharedFormat
from shardvar.formats.table import name_of_target, names_of_target, stem_of_name
from shardvar.formats.unfinished import parse_share_name, share_name, share_prefix
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.layout.region import read_integer
from shardvar.limits import MAX_FILES
from shardvar.planning.capabilities import Capabilities, cuttable_rows
from shardvar.planning.decision import Decision
from shardvar.planning.index import Metadata
from shardvar.planning.merging import check_replicas, check_share, name_processes
from shardvar.planning.plan import Assignment, CopyTable, Plan
from shardvar.planning.slices import SliceTable, sum_by
from shardvar.verbs.arguments import check_string, texts_of
from shardvar.verbs.locate import Location, Path, find_target
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER
from shardvar.verbs.together.local_shards import LocalTensors, source_of_shards
from shardvar.verbs.together.share_format import ShareFormat
from shardvar.verbs.together.share_merge import entries_of_share, is_same_share, merge_shares
from shardvar.verbs.writing import PEAK_NBYTES, WritePlan, carry_out, check_may_write

_DESCRIPTION = "One file for each process."

_POLL_SECONDS = 0.02, 1.0
"""The first and the longest pause between two looks at the directory; each is half as long again as
the one before."""

_ANEW = "Save again, under a new run."


@dataclass(frozen=True, slots=True)
class _Run:
    """One save by several processes."""

    target: Location
    """The checkpoint to write."""
    name: str
    """The name that the caller gave the run."""
    count: int
    """The number of processes."""
    version: str = ""
    """The version of the checkpoint that is replaced; empty for none."""
    known: dict[str, str] = field(default_factory=dict)
    """The generations of indexes that were opened, by their stamps: an index is opened once, and
    looked at often."""

    @property
    def path(self) -> str:
        """The path of the checkpoint, for messages."""
        return self.target.path

    @property
    def prefix(self) -> str:
        """The prefix of the shares."""
        return share_prefix(self.target.stem, self.target.format.name)

    @property
    def generation(self) -> str:
        """The generation of the checkpoint once it is committed."""
        # 64 bits: two runs do not get the same one by chance.
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def token(self) -> str:
        """The token of the shares: it differs if another checkpoint was in place."""
        return self.generation + hashlib.sha256(self.version.encode()).hexdigest()[:8]

    def share(self, process: int) -> Location:
        """Return the location of one process's share."""
        form = ShareFormat(cast("SharedFormat", self.target.format), self.target.name)
        return Location(
            form, self.target.storage, share_name(self.prefix, self.token, process, self.count)
        )

    def refreshed(self) -> Self:
        """Return the run with a storage that sees what other processes have written since."""
        return replace(self, target=replace(self.target, storage=self.target.storage.refreshed()))

    def missing(self) -> list[int]:
        """Return the processes that have not committed their shares."""
        names = set(self.target.storage.names())
        return [
            process for process in range(self.count) if not _has_index(self.share(process), names)
        ]


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
    saved = _find_run(path, run, num_processes, format)
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
    saved = _find_run(path, run, num_processes, format)
    _commit(saved, replicas, timeout)
    target = saved.refreshed().target
    return _report(next(iter(_indexes(target).values()), target))


# --- One process's share


def _save(
    saved: _Run, process: int, tensors: LocalTensors, user: dict[str, str], force: bool
) -> WriteReport:
    """Write the share of one process."""
    # Check.
    process = read_integer(process, "process number")
    if not 0 <= process < saved.count:
        cause = f"process={process} is not one of {saved.count} processes."
        raise ArgumentError(cause, f"Give 0 to {saved.count - 1}.")
    if _is_committed(saved):
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


def _find_run(path: Path, run: str, count: int, format: str | None) -> _Run:
    """The run of these arguments; what the format cannot do is refused."""
    check_string(run, "names of runs")
    if not run:
        raise ArgumentError(
            "The name of the run is empty.", "Give a text that no other save of this path has."
        )
    count = read_integer(count, "number of processes")
    if not 1 <= count <= MAX_FILES:
        raise ArgumentError(
            f"num_processes={count} is not a number of processes.", f"Give 1 to {MAX_FILES}."
        )
    target = find_target(path, format, otherwise="shardvar")
    if not isinstance(target.format, SharedFormat):
        cause = f"The format {target.format.name} cannot be written by several processes."
        raise UnsupportedError(
            cause, "Save in the format shardvar, and convert the checkpoint with sv.reshard."
        )
    found = _Run(target, run, count)
    return replace(found, version=_version(found))


def _check_timeout(timeout: object) -> None:
    """Raise ``ArgumentTypeError`` unless a time to wait is a number; infinity is one."""
    if not isinstance(timeout, Real) or isnan(timeout):
        raise ArgumentTypeError(f"timeout is {timeout!r}.", "Give a number of seconds.")


def _check_target(saved: _Run, work: WritePlan, force: bool) -> None:
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


def _write_share(saved: _Run, work: WritePlan, source: ArraySource, process: int) -> WriteReport:
    """Write the share, or find that an earlier attempt of this run has written the same."""
    what = f"Process {process} of the run {saved.name!r} of {saved.path}"
    share = saved.share(process)
    if not _has_index(share, set(share.storage.names())):
        try:
            return carry_out(work, source, None, lambda _: None)
        except LockHeld as error:
            raise ArgumentError(
                f"{what} is saving already.", "Give each process its own number."
            ) from error
        except StorageError:
            # The commit of another checkpoint of this name has removed the files of this share:
            # that says more.
            _is_committed(saved.refreshed())
            raise
    # The number was given twice, or the run was killed and is repeated: only the values can tell.
    if not is_same_share(share, source, work):
        cause = f"{what} has saved already, and other values."
        raise ArgumentError(
            cause, "Give each process its own number, and a new run to each save and each restart."
        )
    return _report(share)


# --- The commit


def _commit(saved: _Run, replicas: str, timeout: float) -> None:
    """Wait for all shares, and merge them unless another process has; ``IncompleteCheckpoint``
    names missing ones."""
    deadline, pause, held = time.monotonic() + timeout, _POLL_SECONDS[0], None
    while True:
        saved = saved.refreshed()
        if _is_committed(saved):
            return
        missing = saved.missing()
        if not missing:
            try:
                with saved.target.storage.lock(saved.target.stem):
                    if not _is_committed(saved):
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
                    if _is_committed(saved.refreshed()):
                        return
                raise error
        if time.monotonic() >= deadline:
            # By the one who held it, since it was tried.
            if held is not None and _is_committed(saved.refreshed()):
                return
            raise _late(saved, missing, timeout, held)
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(pause * 1.5, _POLL_SECONDS[1])


def _is_committed(saved: _Run) -> bool:
    """Return True if the run is committed; raise if it cannot be, or processes disagree."""
    version = _version(saved)
    if _is_other(saved, version):
        # In a bucket a commit of this run may have been seen half: only what is seen twice is
        # another's.
        time.sleep(_POLL_SECONDS[0])
        saved.known.clear()
        version = _version(saved.refreshed())
        if _is_other(saved, version):
            raise StorageError(
                f"{saved.path} was replaced while the run {saved.name!r} saved it.", _ANEW
            )
    if saved.generation in version.split():
        return True
    ending = saved.share(0).format.name
    for name in saved.target.storage.names():
        found = parse_share_name(stem_of_name(name, ending), saved.prefix)
        if found is None or not found[0].startswith(saved.generation):
            continue
        token, process, count = found
        if count != saved.count:
            cause = (
                f"Process {process} of the run {saved.name!r} of {saved.path} is one of {count}, "
                f"not {saved.count}."
            )
            raise ArgumentError(
                cause, "Give all processes one num_processes, and each save its own run."
            )
        if token != saved.token:
            cause = (
                f"Process {process} of the run {saved.name!r} began when another checkpoint was at "
                f"{saved.path}."
            )
            raise StorageError(cause, _ANEW)
    return False


def _is_other(saved: _Run, version: str) -> bool:
    """Return True if a version is neither this run's nor the one that it found."""
    if version == saved.version or saved.generation in version.split():
        return False
    # Else the one before is retired.
    return bool(version) or saved.target.format.capabilities.atomic_overwrite


def _late(saved: _Run, missing: list[int], timeout: float, held: LockHeld | None) -> Exception:
    """The error for missing shares, or for a commit that another writer prevents."""
    if missing:
        who = name_processes(missing)
        cause = f"{who[:1].upper()}{who[1:]} of {saved.count} did not save within {timeout:g} s."
        cause = f"{cause} {saved.path} is as it was before the run {saved.name!r}."
        return IncompleteCheckpoint(cause, f"Find out why. {_ANEW}")
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


def _version(saved: _Run) -> str:
    """Return a text that another checkpoint of this path does not have: the generation of its
    index, or its stamp.

    Empty if there is none. Of a file and a set that stand side by side, both.
    """
    return " ".join(
        _generation(saved, name, found) for name, found in _indexes(saved.target).items()
    )


def _generation(saved: _Run, name: str, index: Location) -> str:
    """The generation that an index has; the stamp of its file if it has none, or is damaged."""
    stamp = index.storage.stamp(name) or ""
    while stamp not in saved.known:
        try:
            opened = index.open()
            generation = opened.index.metadata.generation or stamp
            opened.close()
        except (CheckpointError, StorageError, UnsupportedError):
            generation = stamp
        # Another process may have put its index in place meanwhile: then it is unknown which one
        # has the generation.
        before, stamp = stamp, index.storage.stamp(name) or ""
        if stamp == before:
            saved.known[stamp] = generation
    return saved.known[stamp]


def _indexes(target: Location) -> dict[str, Location]:
    """The indexes of a target that are there, each with the location of its checkpoint."""
    form = target.format.name
    named = [target.name] if target.is_folder else names_of_target(target.stem, form)[1:]
    there = set(target.storage.names())
    return {
        name: replace(target, name=name_of_target(name, form)) for name in named if name in there
    }


def _has_index(share: Location, names: set[str]) -> bool:
    """Return True if a share is committed, by the names in the directory."""
    return not names.isdisjoint(names_of_target(share.name, share.format.name)[1:])


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

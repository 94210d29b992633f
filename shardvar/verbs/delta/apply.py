"""Apply deltas: write the checkpoint that they make of their base.

find     the base, the deltas and the location of the result
check    that the deltas follow each other, and that the base has the tensors that they need
write    ``patched.PatchedSource`` through ``verbs.reshard``, so that formats, cuts, policies and
         interrupted writes are the ones of any reshard
commit   after the digest of each tensor is the one that the last delta gives
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shardvar.engine.pool import Progress
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.files import open_below
from shardvar.formats.parts import check_not_a_part
from shardvar.formats.protocol import Source
from shardvar.formats.published import check_no_delta
from shardvar.formats.table import names_of_target
from shardvar.formats.unfinished import unfinished_files
from shardvar.pictures.words import count
from shardvar.planning.policies import Policy
from shardvar.storage.exchange import left_beside
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.arguments import check_policy, check_progress
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.delta.chain import (
    by_kind,
    check_base,
    check_follows,
    count_applied,
    find_deltas,
    open_all,
)
from shardvar.verbs.delta.contents import Delta
from shardvar.verbs.delta.dialects.applied import apply_published, count_published, notes_on_result
from shardvar.verbs.delta.dialects.changes import PublishedDelta
from shardvar.verbs.delta.dialects.table import check_versions
from shardvar.verbs.delta.draft import checked
from shardvar.verbs.delta.patched import PatchedSource
from shardvar.verbs.delta.report import ApplyReport, apply_report
from shardvar.verbs.locate import Location, Path, find_checkpoint, find_target, is_inside, is_same
from shardvar.verbs.mapping import names_at
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.reshard import Changes, Conversions, digest_of_reshard, find_carry, rewrite
from shardvar.verbs.writing import Partitions, WritePlan, carry_out, plan_checkpoint


def apply(
    base: Path,
    deltas: Path | Sequence[Path],
    target: Path,
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> ApplyReport:
    """Write the checkpoint that deltas make of their base.

    Parameters
    ----------
    base : path_like
        The checkpoint that the first delta was made of, in any format and shards.
    deltas : path_like or sequence of path_like
        The delta, or several in order: each was made of the result of the one before. They may be
        of a dialect that ``delta`` writes; its files tell which.
    target : path_like
        The checkpoint to write. With ``force``, it may be the base.
    format : str, optional
        The format to write. By default the ending of ``target`` decides; without one it is the
        base's.
    policy : policy, optional
        The policy that says which slices share a file; one file by default.
    partition : partition or mapping of str to partition, optional
        The slices to write, as in ``save``; whole tensors by default.
    force : bool, default False
        Replace an existing checkpoint.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    progress : callable, optional
        Called with numbers of payload bytes as they are written.

    Returns
    -------
    ApplyReport
        The report of what was written, or would be, and of what was compared.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``base``, or no delta.
    ArgumentError
        If ``base`` is another checkpoint than the delta was made of, or the deltas do not follow
        each other.
    CheckpointError
        If the base or a delta is damaged. The digest of each tensor of the result is compared
        before the commit, also of tensors that did not change.
    UnsupportedError
        If one of ``deltas`` is not a delta, or of a dialect that is not read, or the format cannot
        hold a tensor.
    MissingExtra
        If a dialect needs a package that is not installed.
    TargetExists
        If ``target`` exists and is not the result, and ``force`` is not set.
    StorageError
        If the disk is full, or the file system refuses.

    See Also
    --------
    delta : Make a delta.

    Notes
    -----
    Several deltas are applied at once: no checkpoint between is written. Memory: some MiB a thread,
    32 bytes for each MiB of a tensor, and the largest string tensor. Files of more than 16 deltas are
    open only while they are read; one that was replaced since it was checked is an error.

    An apply that is given again after it was committed finds the result in place, writes nothing, and
    says so in ``already``. If the base is the target and the result of one of the deltas, only the
    later ones are applied. So a run that was killed at any time is given again as it was.

    Deltas of other programs name no digest of their base. So ``notes`` of the report says that the
    base was not compared. The checksums that they have are compared before the first byte is written.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> a, b, d, c = (os.path.join(tempfile.mkdtemp(), name) for name in ("a", "b", "d", "c.npz"))
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> _ = sv.save(a, {"table": table}, partition=5), sv.save(b, {"table": table + 1})
    >>> _ = sv.delta(a, b, d)
    >>> _ = sv.apply(a, d, c)
    >>> sv.diff(b, c).equal
    True
    """
    check_policy(policy)
    check_progress(progress)
    with ExitStack() as stack:
        # Find and check.
        given = find_deltas(deltas)
        opened = open_all(given, stack)
        own, others = by_kind(opened)
        check_follows(own)
        check_versions(others)
        found = find_checkpoint(base)
        check_not_a_part(found.format, found.storage, found.name, is_alone=True)
        goal = _find_goal(found, given, target, format)
        reader = stack.enter_context(open_found(found, dequantize=False))
        check_no_delta(found.path, found.storage, found.format.name, reader.index)
        work = _Apply(found, goal, reader, policy, partition, force, dry_run, progress)
        try:
            return work.run(given, own, others)
        except (ArgumentError, CorruptCheckpoint):
            # In place, an earlier run may have applied some of the deltas, or all.
            count = 0 if dry_run or not work.is_in_place else work.count_applied(own, others)
            if not count:
                raise
        last = opened[count - 1].path
        if count == len(opened):
            return work.settle(last, notes_on_result(others) if others else (_COMPARED,))
        report = work.run(given[count:], own[count:], others[count:])
        said = f"{found.path} was already the result of {last}"
        return replace(report, notes=(said, *report.notes))


@dataclass(frozen=True, slots=True, eq=False)
class _Apply:
    """An apply: the base, the target, and the choices of the caller."""

    found: Location
    goal: Location
    reader: Reader
    policy: Policy | None
    partition: Partitions
    force: bool
    dry_run: bool
    progress: Progress

    @property
    def is_in_place(self) -> bool:
        """True if the target is the base."""
        return is_same(self.found, self.goal)

    def run(
        self, given: Sequence[Location], own: Sequence[Delta], others: Sequence[PublishedDelta]
    ) -> ApplyReport:
        """Write the result of deltas that follow each other; only report it if it is there."""
        with ScratchFile() as scratch:
            source: Source
            if others:
                made = apply_published(self.reader, others, scratch)
                source, patched, notes = made.source, made.patched, made.notes
                as_it_is = self.policy is None and self.partition is None and not self.dry_run
                if made.is_base and self.is_in_place and as_it_is:
                    return self.settle(others[-1].path, notes)
            else:
                check_base(self.reader, own)
                source = patched = PatchedSource.of(self.reader, own)
                notes = () if self.dry_run else (_COMPARED,)
            # Plan.
            result = Reader(self.reader.path, self.reader.format, source)
            try:
                move = partial(_move, patched=patched, progress=self.progress)
                carry = partial(_carry, patched) if own else None
                # What an interrupted run of another dialect has finished is written again.
                stamp = partial(_stamp, self.found, result, given, own) if own else _no_stamp
                write = self._rewrite(result, stamp, move, carry)
            except TargetExists:
                if self.dry_run or not self._is_there(result, own):
                    raise
                last = (own or others)[-1].path
                return self.report_there(result, last, notes)
            # Move and commit.
            return apply_report(write(), notes)

    def settle(self, delta: str, notes: tuple[str, ...]) -> ApplyReport:
        """Report that the base is the result of a delta. What an interrupted run has left is removed
        by writing it again."""
        storage, stem = self.goal.storage, self.goal.stem
        names = storage.names()
        left = unfinished_files(names, "" if self.goal.is_folder else stem)
        if storage.local_path is not None and self.goal.is_folder:
            left += left_beside(storage.local_path)
        # A run that was killed has left its lock.
        if not self.force or not (left or f".{stem}.lock" in names):
            return self.report_there(self.reader, delta, notes)
        move = partial(carry_out, progress=self.progress)
        write = self._rewrite(self.reader, _no_stamp, move, None)
        said = f"{self.goal.path} was already the result of {delta}"
        return apply_report(write(), (said, *notes))

    def _rewrite(
        self,
        result: Reader,
        stamp: Callable[[Source, WritePlan], str | None],
        move: Callable[..., WriteReport],
        carry: Callable[..., tuple[WritePlan, str]] | None,
    ) -> Callable[[], WriteReport]:
        """Return what writes a result, or only reports it."""
        as_they_are = Conversions(None, None)
        changes = Changes(None, None, None, {}, None, as_they_are, self.partition, False)
        found_carry = find_carry(self.reader, False, False, False)
        return rewrite(
            [self.found],
            goal=self.goal,
            reader=result,
            changes=changes,
            plan=partial(_plan, policy=self.policy, force=self.force),
            stamp=stamp,
            move=None if self.dry_run else move,
            carry=carry if found_carry and carry else found_carry,
        )

    def count_applied(self, own: Sequence[Delta], others: Sequence[PublishedDelta]) -> int:
        """Return the number of deltas whose result the base is; 0 if that cannot be told."""
        try:
            if others:
                return count_published(self.reader, others)
            return count_applied(self.reader, own, self._has_texts)
        except READ_ERRORS:
            return 0

    @property
    def _has_texts(self) -> bool:
        return self.goal.format.capabilities.holds_texts

    def _is_there(self, result: Reader, own: Sequence[Delta]) -> bool:
        """Return True if the target is a checkpoint that is the result already."""
        names = names_at(self.goal)
        if len(names) != 1:
            return False
        try:
            with open_found(replace(self.goal, name=names[0]), dequantize=False) as there:
                if own:
                    return bool(count_applied(there, own[-1:], self._has_texts))
                return digests_of(there, [*there]) == digests_of(result, [*result])
        except (CheckpointError, StorageError, UnsupportedError):
            return False

    def report_there(self, there: Reader, delta: str, notes: tuple[str, ...]) -> ApplyReport:
        """Return the report of a target that is the result of a delta already."""
        path, metadata, slices = self.goal.path, there.metadata, there.listed().slices
        free = self.goal.storage.free_nbytes()
        counts = len(there), len(slices), 0, (), 0, 0, 0, free
        report = WriteReport(path, self.goal.format.name, metadata.description, *counts)
        said = f"{path} is already the result of {delta}"
        return apply_report(report, (said, *notes), already=True)


def _plan(*given: Any, **options: Any) -> WritePlan:
    """Return the plan of a write; what the format cannot hold is not left out of a result."""
    try:
        return plan_checkpoint(*given, **options)
    except UnsupportedError as error:
        if "--exclude" not in error.remedy:
            raise
        remedy = "Choose another format: format (--format), or the ending of the target."
        raise UnsupportedError(error.cause, remedy) from None


_COMPARED = "every tensor has the digest that the delta gives"


def _no_stamp(_source: Source, _work: WritePlan) -> None:
    return None


def _find_goal(
    found: Location, deltas: Sequence[Location], target: Path, format: str | None
) -> Location:
    """The location of the result: it may be the base's, and not a delta's."""
    goal = find_target(target, format, otherwise=found.format.name)
    for each in deltas:
        if is_same(each, goal):
            raise ArgumentError(
                f"{each.path} is both a delta and the target.", "Choose another target."
            )
    if is_inside(goal, found):
        raise ArgumentError(
            f"{goal.path} is a folder of the base {found.path}.", "Choose another target."
        )
    return goal


def _stamp(
    found: Location,
    reader: Reader,
    given: Sequence[Location],
    deltas: Sequence[Delta],
    source: Source,
    work: WritePlan,
) -> str | None:
    """Return a digest of the base and the deltas as they are now, and of the plan."""
    base = digest_of_reshard([found], reader, source, work)
    if base is None:
        return None
    digest = hashlib.sha256(base.encode())
    for there, each in zip(given, deltas, strict=True):
        # A native index has the checksums of all that the delta has.
        names = {*there.storage.names()}
        index = next(name for name in names_of_target(there.stem, "shardvar") if name in names)
        file = open_below(there.storage, index)
        try:
            digest.update(f"{index} {file.stamp} {each.contents.result}".encode())
        finally:
            file.close()
    return digest.hexdigest()[:16]


def _carry(
    patched: PatchedSource, work: WritePlan, *_: object, is_dry: bool
) -> tuple[WritePlan, str]:
    """Give the result of a base that carries digests the ones that the delta says, which are
    compared before the commit."""
    form = work.target.format
    if not form.capabilities.holds_digests or work.substitutes is not None:
        return work, f"The digests of the base are left out: {form.name} cannot carry them."
    found = {each.change.key: str(each.change.result) for each in patched.parts}
    said = "" if is_dry else f"It carries the digests of {count(len(found), 'tensor')}."
    return replace(work, metadata=replace(work.metadata, digests=found)), said


def _move(
    work: WritePlan,
    source: Source,
    generation: str | None,
    *,
    patched: PatchedSource,
    progress: Progress,
) -> WriteReport:
    """Write the files, compare the digests of all tensors, and commit."""
    runner = checked(source, progress, patched.finish)
    return carry_out(work, source, generation, progress, runner)

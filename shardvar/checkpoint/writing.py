"""From slices at hand to a committed checkpoint: the second half of ``save`` and of ``reshard``.

check    the format can hold the slices, the policy's answer is whole, nothing is replaced unasked, the disk has room
plan     which region of which source fills which slice of which file
move     one task a file
commit   the index last
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from shardvar.checkpoint.locate import Found, is_there
from shardvar.checkpoint.reports import WriteReport
from shardvar.engine.evidence import BLOCK_NBYTES
from shardvar.engine.pool import WORKERS
from shardvar.engine.write import file_tasks, write_checkpoint
from shardvar.errors import ArgumentError, PolicyError, StorageError, TargetExists
from shardvar.formats.protocol import Source
from shardvar.planning.capabilities import check_holds, join_whole
from shardvar.planning.cut import Cut, cut_slices
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.plan import Assignment, Plan, plan_copies
from shardvar.planning.policies import AllInOnePolicy, TablePolicy, file_nbytes
from shardvar.planning.slices import SliceTable

Partitions = Cut | dict[str, Cut] | None
Progress = Callable[[int], object]

PEAK_NBYTES = 4 * WORKERS * BLOCK_NBYTES
"""Each worker holds its block and at most three spans of that size while it gathers one."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A write that is decided and not yet begun."""

    target: Found
    """Where it goes."""
    entries: EntryTable
    """The sources."""
    assignment: Assignment
    """Which slice goes to which file."""
    plan: Plan
    """What fills the slices."""
    metadata: Metadata
    """What the checkpoint is to say about itself."""
    may_replace: bool
    """Whether an existing checkpoint may be replaced."""


def draft(
    target: Found,
    entries: EntryTable,
    *,
    policy: TablePolicy | None,
    partition: Partitions,
    metadata: Metadata,
    force: bool,
    replace_atomically: bool = False,
) -> Draft:
    """Decide everything about a write from metadata alone; nothing is touched.

    An existing checkpoint may be replaced with ``force``; with ``replace_atomically`` also where that is one step.
    """
    capabilities = target.format.capabilities
    check_holds(entries.slices, capabilities, target.format.name)
    if partition is not None and not capabilities.slice_dtypes:
        raise ArgumentError(
            f"The format {target.format.name} holds no slices, so its tensors cannot be cut.",
            "Leave the partition out; every tensor is written whole.",
        )
    slices = join_whole(cut_slices(entries.slices, partition), capabilities)
    policy = policy or AllInOnePolicy()
    assignment = policy.assign(slices, capabilities)
    if assignment.num_files > 1 and not capabilities.many_files:
        raise ArgumentError(
            f"The format {target.format.name} has one file, not {assignment.num_files}.", "Leave the file limit out."
        )
    _check_keeps(slices, assignment)
    metadata = replace(metadata, description=assignment.description)
    atomic = capabilities.atomic_overwrite or assignment.num_files <= 1
    plan = plan_copies(entries.slices, assignment.slices)
    return Draft(target, entries, assignment, plan, metadata, force or (replace_atomically and atomic))


def carry_out(work: Draft, source: Source, generation: str | None, progress: Progress) -> WriteReport:
    """Write and commit. A ``generation`` that says what is written lets a second run go on where a first was killed."""
    target = work.target
    target.storage.make()
    free = target.storage.free_nbytes()
    with target.storage.lock(target.name):
        check_may_write(work)
        total = int(work.assignment.slices.nbytes.sum())
        if total > free:
            raise StorageError(
                f"{target.path} needs {total} bytes and {target.storage.path} has {free} free.", "Make room first."
            )
        token = generation or secrets.token_hex(8)
        sink = target.format.create(target.storage, target.name, work.assignment, work.metadata, token)
        tasks = file_tasks(work.plan, work.entries, work.assignment, sink, target.storage, token)
        written = write_checkpoint(tasks, source, sink, resume=generation is not None, progress=progress)
    return replace(report_of(work, free), reused_files=written.reused, dry_run=False)


def check_may_write(work: Draft) -> None:
    """Raise ``TargetExists`` where a checkpoint would be replaced and may not be."""
    if is_there(work.target) and not work.may_replace:
        atomic = work.target.format.capabilities.atomic_overwrite or work.assignment.num_files <= 1
        manner = "" if atomic else ", which this format cannot do in one step: a crash in between leaves a mixture"
        raise TargetExists(f"{work.target.path} exists.", f"Choose another name, or force its replacement{manner}.")


def report_of(work: Draft, free_nbytes: int) -> WriteReport:
    """What a write would do."""
    slices = work.assignment.slices
    return WriteReport(
        path=work.target.path,
        format=work.target.format.name,
        description=work.assignment.description,
        num_tensors=len(set(slices.tensor.tolist())),
        num_slices=len(slices),
        nbytes=int(slices.nbytes.sum()),
        file_nbytes=tuple(file_nbytes(work.assignment).tolist()),
        num_copies=len(work.plan.copies),
        read_nbytes=int(slices.nbytes.sum()),
        peak_nbytes=PEAK_NBYTES,
        free_nbytes=free_nbytes,
        dry_run=True,
    )


def _check_keeps(slices: SliceTable, assignment: Assignment) -> None:
    """RFC 001, Restrictions: "Tensors must not be removed from the checkpoint." """
    answered = assignment.slices
    lost = sorted(set(slices.tensor.tolist()) - set(answered.tensor.tolist()))
    if lost or int(answered.nbytes.sum()) != int(slices.nbytes.sum()):
        keys = ", ".join(repr(slices.tensors.keys[tensor]) for tensor in lost[:8])
        raise PolicyError(
            f"The policy {assignment.description!r} lost elements of {keys or 'some tensors'}.",
            "A policy answers with every element that it was given.",
        )

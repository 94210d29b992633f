"""From slices at hand to a committed checkpoint: the second half of ``save`` and of ``reshard``.

check    the format can hold the slices, the policy's answer is whole, nothing is replaced unasked, the disk has room
plan     which region of which source fills which slice of which file
move     one task a file
commit   the index last
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, cast

from shardvar.checkpoint.callbacks.call import ask_callback, overlay, overlay_entries
from shardvar.checkpoint.callbacks.slice_source import SliceSource
from shardvar.checkpoint.locate import Found, standing_in_another_format
from shardvar.checkpoint.reports import WriteReport
from shardvar.engine.arrays import ArraySource
from shardvar.engine.files import FileTask
from shardvar.engine.pool import BLOCK_NBYTES, WORKERS
from shardvar.engine.write import JOURNAL, file_tasks, write_checkpoint
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    MissingFile,
    StorageError,
    TargetExists,
)
from shardvar.formats.protocol import Source
from shardvar.formats.table import names_of_target, stem_of_name
from shardvar.layout.cutting import Cut
from shardvar.planning.capabilities import check_holds, join_whole
from shardvar.planning.cut import cut_slices
from shardvar.planning.decision import Decision, decide
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.plan import Assignment, Plan
from shardvar.planning.policies import Policy, ShardByTaskPolicy, TablePolicy
from shardvar.planning.slices import SliceTable

_LOG = logging.getLogger("shardvar.checkpoint")
_NONE: Mapping[str, Any] = MappingProxyType({})

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
    """The sources; those of values that the policy changed after the others."""
    metadata: Metadata
    """What the checkpoint is to say about itself."""
    force: bool
    """Whether whatever stands there may be replaced."""
    replace_atomically: bool
    """Whether a checkpoint of the same format may be replaced where that is one step."""
    decision: Decision
    """What the policy decided, and the plan that fills its slices."""
    substitutes: ArraySource | None = None
    """The values that the policy changed."""

    @property
    def plan(self) -> Plan:
        """The copies that fill the slices."""
        return self.decision.plan

    @property
    def assignment(self) -> Assignment:
        """Which slice goes to which file."""
        return self.decision.assignment

    @property
    def may_resume(self) -> bool:
        """Whether the plan says all that is written; values that a policy changed are not in it."""
        return self.substitutes is None


def draft(
    target: Found,
    entries: EntryTable,
    *,
    policy: Policy | None,
    partition: Partitions,
    metadata: Metadata,
    force: bool,
    replace_atomically: bool = False,
    source: Source | None = None,
    trackables: Mapping[str, Any] = _NONE,
) -> Draft:
    """Decide everything about a write; nothing is touched, and nothing read but what the policy reads of ``source``.

    An existing checkpoint may be replaced with ``force``; with ``replace_atomically`` also where that is one step.
    ``trackables`` are the objects that keys are saved for, which policies are told. R-POLICY-10 (RFC 001), on the files
    of tasks: "Leaving it as the default sharding policy seems reasonable".
    """
    capabilities = target.format.capabilities
    check_holds(entries.slices, capabilities, target.format.name)
    if partition is not None and not capabilities.slice_dtypes:
        raise ArgumentError(
            f"The format {target.format.name} holds no slices, so its tensors cannot be cut.",
            "Leave the partition out; every tensor is written whole.",
        )
    slices = join_whole(cut_slices(entries.slices, partition), capabilities)
    decision, substitutes = _decide(policy or ShardByTaskPolicy(), slices, target, entries, source, trackables)
    assignment = decision.assignment
    if assignment.num_files > 1 and not capabilities.many_files:
        raise ArgumentError(
            f"The format {target.format.name} has one file, not {assignment.num_files}.", "Leave the file limit out."
        )
    # R-POLICY-6 (RFC 001): "The `description` is saved alongside the tensor data in the checkpoint".
    metadata = replace(metadata, description=assignment.description)
    if substitutes is not None:
        entries = overlay_entries(entries, substitutes)
    return Draft(target, entries, metadata, force, replace_atomically, decision, substitutes)


def _decide(
    policy: Policy,
    slices: SliceTable,
    target: Found,
    entries: EntryTable,
    source: Source | None,
    trackables: Mapping[str, Any],
) -> tuple[Decision, ArraySource | None]:
    """Ask the policy in the way in which it answers: the decision, and the values that a callback changed."""
    capabilities = target.format.capabilities
    if hasattr(policy, "assign"):
        return decide(cast("TablePolicy", policy), slices, capabilities, entries.slices, perf_counter), None
    return ask_callback(policy, capabilities, SliceSource(slices, entries, source, trackables))


def carry_out(work: Draft, source: Source, generation: str | None, progress: Progress) -> WriteReport:
    """Write and commit. A ``generation`` that says what is written lets a second run go on where a first was killed."""
    target = work.target
    for each in work.decision.exceeding:
        _LOG.warning("%s: %s", target.path, each)
    if work.substitutes is not None:
        source = overlay(source, work.entries, work.substitutes)
    target.storage.make()
    free = target.storage.free_nbytes()
    with target.storage.lock(target.stem):
        check_may_write(work)
        token = generation or secrets.token_hex(8)
        sink = target.format.create(target.storage, target.name, work.assignment, work.metadata, token)
        tasks = file_tasks(work.plan, work.entries, work.assignment, sink, target.storage, token)
        _check_room(target, tasks, free)
        written = write_checkpoint(tasks, source, sink, resume=generation is not None, progress=progress)
    return replace(report_of(work, free), reused_files=written.reused, dry_run=False)


def _check_room(target: Found, tasks: list[FileTask], free: int) -> None:
    """Raise ``StorageError`` before anything is written that the disk has no room for; finished files have theirs."""
    finished = {name.removesuffix(JOURNAL) for name in target.storage.names() if name.endswith(JOURNAL)}
    needed = sum(int(task.plan.targets.nbytes.sum()) for task in tasks if task.name not in finished)
    if needed > free:
        raise StorageError(
            f"{target.path} needs {needed} bytes and {target.storage.path} has {free} free.", "Make room first."
        )


def check_may_write(work: Draft) -> None:
    """Raise ``TargetExists`` where a checkpoint would be replaced and may not be."""
    target = work.target
    other = standing_in_another_format(target)
    if other is not None and not work.force:
        raise TargetExists(
            f"{other.path} exists in the format {other.format.name}; one more under that name would be ambiguous.",
            "Choose another name, or force it to stand beside.",
        )
    there = target.format.locate(target.storage, target.name)
    for name in there:
        if stem_of_name(name, target.format.name) != target.stem:
            raise TargetExists(f"{target.path} is a file of the checkpoint {name}.", "Choose another name.")
    if there and not work.force and not _is_unfinished(target, there):
        atomic = _is_replaced_at_once(work, there)
        if atomic and work.replace_atomically:
            return
        manner = "" if atomic else ", which this format cannot do in one step: a crash in between leaves a mixture"
        raise TargetExists(f"{target.path} exists.", f"Choose another name, or force its replacement{manner}.")


def _is_replaced_at_once(work: Draft, there: list[str]) -> bool:
    """Whether what stands there makes place in one step: in most formats always, in the others one file for another."""
    target = work.target
    named = names_of_target(target.stem, target.format.name)[1:]
    file = min(named, key=len, default=target.name)  # the longer ending is that of a set's index
    others = set(there).intersection(target.storage.names()) - {file}  # a set may be there that has lost its index
    return target.format.capabilities.atomic_overwrite or (work.assignment.num_files <= 1 and not others)


def _is_unfinished(target: Found, there: list[str]) -> bool:
    """Whether what is there is no checkpoint, but what a writer left that was killed while it put files in place.

    Data files without an index alone might be somebody's last hope. With the journal of an unfinished write beside
    them they are its own: it had looked, as is looked here, that there was nothing to replace.
    """
    journals = (name for name in target.storage.names() if name.endswith(JOURNAL))
    if not any(name.startswith(target.stem) for name in journals):
        return False
    try:
        target.format.open(target.storage, there[0]).close()
    except MissingFile:
        return True
    except CheckpointError:
        pass  # damaged, and there
    return False


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
        file_nbytes=tuple(work.assignment.nbytes_of_files().tolist()),
        num_copies=len(work.plan.copies),
        read_nbytes=int(slices.nbytes.sum()),
        peak_nbytes=PEAK_NBYTES,
        free_nbytes=free_nbytes,
        callback_seconds=work.decision.seconds,
        num_empty_files=work.decision.num_empty,
        exceeding=work.decision.exceeding,
        dry_run=True,
    )

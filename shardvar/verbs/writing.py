"""Writing: turn slices into a committed checkpoint, the second half of ``save`` and of ``reshard``.

    slices --plan_checkpoint--> WritePlan --carry_out--> files aside --commit--> checkpoint

``plan_checkpoint`` decides everything and touches nothing: the cut, the policy's answer, and which
region of which source fills which slice of which file. ``carry_out`` checks that no checkpoint is
replaced unasked and that the disk has room, lets the engine write one task a file, and commits, the
index last.
"""

import os
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from itertools import chain, count
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from shardvar.engine.arrays import ArraySource, lower
from shardvar.engine.files import (
    JOURNAL,
    NOWHERE,
    FileRunner,
    file_tasks,
    rehearse_each,
    write_checkpoint,
)
from shardvar.engine.pool import BLOCK_NBYTES, BUFFERS_NBYTES, PEAK_BLOCKS, WORKERS, Progress
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    MissingFile,
    StorageError,
    TargetExists,
    log_warning,
)
from shardvar.formats.deferred import ADDRESSES, placed
from shardvar.formats.files import State, add_state
from shardvar.formats.protocol import Format, Sink, Source
from shardvar.formats.sinks import SetSink, SideFile
from shardvar.formats.table import names_of_target, stem_of_name
from shardvar.formats.unfinished import name_unfinished, remedy_of_leftovers, unfinished_files
from shardvar.layout.partition import Cut
from shardvar.pictures.words import human_size
from shardvar.planning.decision import Decision, cut_slices, decide, is_cut_by
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.plan import Plan
from shardvar.planning.policies import Policy, SeparatePolicy, ShardByTaskPolicy, TablePolicy
from shardvar.planning.slices import Assignment, SliceTable, are_grids, check_holds, join_whole
from shardvar.records import entity, replace
from shardvar.storage.concurrency import retries
from shardvar.storage.local import LocalStorage, UnforcedDirectory
from shardvar.storage.protocol import Storage
from shardvar.verbs.arguments import check_globs
from shardvar.verbs.callbacks import SliceSource, ask_callback, overlay, overlay_entries
from shardvar.verbs.locate import Location, find_in_other_formats
from shardvar.verbs.reports import WriteReport

_NO_OBJECTS: Mapping[str, Any] = MappingProxyType({})

Partitions = Cut | dict[str, Cut] | None

PEAK_NBYTES = min(PEAK_BLOCKS * WORKERS * BLOCK_NBYTES, BUFFERS_NBYTES)
"""The most that the workers hold together: 64 MiB on two cores, 192 MiB on six and more."""


@entity
class WritePlan:
    target: Location
    entries: EntryTable
    """The sources; values that the policy changed come after the others."""
    source: Source
    """The source of the entries, without what the policy changed."""
    metadata: Metadata
    """The description and the user's metadata, which are stored with the tensors."""
    force: bool
    """True to replace any checkpoint at the target."""
    replace_atomically: bool
    """True to replace a checkpoint of the same format where that is one step."""
    decision: Decision
    substitutes: ArraySource | None = None
    side_files: Sequence[SideFile] = ()
    """The files that are put in place with a set of files."""

    @property
    def plan(self) -> Plan:
        return self.decision.plan

    @property
    def assignment(self) -> Assignment:
        return self.decision.assignment

    @property
    def takes_whole(self) -> bool:
        """True if every payload is written whole, as one range of bytes."""
        moves, is_range = lower(self.plan)
        sizes = self.entries.slices.nbytes[moves.source]
        return bool(is_range.all() and (moves.nbytes == sizes).all())


def plan_checkpoint(
    target: Location,
    entries: EntryTable,
    *,
    policy: Policy | None,
    partition: Partitions,
    metadata: Metadata,
    force: bool,
    replace_atomically: bool = False,
    source: Source,
    trackables: Mapping[str, Any] = _NO_OBJECTS,
) -> WritePlan:
    """Decide everything about a write, and touch nothing; only the policy may read ``source``.

    ``trackables`` are the objects that keys are saved for, for policies to look at. R-POLICY-10
    (RFC 001), on the files of tasks: "Leaving it as the default sharding policy seems reasonable".
    """
    # Plan: slices, then the file of each, then the copies that fill them.
    if isinstance(partition, Mapping):
        check_globs(partition, "globs to cuts")
    capabilities = target.format.capabilities
    slices = _slices(entries.slices, partition, target.format)
    policy = policy or (SeparatePolicy() if capabilities.is_separate else ShardByTaskPolicy())
    if capabilities.is_separate and not isinstance(policy, SeparatePolicy):
        cause = (
            f"In the format {target.format.name} each slice is a file, so that no policy chooses "
            "files."
        )
        raise ArgumentError(cause, "Leave policy= (--files, --max-file-size, --files-by) out.")
    substitutes: ArraySource | None = None
    if hasattr(policy, "assign"):
        decision = decide(
            cast("TablePolicy", policy), slices, capabilities, entries.slices, perf_counter
        )
    else:
        decision, substitutes = ask_callback(
            policy, capabilities, SliceSource(slices, entries, source, trackables)
        )
    assignment = decision.assignment
    if assignment.num_files > 1 and not capabilities.many_files:
        raise ArgumentError(
            f"The format {target.format.name} has one file, not {assignment.num_files}.",
            "Leave the file limit out.",
        )
    # R-POLICY-6 (RFC 001): "The `description` is saved alongside the tensor data in the
    # checkpoint".
    metadata = replace(metadata, description=assignment.description)
    if substitutes is not None:
        entries = overlay_entries(entries, substitutes)
    about = metadata, force, replace_atomically
    work = WritePlan(target, entries, source, *about, decision, substitutes)
    if (entries.start < ADDRESSES).all() or work.takes_whole:
        return work
    return replace(work, entries=placed(source.index, entries))


def _slices(stored: SliceTable, partition: Partitions, form: Format) -> SliceTable:
    """The slices to write: cut by the partition, joined if the format cannot store slices."""
    check_holds(stored, form.capabilities, form.name)
    if partition is not None and not form.capabilities.slice_dtypes:
        raise ArgumentError(
            f"{form.name} cannot store slices, so its tensors cannot be cut.",
            "Leave partition= (--shards) out: each tensor is written whole. Or choose another "
            "format: shardvar.",
        )
    cut = cut_slices(stored, partition)
    if partition is not None and form.capabilities.is_grid:
        # Raise ``ArgumentError`` if a tensor that the partition cuts has unequal parts.
        odd = np.flatnonzero(~are_grids(cut) & is_cut_by(cut.tensors.keys, partition))
        if len(odd):
            key, shape = cut.tensors.keys[int(odd[0])], cut.tensors.shape(int(odd[0]))
            cause = (
                f"The format {form.name} has slices of one shape, and the partition cuts {key!r} of "
                f"{list(shape)} unequally."
            )
            sizes = "of 13 rows: sv.PartitionSpec(splits=[[3, 3, 3, 3, 1]])"
            raise ArgumentError(
                cause,
                f"Choose counts that divide it. The last part on the first axis may be short, {sizes}.",
            )
    return join_whole(cut, form.capabilities)


def carry_out(
    work: WritePlan,
    generation: str | None = None,
    progress: Progress = lambda _nbytes: None,
    runner: FileRunner | None = None,
) -> WriteReport:
    """A ``generation`` lets a second run go on where a first was killed."""
    target, source = work.target, work.source
    for each in work.decision.exceeding:
        log_warning(f"{target.path}: {each}", extra={"is_in_report": True})
    if work.substitutes is not None:
        source = overlay(source, work.entries, work.substitutes)
    check_new_folder(work, generation)
    retries_before = [*retries]
    is_new = is_new_folder(target.storage)
    target.storage.make()
    free = target.storage.free_nbytes()
    try:
        # The lock comes first: until it is held, another writer may put a checkpoint here between the
        # check and the commit.
        with target.storage.lock(target.stem):
            sink, token = _prepare(work, generation, free)  # check, and plan
            storage = target.storage
            # A journal means that its file is on the disk.
            if generation is None and sink.forces_files and isinstance(storage, LocalStorage):
                storage = UnforcedDirectory(storage.path)
            tasks = file_tasks(work.plan, work.entries, work.assignment, sink, storage, token)
            resume = generation is not None  # move, and commit
            try:
                with sink.holding():
                    summary = write_checkpoint(
                        tasks, source, sink, resume=resume, progress=progress, runner=runner
                    )
            except StorageError as error:
                add_state(error, State.OLD)  # unless the commit has told the state
                raise
            _warn_of_leftovers(target)
    except Exception:
        if is_new and target.storage.local_path is not None:
            with suppress(OSError):  # of a folder with other files
                os.rmdir(target.storage.local_path)
        raise
    again, seconds = (now - before for now, before in zip(retries, retries_before, strict=True))
    return replace(
        report_of(work, free),
        reused_files=summary.reused,
        num_retries=int(again),
        retry_seconds=seconds,
        dry_run=False,
    )


def _warn_of_leftovers(target: Location) -> None:
    """Warn of files of an earlier write that this commit does not remove. The new checkpoint is in
    place, so nothing is raised."""
    left: list[str] = []
    with suppress(StorageError):
        left = unfinished_files(target.storage.names(), "" if target.is_folder else target.stem)
        if left:
            from shardvar.formats.native.source import without_needed  # seldom

            left = without_needed(target.storage, left)
    if left:
        cause = (
            f"{target.path}: an earlier write was not finished, and has left "
            f"{name_unfinished(left)}."
        )
        log_warning(f"{cause} {remedy_of_leftovers(target.storage.path, left)}")


def check_new_folder(work: WritePlan, generation: str | None = None) -> None:
    """Raise what the write would raise, before its folder is made: an error leaves none."""
    if is_new_folder(work.target.storage):
        _prepare(work, generation, work.target.storage.free_nbytes())


def is_new_folder(storage: Storage) -> bool:
    return storage.local_path is not None and not os.path.isdir(storage.local_path)


def preview(work: WritePlan, generation: str | None) -> WriteReport:
    """In a rehearsal, the write is rehearsed where a bucket has a part in it."""
    target = work.target
    target.storage.check_writable(target.stem)
    free = target.storage.free_nbytes()
    sink, _ = _prepare(work, generation, free)
    # Checksums are known only once the bytes are.
    assigned = work.assignment
    planned = EntryTable.without_checksums(assigned.slices, sink.start, assigned.file)
    rehearse(lambda: _rehearse_write(work, generation, sink))
    return replace(report_of(work, free), planned=planned)


def rehearse(step: Callable[[], object]) -> None:
    """Make a step of a write for the requests that it makes; does nothing without a rehearsal."""
    from shardvar.storage.rehearsal import current_rehearsal  # only of a dry run

    rehearsal = current_rehearsal()
    if rehearsal and rehearsal.asked[0]:
        rehearsal.is_on = True
        try:
            step()
        except READ_ERRORS:  # zeros cannot be decoded
            rehearsal.asked[1].append("decode")
        finally:
            rehearsal.is_on = False


def _rehearse_write(work: WritePlan, generation: str | None, sink: Sink) -> None:
    source, changed = work.source, work.substitutes
    read = source if changed is None else overlay(source, work.entries, changed)
    runner = partial(rehearse_each, source=read)
    if work.target.storage.traits is not None:
        carry_out(work, generation, runner=runner)
        return
    tasks = file_tasks(work.plan, work.entries, work.assignment, sink, NOWHERE, "")
    for each in (runner(tasks), *(each.read() for each in work.side_files)):
        deque[object](each, maxlen=0)


Verb = TypeVar("Verb", bound=Callable[..., Any])


def tells_requests(verb: Verb) -> Verb:
    """Make a verb report the requests of a write that it would make."""

    @wraps(verb)
    def call(*given: Any, **options: Any) -> Any:
        if not options.get("dry_run"):
            return verb(*given, **options)
        from shardvar.storage.rehearsal import rehearsing

        with rehearsing() as rehearsal:
            report = verb(*given, **options)
        return replace(report, requests=dict(Counter(chain(*rehearsal.asked))))

    return cast(Verb, call)


def _prepare(work: WritePlan, generation: str | None, free: int) -> tuple[Sink, str]:
    target, storage = work.target, work.target.storage
    check_may_write(work)
    # Without a generation, the token is random, and no file of an earlier run has it.
    token = generation or secrets.token_hex(8)
    sink = target.format.create(storage, target.name, work.assignment, work.metadata, token)
    if work.side_files and isinstance(sink, SetSink):
        # They are called like more data files, which the next commit removes.
        first, ending = len(sink.asides) + 1, names_of_target("", target.format.name)[1]
        names = (f"{target.stem}-{number:05}{ending}.{token}.tmp" for number in count(first))
        sink = replace(sink, side_files=[*zip(names, work.side_files, strict=False)])
    # The index has the format's ending; the longer of two belongs to a set's index.
    indexes = [] if target.is_folder else names_of_target(target.stem, target.format.name)[1:]
    last = (max if work.assignment.num_files > 1 else min)(indexes, key=len, default=target.name)
    index = [] if target.name in target.format.capabilities.folders else [last]
    storage.check_names([*index, *(name + JOURNAL for name in sink.asides)])
    # Room: finished files of an earlier run have theirs.
    nbytes = dict(zip(sink.asides, work.assignment.nbytes_of_files().tolist(), strict=True))
    for name in storage.names() if generation else ():
        if name.endswith(JOURNAL):
            nbytes.pop(name.removesuffix(JOURNAL), None)
    check_room(target, sum(nbytes.values()), free)
    return sink, token


SliceName = tuple[Any, ...]
"""The key, dtype, full shape and region of a slice."""


def slice_names(slices: SliceTable) -> list[SliceName]:
    every = map(slices.__getitem__, range(len(slices)))
    return [(each.key, each.dtype, each.full_shape, each.region) for each in every]


def check_room(target: Location, needed: int, free: int | None = None) -> None:
    """Raise ``StorageError`` unless a disk has room for ``needed`` bytes; ``free`` are known."""
    # The index and the frames around the payloads take some bytes more, so a full disk has no room
    # for nothing either. Before an upload, only the files that are not finished need room.
    storage = target.storage
    free = storage.free_nbytes() if free is None else free
    if storage.local_path is not None and (needed > free or not free):
        raise StorageError(
            f"{target.path} needs {human_size(needed)}, and {storage.path} has "
            f"{human_size(free)} free.",
            f"Free {human_size(max(needed - free, 1))} there.",
        )


def check_may_write(work: WritePlan) -> None:
    target = work.target
    other = find_in_other_formats(target)
    if other is not None and not work.force:
        raise TargetExists(
            f"{other.path} exists in the format {other.format.name}; one more under that name "
            "or in its folder would be ambiguous.",
            "Choose another name, or pass force=True (--force) to write next to it.",
        )
    # Any part of a checkpoint in a folder is a reason not to write: its index may be lost.
    # A set takes the place of the one file of its name, and asks as that does.
    one = target.name.removesuffix(".index.json")
    there = target.format.locate(target.storage, "" if target.is_folder else one)
    for name in there:
        if stem_of_name(name, target.format.name) != target.stem:
            raise TargetExists(
                f"{target.path} is a file of the checkpoint {name}.", "Choose another name."
            )
    if there and not work.force and not _is_unfinished(target, there):
        how = ""
        if _is_replaced_at_once(work, there):
            if work.replace_atomically:
                return
        elif not target.format.capabilities.is_grid:
            how = ": a crash in between leaves both of them, whole"
        elif target.storage.local_path is None:
            how = (
                ", which this format cannot do in one step in a bucket: the old one is removed first, "
                "and a crash or an error from then on leaves no checkpoint"
            )
        remedy = f"Choose another name, or pass force=True (--force) to replace it{how}."
        either = "" if one == target.name else ", as one file or as a set"
        raise TargetExists(f"{target.path.removesuffix('.index.json')} exists{either}.", remedy)
    if not work.force:
        check_free(work.side_files, target.storage)


def check_free(files: Sequence[SideFile], storage: Storage) -> None:
    for each in files:
        if each.is_at(storage) is False:
            cause = f"{os.path.join(storage.path, each.path)} exists, and is another file than the source's."
            raise TargetExists(cause, "Choose another folder, or pass force=True (--force).")


def _is_replaced_at_once(work: WritePlan, there: list[str]) -> bool:
    """In most formats always, else one file by another, or one set by another."""
    target, capabilities = work.target, work.target.format.capabilities
    if capabilities.atomic_overwrite or capabilities.is_grid:
        return capabilities.atomic_overwrite
    # The longer ending belongs to a set's index.
    endings = names_of_target(target.stem, target.format.name)[1:]
    kept = (min if work.assignment.num_files <= 1 else max)(endings, key=len, default=target.name)
    names = set(target.storage.names())
    if kept in there and kept not in names:
        return False  # a set that has lost its index: its files may be somebody's last
    return not names.intersection(there) - {kept}


def _is_unfinished(target: Location, there: list[str]) -> bool:
    """Only files of an interrupted commit are there, next to the journal of a write."""
    journals = (name for name in target.storage.names() if name.endswith(JOURNAL))
    if not any(target.is_folder or name.startswith(target.stem) for name in journals):
        return False
    try:
        target.format.open(target.storage, there[0]).close()
    except MissingFile:
        return True
    except CheckpointError:
        pass  # damaged, and there
    return False


def report_of(work: WritePlan, free_nbytes: int) -> WriteReport:
    slices = work.assignment.slices
    remote = work.source.traits, work.target.storage.traits
    in_flight_nbytes = sum(each.in_flight_nbytes for each in remote if each)
    return WriteReport(
        path=work.target.path,
        format=work.target.format.name,
        description=work.assignment.description,
        num_tensors=len(set(slices.tensor.tolist())) + len(work.metadata.ties),
        num_slices=len(slices),
        nbytes=int(slices.nbytes.sum()),
        file_nbytes=tuple(work.assignment.nbytes_of_files().tolist()),
        num_copies=len(work.plan.copies),
        read_nbytes=int(slices.nbytes.sum()),
        peak_nbytes=PEAK_NBYTES + in_flight_nbytes,
        free_nbytes=free_nbytes,
        callback_seconds=work.decision.seconds,
        num_empty_files=work.decision.num_empty,
        num_objects=len(work.metadata.objects),
        num_referred=0
        if work.metadata.references is None
        else len(work.metadata.references.entries.slices.tensors),
        exceeding=work.decision.exceeding,
        dry_run=True,
    )

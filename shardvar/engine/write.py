"""Save and reshard: the targets of a plan as files, committed whole or not at all.

    tasks --run_each--> files aside, synced --journals--> all finished --evidence--> verified
        --sink--> in place

If the process is killed, finished files and their journals stay. The same reshard, run again, finds
them under the same names, since those carry a digest of source, plan and writer, reads them once to
see that they are whole, and goes on with the rest. So a kill and an interrupt leave what a second
run can use. An error removes what this run wrote and keeps what an earlier one had finished, for a
third run: a disk that is full today has room tomorrow. Only where the source turns out to be
damaged is nothing kept, since any of the files may have the damage in it.

Tasks for other processes have no rows of the plan that their file does not need (``shrink_task``). The
task of a plan shares its columns with all others: of a reshard of 10^6 slices to 100 files, each is
285 MB when it is pickled. Its own rows are a hundredth of that. Only the numbers of the rows
change: the sources and the tensors count the rest.
"""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from operator import attrgetter

import numpy as np

from shardvar.engine.arrays import first_sources, integers_of_ranges
from shardvar.engine.evidence import Evidence, ReadTable
from shardvar.engine.files import FileReport, FileTask, read_checksums, run_each
from shardvar.engine.pool import Progress
from shardvar.errors import CheckpointError, StorageError, WorkerLost
from shardvar.formats.protocol import Sink, Source
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, RunChecksums
from shardvar.planning.plan import CopyTable, Plan
from shardvar.planning.slices import Assignment, SliceTable
from shardvar.records import frozen, replace
from shardvar.storage.concurrency import as_answered, do_all
from shardvar.storage.protocol import Storage
from shardvar.wire.strict_json import parse_json


def shrink_task(task: FileTask) -> tuple[FileTask, Ints]:
    """Return a task that writes the same bytes with only its entries, and [k] their rows."""
    copies = task.plan.copies
    # Strings without elements need no copy; the first slice of their tensor has the payload.
    opaque = np.flatnonzero(ITEMSIZES[task.plan.targets.codes()] == 0)
    bare = first_sources(task.plan, np.setdiff1d(opaque, copies.target))
    rows = np.union1d(copies.source, bare)
    source = np.searchsorted(rows, copies.source)
    entries = shrink_entries(task.entries, rows)
    plan = Plan(
        _own_tensors(task.plan.sources.take(rows)),
        _own_tensors(task.plan.targets),
        CopyTable(source, copies.target, copies.offset, copies.shape),
    )
    return replace(task, plan=plan, entries=entries), rows


def shrink_entries(entries: EntryTable, rows: Ints) -> EntryTable:
    taken = entries.take(rows)
    runs = taken.runs
    if runs is not None:
        counts = -(-taken.slices.nbytes // runs.run_nbytes)
        values = runs.values[integers_of_ranges(runs.first, runs.first + counts)]
        runs = RunChecksums(runs.run_nbytes, values, np.cumsum(counts) - counts)
    return replace(taken, slices=_own_tensors(taken.slices), runs=runs)


def restore_rows(report: FileReport, rows: Ints) -> FileReport:
    return replace(report, parts=replace(report.parts, row=rows[report.parts.row]))


def _own_tensors(slices: SliceTable) -> SliceTable:
    used, tensor = np.unique(slices.tensor, return_inverse=True)
    return replace(slices, tensors=slices.tensors.take(used), tensor=tensor)


FileRunner = Callable[[Sequence[FileTask]], Generator[tuple[FileTask, FileReport]]]
"""Runs tasks and yields each with its report once its file is finished, in any order."""


@frozen
class WriteSummary:
    num_files: int  # Data files of the checkpoint
    reused: int  # of these, files that an earlier run had finished
    nbytes: int  # Payload bytes of the checkpoint


def file_tasks(
    plan: Plan,
    entries: EntryTable,
    assignment: Assignment,
    sink: Sink,
    storage: Storage,
    generation: str,
) -> list[FileTask]:
    # Targets and copies in the order of the files, so that each file's are a range of both.
    order, bounds = assignment.by_file()
    copies = plan.bounds()
    counts = np.diff(copies)[order]
    targets, moved = (
        plan.targets.take(order),
        plan.copies.take(integers_of_ranges(copies[order], copies[order + 1])),
    )
    number_in_file = np.arange(len(order)) - bounds[assignment.file[order]]
    moved = replace(moved, target=np.repeat(number_in_file, counts))
    ends = np.append(0, np.cumsum(counts))[bounds]
    # Once, and not for each file: a sink may make all names and all starts again each time that it
    # is asked.
    asides, start = sink.asides, sink.start[order]
    tasks = []
    for number in range(assignment.num_files):
        rows = slice(int(bounds[number]), int(bounds[number + 1]))
        part = moved.take(slice(int(ends[number]), int(ends[number + 1])))
        tasks.append(
            FileTask(
                f"{generation}-{number:05d}",
                asides[number],
                storage,
                sink.writer,
                Plan(plan.sources, targets.take(rows), part),
                entries,
                start[rows],
            )
        )
    return tasks


def write_checkpoint(
    tasks: list[FileTask],
    source: Source,
    sink: Sink,
    *,
    resume: bool,
    progress: Progress = lambda _: None,
    runner: FileRunner | None = None,
) -> WriteSummary:
    """Run the tasks, verify the reads, and commit. With ``resume`` finished files are kept."""
    begun: list[FileTask] = []
    is_written = False
    try:
        # Move.
        runner = runner or (lambda todo: run_each(todo, source, progress))
        reports = _write_files(tasks, runner, resume, progress, begun)
        # Check: a payload may be in several files, a part in each; only together can the parts be
        # compared.
        parts = [report.parts for report in reports if len(report.parts)]
        if parts:
            evidence = Evidence(source, tasks[0].entries)
            for reads in parts:
                evidence.add(reads)
            evidence.check()
        # Commit: from here on, only the sink can tell which files are in place.
        is_written = True
        sink.commit([report.checksums for report in reports])
    except BaseException as error:
        if is_written:
            sink.withdraw()
            _remove(tasks, JOURNAL)
        # An interrupted write can be taken up again if its files can be found again.
        is_interrupt = isinstance(error, WorkerLost) or not isinstance(error, Exception)
        if not is_written and not (resume and (is_interrupt or sink.is_in_place())):
            # Any file may hold bytes of a damaged source, so all are removed. After other errors,
            # only this run's files are.
            spoilt = tasks if isinstance(error, CheckpointError) else begun
            _remove(spoilt, "")
            _remove(spoilt, JOURNAL)
        raise
    _remove(tasks, JOURNAL)
    return WriteSummary(
        len(tasks), len(tasks) - len(begun), sum([report.nbytes for report in reports])
    )


def _write_files(
    tasks: Sequence[FileTask],
    runner: FileRunner,
    resume: bool,
    progress: Progress,
    begun: list[FileTask],
) -> list[FileReport]:
    """Write the files; with ``resume``, keep those that agree with their journals."""
    if not tasks:
        return []
    storage = tasks[0].storage
    # Take up: files that agree with their journals are not written again.
    reports: dict[str, FileReport] = {}
    if resume:
        there = set(storage.names())
        journaled = [task for task in tasks if task.name + JOURNAL in there]
        answers = as_answered(
            lambda task: (task.name, read_journal(task)),
            journaled,
            storage.traits,
            attrgetter("nbytes"),
        )
        reports = {name: report for name, report in answers if report is not None}
    begun += [task for task in tasks if task.name not in reports]
    for kept in reports.values():
        progress(kept.nbytes)

    def finish(done: tuple[FileTask, FileReport]) -> None:
        task, report = done
        task.storage.finish(task.name)
        if resume:
            write_journal(task, report)
            task.storage.finish(task.name + JOURNAL)
        reports[task.name] = report

    # Move.
    with closing(runner(begun)) as done:
        do_all(finish, done, storage.traits, lambda pair: pair[0].nbytes)
    return [reports[task.name] for task in tasks]


# The journal next to a finished file records what a second run needs to keep the file instead of
# writing it again.
#
# It is written after its file was forced to the disk, so a whole journal means a whole file. It is
# believed as far as it can be compared: the file must still be the file that was closed then (its
# stamp) and have the checksums of the journal (it is read once). Only the journal knows which parts
# of the source were read. They are compared with the source's checksums before anything is
# committed.

JOURNAL = ".done"  # Added to the name under which a file is written: the journal of a finished file

_MAX_NBYTES, _MAX_DEPTH = 1 << 30, 8
"""No journal is read that is larger; it would take a file of some million payloads or runs."""


def write_journal(task: FileTask, report: FileReport) -> None:
    content = {
        "id": task.id,
        "stamp": _stamp(task),
        "payload": report.checksums.payload.tolist(),
        "runs": report.checksums.runs.tolist(),
        "parts": report.parts.table().tolist(),
    }
    # A crash may cut the journal short. It is not valid JSON then, and counts as absent.
    with closing(task.storage.create(task.name + JOURNAL)) as file:
        file.write(0, json.dumps(content).encode())


def read_journal(task: FileTask) -> FileReport | None:
    """The report of an earlier run that finished this task's file, or None."""
    try:
        with closing(task.storage.open(task.name + JOURNAL)) as journal:
            is_small = journal.size <= _MAX_NBYTES
            content = parse_json(journal.read(0, journal.size), _MAX_DEPTH) if is_small else {}
        # The cheap comparisons come first, so that a file that was changed since is not read.
        if content["id"] != task.id or content["stamp"] != _stamp(task):
            return None
        payload, runs = np.array(content["payload"], np.int64), np.array(content["runs"], np.uint32)
        # The parts become indices into the columns of the entries, so their numbers are checked
        # before use.
        parts = ReadTable.of(np.array(content["parts"], np.int64))
        row, start, nbytes = parts.row, parts.start, parts.nbytes
        is_sound = (row >= 0) & (row < len(task.entries)) & (start >= 0) & (nbytes >= 0)
        is_sound &= parts.checksum >= NO_CHECKSUM
        # Not start + nbytes > size, which may overflow: a journal can hold any 64-bit number.
        if not is_sound.all() or (nbytes > task.entries.slices.nbytes[row] - start).any():
            return None
        checksums = read_checksums(task)
    except (CheckpointError, StorageError, ValueError, KeyError, TypeError, OverflowError):
        # A journal that is absent, cut or foreign tells nothing: the file is written again.
        return None
    if not (np.array_equal(payload, checksums.payload) and np.array_equal(runs, checksums.runs)):
        return None
    return FileReport(checksums, parts, task.nbytes)


def _remove(tasks: Sequence[FileTask], ending: str) -> None:
    """Remove files of tasks, or their journals by their ending, as far as the disk lets."""

    def remove(task: FileTask) -> None:
        with suppress(StorageError):
            task.storage.remove(task.name + ending)

    do_all(remove, tasks, tasks[0].storage.traits if tasks else None)


def _stamp(task: FileTask) -> str:
    file = task.storage.open(task.name)
    file.close()
    return file.stamp

"""Save and reshard: a plan's targets as files, committed whole or not at all.

Check: the plan covers its targets, and the disk has room. Plan: one ``FileTask`` a file. Move: each task writes its
file aside and syncs it, and a journal beside it says so. Commit: once every file is finished and everything that was
read is verified, the sink puts them in place.

If the process is killed, finished files and their journals stay; the same reshard run again finds them under the same
names, since those carry a digest of source, plan and writer, reads them once to see that they are whole, and goes on
with the rest. A kill and an interrupt leave what a second run can use. An error takes back what this run wrote, and
leaves what an earlier one had finished, for a third run: a disk that is full today has room tomorrow. Only where the
source turns out to be damaged is nothing kept, since any of the files may have the damage in it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardvar.engine.evidence import check_evidence
from shardvar.engine.files import FileReport, FileTask, run_task
from shardvar.engine.journal import read_journal, remove_files, remove_journals, write_journal
from shardvar.errors import CheckpointError
from shardvar.formats.protocol import Sink, Source
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Assignment, Plan
from shardvar.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did."""

    num_files: int
    """Data files of the checkpoint."""
    reused: int
    """Of these, files that an earlier run had finished."""
    nbytes: int
    """Payload bytes of the checkpoint."""


def file_tasks(
    plan: Plan, entries: EntryTable, assignment: Assignment, sink: Sink, storage: Storage, generation: str
) -> list[FileTask]:
    """One task a file, each with the part of the plan that fills it."""
    order = np.argsort(assignment.file, kind="stable")
    bounds = np.searchsorted(assignment.file[order], np.arange(assignment.num_files + 1))
    copies = plan.bounds()
    tasks = []
    for number in range(assignment.num_files):
        rows = order[bounds[number] : bounds[number + 1]]
        mine = _ranges(copies[rows], copies[rows + 1])
        part = plan.copies.take(mine)
        target = np.repeat(np.arange(len(rows)), copies[rows + 1] - copies[rows])
        part = type(part)(part.source, target, part.offset, part.shape)
        tasks.append(
            FileTask(
                f"{generation}-{number:05d}",
                sink.asides[number],
                storage,
                sink.writer,
                Plan(plan.sources, plan.targets.take(rows), part),
                entries,
                sink.start[rows],
            )
        )
    return tasks


def write_checkpoint(
    tasks: list[FileTask],
    source: Source,
    sink: Sink,
    *,
    resume: bool = False,
    progress: Callable[[int], object] = lambda nbytes: None,
) -> Written:
    """Run the tasks, verify what was read, and commit. With ``resume`` finished files are kept and reused."""
    reports: list[FileReport] = []
    written: list[FileTask] = []
    try:
        for task in tasks:
            report = read_journal(task) if resume else None
            if report is None:
                written.append(task)
                report = run_task(task, source, progress)
                if resume:
                    write_journal(task, report)
            else:
                progress(report.nbytes)
            reports.append(report)
        if tasks:
            check_evidence(source, tasks[0].entries, [part for report in reports for part in report.parts])
    except BaseException as error:
        # What was interrupted can be taken up again if it can be found again.
        if isinstance(error, Exception) or not resume:
            remove_files(tasks if isinstance(error, CheckpointError) else written)
        raise
    try:
        sink.commit([report.checksums for report in reports])
    except Exception:
        remove_journals(tasks)  # and no file: which of them are in place already, only the sink can tell
        raise
    remove_journals(tasks)
    return Written(len(tasks), len(tasks) - len(written), sum(report.nbytes for report in reports))


def _ranges(first: Ints, last: Ints) -> Ints:
    """The integers of the ranges ``[first[i], last[i])``, one range after the other."""
    counts = last - first
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    return np.asarray(np.arange(total) + np.repeat(first - (stops - counts), counts))

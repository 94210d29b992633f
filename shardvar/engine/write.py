"""Save and reshard: a plan's targets as files, committed whole or not at all.

Check: the plan covers its targets, and the disk has room. Plan: one ``FileTask`` a file. Move: each task writes its
file aside and syncs it, and a journal beside it says so. Commit: once every file is finished and everything that was
read is verified, the sink puts them in place.

If the process is killed, finished files and their journals stay; the same reshard run again finds them under the same
names, since those carry a digest of source, plan and writer, reads them once to see that they are whole, and goes on
with the rest. An error, as opposed to a kill or an interrupt, leaves nothing behind.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardvar.engine.evidence import BLOCK_NBYTES, Piece, check_evidence
from shardvar.engine.files import FileReport, FileTask, run_task
from shardvar.errors import CheckpointError, StorageError
from shardvar.formats.protocol import FileChecksums, Sink, Source
from shardvar.layout.dtypes import ITEMSIZES
from shardvar.layout.region import Ints
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Assignment, Plan
from shardvar.storage.protocol import Storage

JOURNAL = ".done"
"""Added to the name under which a file is written: the journal that says that it is finished."""


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
    reused = 0
    try:
        reports = []
        for task in tasks:
            report = _finished(task) if resume else None
            if report is None:
                report = run_task(task, source, progress)
                if resume:
                    _write_journal(task, report)
            else:
                reused += 1
                progress(report.nbytes)
            reports.append(report)
        if tasks:
            check_evidence(source, tasks[0].entries, [part for report in reports for part in report.parts])
        sink.commit([report.checksums for report in reports])
    except Exception:
        for task in tasks:
            task.storage.remove(task.name)
            task.storage.remove(task.name + JOURNAL)
        raise
    for task in tasks if resume else ():
        task.storage.remove(task.name + JOURNAL)
    return Written(len(tasks), reused, sum(report.nbytes for report in reports))


def _ranges(first: Ints, last: Ints) -> Ints:
    """The integers of the ranges ``[first[i], last[i])``, one range after the other."""
    counts = last - first
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    return np.asarray(np.arange(total) + np.repeat(first - (stops - counts), counts))


def _write_journal(task: FileTask, report: FileReport) -> None:
    content = {
        "id": task.id,
        "payload": report.checksums.payload.tolist(),
        "runs": report.checksums.runs.tolist(),
        "parts": report.parts,
        "nbytes": report.nbytes,
    }
    file = task.storage.create(task.name + JOURNAL)
    try:
        file.write(0, json.dumps(content).encode())
    finally:
        file.close()


def _finished(task: FileTask) -> FileReport | None:
    """The report of an earlier run that finished this task's file, or None where there is none to trust."""
    try:
        journal = task.storage.open(task.name + JOURNAL)
        try:
            content = json.loads(journal.read(0, journal.size))
        finally:
            journal.close()
        parts: list[Piece] = [(a, b, c, d) for a, b, c, d in content["parts"]]
        payload = np.array(content["payload"], dtype=np.int64)
        checksums = FileChecksums(payload, np.array(content["runs"], dtype=np.uint32))
        report = FileReport(checksums, parts, int(content["nbytes"]))
        return report if content["id"] == task.id and _is_whole(task, report) else None
    except (CheckpointError, StorageError, ValueError, KeyError, TypeError):
        # A journal that is absent, cut or foreign is no journal: the file is written again.
        return None


def _is_whole(task: FileTask, report: FileReport) -> bool:
    """Whether every payload in the finished file has the checksum that the journal gives."""
    crc = task.writer.crc
    targets = task.plan.targets
    if len(report.checksums.payload) != len(targets):
        return False
    file = task.storage.open(task.name)
    try:
        for row, (start, nbytes) in enumerate(zip(task.start.tolist(), targets.nbytes.tolist(), strict=True)):
            found = 0
            for at in range(start, start + nbytes, BLOCK_NBYTES):
                block = file.read(at, min(BLOCK_NBYTES, start + nbytes - at))
                found = crc.compute(block, found) if crc is not None else 0
                if not ITEMSIZES[targets.codes()[row]] and not task.writer.run_nbytes and crc is not None:
                    found = task.writer.checksum_whole(
                        targets.dtype(row), targets.region(row).size, memoryview(file.read(start, nbytes))
                    )
                    break
            if crc is not None and found != report.checksums.payload[row]:
                return False
    finally:
        file.close()
    return True

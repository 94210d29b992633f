"""Tasks for other processes: a file's task without the rows of the plan that the file does not
need.

The task of a plan shares its columns with all others: of a reshard of 10^6 slices to 100 files,
each is 285 MB when it is pickled. Its own rows are a hundredth of that. Only the numbers of the
rows change: the sources and the tensors count what is left.
"""

from dataclasses import replace

import numpy as np

from shardvar.engine.files import FileReport, FileTask
from shardvar.engine.moves import first_sources, integers_of_ranges
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.index import EntryTable, RunChecksums
from shardvar.planning.plan import CopyTable, Plan
from shardvar.planning.slices import SliceTable


def shrink_task(task: FileTask) -> tuple[FileTask, Ints]:
    """Return the task with only the entries that it reads, and [k] the rows that these have in the
    given task.

    Law: both write the same bytes and have the same checksums.
    """
    copies = task.plan.copies
    rows = np.union1d(copies.source, _sources_without_copies(task.plan))
    source = np.searchsorted(rows, copies.source)
    entries = shrink_entries(task.entries, rows)
    plan = Plan(
        _own_tensors(task.plan.sources.take(rows)),
        _own_tensors(task.plan.targets),
        CopyTable(source, copies.target, copies.offset, copies.shape),
    )
    return replace(task, plan=plan, entries=entries), rows


def shrink_entries(entries: EntryTable, rows: Ints) -> EntryTable:
    """Return some of the entries, in order, with only their tensors and checksums of runs."""
    taken = entries.take(rows)
    runs = taken.runs
    if runs is not None:
        counts = -(-taken.slices.nbytes // runs.run_nbytes)
        values = runs.values[integers_of_ranges(runs.first, runs.first + counts)]
        runs = RunChecksums(runs.run_nbytes, values, np.cumsum(counts) - counts)
    return replace(taken, slices=_own_tensors(taken.slices), runs=runs)


def _sources_without_copies(plan: Plan) -> Ints:
    """The rows of sources that fill targets without a copy: strings without elements, whose payload
    belongs to the first slice of their tensor (``engine.moves``)."""
    opaque = np.flatnonzero(ITEMSIZES[plan.targets.codes()] == 0)
    return first_sources(plan, np.setdiff1d(opaque, plan.copies.target))


def restore_rows(report: FileReport, rows: Ints) -> FileReport:
    """Return the report of a task that was shrunk with the rows of the task that it was made of."""
    return replace(report, parts=replace(report.parts, row=rows[report.parts.row]))


def _own_tensors(slices: SliceTable) -> SliceTable:
    """The slices over a table of only their tensors."""
    used, tensor = np.unique(slices.tensor, return_inverse=True)
    return replace(slices, tensors=slices.tensors.take(used), tensor=tensor)

"""The preview of a reshard: what is there now, what would be written, and what that takes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from shardvar.cli.output import count, human_size, say
from shardvar.cli.tables import print_table
from shardvar.layout.dtypes import NAMES
from shardvar.maps.report import WIDEST, MapReport
from shardvar.planning.index import EntryTable
from shardvar.storage.local import is_url
from shardvar.verbs.reader import open_checkpoint
from shardvar.verbs.reports import WriteReport

_ROWS = ("tensors", "slices", "files", "bytes", "dtypes")


def print_plan(report: WriteReport, sources: Sequence[str]) -> None:
    """Print the numbers of a dry run: a table of source and target, ranges, memory and disk."""
    with ExitStack() as stack:
        tables = [stack.enter_context(open_checkpoint(path)).entries() for path in sources]
        now = _column(tables, [size for table in tables for size in _file_nbytes(table)])
    planned = [each.planned for each in report.ranks or (report,) if each.planned is not None]
    then = _column(planned, report.file_nbytes)
    print()
    print_table(("", "source", "target"), list(zip(_ROWS, now, then, strict=True)))
    print()
    say(f"reads {human_size(report.read_nbytes)} in {count(report.num_copies, 'range')}")
    # A bucket has no free bytes. Its files wait on this disk until they are whole.
    use = " for temporary files" if is_url(report.path) else ""
    free = f"{human_size(report.free_nbytes)} free{use}"
    say(f"memory: at most {human_size(report.peak_nbytes)} of buffers; disk: {free}")
    if report.map is not None:
        print_rules(report.map)
    say("Nothing was written.")


def print_rules(report: MapReport) -> None:
    """Print the table of a map's rules, and what was proven of the map."""
    print()
    print_table(report.headers(), report.rows(), right=(0, 2, 5), widest=WIDEST)
    for line in report.summary():
        say(line)


def _column(tables: Sequence[EntryTable], file_nbytes: Sequence[int]) -> Iterator[str]:
    """Yield the cells of one side, in the order of ``_ROWS``."""
    yield f"{sum(len(table.slices.tensors) for table in tables):,}"
    yield f"{sum(map(len, tables)):,}"
    largest = f", largest {human_size(max(file_nbytes))}" if len(file_nbytes) > 1 else ""
    yield f"{len(file_nbytes):,}{largest}"
    yield human_size(sum(file_nbytes))
    codes = sorted(
        {code for table in tables for code in np.unique(table.slices.tensors.codes).tolist()}
    )
    yield ", ".join(NAMES[code] for code in codes)


def _file_nbytes(table: EntryTable) -> list[int]:
    """The payload bytes of each file that holds some."""
    sizes = np.zeros(int(table.file.max(initial=-1)) + 1, np.int64)
    np.add.at(sizes, table.file, table.slices.nbytes)
    return sizes.tolist()

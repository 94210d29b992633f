"""Payloads: read every payload of some entries, compare its checksum, and check its values.

An error stays with its row, and the other rows are still read. Plain payloads are read by several
threads, small neighbours in one read; or the workers of an executor read all of them.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import numpy as np

from shardvar._version import __version__
from shardvar.engine.arrays import MoveTable
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.pool import Progress, block_ranges, new_buffer
from shardvar.engine.read import check_bool
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.planning.index import EntryTable
from shardvar.verbs.locate import Location
from shardvar.verbs.together.executors import Opening, Payloads, portions, run_tasks
from shardvar.wire import strings

Check = Callable[[EntryTable], dict[int, ReadError]]
"""Reads the payloads of entries, and returns the errors of damaged ones, by row."""


def check_payloads(
    source: Source, entries: EntryTable, progress: Progress = lambda _nbytes: None
) -> dict[int, ReadError]:
    """Read every payload; the error of each row that is damaged."""
    # Move: small neighbours together and large payloads in blocks, by threads; their bytes are
    # dropped.
    errors: dict[int, ReadError] = {}
    evidence = Evidence(source, entries, errors=errors)
    reading = Reading(evidence, progress)
    rows = np.arange(len(entries))
    zeros = np.zeros_like(rows)
    read_moves(reading, MoveTable(rows, zeros, rows, zeros, entries.slices.nbytes), None)
    evidence.check()
    # A payload without bytes may have stored bytes all the same.
    for row in np.flatnonzero(~entries.plain & (entries.slices.nbytes == 0)).tolist():
        evidence.read_whole(row)
    # Values, of payloads that are not damaged.
    for row in np.flatnonzero(
        np.isin(entries.slices.codes(), (code(STRING), code("bool")))
    ).tolist():
        if row in errors:
            continue
        # The bytes are read once more, so their checksum is compared once more.
        evidence, nbytes = Evidence(source, entries), int(entries.slices.nbytes[row])
        try:
            if entries.slices.dtype(row) == STRING:
                payload = new_buffer(nbytes)
                evidence.read(row, 0, payload)
                evidence.check()
                strings.decode(payload, entries.slices.region(row).shape)
                continue
            # Bools: a block at a time, for a tensor of any size.
            for start, stop in block_ranges(0, nbytes):
                block = new_buffer(stop - start)
                evidence.read(row, start, block)
                check_bool(np.frombuffer(block, np.bool), entries.slices.key(row), source, entries)
            evidence.check()
        except READ_ERRORS as error:
            errors[row] = error
    return errors


def payload_checker(
    executor: Executor | None, found: Location, source: Source, progress: Progress
) -> Check:
    if executor is None:
        return partial(check_payloads, source, progress=progress)
    opening = Opening(found)

    def check(entries: EntryTable) -> dict[int, ReadError]:
        calls = (
            (check_portion, (__version__, Payloads.of(opening, source, entries.take(rows)), rows))
            for rows in portions(entries.slices.nbytes)
        )
        errors: dict[int, ReadError] = {}
        for rows, damaged in run_tasks(executor, calls):
            errors |= {int(rows[row]): error for row, error in damaged.items()}
            progress(int(entries.slices.nbytes[rows].sum()))
        return errors

    return check


def check_portion(
    version: str, payloads: Payloads, rows: Ints
) -> tuple[Ints, dict[int, ReadError]]:
    with payloads.opened(version) as source:
        return rows, check_payloads(source, payloads.entries)

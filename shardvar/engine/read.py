"""Restore: a plan's targets as arrays in memory, every checksum on the way compared.

Check: the plan covers its targets; it could not have been constructed otherwise. Plan: its moves, sorted by how they
are best read. Move: small payloads, many in one read; longer runs of bytes straight into the arrays, block by block;
boxes; payloads that the source must decode, one after the other. Commit: nothing is returned before everything
that was read is verified.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import bytes_of
from shardvar.engine.boxes import read_box
from shardvar.engine.evidence import BLOCK_NBYTES, Evidence, check_evidence, read_verified
from shardvar.engine.gather import SMALL_NBYTES, spans
from shardvar.engine.moves import MoveTable, lower
from shardvar.engine.pool import blocks, run_all, thread_buffer
from shardvar.errors import InvalidCheckpoint
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import NAMES, STRING, code, numpy_dtype
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import Plan
from shardvar.planning.slices import SliceTable
from shardvar.wire import strings

Arrays = list[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What every step of one restore has at hand."""

    source: Source
    """Where payloads come from."""
    entries: EntryTable
    """The plan's sources, row by row."""
    targets: SliceTable
    """What is filled."""
    arrays: dict[int, npt.NDArray[Any]]
    """The arrays that there are, by row of ``targets``."""
    evidence: Evidence
    """What was read."""
    progress: Callable[[int], object]
    """Is told how many bytes were read."""


_Place = Callable[[_Reading, MoveTable, memoryview, list[int]], None]
"""Takes the payloads of moves out of a span of their file, in which they begin at the given places."""


def read_arrays(
    plan: Plan, source: Source, entries: EntryTable, progress: Callable[[int], object] = lambda nbytes: None
) -> Arrays:
    """The targets of a plan as fresh arrays, in order; strings as object arrays of bytes.

    ``entries`` are the plan's sources, row by row. ``CorruptCheckpoint`` where a checksum is wrong,
    ``UnsupportedError`` for dtypes without values. Memory: the arrays, and a few blocks of 4 MiB.
    """
    moves, is_run = lower(plan)
    targets = plan.targets
    reading = _Reading(source, entries, targets, {}, Evidence(source, entries), progress)
    is_string = (targets.codes() == code(STRING))[moves.target]
    plain = entries.plain[moves.source]
    is_whole_source = moves.nbytes == entries.slices.nbytes[moves.source]
    is_whole_target = moves.nbytes == targets.nbytes[moves.target]
    small = plain & ~is_string & is_whole_source & is_run[moves.target] & (moves.nbytes <= SMALL_NBYTES)
    _read_small(reading, moves.take(np.flatnonzero(small & is_whole_target)), _cut_out)
    _allocate(reading)
    _read_small(reading, moves.take(np.flatnonzero(small & ~is_whole_target)), _put_in)
    large = plain & ~is_string & ~small & is_run[moves.target]
    in_part = ~is_whole_source & (entries.runs is not None)
    _read_runs(reading, moves.take(np.flatnonzero(large & ~in_part)))
    _read_parts(reading, moves.take(np.flatnonzero(large & in_part)))
    _read_decoded(reading, moves.take(np.flatnonzero(~plain & ~is_string & is_run[moves.target])))
    _read_boxes(reading, plan, np.flatnonzero(~is_run[plan.copies.target]).tolist())
    _read_strings(reading, moves.take(np.flatnonzero(is_string)))
    reading.evidence.check()
    for row in np.flatnonzero(targets.codes() == _BOOL).tolist():
        check_bool(reading.arrays[row], targets.key(row), source, entries)
    return [reading.arrays[row] for row in range(len(targets))]


def check_bool(array: npt.NDArray[Any], key: str, source: Source, entries: EntryTable) -> None:
    """Raise ``InvalidCheckpoint`` where a bool is stored as a byte other than 0 or 1, which NumPy would not survive."""
    if array.dtype == np.bool and array.size and array.view(np.uint8).max() > 1:
        rows = (row for row in range(len(entries)) if entries.slices.key(row) == key)
        files = sorted({source.index.files[int(entries.file[row])] for row in rows})
        raise InvalidCheckpoint(
            f"{', '.join(files)}: {key!r} is of dtype bool and holds bytes other than 0 and 1.",
            "Whatever wrote the file is at fault, or it was damaged since; `shardvar verify` lists what else is.",
        )


def _read_small(reading: _Reading, moves: MoveTable, place: _Place) -> None:
    """Whole small payloads: neighbours in a file come in one read, and their checksums are compared as a column."""
    entries = reading.entries
    file, start = entries.file[moves.source], entries.start[moves.source]
    order = np.lexsort((start, file))
    moves, file, start = moves.take(order), file[order], start[order]
    stop = start + moves.nbytes

    def read(rows: tuple[int, int]) -> None:
        first, last = rows
        base = int(start[first])
        span = thread_buffer(int(stop[last - 1]) - base)
        reading.source.read_span(int(file[first]), base, span)
        starts, stops = (start[first:last] - base).tolist(), (stop[first:last] - base).tolist()
        _check_small(reading, moves.source[first:last], span, starts, stops)
        place(reading, moves.take(np.arange(first, last)), span, starts)
        reading.progress(len(span))

    run_all(read, spans(file, start, moves.nbytes))


def _check_small(reading: _Reading, rows: Any, span: memoryview, starts: list[int], stops: list[int]) -> None:
    if reading.source.crc is None:
        return
    compute = reading.source.crc.compute
    found = np.array([compute(span[a:b]) for a, b in zip(starts, stops, strict=True)], dtype=np.int64)
    differ = np.flatnonzero(found != reading.entries.checksum[rows]).tolist()
    # Those that have no checksum differ from it, too: the evidence tells them apart.
    pieces = [(int(rows[at]), 0, stops[at] - starts[at], int(found[at])) for at in differ]
    check_evidence(reading.source, reading.entries, pieces)


def _put_in(reading: _Reading, moves: MoveTable, span: memoryview, starts: list[int]) -> None:
    """Copy small parts of targets from the span to their places."""
    views = {row: bytes_of(reading.arrays[row]) for row in set(moves.target.tolist())}
    columns = (moves.target.tolist(), moves.target_start.tolist(), moves.nbytes.tolist())
    for start, row, into, nbytes in zip(starts, *columns, strict=True):
        views[row][into : into + nbytes] = span[start : start + nbytes]


def _cut_out(reading: _Reading, moves: MoveTable, span: memoryview, starts: list[int]) -> None:
    """Make arrays of small targets, copied out of the span."""
    rows, targets = moves.target, reading.targets
    shapes = targets.shape[rows].tolist()
    ranks = targets.tensors.ranks[targets.tensor[rows]].tolist()
    codes = targets.codes()[rows].tolist()
    dtypes = {number: numpy_dtype(NAMES[number]) for number in set(codes)}
    for row, number, shape, rank, start in zip(rows.tolist(), codes, shapes, ranks, starts, strict=True):
        reading.arrays[row] = np.ndarray(shape[:rank], dtypes[number], span, start).copy()


def _allocate(reading: _Reading) -> None:
    """Arrays for all targets that have none yet, but for strings, whose decoding makes them."""
    targets = reading.targets
    for row in range(len(targets)):
        if row not in reading.arrays and targets.dtype(row) != STRING:
            reading.arrays[row] = np.empty(targets.region(row).shape, numpy_dtype(targets.dtype(row)))


def _read_runs(reading: _Reading, moves: MoveTable) -> None:
    """Runs of bytes, straight into the arrays."""
    source, entries = reading.source, reading.entries
    views = {row: bytes_of(reading.arrays[row]) for row in set(moves.target.tolist())}
    places = (entries.file[moves.source], entries.start[moves.source] + moves.source_start)
    files, starts = (column.tolist() for column in places)
    rows, firsts = moves.source.tolist(), moves.source_start.tolist()
    targets, intos, sizes = moves.target.tolist(), moves.target_start.tolist(), moves.nbytes.tolist()

    def read(work: tuple[int, int, int]) -> None:
        move, start, stop = work
        into = intos[move]
        block = views[targets[move]][into + start : into + stop]
        source.read_span(files[move], starts[move] + start, block)
        if source.crc is not None:
            reading.evidence.add([(rows[move], firsts[move] + start, len(block), source.crc.compute(block))])
        reading.progress(len(block))

    run_all(read, [(m, a, b) for m, nbytes in enumerate(sizes) for a, b in blocks(nbytes, BLOCK_NBYTES)])


def _read_parts(reading: _Reading, moves: MoveTable) -> None:
    """Parts of payloads with checksums of runs: the runs that hold the part, each verified, and nothing else."""
    entries, runs = reading.entries, reading.entries.runs
    if runs is None or not len(moves):
        return
    step = max(BLOCK_NBYTES // runs.run_nbytes, 1) * runs.run_nbytes
    views = {row: bytes_of(reading.arrays[row]) for row in set(moves.target.tolist())}

    def read(work: tuple[int, int, int, int, int]) -> None:
        source, start, stop, target, into = work
        block = read_verified(reading.source, entries, source, start, stop, thread_buffer)
        views[target][into : into + stop - start] = block
        reading.progress(stop - start)

    work = []
    for source, first, target, into, nbytes in zip(*_columns(moves), strict=True):
        begin = first // step * step
        for at in range(begin, first + nbytes, step):
            start, stop = max(at, first), min(at + step, first + nbytes)
            work.append((source, start, stop, target, into + start - first))
    run_all(read, work)


def _read_decoded(reading: _Reading, moves: MoveTable) -> None:
    """Payloads that the source decodes: in order, by one thread, since many can only be read from their beginning."""
    for source, first, target, into, nbytes in zip(*_columns(moves), strict=True):
        view = bytes_of(reading.arrays[target])
        for start, stop in blocks(nbytes, BLOCK_NBYTES):
            reading.source.read_into(reading.entries, source, first + start, view[into + start : into + stop])
        reading.evidence.add([(source, first, nbytes, NO_CHECKSUM)])
        reading.progress(nbytes)


def _read_boxes(reading: _Reading, plan: Plan, rows: list[int]) -> None:
    """Copies that are no runs of bytes."""
    for row in rows:
        copy = plan.copy(row)
        array = reading.arrays[copy.target]
        raw = bytes_of(array)
        view = np.ndarray(array.shape, np.dtype((np.void, array.itemsize)), raw)
        inside = copy.region.relative_to(reading.entries.slices.region(copy.source))
        out = view[copy.region.relative_to(reading.targets.region(copy.target)).slices]
        read_box(reading.source, reading.entries, copy.source, inside, out, reading.evidence)
        reading.progress(out.nbytes)


def _read_strings(reading: _Reading, moves: MoveTable) -> None:
    """String tensors: each payload whole, then decoded."""
    entries, crc = reading.entries, reading.source.crc
    for source, _, target, _, nbytes in zip(*_columns(moves), strict=True):
        payload = memoryview(bytearray(nbytes))
        reading.source.read_into(entries, source, 0, payload)
        checked = entries.plain[source] and crc is not None
        found = crc.compute(payload) if checked and crc is not None else NO_CHECKSUM
        # Before decoding: a damaged payload should be called damaged.
        check_evidence(reading.source, entries, [(source, 0, nbytes, found)])
        reading.arrays[target] = strings.decode(payload, reading.targets.region(target).shape)
        reading.progress(nbytes)


def _columns(moves: MoveTable) -> list[list[int]]:
    columns = (moves.source, moves.source_start, moves.target, moves.target_start, moves.nbytes)
    return [column.tolist() for column in columns]


_BOOL = code("bool")

"""Restore: the targets of a plan as arrays in memory, every checksum on the way compared.

    plan --lower--> byte ranges, regions --engine.pieces--> arrays --engine.evidence--> returned

The plan covers its targets; it could not have been constructed otherwise. ``read_arrays`` chooses
what each move is read into: small payloads that are whole targets are cut out of the span that
brought them, all other bytes go straight to their place in an array that was allocated for them,
and strings are decoded from their payload. How the bytes come is a question for ``engine.pieces``,
whether they are right one for ``engine.evidence``. Nothing is returned before everything that was
read is verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np

from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable, lower
from shardvar.engine.pieces import Reading, Receiver, read_moves, read_small, read_units
from shardvar.engine.pool import Progress, bytes_of, new_buffer
from shardvar.engine.regions import (
    RegionTable,
    dense_spans,
    join_regions,
    read_regions,
    wanted_regions,
)
from shardvar.errors import InvalidCheckpoint
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    HALVES,
    NAMES,
    STRING,
    Array,
    Bools,
    Ints,
    code,
    numpy_dtype,
    unpack_halves,
)
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Plan, plan_copies
from shardvar.planning.slices import SliceTable
from shardvar.wire import strings

_Arrays = dict[int, Array]
"""The arrays so far, by row of the targets."""


_Table = TypeVar("_Table", MoveTable, RegionTable)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of targets in given arrays; one array may hold many targets."""

    arrays: Sequence[Array]
    """The arrays, contiguous."""
    array: Ints
    """[m] the position in ``arrays`` of each target's; -1 for targets that get a fresh array."""
    start: Ints
    """[m] the first byte of each target there."""

    def moved(self, table: _Table, number: Ints) -> _Table:
        """The table with the numbers of arrays as its targets, and places in these."""
        start = table.target_start + self.start[table.target]
        return replace(table, target=number[table.target], target_start=start)


def read_arrays(
    plan: Plan,
    source: Source,
    entries: EntryTable,
    progress: Progress = lambda _nbytes: None,
    *,
    is_verified: bool = True,
    bare: Bools | None = None,
    into: Places | None = None,
) -> list[Array]:
    """The targets of a plan as fresh arrays, in order; strings as object arrays of bytes.

    ``entries`` are the plan's sources, row by row. ``CorruptCheckpoint`` where a checksum is wrong,
    ``UnsupportedError`` for dtypes without values. Without ``is_verified`` plain payloads are not
    compared, and nothing but the bytes of the targets is read; likewise of parts of the payloads
    that are ``bare`` [entries]. Memory: the arrays, and a few blocks of 4 MiB.

    Targets that have a place ``into`` an array are read there, and their item of the result is that
    array. Strings and packed elements have none.
    """
    # Plan: every move is read once, in one of four ways.
    moves, is_range = lower(plan)
    targets = plan.targets
    reading = Reading(Evidence(source, entries, takes_checksums=is_verified, bare=bare), progress)
    if len(targets) > len(targets.tensors) and plan.copies.shape.shape[1]:
        is_range &= ~_with_shared_bytes(moves, targets, reading.evidence)
        moves = moves.where(is_range[moves.target])
    # Each target has the number of its array: its row for a fresh one, and numbers behind the rows
    # for the given ones.
    number, arrays = np.arange(len(targets)), _Arrays()
    if into is not None:
        number = np.where(into.array < 0, number, len(targets) + into.array)
        arrays |= {len(targets) + k: each for k, each in enumerate(into.arrays)}
    is_text = np.isin(targets.codes(), (_STRING, _HALVES))
    is_string, plain = is_text[moves.target], entries.plain[moves.source]
    # A whole small payload that is a whole target: its array is one copy from a span. Equal sizes
    # suffice: a move as long as its payload begins at byte 0.
    is_whole = (moves.nbytes == entries.slices.nbytes[moves.source]) & ~is_string
    is_whole &= moves.nbytes == np.where(number < len(targets), targets.nbytes, -1)[moves.target]
    is_cut_out = plain & is_whole & (moves.nbytes <= reading.small_nbytes)
    is_decoded = ~plain & is_whole & (moves.nbytes > 0)

    # Move: small arrays out of spans, before the others take their memory; then bytes, regions and
    # strings.
    read_small(reading, moves.where(is_cut_out), _cut_out(targets, arrays))
    if is_decoded.any():
        is_decoded[is_decoded] = _decode(reading, moves.where(is_decoded), targets, arrays)
    # The decoding of strings makes their arrays.
    for row in np.setdiff1d(number[~is_text], [*arrays]).tolist():
        arrays[row] = np.empty(targets.region(row).shape, numpy_dtype(targets.dtype(row)))
    rest = moves.where(~(is_cut_out | is_decoded | is_string))
    copies = plan.copies.take(np.flatnonzero(~is_range[plan.copies.target]))
    regions = wanted_regions(entries, targets, copies) if len(copies) else None
    if into is not None:
        rest, regions = into.moved(rest, number), regions and into.moved(regions, number)
    used = rest.target if regions is None else np.append(rest.target, regions.target)
    buffers = {each: bytes_of(arrays[each]) for each in {*used.tolist()}}
    read_moves(reading, rest, buffers, by_runs=True)
    if regions is not None:
        read_regions(reading, regions, buffers, by_runs=True)
    if is_string.any():
        _read_strings(reading, moves.where(is_string), targets, arrays)

    # Commit: what was read is as the index promises, and what NumPy can hold.
    if is_verified:
        reading.evidence.check()
    bools = np.flatnonzero(targets.codes() == _BOOL)
    for each, row in dict(zip(number[bools].tolist(), bools.tolist(), strict=True)).items():
        check_bool(arrays[each], targets.key(row), source, entries)
    return list(map(arrays.__getitem__, number.tolist()))


def costs_of_parts(source: Source, entries: EntryTable, plan: Plan, rows: Bools) -> tuple[int, int]:
    """The bytes that are read for the parts of some plain payloads, bare, and by what checksums
    cover; ``rows`` [entries] are the payloads."""
    copies = plan.copies.take(np.flatnonzero(rows[plan.copies.source]))
    parts = join_regions([*dense_spans(wanted_regions(entries, plan.targets, copies))])
    _, group = np.unique(parts.row, return_inverse=True)
    bare, compared = (
        read_units(evidence, group, parts.row, parts.starts(), parts.stops())
        for evidence in (Evidence(source, entries, bare=rows), Evidence(source, entries))
    )
    return int(bare.nbytes.sum()), int(compared.nbytes.sum())


def _with_shared_bytes(moves: MoveTable, targets: SliceTable, evidence: Evidence) -> Bools:
    """[m] True for targets that need bytes of a payload that others need, and are read as regions.

    These bytes are read once then, and what is decoded is decoded once, from its beginning on.
    Bytes that are read only to be compared count.
    """
    moves = moves.take(np.lexsort((moves.source_start, moves.source)))
    is_other = moves.source[1:] != moves.source[:-1]
    size, runs = evidence.entries.slices.nbytes[moves.source], evidence.entries.runs
    is_part = (moves.nbytes != size) & evidence.is_compared(moves.source)
    step = np.where(is_part, size if runs is None else runs.run_nbytes, 1)
    start = moves.source_start // step * step
    stop = np.minimum(-(-(moves.source_start + moves.nbytes) // step) * step, size)
    # In coordinates in which the payloads follow each other, the last stop so far tells an overlap.
    base = np.cumsum(np.append(0, np.where(is_other, size[:-1], 0)))[: len(moves)]
    reach = np.maximum.accumulate(base + stop)
    meets = (base[1:] + start[1:] < reach[:-1]) & ~is_other
    shared = np.zeros(len(targets), np.bool)
    shared[moves.target[np.isin(moves.source, moves.source[1:][meets])]] = True
    return shared & ~np.isin(targets.codes(), (_STRING, _HALVES))


def read_region(
    source: Source, entries: EntryTable, rows: Ints, wanted: Region, *, is_verified: bool = True
) -> Array:
    """A region of one tensor as a fresh array. ``rows`` are the rows of the tensor's entries; no
    others are looked at."""
    mine = entries.take(rows)
    one = mine.slices.tensors.take(mine.slices.tensor[:1])
    # ``one`` has a single tensor, so every slice gets the tensor number 0.
    slices = SliceTable(
        one, np.zeros_like(rows), mine.slices.offset, mine.slices.shape, mine.slices.nbytes
    )
    target = SliceTable.of_region(one, wanted, slices.nbytes[:1])
    return read_arrays(plan_copies(slices, target), source, mine, is_verified=is_verified)[0]


def check_bool(array: Array, key: str, source: Source, entries: EntryTable) -> None:
    """Raise ``InvalidCheckpoint`` where a bool is stored as a byte other than 0 or 1, which NumPy
    would not survive."""
    if array.dtype == np.bool and array.size and array.view(np.uint8).max() > 1:
        rows = (row for row in range(len(entries)) if entries.slices.key(row) == key)
        files = sorted({source.index.files[int(entries.file[row])] for row in rows})
        raise InvalidCheckpoint(
            f"{', '.join(files)}: {key!r} is of dtype bool and holds bytes other than 0 and 1.",
            "The program that wrote the file is at fault, or the file was damaged since; "
            "`shardvar verify` lists more.",
        )


def _cut_out(targets: SliceTable, arrays: _Arrays) -> Receiver:
    """Make arrays of small targets, copied out of the span that holds them."""

    def cut(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        rows = moves.target
        shapes = targets.shape[rows].tolist()
        ranks = targets.tensors.ranks[targets.tensor[rows]].tolist()
        codes = targets.codes(rows).tolist()
        dtypes = {number: numpy_dtype(NAMES[number]) for number in set(codes)}
        for row, number, shape, rank, begin in zip(
            rows.tolist(), codes, shapes, ranks, begins, strict=True
        ):
            # Copied, since a view would keep the whole span in memory for a few of its bytes.
            arrays[row] = np.ndarray(shape[:rank], dtypes[number], span, begin).copy()

    return cut


def _decode(reading: Reading, moves: MoveTable, targets: SliceTable, arrays: _Arrays) -> Bools:
    """Make arrays of payloads that the source decodes into fresh memory, which is not copied.

    Each move is a whole payload and a whole target. Returns [k] True for the moves that are done.
    """
    entries, source = reading.entries, reading.evidence.source
    is_done = np.zeros(len(moves), np.bool)
    reading.evidence.expect(moves.source)
    columns = moves.source.tolist(), moves.target.tolist(), moves.nbytes.tolist()
    for number, (row, target, nbytes) in enumerate(zip(*columns, strict=True)):
        payload = source.decode(entries, row)
        if payload is None:
            continue
        arrays[target] = np.ndarray(
            targets.region(target).shape, numpy_dtype(targets.dtype(target)), payload
        )
        is_done[number] = True
        reading.progress(nbytes)
    return is_done


def _read_strings(reading: Reading, moves: MoveTable, targets: SliceTable, arrays: _Arrays) -> None:
    """Read strings and packed elements: each payload whole, then decoded."""
    for source, target, nbytes in zip(
        moves.source.tolist(), moves.target.tolist(), moves.nbytes.tolist(), strict=True
    ):
        payload = new_buffer(nbytes)
        reading.evidence.read(source, 0, payload)
        # before it is decoded: a damaged payload should be called damaged, not malformed
        reading.evidence.compare()
        shape = targets.region(target).shape
        if targets.dtype(target) == STRING:
            arrays[target] = strings.decode(payload, shape)
        else:
            arrays[target] = unpack_halves(np.frombuffer(payload, np.uint8))[: prod(shape)].reshape(
                shape
            )
        reading.progress(nbytes)


_BOOL, _STRING, _HALVES = code("bool"), code(STRING), code(HALVES)

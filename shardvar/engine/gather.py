"""Reading many moves: small neighbours in one span of their file, large ones in bounded blocks.

``gather`` brings moves from plain entries into one buffer and takes the checksum of each on the way.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.evidence import BLOCK_NBYTES, Piece
from shardvar.engine.moves import MoveTable
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.wire.crc import Checksum

SMALL_NBYTES = 64 << 10
"""Moves of at most these bytes are read together with their neighbours."""

_GAP_NBYTES = 4096
"""Bytes between two small moves that are read along rather than skipped by a second read."""


def spans(file: Ints, start: Ints, nbytes: Ints, limit: int = BLOCK_NBYTES) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted by file and place, that one read of at most ``limit`` bytes can bring.

    A row larger than the limit is a range of its own.
    """
    stop = start + nbytes
    apart = np.flatnonzero((file[1:] != file[:-1]) | (start[1:] - stop[:-1] > _GAP_NBYTES) | (start[1:] < stop[:-1]))
    first = 0
    for end in [*(apart + 1).tolist(), len(file)]:
        while first < end:
            last = first + int(np.searchsorted(stop[first:end], start[first] + limit, side="right"))
            last = max(last, first + 1)
            yield first, last
            first = last


def gather_arrays(source: ArraySource, arrays: Ints, moves: MoveTable, places: Ints, buffer: memoryview) -> None:
    """Bring each move's bytes from the array that holds them to its place in ``buffer``."""
    columns = (arrays, moves.source_start, moves.nbytes, places)
    for array, start, nbytes, place in zip(*(column.tolist() for column in columns), strict=True):
        if nbytes <= SMALL_NBYTES and source.nbytes(array) == nbytes:
            buffer[place : place + nbytes] = source.small_payload(array)
        else:
            source.read_span(array, start, buffer[place : place + nbytes])


def gather(
    source: Source,
    entries: EntryTable,
    moves: MoveTable,
    places: Sequence[int],
    buffer: memoryview,
    crc: Checksum | None,
) -> list[Piece]:
    """Bring each move's bytes to its place in ``buffer``; what was read, with its checksums, as evidence.

    All moves must come from plain entries; ``places`` are bytes of the buffer. Without ``crc`` there is no evidence.
    """
    file = entries.file[moves.source]
    start = entries.start[moves.source] + moves.source_start
    order = np.lexsort((start, file))
    file, start, nbytes = file[order], start[order], moves.nbytes[order]
    pieces: list[Piece] = []
    compute = crc.compute if crc is not None else None
    rows, firsts = moves.source[order].tolist(), moves.source_start[order].tolist()
    targets = [places[i] for i in order.tolist()]
    starts, sizes = start.tolist(), nbytes.tolist()
    for first, last in spans(file, start, nbytes):
        base = starts[first]
        if last - first == 1:
            span = buffer[targets[first] : targets[first] + sizes[first]]
        else:
            span = memoryview(bytearray(starts[last - 1] + sizes[last - 1] - base))
        source.read_span(int(file[first]), base, span)
        for i in range(first, last):
            piece = span[starts[i] - base : starts[i] - base + sizes[i]]
            if last - first > 1:
                buffer[targets[i] : targets[i] + sizes[i]] = piece
            if compute is not None:
                pieces.append((rows[i], firsts[i], sizes[i], compute(piece, 0)))
    return pieces

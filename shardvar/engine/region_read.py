"""A part of a tensor without its checksums: for formats that have one checksum an entry, where the caller said so."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import bytes_of
from shardvar.engine.boxes import read_box
from shardvar.engine.evidence import Evidence
from shardvar.engine.read import check_bool
from shardvar.formats.protocol import Source
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable


def read_unverified(
    source: Source, entries: EntryTable, rows: Sequence[int], wanted: Region, array: npt.NDArray[Any]
) -> None:
    """Fill ``array`` [*wanted.shape] from the entries of one tensor that hold it; nothing is compared."""
    view = np.ndarray(array.shape, np.dtype((np.void, array.itemsize)), bytes_of(array))
    for row in rows:
        stored = entries.slices.region(row)
        common = stored.intersect(wanted)
        if common is not None:
            out = view[common.relative_to(wanted).slices]
            read_box(source, entries, row, common.relative_to(stored), out, Evidence(source, entries))
    check_bool(array, entries.slices.key(rows[0]) if rows else "", source, entries)

"""An open checkpoint as a notebook shows it: its first tensors in a table."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardvar.errors import CheckpointError
from shardvar.pictures.table import Markup, bad, bar, html_block, html_table
from shardvar.pictures.words import count, human_shape, human_size
from shardvar.planning.index import EntryTable

_MOST_ROWS = 24
"""Rows of a table in a notebook."""


def as_html(
    path: str,
    name: str,
    entries: EntryTable,
    keys: Sequence[str],
    faults: Mapping[str, CheckpointError],
    num_files: int,
) -> str:
    """Return a table of the first tensors, with the faults of unreadable ones."""
    tensors = entries.slices.tensors
    rows_of, num_slices = tensors.rows(), np.bincount(entries.slices.tensor, minlength=len(tensors))
    nbytes = entries.slices.nbytes_of_tensors()
    most = int(nbytes.max()) if len(nbytes) else 0
    rows: list[tuple[object, ...]] = []
    for key in keys[:_MOST_ROWS]:
        fault = bad(type(faults[key]).__name__) if key in faults else ""
        row = rows_of.get(key)
        cells: tuple[object, ...] = ("",) * 5
        if row is not None:
            size, shape = int(nbytes[row]), human_shape(tensors.shape(row))
            slices = int(num_slices[row])
            cells = (tensors.dtype(row), shape, human_size(size), bar(size, most), slices)
        rows.append((key, *cells, fault))
    headers = ("tensor", "dtype", "shape", "size", "", "slices", "")
    about = [
        f"{name} format", count(len(keys), "tensor"), count(len(entries), "slice"),
        count(num_files, "file"), human_size(int(nbytes.sum())),
    ]  # fmt: skip
    broken = bad(f"{count(len(faults), 'tensor')} cannot be read") if faults else Markup("")
    return html_block(path, about, broken, html_table(headers, rows, (3, 5), len(keys) - len(rows)))

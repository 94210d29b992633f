"""How the values of tensors of any size are spread, from one more pass over bounded blocks.

The bins are as wide as each other and reach from the smallest finite value to the largest, which the pass before has
found (``checkpoint.stats``). Counts of blocks add up, so that no tensor is held whole.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from shardvar.checkpoint.blocks import READ_ERRORS, Blocks, Progress, ReadError, batches
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.stats import Statistics, reals
from shardvar.engine.evidence import BLOCK_NBYTES
from shardvar.layout.dtypes import ITEMSIZES, Array, Ints

NUM_BINS = 24
"""Few enough to draw a hundred thousand of them, and more than the eye needs to see a shape."""


def bin_counts(array: Array, low: float, high: float, num_bins: int = NUM_BINS) -> Ints:
    """[num_bins] how many finite elements lie in each of the equal parts of ``[low, high]``; the last holds ``high``.

    Where all are the same, the first bin holds them.

    >>> bin_counts(np.array([0.0, 1.0, 1.5, 4.0, np.nan]), 0.0, 4.0, 4).tolist()
    [1, 2, 0, 1]
    """
    values = reals(array)
    # A quarter of each, so that the width of no range overflows.
    floats = values[np.isfinite(values)].astype(np.float64) / 4 if values.dtype.kind == "f" else values / 4.0
    width = high / 4 - low / 4
    if width <= 0:
        return np.array([len(floats), *[0] * (num_bins - 1)], dtype=np.int64)
    place = np.clip(np.floor((floats - low / 4) / width * num_bins), 0, num_bins - 1)
    return np.bincount(place.astype(np.int64), minlength=num_bins)


def histograms(
    reader: Reader, measured: Mapping[str, Statistics | ReadError], progress: Progress = lambda nbytes: None
) -> Iterator[tuple[str, Ints]]:
    """The bin counts of each tensor whose statistics were taken and that has a finite element."""
    blocks = Blocks.of(reader)
    rows = blocks.tensors.rows()
    ranges = {
        rows[key]: (float(found.minimum), float(found.maximum))
        for key, found in measured.items()
        if isinstance(found, Statistics) and found.minimum is not None and found.maximum is not None
    }
    for batch in batches(blocks.nbytes, [row for row in ranges if blocks.is_small(row)]):
        for row, found in zip(batch, blocks.read(batch), strict=True):
            if not isinstance(found, READ_ERRORS):  # told with the statistics, or the file changed since
                yield blocks.tensors.keys[row], bin_counts(found, *ranges[row])
            progress(int(blocks.nbytes[row]))
    for row, ends in ranges.items():
        if not blocks.is_small(row):
            count = BLOCK_NBYTES // int(ITEMSIZES[blocks.tensors.codes[row]])
            total = np.zeros(NUM_BINS, dtype=np.int64)
            for array in blocks.stream(row, count):
                total += bin_counts(array, *ends)
                progress(array.nbytes)
            yield blocks.tensors.keys[row], total

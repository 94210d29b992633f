"""Statistics of tensors of any size, from one pass over bounded blocks.

Minimum, maximum, mean and standard deviation are taken over the finite elements; NaNs, infinities
and zeros are counted. Complex numbers count by their magnitude, bools as 0 and 1. Means and sums of
squared deviations of blocks are merged in pairs, which stays accurate where sums of squares would
cancel:

    d = mean_b - mean_a     mean = mean_a + d * n_b / n     m2 = m2_a + m2_b + d**2 * n_a * n_b / n
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Self

import numpy as np

from shardvar.engine.pool import BLOCK_NBYTES, Progress
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.layout.dtypes import ITEMSIZES, Array, Ints
from shardvar.verbs.compare.blocks import Blocks, batches
from shardvar.verbs.numbers import Number, is_number, json_number, python_number, widen_numbers
from shardvar.verbs.reader import Reader


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the elements of a tensor, from one pass over them."""

    count: int = 0
    """The number of elements."""
    finite: int = 0
    """The number of elements that are neither NaN nor infinite."""
    nan: int = 0
    """The number of NaNs."""
    inf: int = 0
    """The number of infinities of either sign."""
    zero: int = 0
    """The number of zeros of either sign."""
    minimum: Number | None = None
    """The smallest finite element; None without a finite element."""
    maximum: Number | None = None
    """The largest finite element."""
    mean: float | None = None
    """The mean of the finite elements."""
    m2: float = 0.0
    """The sum of the squared deviations of the finite elements from their mean."""

    @property
    def std(self) -> float | None:
        """The standard deviation of the finite elements (of the whole population, as NumPy's)."""
        return sqrt(self.m2 / self.finite) if self.finite else None

    def merge(self, other: "Statistics") -> Self:
        """Return the statistics of both sets of elements together."""
        finite = self.finite + other.finite
        mean, m2 = self.mean, self.m2 + other.m2
        if self.mean is None or other.mean is None:
            mean = other.mean if self.mean is None else self.mean
        else:
            # 3 elements of mean 2 and one of 6: the shift is 4, the mean 2 + 4 * 1 / 4 = 3, and m2
            # grows by 4**2 * 3 * 1 / 4 = 12.
            shift = other.mean - self.mean
            mean = self.mean + shift * (other.finite / finite)
            m2 += shift * shift * (self.finite * (other.finite / finite))
        return type(self)(
            self.count + other.count,
            finite,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zero + other.zero,
            _extreme(min, self.minimum, other.minimum),
            _extreme(max, self.maximum, other.maximum),
            mean,
            m2,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as a JSON object with stable keys."""
        return {
            "count": self.count,
            "min": json_number(self.minimum),
            "max": json_number(self.maximum),
            "mean": json_number(self.mean),
            "std": json_number(self.std),
            "nan": self.nan,
            "inf": self.inf,
            "zero": self.zero,
        }


def reals(array: Array) -> Array:
    """Return the elements as flat real numbers: magnitudes of complex ones, bools as 0 and 1.

    A complex number with a NaN in either part is NaN. NumPy takes the magnitude of one that also
    has an infinity to be infinite.
    """
    values = widen_numbers(array.reshape(-1))
    return (
        np.where(np.isnan(values), np.nan, np.abs(values)) if values.dtype.kind == "c" else values
    )


def statistics(array: Array) -> Statistics:
    """Return the statistics of an array of numbers.

    >>> s = statistics(np.array([1.0, 3.0, np.nan, 0.0]))
    >>> s.minimum, s.maximum, s.nan, s.zero, round(s.std, 3)
    (0.0, 3.0, 1, 1, 1.247)
    """
    values = reals(array)
    if values.dtype.kind == "f":
        nan, inf = int(np.count_nonzero(np.isnan(values))), int(np.count_nonzero(np.isinf(values)))
        finite = values[np.isfinite(values)] if nan or inf else values
    else:
        nan, inf, finite = 0, 0, values
    zero = len(values) - int(np.count_nonzero(values))
    if not len(finite):
        return Statistics(len(values), 0, nan, inf, zero)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = finite.astype(np.float64, copy=False)
        mean = float(floats.mean())
        # Not the mean of squares less the square of the mean: for 1e8 and 1e8 + 1 both are about
        # 1e16, where floats lie 2 apart, and the variance of 0.25 would be lost.
        deviations = floats - mean
        m2 = float(np.dot(deviations, deviations))
    low, high = python_number(finite.min()), python_number(finite.max())
    return Statistics(len(values), len(finite), nan, inf, zero, low, high, mean, m2)


def measure(
    reader: Reader, keys: Iterable[str], progress: Progress = lambda _nbytes: None
) -> Iterator[tuple[str, Statistics | ReadError]]:
    """Yield the statistics of each tensor of numbers among ``keys``, or the error that keeps it
    from being read.

    Strings and opaque tensors are left out. Memory: some blocks, for a tensor of any size.
    """
    blocks = Blocks.of(reader)
    rows, faults = blocks.tensors.rows(), reader.faults
    wanted = [rows[key] for key in keys if key in rows and key not in faults]
    numbers = [tensor for tensor in wanted if is_number(blocks.tensors.dtype(tensor))]
    small = [tensor for tensor in numbers if blocks.is_small(tensor)]
    # Move: small tensors together, then large ones block by block.
    for batch in batches(blocks.nbytes, small):
        for tensor, found in zip(batch, blocks.read(batch), strict=True):
            yield (
                blocks.tensors.keys[tensor],
                found if isinstance(found, ReadError) else statistics(found),
            )
            progress(int(blocks.nbytes[tensor]))
    for tensor in numbers:
        if not blocks.is_small(tensor):
            yield blocks.tensors.keys[tensor], _measure_large(blocks, tensor, progress)


def _measure_large(blocks: Blocks, tensor: int, progress: Progress) -> Statistics | ReadError:
    total = Statistics()
    try:
        for array in blocks.stream(
            tensor, BLOCK_NBYTES // int(ITEMSIZES[blocks.tensors.codes[tensor]])
        ):
            total = total.merge(statistics(array))
            progress(array.nbytes)
    except READ_ERRORS as error:
        return error
    return total


def _extreme(choose: Any, a: Number | None, b: Number | None) -> Number | None:
    return b if a is None else a if b is None else choose(a, b)


# Histograms, from one more pass over bounded blocks. The bins are equally wide and reach from the
# smallest finite value to the largest, which the statistics have. Counts of blocks add up, so no
# tensor is held whole.


NUM_BINS = 24
"""Few enough to draw a hundred thousand of them, and more than the eye needs to see a shape."""


def bin_counts(array: Array, low: float, high: float, num_bins: int = NUM_BINS) -> Ints:
    """Return the numbers [num_bins] of finite elements in equal parts of ``[low, high]``; the last
    part holds ``high``.

    If all elements are the same, the first bin holds them.

    >>> bin_counts(np.array([0.0, 1.0, 1.5, 4.0, np.nan]), 0.0, 4.0, 4).tolist()
    [1, 2, 0, 1]
    """
    values = reals(array)
    # A quarter of each, so that the width cannot overflow: from -1.7e308 to 1.7e308 it is 3.4e308,
    # beyond float64.
    floats = (
        values[np.isfinite(values)].astype(np.float64) / 4
        if values.dtype.kind == "f"
        else values / 4.0
    )
    width = high / 4 - low / 4
    if width <= 0:
        return np.array([len(floats), *[0] * (num_bins - 1)], dtype=np.int64)
    # The highest value falls behind the last bin: 4.0 in [0, 4] with 4 bins is floor(4.0) = 4, and
    # the last bin is 3.
    place = np.clip(np.floor((floats - low / 4) / width * num_bins), 0, num_bins - 1)
    return np.bincount(place.astype(np.int64), minlength=num_bins)


def histograms(
    reader: Reader,
    measured: Mapping[str, Statistics | ReadError],
    progress: Progress = lambda _nbytes: None,
) -> Iterator[tuple[str, Ints]]:
    """Yield the bin counts of each tensor with statistics and a finite element."""
    blocks = Blocks.of(reader)
    rows = blocks.tensors.rows()
    ranges = {
        rows[key]: (float(found.minimum), float(found.maximum))
        for key, found in measured.items()
        if isinstance(found, Statistics) and found.minimum is not None and found.maximum is not None
    }
    for batch in batches(blocks.nbytes, [row for row in ranges if blocks.is_small(row)]):
        for row, found in zip(batch, blocks.read(batch), strict=True):
            # Reported with the statistics, or the file changed since.
            if not isinstance(found, READ_ERRORS):
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

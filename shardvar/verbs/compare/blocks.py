"""Blocks of values: tensors of any size, a bounded block at a time, in an order that no layout
changes.

``diff`` and the statistics want to see every element once, and neither may hold a large tensor
whole. A tensor that is small is read as an array, many in one go. A large one is cut into regions
that follow each other in its C order, in any slices, so that two checkpoints with
different layouts can be walked side by side.

Checksums are compared at the end of each tensor: the parts that were read are put together as in
``engine.evidence``, so a payload is read once even where the format has one checksum of the whole.
The consumer can therefore believe its values only once a stream has ended, or after
``FlatTensor.check``, which is called when every read of the tensor is done, and not before.

Statistics are of one such pass. Minimum, maximum, mean and standard deviation are taken over the
finite elements; NaNs, infinities and zeros are counted. Complex numbers count by their magnitude,
bools as 0 and 1. Means and sums of squared deviations of blocks are merged in pairs, which stays
accurate where sums of squares would cancel:

    d = mean_b - mean_a     mean = mean_a + d * n_b / n     m2 = m2_a + m2_b + d**2 * n_a * n_b / n

Scalars are read as values: ``lr 0.001`` tells more than a tensor without a shape. A *setting* is a
number, a text or another plain object that a program kept with its tensors, such as a learning
rate. The formats of PyTorch and Orbax have them. They are listed as strings without a shape, and
they are not tensors.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import zip_longest
from math import isfinite, sqrt
from typing import Any, Self, TypeVar

import numpy as np

from shardvar.engine.pool import (
    BLOCK_NBYTES,
    Progress,
    block_ranges,
    new_buffer,
    run_ahead,
    thread_buffer,
)
from shardvar.engine.read import FlatTensor, read_each
from shardvar.errors import READ_ERRORS, InvalidCheckpoint, ReadError, StorageError
from shardvar.formats.deferred import DeferredIndex
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    ITEMSIZES,
    STRING,
    Array,
    Ints,
    Number,
    code,
    is_number,
    is_opaque,
    json_number,
    numpy_dtype,
    python_number,
    widen_numbers,
)
from shardvar.planning.index import EntryTable, concatenate_entries, of_rows
from shardvar.planning.slices import TensorTable
from shardvar.records import entity, frozen
from shardvar.verbs.reader import Reader, has_settings

T = TypeVar("T")

BATCH_NBYTES = 4 * BLOCK_NBYTES
"""Small tensors are read together up to this size."""

BATCH_COUNT = 4096
"""Small tensors are read together up to this number, so that empty ones do not pile up."""


@entity
class Blocks:
    source: Source
    entries: EntryTable
    order: Ints
    """[m] rows of ``entries``, grouped by tensor."""
    bounds: Ints
    """[n + 1] where the rows of each tensor begin in ``order``."""
    nbytes: Ints
    """[n] payload bytes of each tensor."""

    @classmethod
    def of(cls, reader: Reader) -> Self:
        return cls.of_entries(reader.source, reader.entries())

    @classmethod
    def of_entries(cls, source: Source, entries: EntryTable) -> Self:
        return cls(source, entries, *entries.slices.by_tensor(), entries.slices.nbytes_of_tensors())

    @property
    def tensors(self) -> TensorTable:
        return self.entries.slices.tensors

    def is_small(self, tensor: int) -> bool:
        """True if the tensor is read whole: it fits in a block, or holds strings."""
        # Opaque tensors cannot be read as arrays, so they are streamed however small they are.
        dtype = self.tensors.dtype(tensor)
        return dtype == STRING or (
            not is_opaque(dtype) and int(self.nbytes[tensor]) <= BLOCK_NBYTES
        )

    def entries_of(self, tensors: Sequence[int]) -> EntryTable:
        """The entries of some tensors, over a table of only these tensors, in the given order."""
        chosen = [self.order[self.bounds[tensor] : self.bounds[tensor + 1]] for tensor in tensors]
        return of_rows(self.entries, tensors, chosen)

    def flat(self, tensor: int) -> FlatTensor:
        """A tensor whose bytes are read in C order."""
        return FlatTensor.of(self.source, self.entries_of([tensor]))

    def read(self, tensors: Sequence[int]) -> list[Array | ReadError]:
        """Small tensors as arrays, in order; in the place of one that is damaged, its error."""
        return read_each(self.source, self.entries_of(tensors))

    def stream(self, tensor: int) -> Iterator[Array]:
        """Flat arrays in C order; opaque elements as unsigned integers, variants as bytes."""
        flat, dtype = self.flat(tensor), element_dtype(self.tensors.dtype(tensor))
        step = BLOCK_NBYTES // dtype.itemsize * dtype.itemsize
        for span in block_ranges(0, flat.nbytes, step):
            yield np.frombuffer(read_portion(flat, *span, None), dtype)
        flat.check()


def element_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of the elements of a large tensor: opaque ones are unsigned integers."""
    return np.dtype(f"u{ITEMSIZES[code(name)] or 1}") if is_opaque(name) else numpy_dtype(name)


ReadBytes = Callable[[], memoryview]
"""Reads a portion of a tensor in any thread, into a buffer that the thread has until its next call."""

NO_BYTES: ReadBytes = memoryview(b"").toreadonly


def reads_of(flats: Sequence[FlatTensor], steps: Sequence[int]) -> Generator[list[ReadBytes]]:
    """Yield what reads the next bytes of each of one or two tensors, in order; none of one that has ended.

    The reads raise errors. The caller checks the tensors once all are read.
    """
    with ExitStack() as stack:
        sides = [
            stack.enter_context(closing(_reads(flat, step, use)))
            for flat, step, use in zip(flats, steps, ("unit", "span"), strict=False)
        ]
        yield from map(list, zip_longest(*sides, fillvalue=NO_BYTES))


def _reads(flat: FlatTensor, step: int, use: str) -> Generator[ReadBytes]:
    spans = block_ranges(0, flat.nbytes, step)
    if not flat.is_ordered:
        yield from (partial(read_portion, flat, *span, use) for span in spans)
        return
    # A tensor that is decoded from its beginning is read in order, one portion ahead.
    with closing(run_ahead(_in_order(flat, spans))) as portions:
        for portion in portions:
            yield partial(_given, portion)


def _in_order(
    flat: FlatTensor, spans: Iterable[tuple[int, int]]
) -> Iterator[memoryview | ReadError]:
    try:
        yield from (read_portion(flat, *span, None) for span in spans)
    except READ_ERRORS as error:
        yield error


def _given(portion: memoryview | ReadError) -> memoryview:
    if isinstance(portion, ReadError):
        raise portion
    return portion


def read_portion(flat: FlatTensor, start: int, stop: int, use: str | None = "unit") -> memoryview:
    """Read bytes of a tensor into a buffer of the thread, or with ``use=None`` into a new one."""
    buffer = new_buffer(stop - start) if use is None else thread_buffer(stop - start, use)
    try:
        flat.read(start, buffer)
    except InvalidCheckpoint:
        # A damaged payload should be called damaged, so its checksum comes first.
        flat.check()
        raise
    return buffer


def batches(nbytes: Ints, tensors: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    total = 0
    for tensor, size in zip(
        tensors, nbytes[np.array(tensors, dtype=np.int64)].tolist(), strict=True
    ):
        if batch and (total + size > BATCH_NBYTES or len(batch) == BATCH_COUNT):
            yield batch
            batch, total = [], 0
        batch.append(tensor)
        total += size
    if batch:
        yield batch


@frozen
class Statistics:
    count: int = 0
    finite: int = 0
    """The number of elements that are neither NaN nor infinite."""
    nan: int = 0
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
    """Magnitudes of complex numbers (NaN if either part is), bools as 0 and 1."""
    values = widen_numbers(array.reshape(-1))
    return (
        np.where(np.isnan(values), np.nan, np.abs(values)) if values.dtype.kind == "c" else values
    )


def statistics(array: Array) -> Statistics:
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
    """Strings and opaque tensors are left out; a tensor that cannot be read has its error."""
    blocks = Blocks.of(reader)
    rows, faults = blocks.tensors.rows(), reader.faults
    wanted = [rows[key] for key in keys if key in rows and key not in faults]
    numbers = [row for row in wanted if is_number(blocks.tensors.dtype(row))]
    for row, found in _folded(
        blocks, numbers, lambda _, array: statistics(array), Statistics.merge, progress
    ):
        yield blocks.tensors.keys[row], found


def _folded(
    blocks: Blocks,
    rows: Sequence[int],
    measure_of: Callable[[int, Array], T],
    merge: Callable[[T, T], T],
    progress: Progress,
) -> Iterator[tuple[int, T | ReadError]]:
    for batch in batches(blocks.nbytes, [row for row in rows if blocks.is_small(row)]):
        for row, array in zip(batch, blocks.read(batch), strict=True):
            yield row, array if isinstance(array, ReadError) else measure_of(row, array)
            progress(int(blocks.nbytes[row]))
    for row in rows:
        if not blocks.is_small(row):
            total: T | None = None
            try:
                for array in blocks.stream(row):
                    part = measure_of(row, array)
                    total = part if total is None else merge(total, part)
                    progress(array.nbytes)
            except READ_ERRORS as error:
                yield row, error
            else:
                if total is not None:
                    yield row, total


def _extreme(choose: Any, a: Number | None, b: Number | None) -> Number | None:
    return b if a is None else a if b is None else choose(a, b)


# Histograms, from one more pass over bounded blocks. The bins are equally wide and reach from the
# smallest finite value to the largest, which the statistics have. Counts of blocks add up, so no
# tensor is held whole.


NUM_BINS = 24
"""Few enough to draw a hundred thousand of them, and more than the eye needs to see a shape."""


def bin_counts(array: Array, low: float, high: float, num_bins: int = NUM_BINS) -> Ints:
    """[num_bins] Finite elements in equal parts of ``[low, high]``; equal ones are in the first."""
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
    blocks = Blocks.of(reader)
    rows = blocks.tensors.rows()
    ranges = {
        rows[key]: (float(found.minimum), float(found.maximum))
        for key, found in measured.items()
        if isinstance(found, Statistics) and found.minimum is not None and found.maximum is not None
    }
    for row, found in _folded(
        blocks, [*ranges], lambda row, array: bin_counts(array, *ranges[row]), np.add, progress
    ):
        # An error was reported with the statistics, or the file changed since.
        if isinstance(found, np.ndarray):
            yield blocks.tensors.keys[row], found


_MOST_READ = 1000
"""The scalars of a checkpoint that are read; they take some 0.1 s."""
_MOST_NBYTES = 1000
"""The bytes of the longest text that is read."""


@frozen
class ScalarValue:
    text: str
    """The value as a person writes it: ``0.001``, ``True``, ``'adamw'``."""
    value: bool | int | float | str
    """The value for JSON; a text for a setting, and for a number that JSON lacks."""


def read_scalars(
    reader: Reader, keys: Iterable[str], *, is_listing: bool = False
) -> dict[str, ScalarValue]:
    """All settings, then numbers, at most 1,000; in a bucket, only values that the index has."""
    index = reader.index
    if is_listing and isinstance(index, DeferredIndex) and index.is_apart:
        return {}
    blocks = Blocks.of_entries(reader.source, reader.listed())
    faults = reader.listed_faults()
    row_of, ranks = blocks.tensors.rows(), blocks.tensors.ranks
    is_local, has_any = reader.source.traits is None, has_settings(reader.source)
    settings: list[int] = []
    numbers: list[int] = []
    for key in keys:
        row = row_of.get(key, -1)
        if row < 0 or ranks[row] or blocks.nbytes[row] > _MOST_NBYTES or key in faults:
            continue
        if has_any and blocks.tensors.dtype(row) == STRING:
            settings.append(row)
        elif is_local and blocks.is_small(row):
            numbers.append(row)
    names = [blocks.tensors.keys[row] for row in (settings + numbers)[:_MOST_READ]]
    are_settings = {*names[: len(settings)]}
    # A value that cannot be read is shown as a shape; ``verify`` tells why. So is every value if the
    # files of the checkpoint may not be read.
    values: list[Array | ReadError] = []
    with suppress(StorageError):
        if isinstance(index, DeferredIndex) and names:
            index.expect(names)
            names = [key for key in names if key not in index.faults]
            tables = [reader.find(key) for key in names]
            blocks = Blocks.of_entries(reader.source, concatenate_entries(tables))
        row_of = blocks.tensors.rows()
        values = blocks.read([row_of[key] for key in names])
    return {
        key: _scalar(found[()], key in are_settings)
        for key, found in zip(names, values, strict=False)
        if not isinstance(found, ReadError)
    }


def _scalar(value: Any, is_setting: bool) -> ScalarValue:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        # A setting is kept as a literal of Python, whose texts have quotes.
        return ScalarValue(text if is_setting else repr(text), text)
    if isinstance(value, np.bool):
        return ScalarValue(str(value), bool(value))
    (wide,) = widen_numbers(np.reshape(value, 1)).tolist()
    if isinstance(wide, complex):
        return ScalarValue(str(value), str(value))
    if isinstance(wide, float):
        return ScalarValue(str(value), wide if isfinite(wide) else repr(wide))
    return ScalarValue(str(wide), wide)

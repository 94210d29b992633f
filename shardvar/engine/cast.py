"""Sources whose values are cast on the way.

This is the only place where a dtype changes, and only on demand.

Each payload is verified whole before its first element is converted, so that the check is of the
stored bytes. A conversion that would lose more than precision is refused, naming key and value:
a finite number that becomes infinite, an integer that does not fit, a fraction that becomes an
integer, an imaginary part that is dropped.
"""

from typing import Any, Self

import ml_dtypes
import numpy as np

from shardvar.engine.pieces import VerifiedRows, VerifiedSource
from shardvar.engine.pool import BLOCK_NBYTES, bytes_of, thread_buffer
from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    HALVES,
    Array,
    Bools,
    DType,
    Ints,
    code,
    is_opaque,
    is_whole,
    numpy_dtype,
    to_round_once,
    unpack_halves,
)
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.slices import SliceTable
from shardvar.records import entity, replace

_integer_info: Any = ml_dtypes.iinfo  # without types in its package
_float_info: Any = ml_dtypes.finfo

_PORTION = 1 << 18  # elements that are converted at a time; of four bytes each, they take 1 MiB

_WIDER = {
    **dict.fromkeys(("int2", "int4", "uint2", "uint4"), np.int8),
    **dict.fromkeys(("float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn"), np.float32),
}
"""Types that NumPy does not convert to all others, each with a type that has their values."""


@entity
class CastSource(VerifiedSource):
    @classmethod
    def of(cls, inner: Source, stored: EntryTable) -> Self:
        """The source that converts the payloads of another one."""
        return cls(VerifiedRows(inner, stored))

    # Of entries that are not plain, ``start`` is the row of the stored one.

    def files_read(self, entries: EntryTable) -> Ints:
        plain = self.inner.files_read(entries.take(np.flatnonzero(entries.plain)))
        stored = self.stored.take(entries.start[~entries.plain])
        return np.union1d(plain, self.inner.files_read(stored))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        answer, own = np.zeros(len(rows), np.bool), ~entries.plain[rows]
        answer[own] = self.inner.in_order(self.stored, entries.start[rows[own]])
        return answer

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        self.verified.expect(entries.start[rows[~entries.plain[rows]]])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        after, row = entries.slices.dtype(row), int(entries.start[row])
        is_same = self.stored.slices.dtype(row) == after
        return self.inner.decode(self.stored, row) if is_same else None

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if entries.plain[row]:
            self.inner.read_into(entries, row, start, buffer)
            return
        key, after, row = (
            entries.slices.key(row),
            entries.slices.dtype(row),
            int(entries.start[row]),
        )
        before = self.stored.slices.dtype(row)
        if before == after:
            self.inner.read_into(self.stored, row, start, buffer)
            return
        if before == HALVES:
            self._read_halves(row, start, buffer)
            return
        # Check.
        payload = self.verified.held(row)
        if payload is None:
            self.verified.verify(row)
        # Move. Bytes are converted by way of elements: byte 8 of a float32 payload is element 2,
        # and that begins at byte 16 if it is stored as float64. On a disk a portion at a time stays
        # in the cache; elsewhere each is a request, and is as large as a block.
        source, into = numpy_dtype(before), np.frombuffer(buffer, numpy_dtype(after))
        first = start // into.itemsize
        step = _PORTION if self.traits is None else BLOCK_NBYTES // source.itemsize
        for begin in range(0, len(into), step):
            portion = into[begin : begin + step]
            place, nbytes = (first + begin) * source.itemsize, len(portion) * source.itemsize
            if payload is None:
                values = np.frombuffer(thread_buffer(nbytes, "cast"), source)
                self.inner.read_into(self.stored, row, place, bytes_of(values))
            else:
                values = np.frombuffer(payload[place : place + nbytes], source)
            convert_into(portion, values, key)

    def _read_halves(self, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with elements of four bits, a byte each, from element ``start``."""
        self.verified.verify(row)
        first, stop = start // 2, -(-(start + len(buffer)) // 2)
        packed = np.frombuffer(thread_buffer(stop - first, "cast"), np.uint8)
        self.inner.read_into(self.stored, row, first, bytes_of(packed))
        elements = unpack_halves(packed)[start - 2 * first :][: len(buffer)]
        np.frombuffer(buffer, np.uint8)[:] = elements.view(np.uint8)


def cast_entries(entries: EntryTable, dtypes: dict[str, str]) -> EntryTable:
    """Return the entries with some dtypes replaced; converted ones are no longer plain."""
    slices = entries.slices
    codes = slices.tensors.codes.copy()
    for row, key in enumerate(slices.tensors.keys):
        if key in dtypes:
            before, after = slices.tensors.dtype(row), dtypes[key]
            is_unpacked = (before, after) == (HALVES, "float4_e2m1fn")
            if (
                before != after
                and not is_unpacked
                and any(is_whole(name) or is_opaque(name) for name in (before, after))
            ):
                raise UnsupportedError(
                    f"{key!r} cannot be cast from {before} to {after}.", "Cast numbers to numbers."
                )
            codes[row] = code(after)
    # A converted payload lies in no file byte for byte, and the index has no checksum of it.
    # ``inner`` compares the stored one.
    same = (codes == slices.tensors.codes)[slices.tensor]
    columns = slices.tensor, slices.offset, slices.shape, slices.nbytes
    table = SliceTable.of(replace(slices.tensors, codes=codes), *columns)
    checksum = np.where(same, entries.checksum, NO_CHECKSUM)
    # Runs are one table for all entries, so one converted tensor drops them for all.
    runs = entries.runs if same.all() else None
    plain = entries.plain & same
    return renumber(replace(entries, slices=table, plain=plain, checksum=checksum, runs=runs))


def renumber(entries: EntryTable) -> EntryTable:
    """Return entries for a ``CastSource`` that has the stored entries of the same rows."""
    start = np.where(entries.plain, entries.start, np.arange(len(entries)))
    return replace(entries, start=start)


def convert_into(into: Array, values: Array, key: str) -> None:
    """Fill ``into``, rounded once, half to even; raise if more than precision is lost."""
    dtype = into.dtype
    values = values.astype(_WIDER.get(values.dtype.name, values.dtype), copy=False)
    is_exact = _is_exact(values.dtype) or _is_exact(dtype)
    if values.size and not is_exact and "c" not in (values.dtype.kind, dtype.kind):
        # Two reductions tell that only precision can be lost, ten times as fast as the comparisons
        # below. A NaN among the values is in no range, and float8_e8m0fnu has no negative numbers.
        lowest, largest = (float(getattr(_float_info(dtype), name)) for name in ("min", "max"))
        least, most = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
        if lowest <= least and most <= largest and lowest == -largest:
            np.copyto(into, to_round_once(values, dtype), casting="unsafe")
            return
    lost = np.zeros(values.shape, np.bool)
    numbers = values
    if values.dtype.kind == "c" and dtype.kind != "c":
        numbers, lost = values.real, values.imag != 0
    with np.errstate(all="ignore"):
        converted = to_round_once(numbers, dtype).astype(dtype)
        if is_exact:
            # Integers must survive the way there and back. That is not enough: the uint8 200 is -56
            # as int8, which is 200 again as uint8. So signs are compared too.
            after = converted.real if dtype.kind == "c" else converted
            lost |= (after.astype(numbers.dtype) != numbers) | ((after < 0) != (numbers < 0))
            # Rounding can hide a loss: 2**31 - 1 is 2**31 as float32, which some processors turn
            # back into 2**31 - 1.
            lost |= _is_wrapped(numbers, after) | _is_wrapped(after, numbers)
        else:
            # Types without infinities, or without NaNs, put numbers in their place. The NaN of one
            # part of a complex number must not hide the other part.
            for part in (np.real, np.imag) if numbers.dtype.kind == "c" else (np.asarray,):
                before, after = part(numbers), part(converted)
                lost |= np.isfinite(before) != np.isfinite(after)
                lost |= np.isnan(before) != np.isnan(after)
                lost |= _is_beyond(before, dtype)
    if lost.any():
        value = values[int(np.argmax(lost))]
        raise UnsupportedError(
            f"The value {value} of {key!r} has no place in {dtype.name}.",
            "Choose a wider dtype, or leave the tensor as it is.",
        )
    into[...] = converted


def _is_wrapped(fractions: Array, integers: Array) -> Bools:
    """Return True for infinities, NaNs and floats beyond the largest integer, which may wrap."""
    if _is_exact(fractions.dtype) or not _is_exact(integers.dtype) or integers.dtype == np.bool:
        return np.zeros(fractions.shape, np.bool)
    # The bound max + 1 is a power of two, which float64 holds exactly; max itself would be rounded,
    # as 2**63 - 1 to 2**63.
    stop = float(int(_integer_info(integers.dtype).max) + 1)
    return np.asarray(~np.isfinite(fractions) | (fractions.astype(np.float64) >= stop))


def _is_beyond(values: Array, dtype: DType) -> Bools:
    """Return True for finite numbers beyond the largest of a real type, after rounding."""
    kind = np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
    largest, eps = (float(getattr(_float_info(kind), name)) for name in ("max", "eps"))
    # Half a step beyond the largest number; a smaller excess is rounded down to it. For float16 the
    # limit is 65504 + 2**-10 * 2**15 / 2 = 65520.
    limit = largest + eps * 2.0 ** np.floor(np.log2(largest)) / 2
    return np.asarray(np.isfinite(values) & (np.abs(values.astype(np.float64)) >= limit))


def _is_exact(dtype: DType) -> bool:
    """Return True for integers and bools, whose values must not change at all."""
    # The integers of ml_dtypes, such as int4, have the kind "V", so their names tell.
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))

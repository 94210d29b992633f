"""Sources whose values are converted on the way: casts, and numbers in the place of quantised
weights.

This is the only place where a dtype changes, and only on demand.

Each payload is verified whole before its first element is converted, so that the check is of the
stored bytes. A conversion that would lose more than precision is refused, naming key and value:
a finite number that becomes infinite, an integer that does not fit, a fraction that becomes an
integer, an imaginary part that is dropped.

Dequantizing. A quantised tensor is stored as two: weights, and scales that blocks of the weights
share. A number is the product of its weight and the scale of its block:

    weights [3, 5], blocks of 2 x 4      scales [2, 2]
    w w w w | w                          s | s
    w w w w | w                          --+--
    --------+--                          s | s
    w w w w | w

Products are computed in float32, as by the libraries that define the encodings, and then rounded to
the dtype that is asked for. A read of some numbers reads their weights, and the scales of the
blocks that they lie in, and no others.

Weights have 8 bits, or 4: then a byte has two, the low bits first. Packed weights may have an axis
of their own for the bytes of a block, [rows, blocks, bytes]. The numbers of stacked matrices may be
*transposed*: stored [matrices, rows, columns], and read [matrices, columns, rows].

Payloads are compared with their checksums before they are used, as by a cast: runs one by one, and
where there is only a checksum of the whole, the whole payload once.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from threading import RLock
from typing import Any, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import ComposedSource, VerifiedRows, VerifiedSource
from shardvar.engine.pool import BLOCK_NBYTES, bytes_of, thread_buffer
from shardvar.engine.read import read_region
from shardvar.errors import InvalidCheckpoint, UnsupportedError
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    HALVES,
    Array,
    Bools,
    Ints,
    code,
    is_opaque,
    is_whole,
    numpy_dtype,
    to_round_once,
    unpack_halves,
)
from shardvar.layout.region import Region, regions_of_range
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable

_integer_info: Any = ml_dtypes.iinfo  # without types in its package
_float_info: Any = ml_dtypes.finfo

_PORTION = 1 << 18  # elements that are converted at a time; of four bytes each, they take 1 MiB

_WIDER = {
    **dict.fromkeys(("int2", "int4", "uint2", "uint4"), np.int8),
    **dict.fromkeys(("float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn"), np.float32),
}
"""Types that NumPy does not convert to all others, each with a type that has their values."""


@dataclass(frozen=True, slots=True, eq=False)
class CastSource(VerifiedSource):
    @classmethod
    def of(cls, inner: Source, stored: EntryTable) -> Self:
        """The source that converts the payloads of another one."""
        return cls(VerifiedRows(inner, stored))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        return self.inner.in_order(self.stored, rows)

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        self.verified.expect(rows)

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        is_same = self.stored.slices.dtype(row) == entries.slices.dtype(row)
        return self.inner.decode(self.stored, row) if is_same else None

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        before, after = (table.slices.dtype(row) for table in (self.stored, entries))
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
            convert_into(portion, values, entries.slices.key(row))

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
    return replace(entries, slices=table, plain=entries.plain & same, checksum=checksum, runs=runs)


def convert_into(into: npt.NDArray[Any], values: npt.NDArray[Any], key: str) -> None:
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


def _is_wrapped(fractions: npt.NDArray[Any], integers: npt.NDArray[Any]) -> npt.NDArray[np.bool]:
    """Return True for infinities, NaNs and floats beyond the largest integer, which may wrap."""
    if _is_exact(fractions.dtype) or not _is_exact(integers.dtype) or integers.dtype == np.bool:
        return np.zeros(fractions.shape, np.bool)
    # The bound max + 1 is a power of two, which float64 holds exactly; max itself would be rounded,
    # as 2**63 - 1 to 2**63.
    stop = float(int(_integer_info(integers.dtype).max) + 1)
    return np.asarray(~np.isfinite(fractions) | (fractions.astype(np.float64) >= stop))


def _is_beyond(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[np.bool]:
    """Return True for finite numbers beyond the largest of a real type, after rounding."""
    kind = np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
    largest, eps = (float(getattr(_float_info(kind), name)) for name in ("max", "eps"))
    # Half a step beyond the largest number; a smaller excess is rounded down to it. For float16 the
    # limit is 65504 + 2**-10 * 2**15 / 2 = 65520.
    limit = largest + eps * 2.0 ** np.floor(np.log2(largest)) / 2
    return np.asarray(np.isfinite(values) & (np.abs(values.astype(np.float64)) >= limit))


def _is_exact(dtype: np.dtype[Any]) -> bool:
    """Return True for integers and bools, whose values must not change at all."""
    # The integers of ml_dtypes, such as int4, have the kind "V", so their names tell.
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))


_Floats = npt.NDArray[np.float32]

_PORTION, _TALL_PORTION = 1 << 18, 1 << 20
"""Numbers that are computed at a time: 1 MiB of float32 stays in the cache. A portion of transposed
numbers is some columns of the stored ones, and four times as large, since each reads all rows."""

_KEPT_NBYTES = 1 << 20
"""Bytes of scales that are kept: blocks of 128 rows are read in several portions."""

_CODES = np.arange(256, dtype=np.uint8)

# Two weights of 4 bits, by the byte that holds them.
_PAIRS = (
    np.column_stack([_CODES & 15, _CODES >> 4])
    .view(ml_dtypes.float4_e2m1fn)
    .astype(np.float32)
    .view(np.complex64)[:, 0]
)

# By a byte, the power of two whose exponent it holds: 2**(byte - 127), and NaN for 255 (OCP MX).
_POWERS: _Floats = _CODES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Quantised:
    key: str
    weights: str  # the key of its weights
    scales: str | None  # the key of its scales; None if the weights are the numbers
    shape: tuple[int, ...]
    """The shape of its numbers as they are stored, before they are transposed."""
    block: tuple[int, int] = (1, 1)  # the rows and columns that share a scale
    kind: str = ""  # the name of the encoding, for people, such as FP8
    is_packed: bool = False  # True if a byte has two weights of 4 bits
    is_transposed: bool = False  # True if the last two axes are exchanged when the numbers are read

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of the scales: one for each block."""
        *stacked, rows, columns = self.matrix
        height, width = self.block
        return (*stacked, -(-rows // height), -(-columns // width))

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape with two axes at least: a vector is a row, a scalar a row of one."""
        return (1,) * (2 - len(self.shape)) + self.shape

    def outside(self, region: Region) -> Region:
        """Return a region of the stored numbers as a region of the tensor; its own inverse."""
        if not self.is_transposed:
            return region
        return Region(_swapped(region.offset), _swapped(region.shape))


@dataclass(frozen=True, slots=True, eq=False)
class ScaledSource(ComposedSource):
    """Another source with the numbers of quantised tensors; ``start`` is the number of an entry."""

    index: TableIndex = field()  # the table of contents, with the numbers
    stored_row: Ints
    """[m] the row of each entry among the stored ones: of numbers, the row of their weights."""
    quantised: Mapping[int, Quantised]  # the tensor of each entry that holds numbers, by its row
    rows: Mapping[str, Ints]  # the stored rows of weights and scales, by their keys
    members: Mapping[str, Sequence[str]]
    """The stored keys of each quantised tensor, by its key: of its weights and of its scales."""
    notes: Sequence[str]  # Sentences about the differences from the stored tensors
    _kept: "OrderedDict[tuple[str, Region], _Floats]" = field(default_factory=OrderedDict)
    _lock: RLock = field(default_factory=new_lock)

    # Entries.

    def files_read(self, entries: EntryTable) -> Ints:
        rows = [np.zeros(0, np.int64)]
        for number in entries.start[~entries.plain].tolist():
            tensor = self.quantised.get(number)
            members = () if tensor is None else self.members[tensor.key]
            rows += [self.rows[key] for key in members] or [self.stored_row[number : number + 1]]
        used = np.unique(np.concatenate(rows))
        plain = self.inner.files_read(entries.take(np.flatnonzero(entries.plain)))
        return np.union1d(plain, self.inner.files_read(self.stored.take(used)))

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        answer, own = np.zeros(len(rows), np.bool), ~entries.plain[rows]
        answer[own] = self.inner.in_order(self.stored, self.stored_row[entries.start[rows[own]]])
        return answer

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        decoded = entries.start[rows[~entries.plain[rows]]].tolist()
        own = np.array([row for row in decoded if row not in self.quantised], np.int64)
        self.inner.expect(self.stored, self.stored_row[own])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        number = int(entries.start[row])
        if number in self.quantised:
            return None
        return self.inner.decode(self.stored, int(self.stored_row[number]))

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if entries.plain[row]:
            self.inner.read_into(entries, row, start, buffer)
            return
        number = int(entries.start[row])
        tensor = self.quantised.get(number)
        if tensor is None:
            self.inner.read_into(self.stored, int(self.stored_row[number]), start, buffer)
            return
        dtype = numpy_dtype(self.index.entries.slices.dtype(number))
        size, step = dtype.itemsize, _TALL_PORTION if tensor.is_transposed else _PORTION
        # Of numbers of 4 bytes, the bytes 6 to 13 are of the numbers 1 to 3: 2 bytes of the first
        # are dropped.
        first, stop = start // size, -(-(start + len(buffer)) // size)
        is_aligned = (first * size, stop * size) == (start, start + len(buffer))
        octets = buffer if is_aligned else memoryview(bytearray((stop - first) * size))
        into = np.frombuffer(octets, dtype)
        for begin in range(first, stop, step):
            end = min(begin + step, stop)
            self._fill(number, tensor, begin, into[begin - first : end - first])
        if not is_aligned:
            buffer[:] = octets[start - first * size :][: len(buffer)]

    def _fill(self, number: int, tensor: Quantised, first: int, into: Array) -> None:
        whole = self.index.entries.slices.region(number)
        done = 0
        for part in regions_of_range(whole.shape, first, first + len(into)):
            offset = [low + begin for low, begin in zip(part.offset, whole.offset, strict=True)]
            region = tensor.outside(Region(offset, part.shape))
            values = self._numbers(number, tensor, region, first + done)
            if tensor.is_transposed:
                values = np.ascontiguousarray(values.swapaxes(-1, -2))
            convert_into(into[done : done + part.size], values.reshape(-1), tensor.key)
            done += part.size

    # Numbers.

    def _numbers(self, number: int, tensor: Quantised, region: Region, first: int) -> _Floats:
        """Return the float32 numbers of a stored region, from its element ``first`` on."""
        weights = self._weights(number, tensor, region, first)
        if tensor.scales is None:
            return weights
        padding = 2 - region.rank
        offset, shape = (0,) * padding + region.offset, (1,) * padding + region.shape
        values = weights.reshape(shape)
        scales, top, left = self._scales(tensor, tensor.scales, offset, shape)
        height, width = tensor.block
        # The scale of each column: of blocks of 4, the columns 2 to 6 have the scales 0 0 1 1.
        wide = np.repeat(scales, np.minimum(width, shape[-1] + left), axis=-1)
        wide = wide[..., left : left + shape[-1]]
        with np.errstate(all="ignore"):
            if height == 1:
                product = values * wide
            else:
                product = np.empty_like(values)
                for row in range(scales.shape[-2]):
                    low, high = max(0, row * height - top), (row + 1) * height - top
                    rows = (..., slice(low, high), slice(None))
                    np.multiply(values[rows], wide[..., row : row + 1, :], out=product[rows])
            if product.size and not np.isfinite(product.min() + product.max()):
                _check_finite(values, product, tensor)
        return product.reshape(region.shape)

    def _weights(self, number: int, tensor: Quantised, region: Region, first: int) -> _Floats:
        row = int(self.stored_row[number])
        is_in_place = not tensor.is_packed and not tensor.is_transposed
        if is_in_place and self.stored.runs is None:
            # The numbers of one payload are the weights of one: a range of it is read directly.
            dtype = numpy_dtype(self.stored.slices.dtype(row))
            self._verify(np.array([row]))
            octets = thread_buffer(region.size * dtype.itemsize, "dequantize")
            self.inner.read_into(self.stored, row, first * dtype.itemsize, octets)
            return _floats(np.frombuffer(octets, dtype)).reshape(region.shape)
        if not tensor.is_packed:
            return _floats(self._read(tensor.weights, region))
        # The bytes that hold the columns, and the column that the first of these bytes begins with.
        inner = self._shape(tensor.weights)[len(tensor.shape) :]
        nbytes = prod(inner)
        begin, end = region.offset[-1], region.stop[-1]
        low, high = begin // (2 * nbytes), -(-end // (2 * nbytes))
        offset = (*region.offset[:-1], low, *(0 for _ in inner))
        shape = (*region.shape[:-1], high - low, *inner)
        packed = self._read(tensor.weights, Region(offset, shape))
        pairs = _PAIRS[packed.view(np.uint8)].view(np.float32)
        columns: _Floats = pairs.reshape(*region.shape[:-1], (high - low) * 2 * nbytes)
        skip = begin - low * 2 * nbytes
        return np.asarray(columns[..., skip : skip + end - begin])

    def _scales(
        self, tensor: Quantised, key: str, offset: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[_Floats, int, int]:
        """Return the scales of the blocks that a region meets, and its place in the first block."""
        low, stop = list(offset), list(Region(offset, shape).stop)
        for axis, extent in zip((-2, -1), tensor.block, strict=True):
            low[axis], stop[axis] = low[axis] // extent, -(-stop[axis] // extent)
        blocks = Region(low, [end - begin for begin, end in zip(low, stop, strict=True)])
        with self._lock:
            scales = self._kept.get((key, blocks))
        if scales is None:
            stored = self._read(key, self._places(tensor, key, blocks))
            # Bytes are the exponents of powers of two.
            scales = _POWERS[stored] if stored.dtype == np.uint8 else _floats(stored)
            scales = scales.reshape(blocks.shape)
            _check_scales(scales, blocks, tensor)
            self._keep((key, blocks), scales)
        top, left = (
            offset[axis] - low[axis] * extent
            for axis, extent in zip((-2, -1), tensor.block, strict=True)
        )
        return scales, top, left

    def _places(self, tensor: Quantised, key: str, blocks: Region) -> Region:
        """Return the region of the stored scales of these blocks; its last axes may be missing."""
        shape = self._shape(key)
        if shape == tensor.grid:
            return blocks
        if prod(shape) == 1:
            return Region.whole(shape)
        return Region(blocks.offset[: len(shape)], blocks.shape[: len(shape)])

    def _keep(self, place: tuple[str, Region], scales: _Floats) -> None:
        with self._lock:
            self._kept[place] = scales
            while sum(array.nbytes for array in self._kept.values()) > _KEPT_NBYTES:
                self._kept.popitem(last=False)

    # Stored tensors.

    def _shape(self, key: str) -> tuple[int, ...]:
        slices = self.stored.slices
        return slices.tensors.shape(int(slices.tensor[self.rows[key][0]]))

    def _read(self, key: str, region: Region) -> Array:
        rows = self.rows[key]
        if len(rows) > 1:
            slices = self.stored.slices
            offset = slices.offset[rows, : region.rank]
            stop = offset + slices.shape[rows, : region.rank]
            meets = (offset < np.array(region.stop)) & (stop > np.array(region.offset))
            rows = rows[meets.all(axis=1)]
        if self.stored.runs is not None and self.stored.plain[rows].all():
            return read_region(self.inner, self.stored, rows, region)
        self._verify(rows)
        return read_region(self.inner, self.stored, rows, region, is_verified=False)

    def _verify(self, rows: Ints) -> None:
        """Compare whole payloads, each once, that have a checksum, or one that a source compares."""
        guarded = Evidence(self.inner, self.stored).is_guarded(rows)
        decoded = ~self.stored.plain[rows] & self.inner.in_order(self.stored, rows)
        for row in rows[guarded | decoded].tolist():
            self.verified.verify(row)

    # Members that get keys.

    def _is_guarded(self, key: str) -> bool | None:
        answer = self.inner.is_guarded(key)
        if answer is None and key in self.rows:
            return bool(Evidence(self.inner, self.stored).is_guarded(self.rows[key]).all())
        return answer

    def encodings(self) -> Mapping[str, str]:
        return {}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, which are not quantised."""
        return self.inner.objects([key for key in keys if key not in self.members], form)

    def _members(self, key: str) -> Sequence[str]:
        return self.members.get(key, (key,))


def _floats(weights: Array) -> _Floats:
    if weights.dtype.itemsize != 1:
        return weights.astype(np.float32)
    table = _CODES.view(weights.dtype).astype(np.float32)
    return table[weights.view(np.uint8)]


def _swapped(columns: Sequence[int]) -> tuple[int, ...]:
    *others, rows, last = columns
    return (*others, last, rows)


def _first_place(mask: Bools) -> tuple[int, ...]:
    """Return the first index at which a mask is True; empty for none."""
    return tuple(np.argwhere(mask)[0].tolist()) if mask.any() else ()


def _check_scales(scales: _Floats, blocks: Region, tensor: Quantised) -> None:
    if place := _first_place(~np.isfinite(scales)):
        index = [begin + step for begin, step in zip(blocks.offset, place, strict=True)]
        cause = (
            f"The scale {scales[place]} at {index} of {tensor.scales!r} is not a finite number, and "
            f"{tensor.key!r} needs it."
        )
        remedy = "Copy the file again, or leave the tensor out. Without dequantizing it is kept."
        raise InvalidCheckpoint(cause, remedy)


def _check_finite(weights: Any, product: _Floats, tensor: Quantised) -> None:
    if place := _first_place(np.isfinite(weights) & ~np.isfinite(product)):
        cause = (
            f"A number of {tensor.key!r} is beyond float32: its weight {weights[place]} and its "
            f"scale in {tensor.scales!r} have a product that is infinite."
        )
        raise UnsupportedError(cause, "Leave the tensor out, or keep it without dequantizing it.")

"""Numbers in the place of quantised weights.

A quantised matrix is stored as several tensors: codes, and numbers that blocks of the codes share.
A number is made of its code step by step, each with another matrix of numbers (``Plane``):

    codes [3, 5], blocks of 2 x 4        scales [2, 2]
    w w w w | w                          s | s
    w w w w | w                          --+--
    --------+--                          s | s
    w w w w | w

    number = code * scale                           FP8, MXFP4
             (code - zero) * scale                  integers with a zero point
             code * (scale / one of the tensor)     NVFP4
             code * scale + bias                    MLX

Each step is computed in float32 in this order, and the number is then rounded once to the dtype
that is asked for. A read of some numbers reads their codes, and the scales of the blocks that they
lie in, and no others.

Codes have 1 to 8 bits. They follow each other in the bytes of a row, or of a column, the low bits
first or the high ones; or a byte has codes of rows that lie far apart (``Packing``). Scales may lie
in tiles. The matrix of codes may have another shape than the tensor: blocks of bitsandbytes run
over all rows. The numbers of matrices may be *transposed*: stored [rows, columns], and read
[columns, rows].

Payloads are compared with their checksums before they are used, as by a cast: runs one by one, and
where there is only a checksum of the whole, the whole payload once.

Codes in the place of numbers are the inverse (``EncodedSource``):

    numbers --largest of each block--> what its codes share, steps --steps, rounding--> codes, packed

An ``Encoder`` has the rules of a scheme. The steps before rounding are those by which numbers are made
of codes, the other way round:

    FP8        code = rounded(number * t)                         1 / t is shared
    int4       code = rounded(number / scale)                     scale
    NVFP4      code = rounded(number / (scale / one number))      scale, and one of the whole tensor
    MLX        code = rounded((number - bias) / scale)            scale, bias

A tensor becomes several *parts*: its codes, and one for each thing that is shared. They are computed by
*bands* of the numbers: whole rows, and whole blocks. A band does not depend on the request,
so that its parts are kept until other reads ask for them. What the whole tensor shares needs all of
its numbers first.

Floats of 8 and 4 bits are looked up. ``odd`` makes a bfloat16 of a float32, whose last bit is 1 if any of
the bits after it was: it lies on the same side of each halfway point of fewer bits.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from math import lcm, prod
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardvar.engine.cast import convert_into
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import ComposedSource
from shardvar.engine.read import read_region
from shardvar.errors import InvalidCheckpoint, ReadError, UnsupportedError
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array, Bools, DType, Ints, Shape, numpy_dtype
from shardvar.layout.region import Region, intersect, regions_of_range
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, widen
from shardvar.records import entity, field, frozen, replace

Floats = npt.NDArray[np.float32]

_PORTION, _TALL_PORTION = 1 << 18, 1 << 20
"""Numbers that are computed at a time: 1 MiB of float32 stays in the cache. A portion of transposed
numbers is some columns of the stored ones, and four times as large, since each reads all rows."""

_KEPT_NBYTES = 1 << 20
"""Bytes of scales that are kept: blocks of 128 rows are read in several portions."""

_TALL, _BAND_NBYTES, _MOST_BANDS = 64, 1 << 22, 16
"""The rows above which columns are read as bands of so many bytes, and the bands that are kept."""

_TILE = 128, 4
"""The rows and columns of a tile of scales of cuBLAS: 32 rows of 16 bytes, one for each four rows."""

_CODES = np.arange(256, dtype=np.uint8)
INTEGERS = _CODES.astype(np.float32)
_STEPS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def values_of(dtype: str) -> Floats:
    # [256] the number of each byte, or of each code of 4 bits
    return (_CODES & (15 if "4_" in dtype else 255)).view(numpy_dtype(dtype)).astype(np.float32)


@entity
class Packing:
    """Codes of a few bits: 8 of them are as many bytes as a code has bits."""

    bits: int
    values: Floats = field(default_factory=lambda: INTEGERS)  # [256] the number of each code
    axis: int = -1  # The axis along which codes follow each other
    is_high_first: bool = False  # True if the first code of a byte is in its high bits
    order: Shape = ()
    """The places of 8 codes in their bytes; empty for one after the other."""
    parts: int = 0
    """The number of parts of the rows: each element has a code of each part. 0 for neighbours."""
    inner: int = 1
    """The bytes of the last axis of the stored tensor, which the matrix does not have."""

    def unpack(self, octets: npt.NDArray[np.uint8], count: int) -> Floats:
        """Return the numbers of the first ``count`` codes of rows of bytes."""
        lead, bits = octets.shape[:-1], self.bits
        if 8 % bits == 0:
            table = np.ascontiguousarray(self.values[_codes_of_byte(bits, self.is_high_first)])
            # One look for all codes of a byte.
            whole = table.view(np.dtype((np.void, table[0].nbytes)))[:, 0]
            numbers = np.take(whole, octets).view(np.float32)
        else:
            each = np.unpackbits(octets, -1, count * bits, "little").reshape(*lead, -1, bits)
            octet = np.zeros((*each.shape[:-1], 8), np.uint8)
            octet[..., :bits] = each
            numbers = self.values[np.packbits(octet.reshape(*lead, -1), -1, "little")]
        if self.order:
            numbers = numbers.reshape(*lead, -1, 8)[..., self.order].reshape(*lead, -1)
        return numbers[..., :count]

    def pack(self, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes of rows of codes, the low bits first: the inverse of ``unpack``."""
        lead, bits = codes.shape[:-1], self.bits
        count = 8 // bits if 8 % bits == 0 else 8
        words = np.zeros((*lead, codes.shape[-1] // count), np.uint8 if 8 % bits == 0 else "<u8")
        for place in range(count):
            words |= codes[..., place::count].astype(words.dtype) << words.dtype.type(bits * place)
        octets = words.view(np.uint8).reshape(*words.shape, -1)[..., :bits]
        return octets.reshape(*lead, -1)


@lru_cache
def _codes_of_byte(bits: int, is_high_first: bool) -> npt.NDArray[np.uint8]:
    codes = (_CODES[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return codes[:, ::-1] if is_high_first else codes


@entity
class Plane:
    """A matrix of numbers, or several, that are made of stored tensors."""

    key: str  # The stored tensor of its codes
    shape: Shape  # [..., rows, columns]
    packing: Packing | None = None  # Its codes; None if the elements are numbers
    steps: "tuple[tuple[str, Plane | float], ...]" = ()
    """Operations, such as ``("*", scales)``, on the numbers of the codes."""
    block: tuple[int, int] = (1, 1)
    """The rows and columns of the matrix that it is a step of which share each of its numbers."""
    groups: str = ""
    """The stored tensor of the numbers of the blocks of rows or columns, which may be in any order."""
    axis: int = -1  # The axis that ``groups`` is about
    is_tiled: bool = False

    def stored_shape(self, itemsize: int) -> Shape:
        """The shape of the stored tensor, whose axes of one element may be missing."""
        shape, packing = [*self.shape], self.packing
        if self.is_tiled:
            shape[-2:] = (-(-n // m) * m for n, m in zip(shape[-2:], _TILE, strict=True))
        elif packing and packing.parts:
            shape[-2] = -(-shape[-2] // packing.parts)
        elif packing:
            bits = 8 * itemsize * packing.inner
            shape[packing.axis] = -(-shape[packing.axis] * packing.bits // bits)
            shape += [packing.inner] if packing.inner > 1 else []
        return tuple(shape)


@entity
class Quantised:
    key: str  # The key of its numbers
    shape: Shape  # The shape of its numbers
    plane: Plane
    members: tuple[str, ...]
    """The keys of all stored tensors that it is made of, its codes first."""
    kind: str  # The name of the encoding, for people, such as FP8
    dtype: str = ""  # The dtype of the numbers by the scheme; empty if only the model names one
    is_transposed: bool = False
    """True if the last two axes are exchanged when the numbers are read."""
    refusal: ReadError | None = None
    """The reason why its numbers are not computed, though their shape is known."""

    @property
    def matrix(self) -> Shape:
        return _swapped(self.plane.shape) if self.is_transposed else self.plane.shape

    @property
    def portion(self) -> int:
        return _TALL_PORTION if self.is_transposed else _PORTION

    @property
    def is_whole(self) -> bool:
        """True if it is one slice, though its codes may be several."""
        return bool(self.plane.packing) or self.is_transposed or self.plane.shape != self.shape


class BlockItem(NamedTuple):
    """A tensor of a source of blocks."""

    key: str
    dtype: str
    shape: Shape
    held: Ints  # The stored rows that it has, or is computed of
    tensor: Any = None  # How it is computed; None if it is stored


def block_entries(
    stored: EntryTable, items: Sequence[BlockItem]
) -> tuple[EntryTable, Ints, dict[int, Any]]:
    """Return entries, their ``origin`` (``BlockSource``), and the tensor of each that is computed."""
    table = TensorTable.of(item[:3] for item in items)
    # One slice of a tensor that is computed whole: the bytes of a block may be in several.
    is_one = [item.tensor is not None and item.tensor.is_whole for item in items]
    rows = [item.held[:1] if one else item.held for item, one in zip(items, is_one, strict=True)]
    tensor = np.repeat(np.arange(len(items)), list(map(len, rows)))
    taken = np.concatenate([np.zeros(0, np.int64), *rows])
    entries, rank = stored.take(taken), table.shapes.shape[1]
    whole = np.array(is_one, np.bool)[tensor][:, None]
    offset = np.where(whole, 0, widen(entries.slices.offset, rank, 0)[:, :rank])
    shape = np.where(whole, table.shapes[tensor], widen(entries.slices.shape, rank, 1)[:, :rank])
    made = [items[number].tensor for number in tensor.tolist()]
    numbers = {row: each for row, each in enumerate(made) if each is not None}
    is_number = np.isin(np.arange(len(taken)), [*numbers])
    plain = entries.plain & ~is_number
    changed = replace(
        entries,
        slices=SliceTable.of(table, tensor, offset, shape, entries.slices.nbytes),
        start=np.where(plain, entries.start, np.arange(len(taken))),
        checksum=np.where(is_number, NO_CHECKSUM, entries.checksum),
        plain=plain,
        # Runs are one table for all entries, so one tensor of numbers drops them for all.
        runs=None if numbers else entries.runs,
    )
    return changed, np.where(is_number, ~taken, taken), numbers


@entity
class ArrayCache:
    """The arrays that were made last, of at most so many bytes."""

    most: int
    arrays: "OrderedDict[tuple[Any, ...], Array]" = field(default_factory=OrderedDict)
    lock: RLock = field(default_factory=new_lock)

    def find(self, place: tuple[Any, ...], make: Callable[[], Array]) -> Array:
        found = self.arrays.get(place)
        return self.add(place, make()) if found is None else found

    def add(self, place: tuple[Any, ...], array: Array) -> Array:
        with self.lock:
            self.arrays[place] = array
            while sum(each.nbytes for each in self.arrays.values()) > self.most:
                self.arrays.popitem(last=False)
        return array


@entity
class BlockSource(ComposedSource):
    """Another source, some of whose tensors are computed of blocks."""

    # Of a computed entry, ``origin`` is ``~row`` of the row of its codes or numbers.
    index: TableIndex = field()  # The table of contents, with the computed tensors
    quantised: Mapping[int, Any]  # The tensor of each entry that is computed, by its row
    rows: Mapping[str, Ints]  # The stored rows of the tensors they are computed from, by their keys
    members: Mapping[str, Sequence[str]]  # The stored keys of each such tensor, by its key
    notes: Sequence[str]  # Sentences about the differences from the stored tensors

    # Entries.

    def _used(self, number: int) -> Iterable[int]:
        members = self.members[self.quantised[number].key]
        return chain.from_iterable(self.rows[key].tolist() for key in members)

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        answer, own = np.zeros(len(rows), np.bool), ~entries.plain[rows]
        origin = self.origin[entries.start[rows[own]]]
        answer[own] = self.inner.in_order(self.stored, np.where(origin < 0, ~origin, origin))
        return answer

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        origin = self.origin[entries.start[rows[~entries.plain[rows]]]]
        self.inner.expect(self.stored, origin[origin >= 0])

    def _make(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        number = int(entries.start[row])
        tensor = self.quantised[number]
        dtype = numpy_dtype(self.index.entries.slices.dtype(number))
        size, step = dtype.itemsize, tensor.portion
        # Of numbers of 4 bytes, the bytes 6 to 13 are of the numbers 1 to 3: 2 bytes of the first
        # are dropped.
        first, stop = start // size, -(-(start + len(buffer)) // size)
        is_aligned = start % size == len(buffer) % size == 0
        into = np.frombuffer(buffer, dtype) if is_aligned else np.empty(stop - first, dtype)
        for begin in range(0, len(into), step):
            self._fill(number, tensor, first + begin, into[begin : begin + step])
        if not is_aligned:
            octets = into.view(np.uint8)[start - first * size :]
            np.frombuffer(buffer, np.uint8)[:] = octets[: len(buffer)]

    @abstractmethod
    def _fill(self, number: int, tensor: Any, first: int, into: Array) -> None:
        """Compute elements of the tensor of an entry, from the element ``first`` on."""

    # Stored tensors.

    def _read(self, key: str, region: Region) -> Array:
        rows, slices, rank = self.rows[key], self.stored.slices, region.rank
        own = slices.offset[rows, :rank], slices.shape[rows, :rank]
        _, common = intersect(*own, np.array(region.offset), np.array(region.shape))
        rows = rows[(common > 0).all(axis=1)]
        if self.stored.runs is not None and self.stored.plain[rows].all():
            return read_region(self.inner, self.stored, rows, region)
        guarded = Evidence(self.inner, self.stored).is_guarded(rows)
        decoded = ~self.stored.plain[rows] & self.inner.in_order(self.stored, rows)
        for row in rows[guarded | decoded].tolist():
            self.verified.verify(row)
        return read_region(self.inner, self.stored, rows, region, is_verified=False)

    # Members that get keys.

    def _is_guarded(self, key: str) -> bool | None:
        answer = self.inner.is_guarded(key)
        if answer is None and key in self.rows:
            return bool(Evidence(self.inner, self.stored).is_guarded(self.rows[key]).all())
        return answer

    def encodings(self) -> Mapping[str, str]:
        return {}

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        return self.inner.objects([key for key in keys if key not in self.members], form)

    def _members(self, key: str) -> Sequence[str]:
        return self.members.get(key, (key,))


@entity
class ScaledSource(BlockSource):
    """Another source with the numbers of quantised tensors."""

    _kept: ArrayCache = field(default_factory=lambda: ArrayCache(_KEPT_NBYTES))
    _bands: ArrayCache = field(default_factory=lambda: ArrayCache(_MOST_BANDS * _BAND_NBYTES))

    def _fill(self, number: int, tensor: Quantised, first: int, into: Array) -> None:
        slices, done = self.index.entries.slices, 0
        whole = Region.whole(tensor.matrix) if tensor.is_whole else slices.region(number)
        for part in regions_of_range(whole.shape, first, first + len(into)):
            offset = np.add(part.offset, whole.offset).tolist()
            if tensor.is_transposed:
                region = Region(_swapped(offset), _swapped(part.shape))
                values = self._numbers(tensor, tensor.plane, region).swapaxes(-1, -2)
            else:
                values = self._numbers(tensor, tensor.plane, Region(offset, part.shape))
            convert_into(into[done : done + part.size], values.reshape(-1), tensor.key)
            done += part.size

    # Numbers.

    def _numbers(self, tensor: Quantised, plane: Plane, region: Region) -> Floats:
        values = self._values(plane, region)
        for sign, operand in plane.steps:
            before = values
            with np.errstate(all="ignore"):
                if isinstance(operand, Plane):
                    values = self._step(tensor, sign, before, operand, region)
                else:
                    values = _STEPS[sign](before, np.float32(operand))
                if values.size and not np.isfinite(values.min() + values.max()):
                    _check_finite(before, values, tensor, operand)
        return values

    def _step(
        self, tensor: Quantised, sign: str, values: Floats, operand: Plane, region: Region
    ) -> Floats:
        """Return ``values``, a region of another plane, after a step with the blocks that it meets."""
        rank, axis, shape = len(operand.shape), operand.axis, np.array(operand.shape)
        block = np.array([1] * (rank - 2) + [*operand.block])
        # An axis of one element has it for all.
        low = np.where(shape > 1, np.array(region.offset[-rank:]) // block, 0)
        stop = np.where(shape > 1, -(-np.array(region.stop[-rank:]) // block), 1)
        if operand.groups:
            low[axis], stop[axis] = 0, shape[axis]
        blocks = Region(low, stop - low)
        make = partial(self._shared, tensor, sign, operand, blocks)
        numbers = self._kept.find((operand.key, blocks), make)
        if operand.groups:
            index = self._groups(tensor, operand)[region.offset[axis] : region.stop[axis]]
            numbers, block[axis] = np.take(numbers, index, axis), 1
        top, left = (np.array(region.offset[-rank:]) - low * block)[-2:].tolist()
        return apply_blocks(sign, values, numbers, block[-2:].tolist(), top, left)

    def _shared(self, tensor: Quantised, sign: str, plane: Plane, blocks: Region) -> Floats:
        numbers = self._numbers(tensor, plane, blocks)
        wrong = ~np.isfinite(numbers) | (numbers == 0 if sign == "/" else False)
        if place := _first_place(wrong):
            at, scale = np.add(blocks.offset, place).tolist(), numbers[place]
            raise InvalidCheckpoint(
                f"The scale {scale} at {at} of {plane.key!r} is not a finite number"
                f"{'' if scale else ' that divides'}, and {tensor.members[0]!r} ({tensor.kind}) needs it.",
                _REMEDY,
            )
        return numbers

    def _groups(self, tensor: Quantised, plane: Plane) -> Ints:
        index = self._read(plane.groups, Region.whole(self._shape(plane.groups)))
        extent = plane.shape[plane.axis]
        if place := _first_place((index < 0) | (index >= extent)):
            raise InvalidCheckpoint(
                f"The group {index[place]} at {[*place]} of {plane.groups!r} is not one of the "
                f"{extent} of {tensor.members[0]!r} ({tensor.kind}).",
                _REMEDY,
            )
        # Zeros stand for groups in order.
        in_order = np.arange(len(index)) // plane.block[plane.axis]
        return index.astype(np.int64) if index.any() else np.minimum(in_order, extent - 1)

    # Codes.

    def _values(self, plane: Plane, region: Region) -> Floats:
        packing = plane.packing
        read = self._tiles if plane.is_tiled else self._stored
        if packing is None:
            return _floats(read(plane, region))
        if packing.parts:
            return self._parts(plane, packing, region)
        # Elements that hold whole codes: of codes of 3 bits in int32, 3 elements hold 32.
        axis, inner = packing.axis, [packing.inner] * (packing.inner > 1)
        itemsize = self._dtype(plane.key).itemsize
        bits = lcm(8 * itemsize * packing.inner, packing.bits)
        count, size = bits // packing.bits, bits // (8 * itemsize * packing.inner)
        first, last = region.offset[axis] // count, -(-region.stop[axis] // count)
        extent = plane.stored_shape(itemsize)[axis - len(inner)]
        offset, shape = [*region.offset], [*region.shape]
        offset[axis], shape[axis] = first * size, min(last * size, extent) - first * size
        place = Region([*offset, *(0 for _ in inner)], [*shape, *inner])
        stored = read(plane, place)
        if axis == -2:
            stored = stored.swapaxes(-1, -2)
            shape = [*_swapped(shape)]
        octets = np.ascontiguousarray(stored).view(np.uint8).reshape(*shape[:-1], -1)
        numbers = packing.unpack(octets, region.stop[axis] - first * count)
        numbers = numbers[..., region.offset[axis] - first * count :]
        return numbers.swapaxes(-1, -2) if axis == -2 else numbers

    def _parts(self, plane: Plane, packing: Packing, region: Region) -> Floats:
        """Return the numbers of codes of rows that lie far apart in each element."""
        height = plane.stored_shape(1)[-2]
        first, stop = region.offset[-2], region.stop[-2]
        found = []
        for part in range(first // height, -(-stop // height)):
            place = packing.parts - 1 - part if packing.is_high_first else part
            low, high = max(first - part * height, 0), min(stop - part * height, height)
            offset, shape = [*region.offset], [*region.shape]
            offset[-2], shape[-2] = low, high - low
            codes = self._stored(plane, Region(offset, shape)) >> place * packing.bits
            found.append(packing.values[codes & ((1 << packing.bits) - 1)])
        return np.concatenate(found, axis=-2)

    def _tiles(self, plane: Plane, region: Region) -> Array:
        """Return scales that lie in tiles, [rows / 128, columns / 4] of [32, 4, 4]."""
        height, width = _TILE
        *offset, top, left = region.offset
        *lead, rows, _ = region.shape
        low, high = top // height * height, -(-(top + rows) // height) * height
        columns = plane.stored_shape(1)[-1]
        stored = self._stored(plane, Region((*offset, low, 0), (*lead, high - low, columns)))
        tiles = stored.reshape(*lead, -1, columns // width, 32, 4, width).swapaxes(-4, -2)
        found = tiles.reshape(*lead, -1, columns)[..., top - low :, left : region.stop[-1]]
        return np.ascontiguousarray(found[..., :rows, :])

    # Stored tensors.

    def _stored(self, plane: Plane, region: Region) -> Array:
        """Read elements of a tensor whose axes of one element may be missing, or others."""
        shape = self._shape(plane.key)
        whole = plane.stored_shape(self._dtype(plane.key).itemsize)
        if shape == whole:
            is_tall = len(shape) == 2 and _TALL < shape[0] == region.shape[0]
            if is_tall and region.shape[1] < shape[1]:
                return self._band(plane.key, shape, region)
            return self._read(plane.key, region)
        axes = zip(region.offset, region.shape, whole, strict=True)
        wide = iter([(begin, count) for begin, count, extent in axes if extent != 1])
        places = [(0, 1) if extent == 1 else next(wide) for extent in shape]
        inside = Region([begin for begin, _ in places], [count for _, count in places])
        return self._read(plane.key, inside).reshape(region.shape)

    def _band(self, key: str, shape: Sequence[int], region: Region) -> Array:
        # Some columns of all rows: those next to them are read along, since each row is a read.
        width = max(_BAND_NBYTES // (shape[0] * self._dtype(key).itemsize), 1)
        found = []
        for begin in range(region.offset[1] // width * width, region.stop[1], width):
            whole = Region((0, begin), (shape[0], min(width, shape[1] - begin)))
            band = self._bands.find((key, begin), partial(self._read, key, whole))
            found.append(band[:, max(region.offset[1] - begin, 0) : region.stop[1] - begin])
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def _dtype(self, key: str) -> np.dtype[Any]:
        return numpy_dtype(self.stored.slices.dtype(int(self.rows[key][0])))

    def _shape(self, key: str) -> Shape:
        slices = self.stored.slices
        return slices.tensors.shape(int(slices.tensor[self.rows[key][0]]))


def apply_blocks(
    sign: str, values: Floats, numbers: Floats, block: Sequence[int], top: int, left: int
) -> Floats:
    """Return numbers after an operation with the numbers of their blocks, of which the first begins ``top``
    rows above and ``left`` columns before the first number."""
    height, width = block
    if width > 1 and numbers.shape[-1] > 1:
        # The scale of each column: of blocks of 4, the columns 2 to 6 have the scales 0 0 1 1.
        wide = np.repeat(numbers, min(width, values.shape[-1] + left), axis=-1)
        numbers = wide[..., left : left + values.shape[-1]]
    if height == 1 or numbers.shape[-2] == 1:
        return np.asarray(_STEPS[sign](values, numbers))
    result = np.empty_like(values)
    for row in range(numbers.shape[-2]):
        rows = (..., slice(max(0, row * height - top), (row + 1) * height - top), slice(None))
        _STEPS[sign](values[rows], numbers[..., row : row + 1, :], out=result[rows])
    return result


def _floats(elements: Array) -> Floats:
    if elements.dtype.itemsize != 1:
        return elements.astype(np.float32)
    return _CODES.view(elements.dtype).astype(np.float32)[elements.view(np.uint8)]


_REMEDY = "Copy the file again, or leave the tensor out. Without dequantizing it is kept."


def _swapped(columns: Sequence[int]) -> Shape:
    *others, rows, last = columns
    return (*others, last, rows)


def _first_place(mask: Bools) -> Shape:
    return tuple(np.argwhere(mask)[0].tolist()) if mask.any() else ()


def _check_finite(weights: Any, product: Floats, tensor: Quantised, operand: Plane | float) -> None:
    if place := _first_place(np.isfinite(weights) & ~np.isfinite(product)):
        key = operand.key if isinstance(operand, Plane) else tensor.members[0]
        cause = (
            f"A number of {tensor.members[0]!r} is beyond float32: its weight {weights[place]} and its "
            f"scale in {key!r} have a product that is infinite."
        )
        raise UnsupportedError(cause, "Leave the tensor out, or keep it without dequantizing it.")


_BAND, _ENCODED_PORTION = 1 << 20, 1 << 16
"""Numbers of a band, which are read at once, and numbers that are computed at a time: arrays of 256 KiB
stay in the cache, and in the process: larger ones are given back to the system each time."""
_REQUEST = 1 << 24
"""Elements that are asked for at a time: more than a block of a file."""
_KEPT_CODES = 1 << 25
"""Bytes of parts that are kept."""
_HALVED = 64
"""The width of blocks up to which halves are compared: NumPy reduces short rows one by one."""

Codes = npt.NDArray[np.uint8]
Shared = tuple[tuple[Any, ...], tuple[tuple[str, Floats], ...]]
"""The shared parts, and the steps."""


class PartRule(NamedTuple):
    """A tensor that is made of the numbers of one."""

    name: str
    dtype: str
    """Empty for the dtype of the numbers."""
    shape: Shape | None = None
    """The shape of what the whole tensor shares; None for codes, and what blocks share."""


@entity
class Encoder:
    kind: str  # The name of the scheme, for people
    parts: Sequence[PartRule]  # The codes first
    bits: int
    block: tuple[int, int]  # Rows and columns; 0 for all
    share: Callable[[Floats, DType, np.float32], Shared]
    """Makes the shared numbers of the largest magnitudes (or the least and the largest numbers) of blocks,
    the dtype of the numbers and the largest magnitude of the tensor."""
    code: Callable[[Floats, DType], Codes]
    """Rounds numbers; of blocks that hold their scales, makes the bytes."""
    has_ends: bool = False  # True if least and largest numbers are needed
    nbytes: int = 0  # The bytes of a block that holds its scales

    def shape(self, number: int, numbers: Sequence[int]) -> Shape:
        """The shape of a part."""
        part, (height, width) = self.parts[number], self.sizes(numbers)
        *lead, rows, columns = numbers
        if part.shape is not None:
            return part.shape
        if number:
            return (*lead, -(-rows // height), -(-columns // width))
        if self.nbytes:
            return (*lead, rows, columns // width * self.nbytes)
        return (*lead, rows, columns * self.bits // (8 * numpy_dtype(part.dtype).itemsize))

    def sizes(self, numbers: Sequence[int]) -> tuple[int, int]:
        return self.block[0], self.block[1] or numbers[-1]

    def tops(self, numbers: Floats, sizes: tuple[int, int]) -> Floats:
        if self.has_ends:
            return np.stack([_reduced(each, numbers, *sizes) for each in (np.minimum, np.maximum)])
        return _reduced(np.maximum, np.abs(numbers), *sizes)

    def encode(
        self,
        numbers: Floats,
        steps: Sequence[tuple[str, Floats]],
        sizes: tuple[int, int],
        own: DType,
    ) -> Array:
        for sign, operand in steps:
            numbers = apply_blocks(sign, numbers, operand, sizes, 0, 0)
        packed = np.concatenate([self.code(some, own) for some in _cut(numbers, 1)])
        packed = Packing(self.bits).pack(packed) if self.bits < 8 else packed
        return packed.view(numpy_dtype(self.parts[0].dtype))


@frozen
class EncodedPart:
    """A part of a tensor of numbers."""

    key: str  # The key of the numbers
    shape: Shape  # of the numbers
    dtype: str  # of the numbers
    scheme: str
    part: int

    is_whole, portion = True, _REQUEST


def odd(numbers: Floats) -> npt.NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    low = bits & np.uint32(0xFFFF)
    low += np.uint32(0xFFFF)
    low |= bits
    return low.view("<u2")[..., 1::2]


def _cut(numbers: Array, height: int) -> Iterator[Array]:
    step = max(_ENCODED_PORTION // numbers.shape[1] // height, 1) * height
    for row in range(0, len(numbers), step):
        yield numbers[row : row + step]


def _reduced(ufunc: np.ufunc, values: Floats, height: int, width: int) -> Floats:
    rows, columns = values.shape
    if height > 1:
        values = ufunc.reduce(values.reshape(-1, height, columns), axis=1)
    while width % 2 == 0 and width <= _HALVED:
        values, width = ufunc(values[:, ::2], values[:, 1::2]), width // 2
    return np.asarray(ufunc.reduce(values.reshape(rows // height, -1, width), axis=2))


@entity(kw_only=True)
class EncodedSource(BlockSource):
    """Another source with codes in the place of some tensors."""

    encoder: Encoder
    config: Mapping[str, Any]  # What the description of the model gets
    _kept: ArrayCache = field(default_factory=lambda: ArrayCache(_KEPT_CODES))
    _whole: dict[str, np.float32] = field(default_factory=dict)

    def encodings(self) -> Mapping[str, str]:
        own = self.quantised.values() if self.encoder.nbytes else ()
        return {tensor.key: self.encoder.kind for tensor in own}

    def _fill(self, _number: int, tensor: EncodedPart, first: int, into: Array) -> None:
        part, stop = self.encoder.parts[tensor.part], first + len(into)
        if part.shape is not None:
            # What the whole tensor shares: the shape of the numbers, or a number that each band has.
            value = tensor.shape if part.dtype == "int64" else self._band(tensor, 0)
            into[:] = np.array(value).reshape(-1)[first:stop]
            return
        height = self.encoder.sizes(tensor.shape)[0] if tensor.part else 1
        columns = self.encoder.shape(tensor.part, tensor.shape)[-1]
        step = self._rows(tensor.shape) // height * columns
        for band in range(first // step, -(-stop // step)):
            start = band * step
            is_all = first <= start and start + step <= stop
            made = self._band(tensor, band, is_all=is_all).reshape(-1)
            begin, end = max(first, start), min(stop, start + len(made))
            into[begin - first : end - first] = made[begin - start : end - start]

    def _band(self, tensor: EncodedPart, band: int, *, is_all: bool = True) -> Array:
        """Return a band of a part; ``is_all``: it is asked for once."""
        place = tensor.key, band
        if (kept := self._kept.arrays.get((*place, tensor.part))) is not None:
            return kept
        encoder, own = self.encoder, numpy_dtype(tensor.dtype)
        sizes, whole = encoder.sizes(tensor.shape), self._whole_of(tensor)
        made: list[list[Any]] = [[] for _ in encoder.parts]
        for numbers, tops in self._portions(tensor, band):
            with np.errstate(all="ignore"):
                shared, steps = encoder.share(tops, own, whole)
                for number, each in enumerate(shared, 1):
                    made[number].append(np.atleast_1d(each))
                if not tensor.part:
                    made[0].append(encoder.encode(numbers, steps, sizes, own))
        parts = [np.concatenate(each) if each else np.empty(0) for each in made]
        for number, each in enumerate(parts):
            if number or not (tensor.part or is_all):
                self._kept.add((*place, number), each)
        return parts[tensor.part]

    def _rows(self, shape: Sequence[int]) -> int:
        height, _ = self.encoder.sizes(shape)
        return max(_BAND // shape[-1] // height, 1) * height

    def _portions(self, tensor: EncodedPart, band: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield the numbers of a band, some rows at a time, and the largest magnitudes of their blocks."""
        sizes, columns = self.encoder.sizes(tensor.shape), tensor.shape[-1]
        step = self._rows(tensor.shape) * columns
        start, stop = (min(each * step, prod(tensor.shape)) for each in (band, band + 1))
        regions = regions_of_range(tensor.shape, start, stop)
        found = [self._read(tensor.key, region).reshape(-1, columns) for region in regions]
        row = start // columns
        for some in _cut(found[0] if len(found) == 1 else np.concatenate(found), sizes[0]):
            numbers = some.astype(np.float32)
            tops = self.encoder.tops(numbers, sizes)
            if not np.isfinite(tops).all():
                at = tuple(np.argwhere(~np.isfinite(numbers))[0].tolist())
                raise UnsupportedError(
                    f"{tensor.key!r} cannot be quantised to {self.encoder.kind}: the number in row "
                    f"{row + at[0]}, column {at[1]} is {numbers[at]}.",
                    "Choose it for keep= (--keep), so that it stays as it is.",
                )
            row += len(some)
            yield numbers, tops

    def _whole_of(self, tensor: EncodedPart) -> np.float32:
        """The largest magnitude of a tensor, if its codes share a number of it."""
        if not any(
            part.shape is not None and part.dtype == "float32" for part in self.encoder.parts
        ):
            return np.float32(0)
        with self._kept.lock:
            if tensor.key not in self._whole:
                bands = range(-(-prod(tensor.shape[:-1]) // self._rows(tensor.shape)))
                portions = chain.from_iterable(self._portions(tensor, band) for band in bands)
                self._whole[tensor.key] = max(tops.max() for _, tops in portions)
            return self._whole[tensor.key]

"""Codes in the place of numbers: the inverse of ``engine.quantised``.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardvar.engine.quantised import BlockSource, Floats, Packing, apply_blocks
from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import Array, DType, Shape, numpy_dtype
from shardvar.layout.region import regions_of_range
from shardvar.records import entity, field, frozen

_BAND, _PORTION = 1 << 20, 1 << 16
"""Numbers of a band, which are read at once, and numbers that are computed at a time: arrays of 256 KiB
stay in the cache, and in the process: larger ones are given back to the system each time."""
_REQUEST = 1 << 24
"""Elements that are asked for at a time: more than a block of a file."""
_KEPT_NBYTES = 1 << 25
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
    """Makes what is shared of the largest magnitudes (or the least and the largest numbers) of blocks,
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

    @property
    def portion(self) -> int:
        return _REQUEST


def odd(numbers: Floats) -> npt.NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    low = bits & np.uint32(0xFFFF)
    low += np.uint32(0xFFFF)
    low |= bits
    return low.view("<u2")[..., 1::2]


def _cut(numbers: Array, height: int) -> Iterator[Array]:
    step = max(_PORTION // numbers.shape[1] // height, 1) * height
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
        with self._lock:
            kept = self._kept.get((*place, tensor.part))
        if kept is not None:
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
                self._keep((*place, number), each, _KEPT_NBYTES)
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
        with self._lock:
            if tensor.key not in self._whole:
                bands = range(-(-prod(tensor.shape[:-1]) // self._rows(tensor.shape)))
                portions = chain.from_iterable(self._portions(tensor, band) for band in bands)
                self._whole[tensor.key] = max(tops.max() for _, tops in portions)
            return self._whole[tensor.key]

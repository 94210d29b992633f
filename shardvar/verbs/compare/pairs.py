"""The elements of two large tensors side by side, a bounded portion at a time, each checksum on the
way compared.

Payloads that lie in a file as they are can be read from anywhere, so whichever thread wants a
portion reads it. All else is assembled or decoded from its beginning to its end, one block ahead of
the reader.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import BLOCK_NBYTES, block_ranges, run_ahead, thread_buffer
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.layout.dtypes import ITEMSIZES, Array, numpy_dtype
from shardvar.verbs.compare.blocks import Blocks


class SideError(Exception):
    """An error of one of two tensors."""

    def __init__(self, side: str, error: ReadError) -> None:
        super().__init__(side, error)
        self.side, self.error = side, error


class Stretch(NamedTuple):
    """Flat portions of two tensors that begin at the same element."""

    a: Array
    """The first one's."""
    b: Array
    """The second one's."""
    start: int
    """The flat index of the first element."""

    @property
    def shared(self) -> int:
        """Elements that both have. Two variants may differ in length; bytes that only one has count
        as different."""
        return min(len(self.a), len(self.b))

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.a.nbytes + self.b.nbytes


ReadStretch = Callable[[], Stretch]
"""A function that returns a portion, for any thread. What it returns may be gone when the thread
calls another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Two large tensors of two checkpoints, of one shape and comparable dtypes."""

    a: Blocks
    """The first checkpoint."""
    row: int
    """The tensor's number there."""
    b: Blocks
    """The second checkpoint."""
    other: int
    """The tensor's number there."""
    payloads: tuple[Evidence, Evidence] | None
    """The reads of both, if each has one payload that lies in a file as it is."""

    @classmethod
    def of(cls, a: Blocks, row: int, b: Blocks, other: int) -> Self:
        """The sides of two tensors, before anything is read."""
        first, second = a.payload(row), b.payload(other)
        return cls(a, row, b, other, None if first is None or second is None else (first, second))

    def portions(self) -> Iterator[ReadStretch]:
        """Functions that read a portion each, in order. A side's error is a ``SideError``."""
        itemsize = max(1, *(int(ITEMSIZES[code]) for code in self._codes()))  # variants count bytes
        count = BLOCK_NBYTES // itemsize
        if self.payloads is None:
            with (
                closing(run_ahead(self.a.stream(self.row, count))) as a,
                closing(run_ahead(self.b.stream(self.other, count))) as b,
            ):
                for stretch in _together(a, b):
                    yield partial(_given, stretch)
            return
        for start, stop in block_ranges(0, prod(self.a.tensors.shape(self.row)), count):
            yield partial(self._read, self.payloads, start, stop)

    def check(self) -> None:
        """Raise ``SideError`` unless what was read of the payloads has the checksums that the
        indexes give.

        Streams compare them at their ends.
        """
        for side, evidence in zip("ab", self.payloads or (), strict=False):
            _of_side(side, evidence.check)

    def _codes(self) -> tuple[int, int]:
        return int(self.a.tensors.codes[self.row]), int(self.b.tensors.codes[self.other])

    def _read(self, payloads: tuple[Evidence, Evidence], start: int, stop: int) -> Stretch:
        dtypes = (
            numpy_dtype(self.a.tensors.dtype(self.row)),
            numpy_dtype(self.b.tensors.dtype(self.other)),
        )
        arrays = []
        for side, evidence, dtype, use in zip(
            "ab", payloads, dtypes, ("unit", "span"), strict=True
        ):
            buffer = thread_buffer((stop - start) * dtype.itemsize, use)
            _of_side(side, partial(evidence.read, 0, start * dtype.itemsize, buffer))
            arrays.append(np.frombuffer(buffer, dtype))
        return Stretch(arrays[0], arrays[1], start)


def _given(stretch: Stretch) -> Stretch:
    return stretch


def _of_side(side: str, function: Callable[[], Any]) -> Any:
    """Call the function; its errors of reading belong to a side."""
    try:
        return function()
    except READ_ERRORS as error:
        raise SideError(side, error) from error


def _together(a: Iterator[Array], b: Iterator[Array]) -> Iterator[Stretch]:
    """The blocks of two streams in pairs; one that ends first goes on as empty blocks. Both are
    drawn to their ends."""
    start = 0
    while True:
        x, y = _of_side("a", partial(next, a, None)), _of_side("b", partial(next, b, None))
        if x is None and y is None:
            return
        some = y if x is None else x
        nothing = np.zeros(0, some.dtype)
        stretch = Stretch(nothing if x is None else x, nothing if y is None else y, start)
        yield stretch
        start += max(len(stretch.a), len(stretch.b))

"""The change of one tensor in a delta of another program, as what turns old leaves into new ones.

    mask       a stream of the XOR of all bytes
    places     ascending positions of elements or bytes, and a value for each

Both are read from their beginning to their end, a portion at a time, however large they are. What a
stream promises is compared where it is read: the bytes that are due and no others; positions that
ascend, and lie in the tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from shardvar.engine.flat import FlatTensor
from shardvar.engine.pool import new_buffer
from shardvar.formats.compressed import Stream
from shardvar.layout.dtypes import Ints
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import invalid
from shardvar.wire.zstd_frame import ReadPayload

PORTION = 1 << 16
"""The positions that are read at once."""

Patch = Callable[[memoryview], None]
"""Turns an old leaf into the new one, in place."""


class Patcher(ABC):
    """The change of one tensor, from its first leaf on."""

    @abstractmethod
    def patch(self, start: int, stop: int) -> Patch:
        """Return the change of the bytes from ``start`` to ``stop``; leaves come in order."""

    @abstractmethod
    def finish(self) -> None:
        """Raise ``InvalidCheckpoint`` if there is more than the leaves have taken."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangedTensor:
    """A tensor that a delta of another program changes."""

    open: Callable[[str, int], Patcher] = field(repr=False)
    """Return the change, for a tensor of a dtype and of so many bytes in the base."""
    check: Callable[[], None] = field(repr=False)
    """Raise what is wrong with it, as far as that shows without the base."""
    checksum: str = ""
    """The checksum of the new tensor, in hexadecimal digits; empty if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishedDelta:
    """An open delta of another program."""

    reader: Reader
    """The files of safetensors that it is."""
    dialect: str
    """The dialect, for messages."""
    changes: Mapping[str, ChangedTensor]
    """The tensors that it changes, by their keys in the base."""
    version: str = ""
    """The version that it makes; empty if it does not say."""
    base_version: str = ""
    """The version that it was made of; empty if it does not say."""
    algorithm: str = ""
    """The checksum of each new tensor; empty if it has none."""
    whole_sha256: str = ""
    """The SHA-256 of all tensors of the result; empty if it has none."""

    @property
    def path(self) -> str:
        """Its path, for messages."""
        return self.reader.path


class MaskPatcher(Patcher):
    """A stream of the XOR of all bytes."""

    def __init__(self, stream: Stream, nbytes: int) -> None:
        said = stream.content_nbytes
        if said is not None and said != nbytes:
            raise invalid(f"Its mask has {said} bytes, and the tensor in the base {nbytes}.")
        self._stream = stream

    def patch(self, start: int, stop: int) -> Patch:
        """Return the XOR with the next bytes."""
        return partial(_xor, self._stream.read(stop - start))

    def finish(self) -> None:
        """Raise ``InvalidCheckpoint`` if the mask is longer than the tensor."""
        self._stream.finish()


def _xor(mask: bytes, leaf: memoryview) -> None:
    words = np.frombuffer(leaf, np.uint8)
    np.bitwise_xor(words, np.frombuffer(mask, np.uint8), out=words)


class ValueStream(Protocol):
    """The values of a change, one after the other."""

    def read(self, nbytes: int, /) -> bytes:
        """Return the next bytes, exactly so many."""

    def finish(self) -> None:
        """Raise ``InvalidCheckpoint`` if there are more."""


class PlacesPatcher(Patcher):
    """Ascending positions, and a value for each."""

    def __init__(self, places: Iterator[Ints], values: ValueStream, width: int, num: int) -> None:
        self._places, self._values = in_ascent(places, num), values
        self._width, self._held = width, np.zeros(0, np.int64)

    def patch(self, start: int, stop: int) -> Patch:
        """Return the assignment of the values of the positions in a leaf."""
        first, last = start // self._width, stop // self._width
        mine = [self._held]
        while not len(mine[-1]) or mine[-1][-1] < last:
            portion = next(self._places, None)
            if portion is None:
                break
            mine.append(portion)
        joined = np.concatenate(mine)
        count = int(np.searchsorted(joined, last))
        self._held = joined[count:]
        values = self._values.read(count * self._width)
        return partial(_put, joined[:count] - first, values, self._width)

    def finish(self) -> None:
        """Compare the rest of the positions: there is none."""
        if len(self._held) or next(self._places, None) is not None:
            raise invalid("A position lies behind the tensor.")
        self._values.finish()


def _put(places: Ints, values: bytes, width: int, leaf: memoryview) -> None:
    kind = np.dtype(f"<u{width}")
    np.frombuffer(leaf, kind)[places] = np.frombuffer(values, kind)


def in_ascent(portions: Iterator[Ints], num: int | None) -> Iterator[Ints]:
    """Yield positions as they come; ``InvalidCheckpoint`` unless they ascend, each once, and lie in
    a tensor of ``num`` elements, if that is known.

    >>> [each.tolist() for each in in_ascent(iter([np.array([0, 2]), np.array([5])]), 6)]
    [[0, 2], [5]]
    """
    before = -1
    for portion in portions:
        if not len(portion):
            continue
        steps = np.diff(portion, prepend=before)
        if not (steps > 0).all():
            at = int(np.argmax(steps <= 0))
            last = before if at == 0 else int(portion[at - 1])
            if int(portion[at]) < 0:
                raise invalid(f"A position is {int(portion[at])}.")
            raise invalid(f"The position {int(portion[at])} follows {last}: they must ascend.")
        before = int(portion[-1])
        if num is not None and before >= num:
            raise invalid(f"The position {before} lies outside of a tensor of {num}.")
        yield portion


def stored_payload(reader: Reader, key: str) -> tuple[ReadPayload, int]:
    """Return what reads the payload of a tensor of a delta, and its bytes."""
    flat = FlatTensor.of(reader.source, reader.find(key))

    def read(start: int, nbytes: int) -> bytes:
        buffer = new_buffer(nbytes)
        flat.read(start, buffer)
        return bytes(buffer)

    return read, flat.nbytes


def numbers_of(read: ReadPayload, nbytes: int, kind: str) -> Iterator[Ints]:
    """Yield the integers of a payload, in portions."""
    width = np.dtype(kind).itemsize
    for start in range(0, nbytes, PORTION * width):
        data = read(start, min(PORTION * width, nbytes - start))
        yield np.frombuffer(data, kind).astype(np.int64)

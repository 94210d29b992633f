"""Blocks of packed columns: a flat msgpack map from names to integers, texts and byte strings, most of them arrays.

A block says little and holds much. It has a few names; what there are many of is packed into byte strings, so that it
is decoded at the speed of memory in any language that has msgpack, and nothing nests:

    numbers    a byte string of little-endian numbers of a fixed width
    strings    two byte strings: under ``name`` the strings one after the other, under ``name_nbytes`` their lengths
               as 32-bit numbers

The decoder trusts nothing. Lengths are bounded by the block's own, arrays, extension types and doubled names are
refused, and each value is checked for its type when it is taken out. Names that nobody asks for are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from shardvar.errors import ArgumentError, InvalidCheckpoint
from shardvar.wire.damage import invalid, malformed

MAX_NAMES = 64
"""Names of a block. msgpack lets maps nest a thousand deep before anyone can object; this bounds what that costs."""

Value = int | str | bytes | NDArray[Any]
T = TypeVar("T", int, str, bytes)


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block, whose values are asked for by name and type."""

    values: Mapping[str, Any]
    """What the map held, of any type yet."""

    def integer(self, name: str, limit: int) -> int:
        """An integer in ``[0, limit]``."""
        value = self._value(name, int)
        if not 0 <= value <= limit:
            raise invalid(f"{name!r} is {value}, which is not in [0, {limit}].")
        return value

    def text(self, name: str) -> str:
        """A text."""
        return self._value(name, str)

    def octets(self, name: str) -> bytes:
        """A byte string."""
        return self._value(name, bytes)

    def numbers(self, name: str, dtype: str, count: int | None = None) -> NDArray[Any]:
        """An array of ``count`` little-endian numbers; of as many as there are where it is None."""
        octets, itemsize = self.octets(name), np.dtype(dtype).itemsize
        if len(octets) % itemsize or (count is not None and len(octets) != count * itemsize):
            expected = "whole numbers" if count is None else f"{count} numbers"
            raise invalid(f"{name!r} has {len(octets)} bytes, not {expected} of {itemsize}.")
        return np.frombuffer(octets, dtype)

    def bounds(self, name: str, count: int | None = None) -> NDArray[np.int64]:
        """[count + 1] where each of the strings packed under ``name`` begins, and the last one ends."""
        nbytes = self.numbers(f"{name}_nbytes", "<u4", count)
        bounds = np.zeros(len(nbytes) + 1, np.int64)
        np.cumsum(nbytes, out=bounds[1:])
        if bounds[-1] != len(self.octets(name)):
            raise invalid(f"{name!r} has {len(self.octets(name))} bytes; its strings have {bounds[-1]}.")
        return bounds

    def strings(self, name: str, count: int | None = None) -> list[bytes]:
        """The strings packed under ``name``."""
        octets, bounds = self.octets(name), self.bounds(name, count).tolist()
        return [octets[start:stop] for start, stop in pairwise(bounds)]

    def _value(self, name: str, kind: type[T]) -> T:
        value = self.values.get(name)
        if type(value) is not kind:  # True is an int, and none here
            found = f"is of type {type(value).__name__}" if name in self.values else "is missing"
            raise invalid(f"{name!r} {found} where {kind.__name__} is expected.")
        return value


def pack_strings(name: str, strings: Sequence[bytes]) -> dict[str, Value]:
    """The two values of a block that hold these strings."""
    return {name: b"".join(strings), f"{name}_nbytes": np.fromiter(map(len, strings), "<u4", len(strings))}


def encode_block(values: Mapping[str, Value]) -> bytes:
    """The block of these values, in their order; arrays must be little-endian."""
    plain = {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    try:
        packed: bytes = msgpack.packb(plain, use_bin_type=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"The index cannot be encoded: {error}.", "Give texts that are valid Unicode.") from error
    return packed


def decode_block(data: bytes) -> Block:
    """The block that the bytes hold; ``MalformedCheckpoint`` where they are no flat map."""
    try:
        values = msgpack.unpackb(data, object_pairs_hook=_map_of, max_map_len=MAX_NAMES, max_array_len=0, max_ext_len=0)
    except InvalidCheckpoint:
        raise  # it is a ValueError too
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise malformed(f"The msgpack does not decode ({error or type(error).__name__}).") from error
    if not isinstance(values, dict):
        raise malformed("The msgpack is no map.")
    return Block(values)


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise invalid("A msgpack map has a name twice.")
    return values

"""Checksums as if they were right: a fuzzer changes a byte, and would never come further than the
checksum of it.

Every checksum that is computed equals whatever is stored, so that all that reads what checksums
guard is reached, with bytes that a checksum would have refused, or that somebody hostile has given
the right one.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from shardvar.engine import evidence
from shardvar.wire import sstable, strings
from shardvar.wire.crc import Checksum, mask


class Any32(int):
    """A checksum that equals all others."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def compute(self: Checksum, data: Any, crc: int = 0) -> int:
    memoryview(data)  # what is no bytes has no checksum
    return Any32(0)


def combine(self: Checksum, first: int, second: int, second_nbytes: int) -> int:
    return Any32(0)


_check_lengths = strings._check_lengths


def check_lengths(payload: Any, lengths: Any, start: int, byteorder: str) -> None:
    """The same, once the word is the right one."""
    octets = bytearray(payload)
    word = struct.pack(byteorder + "I", mask(strings._lengths_checksum(lengths, byteorder)))
    octets[start : start + len(word)] = word[: max(len(octets) - start, 0)]
    _check_lengths(octets, lengths, start, byteorder)


@contextmanager
def amnesty() -> Iterator[None]:
    """Inside, no checksum is wrong."""
    with (
        patch.object(Checksum, "compute", compute),
        patch.object(Checksum, "combine", combine),
        patch.object(sstable, "mask", lambda crc: Any32(0)),
        patch.object(strings, "_check_lengths", check_lengths),
        patch.object(evidence.Evidence, "add", lambda self, pieces: None),
    ):
        yield

"""CRC32C and CRC32: computed, combined without the bytes, and masked as tensor bundles mask them.

A CRC is the remainder of a polynomial over GF(2), in which adding is exclusive or. Appending ``n``
bytes to a message multiplies its polynomial by ``x**(8*n)``, and so its remainder. Hence the law of
this module:

    combine(compute(a), compute(b), len(b)) == compute(a + b) == compute(b, compute(a))

Several threads may therefore compute the checksums of segments of one payload, in any order.

Polynomials are *reflected*: bit 31 of a word is the coefficient of ``x**0``, bit 0 the coefficient
of ``x**31``. Multiplying by ``x`` is thus a shift to the right; the bit that falls out is
``x**32``, which the generator replaces:

    power = (power >> 1) ^ (power & 1) * polynomial

``x**(8*n)`` is the product of ``x**(2**k)`` over the bits k of ``8*n``. Each of these results is
cached, because most segments of a checkpoint have one of a few lengths.
"""

import sys
import zlib
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shardvar.records import field, frozen

Readable = bytes | bytearray | memoryview
_Word = TypeVar("_Word", int, NDArray[np.uint32])

MASK_DELTA = 0xA282EAD8
"""Added by ``mask`` so that the CRC of bytes which themselves hold CRCs keeps its strength
(LevelDB, util/crc32c.h)."""

_ONE = 1 << 31  # the polynomial 1, reflected


@frozen
class Checksum:
    """A 32-bit CRC whose register starts and ends complemented: no bytes give 0."""

    name: str  # in messages
    polynomial: int  # the generator without its leading term, reflected
    function: Callable[[Readable, int], int] = field(repr=False)
    """Returns the checksum of ``data`` appended to bytes with the checksum of the second argument."""

    def compute(self, data: Readable, crc: int = 0) -> int:
        """Return the checksum of ``data``, appended to bytes whose checksum is ``crc``."""
        return self.function(data, crc)

    def combine(self, first: int, second: int, second_nbytes: int) -> int:
        """Return the checksum of two byte strings in a row, from theirs and the second's length.

        >>> hex(CRC32C.combine(CRC32C.compute(b"1234"), CRC32C.compute(b"56789"), 5))
        '0xe3069283'
        >>> hex(CRC32C.compute(b"123456789"))
        '0xe3069283'
        """
        # The sum is second + first * x**(8 * second_nbytes). The product is a sum over the eight
        # groups of four bits of ``first``; a table has the product of each group, so 0x12345678
        # takes the entries 8 of the first table, 7 of the second, and so on: eight look-ups instead
        # of 32 conditional additions.
        combined = second
        for products in _products(second_nbytes, self.polynomial):
            combined ^= products[first & 15]
            first >>= 4
        return combined

    def combine_each(
        self, first: NDArray[Any], second: NDArray[Any], second_nbytes: int
    ) -> NDArray[np.int64]:
        """Return [k] the checksums of pairs, whose second strings have one length."""
        combined, rest = second.astype(np.int64), first.astype(np.int64)
        for products in _products(second_nbytes, self.polynomial):
            combined ^= np.array(products)[rest & 15]
            rest >>= 4
        return combined


@cache
def _table(polynomial: int) -> list[int]:
    rows = list(range(256))
    for _ in range(8):
        rows = [row >> 1 ^ polynomial * (row & 1) for row in rows]
    return rows


def crc_by_table(data: Readable, crc: int, polynomial: int) -> int:
    """Return a CRC as ``Checksum.compute``, computed octet by octet."""
    table, crc = _table(polynomial), crc ^ 0xFFFFFFFF
    for octet in bytes(data):
        crc = table[(crc ^ octet) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


_FEW_NBYTES = 1 << 14
"""The bytes that a process checks without the package: they take some 2 ms, and its import 20."""
_checked = [0]  # the bytes so far


def _crc32c(data: Readable, crc: int = 0) -> int:
    if "crc32c" not in sys.modules:
        _checked[0] += memoryview(data).nbytes
        if _checked[0] <= _FEW_NBYTES:
            return crc_by_table(data, crc, CRC32C.polynomial)
    from crc32c import crc32c  # not above: it loads ``importlib.metadata``, a fifth of a start-up

    return crc32c(data, crc)


CRC32C = Checksum("CRC32C", 0x82F63B78, _crc32c)
"""Castagnoli's CRC, of tensor bundles and of the native format."""

CRC32 = Checksum("CRC32", 0xEDB88320, zlib.crc32)  # the CRC of zip archives


def mask(crc: _Word) -> _Word:
    """Return a checksum as a tensor bundle stores it: turned right by 15 bits, plus a constant."""
    # An integer keeps the bits above 31; the sum is cut to 32 bits below.
    turned: Any = (crc >> 15) | (crc << 17)
    return cast(_Word, (turned + MASK_DELTA) & 0xFFFFFFFF)


def unmask(masked: _Word) -> _Word:
    turned: Any = (masked - MASK_DELTA) & 0xFFFFFFFF
    return cast(_Word, ((turned << 15) | (turned >> 17)) & 0xFFFFFFFF)


def _times_x(power: int, polynomial: int) -> int:
    return (power >> 1) ^ (power & 1) * polynomial


def _multiply(factor: int, word: int, polynomial: int) -> int:
    """Return ``factor * word`` modulo the generator."""
    product, power = 0, word
    # Bit 31 of the factor is x**0: ``power`` is ``word * x**(31 - bit)``.
    for bit in range(31, -1, -1):
        if factor >> bit & 1:
            product ^= power
        power = _times_x(power, polynomial)
    return product


@lru_cache(maxsize=1024)
def _products(nbytes: int, polynomial: int) -> list[list[int]]:
    """Return ``x**(8 * nbytes)`` times each value of four bits, eight tables, lowest bits first."""
    of_bit, power = [0] * 32, _power(nbytes, polynomial)
    for bit in range(31, -1, -1):
        of_bit[bit] = power
        power = _times_x(power, polynomial)
    tables = []
    for low in range(0, 32, 4):
        # Each bit doubles the table: its second half is the first half with the bit's product
        # added. After the bits 0 and 1 it is [0, p0, p1, p0 ^ p1], in the order of the values 0, 1,
        # 2, 3.
        products = [0]
        for bit in range(low, low + 4):
            products += [product ^ of_bit[bit] for product in products]
        tables.append(products)
    return tables


@lru_cache(maxsize=4096)
def _power(nbytes: int, polynomial: int) -> int:
    """Return ``x**(8 * nbytes)`` modulo the generator."""
    # 8 * nbytes has the bits of nbytes, three places higher: 5 bytes are x**40 = x**(2**3) *
    # x**(2**5).
    power, k = _ONE, 3
    while nbytes:
        if nbytes & 1:
            power = _multiply(_square(k, polynomial), power, polynomial)
        nbytes, k = nbytes >> 1, k + 1
    return power


@lru_cache(maxsize=256)
def _square(k: int, polynomial: int) -> int:
    """Return ``x**(2**k)`` modulo the generator, squared k times from ``x``."""
    square = _ONE >> 1
    for _ in range(k):
        square = _multiply(square, square, polynomial)
    return square

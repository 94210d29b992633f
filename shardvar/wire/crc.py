"""CRC32C and CRC32: computed, combined without the bytes, and masked as tensor bundles mask them.

A CRC is the remainder of a polynomial over GF(2). Appending ``n`` bytes multiplies it by ``x**(8*n)``, hence

    combine(compute(a), compute(b), len(b)) == compute(a + b) == compute(b, compute(a))

and pieces of a payload may be checked by whoever reads them, in any order. Polynomials are *reflected*: bit 31 is the
coefficient of ``x**0``, bit 0 that of ``x**31``. ``x**(8*n)`` is the product of the ``x**(2**k)`` for the bits of
``8*n``; both are kept, since runs of bytes mostly have the same few lengths.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import crc32c
import numpy as np
from numpy.typing import NDArray

Readable = bytes | bytearray | memoryview
Word = TypeVar("Word", int, NDArray[np.uint32])

MASK_DELTA = 0xA282EAD8
"""Added by ``mask`` so that the CRC of bytes which themselves hold CRCs keeps its strength (LevelDB, util/crc32c.h)."""

ONE = 1 << 31
"""The polynomial 1, reflected."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """A 32-bit CRC whose register starts and ends complemented, so that the checksum of nothing is 0."""

    name: str
    """What messages call it."""
    polynomial: int
    """The generator without its leading term, reflected."""
    function: Callable[[Readable, int], int]
    """The implementation: the checksum of ``data`` appended to bytes whose checksum is the second argument."""

    def compute(self, data: Readable, crc: int = 0) -> int:
        """The checksum of ``data``, appended to bytes whose checksum is ``crc``."""
        return self.function(data, crc)

    def combine(self, first: int, second: int, second_nbytes: int) -> int:
        """The checksum of two byte strings, one after the other, from theirs and the length of the second."""
        combined = second
        for products in _products(second_nbytes, self.polynomial):
            combined ^= products[first & 15]
            first >>= 4
        return combined

    def combine_runs(self, checksums: NDArray[np.uint32], run_nbytes: int) -> NDArray[np.uint32]:
        """The checksums of [..., runs] equally long runs of bytes, one after the other -> [...].

        Neighbours are combined pairwise, all pairs at once. Runs of no bytes, whose checksum is 0, change nothing at
        the front and fill the number up to a power of two.
        """
        count = checksums.shape[-1]
        padding = (1 << max(count - 1, 0).bit_length()) - count
        level = np.pad(checksums.astype(np.uint32), [(0, 0)] * (checksums.ndim - 1) + [(padding, 0)])
        while level.shape[-1] > 1:
            shift = _power(run_nbytes, self.polynomial)
            level = _multiply(shift, level[..., 0::2], self.polynomial) ^ level[..., 1::2]
            run_nbytes *= 2
        return level[..., 0]


CRC32C = Checksum("CRC32C", 0x82F63B78, crc32c.crc32c)
"""Castagnoli's, of tensor bundles and of the native format."""

CRC32 = Checksum("CRC32", 0xEDB88320, zlib.crc32)
"""The one of zip files."""


def mask(crc: Word) -> Word:
    """A checksum as a tensor bundle stores it: turned right by 15 bits, plus a constant. Integers or uint32 arrays."""
    turned: Any = (crc >> 15) | (crc << 17)
    return cast(Word, (turned + MASK_DELTA) & 0xFFFFFFFF)


def unmask(masked: Word) -> Word:
    """The checksum that ``mask`` made into ``masked``."""
    turned: Any = (masked - MASK_DELTA) & 0xFFFFFFFF
    return cast(Word, ((turned << 15) | (turned >> 17)) & 0xFFFFFFFF)


def _multiply(factor: int, word: Word, polynomial: int) -> Word:
    """``factor * word`` modulo the generator; the factor is one polynomial, the word one or an array of them."""
    product: Any = word & 0
    power: Any = word
    for bit in range(31, -1, -1):  # bit 31 of the factor is x**0; the word is multiplied by x once a step
        if factor >> bit & 1:
            product = product ^ power
        power = (power >> 1) ^ (power & 1) * polynomial
    return cast(Word, product)


@lru_cache(maxsize=1024)
def _products(nbytes: int, polynomial: int) -> list[list[int]]:
    """``x**(8 * nbytes)`` times each value of each four bits of a word, the lowest bits first.

    A product is the sum of those of the factor's bits. Whoever combines many pieces has few lengths of them.
    """
    of_bit, power = [0] * 32, _power(nbytes, polynomial)
    for bit in range(31, -1, -1):
        of_bit[bit] = power
        power = (power >> 1) ^ (power & 1) * polynomial
    tables = []
    for low in range(0, 32, 4):
        products = [0]
        for bit in range(low, low + 4):
            products += [product ^ of_bit[bit] for product in products]
        tables.append(products)
    return tables


@lru_cache(maxsize=4096)
def _power(nbytes: int, polynomial: int) -> int:
    """``x**(8 * nbytes)`` modulo the generator."""
    power, k = ONE, 3
    while nbytes:
        if nbytes & 1:
            power = _multiply(_square(k, polynomial), power, polynomial)
        nbytes, k = nbytes >> 1, k + 1
    return power


@lru_cache(maxsize=256)
def _square(k: int, polynomial: int) -> int:
    """``x**(2**k)`` modulo the generator, squared up from ``x`` itself."""
    square = ONE >> 1
    for _ in range(k):
        square = _multiply(square, square, polynomial)
    return square

"""Philox4x32-10 (Salmon et al., 2011) in NumPy, and the stream of words that TensorFlow makes of a seed.

Four 32-bit counters and two 32-bit keys give four words; ten rounds of two 32x32->64 multiplications each. A seed, two
64-bit integers, is scrambled by one call of the same function into a key and the upper half of the counter. Block ``j``
of the stream is the function at that counter plus ``j``, a 128-bit sum; word ``i`` of the stream is word ``i % 4`` of
block ``i // 4``. Any word can be had alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.random.arguments import read_seed

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
"""The golden ratio and the square root of three less one, as fractions of 2**32: added to the key at every round."""
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SCRAMBLE_KEY = 0x3EC8F720, 0x02461E29
"""TensorFlow's: the key under which a seed is scrambled."""

CHUNK = 1 << 13
"""Blocks computed at a time: 64 KiB a column of 64-bit values, so that all of them stay in the processor's cache."""


def philox4x32(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> Words:
    """Counters [4, n] of 32-bit values -> words [n, 4].

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the example is one of
    its authors' test vectors.

    >>> [hex(word) for word in philox4x32(np.zeros((4, 1), np.uint64), (0, 0))[0].tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (high >> _HALF) ^ c1, (low >> _HALF) ^ c3
        c0 ^= np.uint64(k0)
        c2 ^= np.uint64(k1)
        c1, c3 = high & _LOW, low & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    words = np.empty((counter.shape[1], 4), np.uint32)
    for column, values in enumerate((c0, c1, c2, c3)):
        words[:, column] = values
    return words


@dataclass(frozen=True, slots=True)
class PhiloxStream:
    """The words that TensorFlow draws from a seed.

    >>> PhiloxStream.of([7, 0]).words(0, 3).tolist() == PhiloxStream.of([7, 0]).words(0, 9)[:3].tolist()
    True
    """

    key: tuple[int, int]
    """Two 32-bit words."""
    counter: int
    """The 128-bit counter of block 0."""

    @classmethod
    def of(cls, seed: npt.ArrayLike) -> "PhiloxStream":
        """The stream of a seed of two integers, each taken modulo 2**64."""
        parts = [int(part) for part in read_seed(seed)]
        halves = [part >> shift & 0xFFFFFFFF for part in parts for shift in (0, 32)]
        words = philox4x32(np.array(halves, np.uint64).reshape(4, 1), _SCRAMBLE_KEY)[0].tolist()
        return cls((words[0], words[1]), words[2] << 64 | words[3] << 96)

    def blocks(self, start: int, count: int) -> Words:
        """Blocks ``start`` to ``start + count`` as words [count, 4]."""
        return self.blocks_at(start, np.arange(count, dtype=np.uint64))

    def blocks_at(self, start: int, further: npt.NDArray[np.uint64]) -> Words:
        """Blocks ``start + further[i]``, words [n, 4]; ``further`` is below 2**63."""
        upper, lower = (self.counter + start >> shift & 0xFFFFFFFFFFFFFFFF for shift in (64, 0))
        low = further + np.uint64(lower)  # wraps around where the sum carries into the upper half
        high = np.where(low < further, np.uint64((upper + 1) & 0xFFFFFFFFFFFFFFFF), np.uint64(upper))
        return philox4x32(np.stack([low & _LOW, low >> _HALF, high & _LOW, high >> _HALF]), self.key)

    def words(self, start: int, count: int) -> Words:
        """Words ``start`` to ``start + count`` [count]."""
        first, stop = start // 4, -(-(start + count) // 4)
        return self.blocks(first, stop - first).reshape(-1)[start - 4 * first :][:count]

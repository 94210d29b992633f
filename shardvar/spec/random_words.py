"""Chapter 4. Random words: the generators and streams that seeded shards are drawn from.

``docs/random.md`` describes them in prose. Words are integers, and a stream yields them in order.
"""

from collections.abc import Iterator, Sequence

__all__ = [
    "halves",
    "indexed_word",
    "jax_words",
    "philox",
    "tensorflow_words",
    "threefry",
]

_PHILOX = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}
"""By the bits of a word: the multipliers, and what each round adds to the key."""


# Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox.
def philox(counter: Sequence[int], key: Sequence[int], bits: int) -> list[int]:
    """Return the four words of a block: ten rounds of Philox4x32 or Philox4x64.

    >>> [f"{word:08x}" for word in philox([0, 0, 0, 0], [0, 0], 32)]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    mask = (1 << bits) - 1
    multipliers, weyl = _PHILOX[bits]
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p, q = multipliers[0] * c0, multipliers[1] * c2
        c0, c1, c2, c3 = (q >> bits) ^ c1 ^ k0, q & mask, (p >> bits) ^ c3 ^ k1, p & mask
        k0, k1 = (k0 + weyl[0]) & mask, (k1 + weyl[1]) & mask
    return [c0, c1, c2, c3]


# Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011): Threefry.
def threefry(key: Sequence[int], counter: Sequence[int]) -> list[int]:
    """Return the two words of a block: twenty rounds of Threefry2x32.

    >>> [f"{word:08x}" for word in threefry([0, 0], [0, 0])]
    ['6b200159', '99ba4efe']
    """
    mask = 0xFFFFFFFF
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x0, x1 = (counter[0] + keys[0]) & mask, (counter[1] + keys[1]) & mask
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = (x0 + x1) & mask
            x1 = ((x1 << rotation | x1 >> (32 - rotation)) & mask) ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & mask
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & mask
    return [x0, x1]


def halves(word: int) -> list[int]:
    """Return the low and the high half of a word of 64 bits.

    >>> halves(2**32 + 5)
    [5, 1]
    """
    return [word & 0xFFFFFFFF, word >> 32 & 0xFFFFFFFF]


# TensorFlow, tf.random.stateless_*: the stream of a seed.
def tensorflow_words(seed: Sequence[int], first_block: int = 0) -> Iterator[int]:
    """Yield the words of TensorFlow's stateless functions, from a block on.

    >>> next(tensorflow_words([0, 0]))
    3885695630
    """
    # The seed is scrambled: two words of the result are the key, two the counter's upper half.
    scrambled = philox(
        [*halves(seed[0] % 2**64), *halves(seed[1] % 2**64)], [0x3EC8F720, 0x02461E29], 32
    )
    counter = (scrambled[2] << 64 | scrambled[3] << 96) + first_block
    while True:
        words = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
        yield from philox(words, scrambled[:2], 32)
        counter = (counter + 1) % 2**128


# shardvar, docs/random.md: the stream by index.
def indexed_word(seed: int, number: int, attempt: int = 0) -> int:
    """Return one word of the stream by index. Any word can be drawn by itself.

    >>> indexed_word(0, 0) == philox([1, 0, 0, 0], [0, 0], 64)[0]
    True
    """
    return philox([number // 4 + 1, 0, 0, attempt], [seed % 2**64, 0], 64)[number % 4]


# JAX, jax.random with the default implementation, threefry2x32, partitionable.
def jax_words(seed: int, flat_index: int) -> list[int]:
    """Return the two words that JAX draws for one element.

    >>> jax_words(0, 0) == threefry([0, 0], [0, 0])
    True
    """
    return threefry([0, seed % 2**32], [flat_index >> 32, flat_index & 0xFFFFFFFF])

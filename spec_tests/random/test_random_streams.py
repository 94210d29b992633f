"""The streams of TensorFlow and JAX: their own values, and docs/random.md written again, one word
at a time."""

import json
import struct
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardvar import random
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, UnsupportedError
from shardvar.layout import Region
from shardvar.reference.random.stateless import PhiloxStream
from spec_tests.helpers import paths
from spec_tests.helpers.hypothesis_strategies import regions_in, shapes
from spec_tests.tensorflow_recordings import rng

CASES = json.loads((paths.GOLDEN / "variables" / "rng.json").read_text(encoding="utf-8"))["cases"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]

seeds = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))


def array_of(stored: dict[str, Any]) -> np.ndarray:
    return np.array(stored["data"]).astype(stored["dtype"]).reshape(stored["shape"])


def assert_near(actual: np.ndarray, expected: np.ndarray, ulp: int = rng.ULP) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    spacing = np.spacing(np.abs(expected)).astype(np.float64)
    assert np.all(np.abs(actual.astype(np.float64) - expected) <= ulp * spacing)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_vector_of_the_group_rng(case: dict[str, Any]) -> None:
    actual, expected = rng.OPS[case["op"]](case["inputs"]), case["expected"]
    if not (isinstance(expected, dict) and "data" in expected):
        assert actual == expected
    elif case["op"] in ("normal", "truncated_normal"):
        assert_near(actual, array_of(expected))
    else:
        np.testing.assert_array_equal(actual, array_of(expected), strict=True)


class Twin:
    """docs/random.md, TensorFlow's stream, in Python integers."""

    def __init__(self, seed: tuple[int, int]) -> None:
        s0, s1 = (part % 2**64 for part in seed)
        m = self.philox([s0 % 2**32, s0 >> 32, s1 % 2**32, s1 >> 32], 0x3EC8F720, 0x02461E29)
        self.key, self.counter = (m[0], m[1]), (m[2] << 64) + (m[3] << 96)

    @staticmethod
    def philox(c: list[int], k0: int, k1: int) -> list[int]:
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k0, q % 2**32, (p >> 32) ^ c[3] ^ k1, p % 2**32]
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        return c

    def word(self, index: int) -> int:
        counter = (self.counter + index // 4) % 2**128
        return self.philox([counter >> 32 * word & 0xFFFFFFFF for word in range(4)], *self.key)[
            index % 4
        ]

    def fraction32(self, index: int) -> float:
        return (
            struct.unpack("<f", struct.pack("<I", self.word(index) & 0x7FFFFF | 127 << 23))[0] - 1
        )

    def fraction64(self, index: int) -> float:
        bits = (self.word(index) & 0xFFFFF | 1023 << 20) << 32 | self.word(index + 1)
        return struct.unpack("<d", struct.pack("<Q", bits))[0] - 1

    def pair(self, block: int, half: int, dtype: str) -> list[float]:
        """Two normal values: a half of a block for float32, a whole block for float64."""
        if dtype == "float64":
            u, v = self.fraction64(4 * block), self.fraction64(4 * block + 2)
        else:
            u, v = (self.fraction32(4 * block + 2 * half + i) for i in (0, 1))
        radius = np.sqrt(-2 * np.log(max(u, 1e-7)))
        return [radius * np.sin(2 * np.pi * v), radius * np.cos(2 * np.pi * v)]

    def truncated(self, index: int, dtype: str) -> float:
        size = 2 if dtype == "float64" else 4
        block, kept = index // size * size * 64, []
        while len(kept) <= index % size:
            for half in range(size // 2):
                kept += [z for z in self.pair(block, half, dtype) if abs(z) < 2]
            block += 1
        return kept[index % size]


@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_words_are_the_documented_ones_and_any_of_them_can_be_had_alone(
    seed: tuple[int, int], start: int, count: int
) -> None:
    twin = Twin(seed)
    assert PhiloxStream.of(seed).words(start, count).tolist() == [
        twin.word(start + i) for i in range(count)
    ]


@pytest.mark.parametrize("counter", [2**64 - 2, 2**96 - 1, 2**128 - 2, 2**127 + 2**64 - 1])
def test_the_counter_is_one_number_of_128_bits(counter: int) -> None:
    twin = Twin((0, 0))
    twin.counter = counter
    expected = [twin.word(i) for i in range(16)]
    assert PhiloxStream(twin.key, counter).words(0, 16).tolist() == expected


@given(seeds, shapes(2, 5))
def test_uniform_values_are_the_documented_fractions(
    seed: tuple[int, int], shape: tuple[int, ...]
) -> None:
    twin, size = Twin(seed), prod(shape)
    single = np.array([twin.fraction32(i) for i in range(size)], np.float32).reshape(shape)
    double = np.array([twin.fraction64(2 * i) for i in range(size)]).reshape(shape)
    np.testing.assert_array_equal(random.stateless_uniform(shape, seed), single, strict=True)
    np.testing.assert_array_equal(
        random.stateless_uniform(shape, seed, dtype="float64"), double, strict=True
    )


@settings(max_examples=25)
@given(seeds, st.sampled_from(["float32", "float64"]), st.integers(0, 12))
def test_normal_values_are_the_documented_ones(
    seed: tuple[int, int], dtype: str, size: int
) -> None:
    twin = Twin(seed)
    per_block = 2 if dtype == "float64" else 4
    normal = [twin.pair(i // per_block, i % per_block // 2, dtype)[i % 2] for i in range(size)]
    truncated = [twin.truncated(i, dtype) for i in range(size)]
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(random.stateless_normal([size], seed, dtype=dtype), normal, **close)
    np.testing.assert_allclose(
        random.stateless_truncated_normal([size], seed, dtype=dtype), truncated, **close
    )


@pytest.mark.parametrize(
    "draw", [random.stateless_uniform, random.stateless_normal, random.stateless_truncated_normal]
)
@pytest.mark.parametrize("size", [32767, 32768, 32769, 65537])
def test_a_longer_draw_begins_with_the_shorter_one(draw: Any, size: int) -> None:
    """Chunks of any length meet without a seam."""
    np.testing.assert_array_equal(draw([size], [3, 4]), draw([70000], [3, 4])[:size])


@given(seeds, st.sampled_from(["int32", "int64", "uint32", "uint64"]), st.data())
def test_integers_are_words_modulo_the_range(
    seed: tuple[int, int], dtype: str, data: st.DataObject
) -> None:
    limits = np.iinfo(dtype)
    low = data.draw(st.integers(int(limits.min), int(limits.max) - 1))
    high = data.draw(st.integers(low + 1, int(limits.max)))
    twin, words = Twin(seed), np.dtype(dtype).itemsize // 4
    drawn_words = [sum(twin.word(words * i + k) << 32 * k for k in range(words)) for i in range(5)]
    expected = [low + word % (high - low) for word in drawn_words]
    assert random.stateless_uniform([5], seed, low, high, dtype).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_limits_and_moments_broadcast_to_the_shape_and_not_beyond(dtype: str) -> None:
    table = random.stateless_uniform([2, 3], [1, 2], [0, 10, 20], [1, 11, 21], dtype)
    assert table.shape == (2, 3) and np.all(table // 10 == [[0, 1, 2]] * 2) and table.dtype == dtype
    with pytest.raises(ArgumentError, match="do not broadcast"):
        random.stateless_normal([2, 3], [1, 2], mean=np.zeros((4, 2, 3)), dtype=dtype)


def test_a_fold_keeps_the_integers_own_dtype() -> None:
    assert random.fold_in([7, 0], 5).dtype == np.int64
    assert random.fold_in([7, 0], np.int32(5)).dtype == np.int32


@pytest.mark.parametrize(
    "call",
    [
        lambda: random.stateless_uniform([2], [1, 2, 3]),
        lambda: random.stateless_uniform([2], 7),
        lambda: random.stateless_uniform([2], [1.5, 2]),
        lambda: random.stateless_uniform([2], [2**64, 2]),
        lambda: random.stateless_uniform([-2], [1, 2]),
        lambda: random.stateless_uniform([2], [1, 2], dtype="complex64"),
        lambda: random.stateless_uniform([2], [1, 2], dtype="string"),
        lambda: random.stateless_normal([2], [1, 2], dtype="int32"),
        lambda: random.stateless_uniform([2], [1, 2], 0, None, "int32"),
        lambda: random.stateless_uniform([2], [1, 2], 5, 5, "int32"),
        lambda: random.stateless_uniform([2], [1, 2], 0, 2**31, "int32"),
        lambda: random.jax_bits((0, 0), [2], bits=12),
        lambda: random.jax_uniform((0, 0), [2], minval=2, maxval=1),
    ],
)
def test_what_cannot_be_drawn_is_named(call: Any) -> None:
    with pytest.raises(ArgumentError):
        call()


def test_what_is_of_the_wrong_kind_is_named() -> None:
    for call in (
        lambda: random.stateless_uniform(3, [1, 2]),  # type: ignore[arg-type]
        lambda: random.stateless_uniform([2], [1, 2], 0.5, 2, "int32"),
        lambda: random.jax_uniform((0, 0, 0), [2]),
    ):
        with pytest.raises(ArgumentTypeError):
            call()
    with pytest.raises(UnsupportedError, match="no such type"):
        random.stateless_uniform([2], [1, 2], dtype="no such type")


def threefry(key: tuple[int, int], index: int) -> tuple[int, int]:
    """docs/random.md, JAX's stream, in Python integers."""
    keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x0, x1 = ((index >> 32) + keys[0]) % 2**32, (index + keys[1]) % 2**32
    for group in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = (x0 + x1) % 2**32
            x1 = ((x1 << r | x1 >> 32 - r) % 2**32) ^ x0
        x0, x1 = (
            (x0 + keys[(group + 1) % 3]) % 2**32,
            (x1 + keys[(group + 2) % 3] + group + 1) % 2**32,
        )
    return x0, x1


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_bits_of_an_element_depend_on_key_and_index_alone(seed: int, index: int) -> None:
    key, shape, region = random.jax_key(seed), [2**41], Region((index,), (3,))
    expected = [threefry(key, index + i) for i in range(3)]
    assert random.jax_bits(key, shape, 32, region).tolist() == [a ^ b for a, b in expected]
    assert random.jax_bits(key, shape, 64, region).tolist() == [a << 32 | b for a, b in expected]
    assert random.jax_bits(key, shape, 8, region).tolist() == [(a ^ b) % 256 for a, b in expected]


@given(shapes(), st.sampled_from(FLOATS), st.data())
def test_a_region_of_jaxs_uniform_is_that_region_of_the_whole(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    region = data.draw(regions_in(shape))
    whole = random.jax_uniform((1, 2), shape, dtype, -1, 3)
    np.testing.assert_array_equal(
        random.jax_uniform((1, 2), shape, dtype, -1, 3, region), whole[region.slices]
    )
    assert np.all((whole >= -1) & (whole <= 3))


def test_the_scaled_float32_of_jax_is_rounded_once() -> None:
    """Against exact arithmetic in rational numbers."""
    from fractions import Fraction

    low, high = np.float32(-0.7), np.float32(1.9)
    unit, scaled = (
        random.jax_uniform((3, 4), [300], "float32", *limits) for limits in ((0, 1), (low, high))
    )
    for u, value in zip(unit, scaled, strict=True):
        exact = Fraction(float(u)) * Fraction(float(high - low)) + Fraction(float(low))
        others = (np.nextafter(value, np.float32(side)) for side in (-9, 9))
        assert all(
            abs(Fraction(float(value)) - exact) <= abs(Fraction(float(other)) - exact)
            for other in others
        )


def test_a_region_out_of_the_shape_is_named() -> None:
    with pytest.raises(LayoutError, match=r"\[2:5\] reaches out"):
        random.jax_bits((0, 0), [4], region=Region((2,), (3,)))


def test_bfloat16_is_the_one_of_ml_dtypes() -> None:
    assert random.stateless_uniform([2], [1, 2], dtype="bfloat16").dtype == ml_dtypes.bfloat16

"""The streams of TensorFlow and JAX: what their plain rules in `shardvar.spec` do not say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar import random
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, UnsupportedError
from shardvar.layout import Region
from shardvar.reference.random.stateless import PhiloxStream
from shardvar.spec.random_words import jax_words, philox
from spec_tests.helpers.hypothesis_strategies import regions_in, shapes

FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("counter", [2**64 - 2, 2**96 - 1, 2**128 - 2, 2**127 + 2**64 - 1])
def test_the_counter_is_one_number_of_128_bits(counter: int) -> None:
    blocks = ((counter + block) % 2**128 for block in range(4))
    words = [[block >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)] for block in blocks]
    expected = [word for block in words for word in philox(block, [5, 6], 32)]
    assert PhiloxStream((5, 6), counter).words(0, 16).tolist() == expected


@pytest.mark.parametrize(
    "draw", [random.stateless_uniform, random.stateless_normal, random.stateless_truncated_normal]
)
@pytest.mark.parametrize("size", [32767, 32768, 32769, 65537])
def test_a_longer_draw_begins_with_the_shorter_one(draw: Any, size: int) -> None:
    """Chunks of any length meet without a seam."""
    np.testing.assert_array_equal(draw([size], [3, 4]), draw([70000], [3, 4])[:size])


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


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_bits_of_an_element_depend_on_key_and_index_alone(seed: int, index: int) -> None:
    key, shape, region = random.jax_key(seed), [2**41], Region((index,), (3,))
    expected = [jax_words(seed, index + i) for i in range(3)]
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

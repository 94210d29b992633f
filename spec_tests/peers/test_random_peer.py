"""The real TensorFlow and the real JAX draw what is drawn here, from random seeds, shapes, dtypes
and limits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardvar import random
from spec_tests.helpers.hypothesis_strategies import regions_in, shapes

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
jax = pytest.importorskip("jax", reason="jax is not installed")

FLOATS = ["float16", "bfloat16", "float32", "float64"]
seeds = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
limits = st.tuples(st.floats(-100, 100), st.floats(-100, 100)).map(sorted)


@given(seeds, shapes(2, 9), st.sampled_from(FLOATS), limits)
def test_uniform_is_tensorflows_bit_for_bit(
    seed: Any, shape: Any, dtype: str, between: list[float]
) -> None:
    theirs = tf.random.stateless_uniform(shape, seed, *between, dtype).numpy()
    np.testing.assert_array_equal(
        random.stateless_uniform(shape, seed, *between, dtype), theirs, strict=True
    )


@given(seeds, shapes(2, 9), st.sampled_from(["int32", "int64"]), st.data())
def test_integers_are_tensorflows_bit_for_bit(
    seed: Any, shape: Any, dtype: str, data: st.DataObject
) -> None:
    info = np.iinfo(dtype)
    low = data.draw(st.integers(int(info.min), int(info.max) - 1))
    high = data.draw(st.integers(low + 1, int(info.max)))
    theirs = tf.random.stateless_uniform(
        shape, seed, tf.constant(low, dtype), tf.constant(high, dtype), dtype
    ).numpy()
    np.testing.assert_array_equal(
        random.stateless_uniform(shape, seed, low, high, dtype), theirs, strict=True
    )


@given(seeds, shapes(2, 9), st.sampled_from(["int32", "int64", "uint32", "uint64"]))
def test_the_full_range_is_tensorflows_bit_for_bit(seed: Any, shape: Any, dtype: str) -> None:
    theirs = tf.random.stateless_uniform(shape, seed, None, None, dtype).numpy()
    np.testing.assert_array_equal(
        random.stateless_uniform(shape, seed, None, None, dtype), theirs, strict=True
    )


@given(
    seeds,
    shapes(2, 30),
    st.sampled_from(FLOATS),
    st.sampled_from(["stateless_normal", "stateless_truncated_normal"]),
)
def test_normals_are_tensorflows_to_4_ulp(seed: Any, shape: Any, dtype: str, name: str) -> None:
    theirs = getattr(tf.random, name)(shape, seed, dtype=dtype).numpy()
    ours = getattr(random, name)(shape, seed, dtype=dtype)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    spacing = np.spacing(np.abs(theirs)).astype(np.float64)
    assert np.all(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) <= 4 * spacing)


@given(seeds, st.integers(0, 5), st.sampled_from(["int32", "int64"]), st.integers(0, 2**31 - 1))
def test_new_seeds_are_tensorflows(seed: Any, num: int, dtype: str, data: int) -> None:
    pair = np.array(seed).astype(dtype)
    np.testing.assert_array_equal(
        random.split(pair, num), tf.random.split(pair, num).numpy(), strict=True
    )
    theirs = tf.random.fold_in(pair, tf.constant(data, dtype)).numpy()
    np.testing.assert_array_equal(random.fold_in(pair, data), theirs, strict=True)


@settings(max_examples=30)
@given(
    st.integers(-(2**31), 2**31 - 1), shapes(3, 6), st.sampled_from(FLOATS[:3]), limits, st.data()
)
def test_a_region_of_uniform_is_jaxs_bit_for_bit(
    seed: int, shape: Any, dtype: str, between: list[float], data: st.DataObject
) -> None:
    key, part = jax.random.key(seed), data.draw(regions_in(shape))
    assert tuple(jax.random.key_data(key).tolist()) == random.jax_key(seed)
    for pair in ([0.0, 1.0], between):
        theirs = np.asarray(jax.random.uniform(key, shape, dtype, *pair))
        ours = random.jax_uniform(random.jax_key(seed), shape, dtype, *pair, region=part)
        if dtype == "float16":  # the processor decides how often JAX rounds
            whole = random.jax_uniform(random.jax_key(seed), shape, dtype)
            once = rounded_once(whole, *pair)
            ours = ours if np.array_equal(ours, theirs[part.slices]) else once[part.slices]
        np.testing.assert_array_equal(ours, theirs[part.slices], strict=True)


def rounded_once(fractions: Any, low: float, high: float) -> Any:
    """Return the numbers of float16 between the limits, with one rounding in all."""
    start, stop = np.float16(low), np.float16(high)
    exact = fractions.astype(np.float64) * np.float64(stop - start) + np.float64(start)
    return np.maximum(exact.astype(np.float16), start)


@settings(max_examples=30)
@given(st.integers(0, 2**31 - 1), shapes(3, 6), st.sampled_from([8, 16, 32]))
def test_bits_are_jaxs(seed: int, shape: Any, bits: int) -> None:
    theirs = np.asarray(jax.random.bits(jax.random.key(seed), shape, f"uint{bits}"))
    np.testing.assert_array_equal(
        random.jax_bits(random.jax_key(seed), shape, bits), theirs, strict=True
    )

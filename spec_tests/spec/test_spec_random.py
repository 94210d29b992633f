"""Chapters 4 and 5: random streams and initial values equal their plain rules.

Uniform values and integers are equal bit for bit, normal values up to four units in the last place.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar import random
from shardvar.layout.dtypes import numpy_dtype
from shardvar.reference.devices import Device
from shardvar.reference.random.indexed import IndexedStream
from shardvar.reference.random.stateless import PhiloxStream
from shardvar.reference.variables import create_sharded_variable
from shardvar.spec import decimals, initial_values, partitions, random_words
from shardvar.testing import assert_matches_oracle, regions_in

FLOATS = ["float16", "bfloat16", "float32", "float64"]
seeds = st.integers(-(2**63), 2**63 - 1)
LIMITS: dict[str, tuple[float, float]] = {
    "uniform": (-2.0, 3.0),
    "normal": (0.0, 1.5),
    "truncated": (0.0, 1.5),
}


@given(st.tuples(seeds, seeds), st.integers(0, 9))
def test_tensorflow_words(seed: tuple[int, int], count: int) -> None:
    plain = list(islice(random_words.tensorflow_words(seed), count))
    assert PhiloxStream.of(list(seed)).words(0, count).tolist() == plain


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.integers(0, 3), st.integers(0, 2**32 - 1)
)
def test_words_by_index(seed: int, start: int, attempt: int, jax_seed: int) -> None:
    plain = [random_words.indexed_word(seed, start + place, attempt) for place in range(5)]
    assert IndexedStream.of(seed).words(start, 5, attempt).tolist() == plain
    key = random.jax_key(jax_seed)
    assert random.jax_bits(key, [5]).tolist() == initial_values.jax_bits(5, jax_seed)
    assert random.jax_uniform(key, [5]).tolist() == initial_values.jax_uniform(5, jax_seed)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), st.integers(1, 3), st.data())
def test_calls_of_initializers(rows: list[int], servers: int, data: st.DataObject) -> None:
    """R-INIT-2 (RFC 000): "we will inspect the initializer to see if it accepts the `partition`
    argument." R-INIT-3 (RFC 000): "If not, this initializer is not partition aware and we will go
    ahead creating the entire value and do slicing". R-INIT-7 (RFC 000): "a map from device string
    to the shard assigned to that device"."""
    whole, seen = np.arange(sum(rows), dtype=np.float32), list[Any]()
    devices = [Device(f"ps:{data.draw(st.integers(0, servers - 1))}") for _ in rows]
    devices = [{each.name: each for each in devices}[each.name] for each in devices]

    def plain() -> Any:
        seen.append({})
        return whole

    def of_part(partition: Any) -> Any:
        seen.append({"partition": (partition.offset, list(partition.shape))})
        return whole[partition.slices]

    def of_layout(layout: Any) -> Any:
        regions = {device: (each.offset, list(each.shape)) for device, each in layout.items()}
        seen.append({"layout": regions})
        return {device: whole[each.slices] for device, each in layout.items()}

    initializer, accepts = data.draw(
        st.sampled_from([(plain, []), (of_part, ["partition"]), (of_layout, ["layout"])])
    )
    made = create_sharded_variable(
        initializer, sv.PartitionSpec(splits=[rows]), devices, shape=[sum(rows)], dtype="float32"
    )
    parts = [([start], [stop - start]) for start, stop in partitions.intervals(rows)]
    assert seen == initial_values.calls(accepts, parts, [each.name for each in devices])
    assert np.array_equal(made.numpy(), whole)


STATELESS: dict[str, Callable[..., Any]] = {
    "uniform": random.stateless_uniform,
    "normal": random.stateless_normal,
    "truncated": random.stateless_truncated_normal,
}
INDEXED: dict[str, Callable[..., Any]] = {
    "uniform": random.indexed_uniform,
    "normal": random.indexed_normal,
    "truncated": random.indexed_truncated_normal,
}


@given(st.sampled_from(sorted(LIMITS)), st.sampled_from(FLOATS), seeds, st.integers(0, 7))
def test_stateless_draws(name: str, dtype: str, seed: int, count: int) -> None:
    plain = initial_values.TENSORFLOW[name](range(count), [seed, 3], *LIMITS[name], dtype)
    came = STATELESS[name]([count], [seed, 3], *LIMITS[name], dtype)
    must = np.array(plain, numpy_dtype(dtype))
    assert_matches_oracle(came, must, ulps=0 if name == "uniform" else 4)


@given(st.sampled_from(["int32", "int64"]), seeds, st.integers(0, 2**64 - 1))
def test_integers(dtype: str, seed: int, other: int) -> None:
    came = random.stateless_uniform([4], [seed, 0], -7, 12, dtype)
    assert came.tolist() == initial_values.tensorflow_uniform(range(4), [seed, 0], -7, 12, dtype)
    full = random.stateless_uniform([4], [seed, 0], None, None, dtype)
    assert full.tolist() == initial_values.tensorflow_full_range(4, [seed, 0], dtype)
    came = random.indexed_uniform([4], other, -7, 12, dtype)
    assert came.tolist() == initial_values.indexed_uniform(range(4), other, -7, 12, dtype)


shapes = st.lists(st.integers(0, 3), max_size=3)


@given(
    st.sampled_from(sorted(LIMITS)),
    st.sampled_from(FLOATS),
    st.integers(0, 2**64 - 1),
    shapes,
    st.data(),
)
def test_draws_by_index(
    name: str, dtype: str, seed: int, shape: list[int], data: st.DataObject
) -> None:
    region = data.draw(regions_in(shape))
    where = initial_values.flat_indices(shape, (region.offset, region.shape))
    plain = initial_values.INDEXED[name](where, seed, *LIMITS[name], dtype)
    came = INDEXED[name](shape, seed, *LIMITS[name], dtype, region)
    must = np.array(plain, numpy_dtype(dtype)).reshape(region.shape)
    assert_matches_oracle(came, must, ulps=0 if name == "uniform" else 4)


@given(
    st.sampled_from([*initial_values.DRAWS, *initial_values.SCALED]),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from(FLOATS),
    st.integers(0, 2**31),
    st.booleans(),
    st.data(),
)
def test_initializers(
    name: str, shape: list[int], dtype: str, seed: int, by_index: bool, data: st.DataObject
) -> None:
    """R-INIT-4 (RFC 000): "`__call__(shape, dtype, partition)` returns the initial value of the
    partition." R-INIT-5 (RFC 000): "This can be achieved by adding offset to the seed.", "seed =
    self.seed + partition.offset[0]". R-INIT-6 (RFC 000): "`shape` is the full combined shape".
    R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.'"""
    numbers = (-0.5, 0.25) if name == "RandomUniform" else (0.0, 2.0)
    mode = "global" if by_index else "rfc"
    given_numbers = numbers if name in initial_values.DRAWS else ()
    made = getattr(sv.initializers, name)(*given_numbers, seed=seed, seed_mode=mode)
    region = data.draw(regions_in(shape))
    if not by_index:  # two parts of one row range would have one seed, so only rows are cut
        region = sv.Region(
            (region.offset[0], *[0] * (len(shape) - 1)), (region.shape[0], *shape[1:])
        )
    part = region.offset, region.shape
    plain = initial_values.initial_value(name, numbers, seed, shape, part, dtype, by_index)
    uniform = initial_values.distribution_of(name, numbers, shape)[0] == "uniform"
    assert_matches_oracle(made(shape, dtype, region), plain, ulps=0 if uniform else 4)
    assert initial_values.part_seed(seed, region.offset) == seed + region.offset[0]


@given(st.floats(1e-300, 1e300), st.floats(-6.3, 6.3))
def test_decimals(number: float, angle: float) -> None:
    assert decimals.log(number) == pytest.approx(np.log(number), rel=1e-15, abs=1e-15)
    assert decimals.sin(angle) == pytest.approx(np.sin(angle), rel=1e-15, abs=1e-15)
    assert decimals.cos(angle) == pytest.approx(np.cos(angle), rel=1e-15, abs=1e-15)
    assert random_words.halves(2**63 + 5) == [5, 2**31]
    assert len(random_words.threefry([1, 2], [3, 4])) == 2
    assert len(random_words.philox([1, 2, 3, 4], [5, 6], 64)) == 4
    assert len(random_words.jax_words(1, 2)) == 2

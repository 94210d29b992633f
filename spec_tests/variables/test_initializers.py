"""Initializers: TensorFlow's values, parts of the whole, seeds, and values that are distributed as
they are called."""

import json
import tracemalloc
from functools import partial
from math import erf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout import Partition, Region
from shardvar.reference.devices import Device, current_device
from shardvar.reference.variables import initializers as init
from spec_tests.helpers.hypothesis_strategies import filled_shapes, regions_in, shapes

DRAWN = [
    init.RandomUniform,
    init.RandomNormal,
    init.TruncatedNormal,
    init.VarianceScaling,
    init.GlorotUniform,
]
DRAWN += [init.GlorotNormal, init.HeUniform, init.HeNormal, init.LecunUniform, init.LecunNormal]
FIXED = [init.Zeros(), init.Ones(), init.Constant(True)]
MIB = 1 << 20


@given(shapes(), st.sampled_from(["float32", "int64", "bfloat16", "bool"]), st.data())
def test_parts_of_what_is_not_drawn_are_parts_of_the_whole(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    """R-INIT-4 (RFC 000): "partition.shape is the shape of the partition, shape is the full
    combined shape"."""
    array = init.Constant(np.arange(np.prod(shape, dtype=np.int64)).reshape(shape))
    of_rank_2 = [init.Identity(2.0)] if len(shape) == 2 else []
    numbers = [array] if dtype != "bool" else []
    initializer = data.draw(st.sampled_from([*FIXED, *numbers, *of_rank_2]))
    part = data.draw(regions_in(shape))
    whole = initializer(shape, dtype)
    np.testing.assert_array_equal(initializer(shape, dtype, part), whole[part.slices], strict=True)


def test_a_part_of_a_large_identity_takes_the_parts_memory() -> None:
    tracemalloc.start()
    try:
        part = init.Identity()((1 << 20, 1 << 20), partition=Region((5, 0), (3, 9)))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert np.argwhere(part).tolist() == [[0, 5], [1, 6], [2, 7]]


@pytest.mark.parametrize("make", DRAWN)
def test_rfc_seeds_are_refused_along_another_axis_and_the_other_mode_is_named(make: Any) -> None:
    part = Region((0, 2), (4, 2))
    with pytest.raises(ArgumentError, match=r'\[0:4, 2:4\].*seed_mode="global"'):
        make(seed=1)((4, 4), partition=part)
    assert make()((4, 4), partition=part).shape == (4, 2)  # no seed, nothing to add an offset to


@pytest.mark.parametrize("make", [*DRAWN, init.Orthogonal])
@pytest.mark.parametrize("mode", ["rfc", "global"])
def test_without_a_seed_every_call_draws_anew(make: Any, mode: Any) -> None:
    initializer = make(seed_mode=mode)
    assert not np.array_equal(initializer((4, 4)), initializer((4, 4)))


@given(filled_shapes(3, 5, min_rank=2), st.sampled_from(["rfc", "global"]), st.data())
def test_parts_of_an_orthogonal_matrix_are_parts_of_one(
    shape: tuple[int, ...], mode: Any, data: st.DataObject
) -> None:
    initializer = init.Orthogonal(gain=2.0, seed_mode=mode).joined()
    whole, part = initializer(shape), data.draw(regions_in(shape))
    np.testing.assert_array_equal(
        initializer(shape, partition=part), whole[part.slices], strict=True
    )
    matrix = whole.reshape(-1, shape[-1]).astype(np.float64)
    product = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
    # The decomposition is unique where the diagonal of the triangle is positive.
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    normal = initializer.draw(
        "normal", (0.0, 1.0), tall.shape, whole.dtype, Region.whole(tall.shape)
    )
    assert (np.diagonal(tall.T @ normal) >= 0).all()


def test_an_orthogonal_part_without_a_seed_is_refused_and_joined_parts_are_not() -> None:
    with pytest.raises(ArgumentError, match="without a seed"):
        init.Orthogonal()((4, 4), partition=Region((0, 0), (2, 4)))
    bound = init.joined(partial(partial(init.Orthogonal(), (4, 4)), dtype="float64"))
    matrix = np.concatenate(
        [bound(partition=part) for part in Partition.from_counts((4, 4), (2, 1))]
    )
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-12)
    assert init.joined(init.Orthogonal(seed=3)) == init.Orthogonal(seed=3)
    assert init.joined(len) is len


def test_a_layout_gives_the_value_of_each_device() -> None:
    """R-INIT-7 (RFC 000): "__call__ returns a map from device string to the initial value on that
    device"."""
    layout = {
        "/job:ps/replica:0/task:0": SimpleNamespace(shape=(10, 100), offset=(0, 0)),
        "/job:ps/replica:0/task:1": SimpleNamespace(shape=(20, 100), offset=(10, 0)),
    }
    values = init.RandomUniform(seed=3)((30, 100), layout=layout)
    assert list(values) == list(layout)
    for device, part in layout.items():
        region = Region(part.offset, part.shape)
        np.testing.assert_array_equal(
            values[device], init.RandomUniform(seed=3)((30, 100), partition=region)
        )
    parts = {"a": Region((0, 0), (2, 4)), "b": Region((2, 0), (2, 4))}
    matrix = np.concatenate(list(init.Orthogonal()((4, 4), layout=parts).values()))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-5)


def test_a_layout_of_devices_makes_each_value_on_its_device() -> None:
    made_on: list[Device] = []

    class Recording(init.Zeros):
        def part(self, shape: Any, dtype: Any, region: Region) -> Any:
            made_on.append(current_device())
            return init.Zeros.part(self, shape, dtype, region)

    devices = [Device("ps:0"), Device("ps:1")]
    Recording()((4,), layout={device: Region((2 * i,), (2,)) for i, device in enumerate(devices)})
    assert made_on == devices


@pytest.mark.parametrize(
    "make", [*DRAWN, init.Orthogonal, init.Zeros, init.Ones, init.Constant, init.Identity]
)
def test_a_config_makes_an_equal_initializer_and_every_call_a_new_array(make: Any) -> None:
    initializer = make(seed=5, seed_mode="global") if "seed" in make().get_config() else make()
    twin = make.from_config(json.loads(json.dumps(initializer.get_config())))
    first, second = initializer((4, 4)), twin((4, 4))
    np.testing.assert_array_equal(first, second, strict=True)
    assert (
        not np.shares_memory(first, initializer((4, 4)))
        and first.flags.owndata
        and first.flags.writeable
    )


@pytest.mark.sample(5)
@pytest.mark.parametrize("mode", ["rfc", "global"])
@pytest.mark.parametrize("make", [init.RandomUniform, init.RandomNormal, init.TruncatedNormal])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shard_of_a_large_variable_takes_its_own_memory_and_8_mib(
    make: Any, mode: Any, dtype: str
) -> None:
    shape, part = (1 << 26, 64), Region((1 << 25, 0), (1 << 14, 64))  # the whole would take 16 GiB
    initializer = make(seed=1, seed_mode=mode)
    initializer((8, 64))
    tracemalloc.start()
    try:
        shard = initializer(shape, dtype, part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= shard.nbytes + 8 * MIB


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: init.RandomUniform(seed=1.5), "Invalid seed 1.5"),  # type: ignore[arg-type]
        (lambda: init.RandomUniform(seed=2**64), "more than 64 bits"),
        (lambda: init.RandomUniform(seed_mode="other"), "Invalid seed_mode"),  # type: ignore[arg-type]
        (lambda: init.VarianceScaling(scale=0.0), "scale 0.0"),
        (lambda: init.VarianceScaling(scale=float("nan")), "scale nan"),
        (lambda: init.VarianceScaling(mode="bad"), "Invalid mode 'bad'"),  # type: ignore[arg-type]
        (lambda: init.VarianceScaling(distribution="bad"), "Invalid distribution 'bad'"),
        (lambda: init.Zeros()((2, 2), "string"), "strings were asked for"),
        (lambda: init.RandomNormal()((2, 2), "int32"), "int32 cannot be drawn"),
        (lambda: init.RandomUniform()((2, 2), "int32"), "not both integers"),
        (lambda: init.Orthogonal()((4,)), "two axes or more"),
        (lambda: init.Orthogonal()((4, 4), "int32"), "int32 cannot be drawn"),
        (lambda: init.Identity()((2, 2, 2)), "two axes"),
        (lambda: init.Constant([1, 2, 3])((2, 2)), "does not have as many elements"),
        (lambda: init.Zeros()((2, -2)), "negative extent"),
        (lambda: init.Zeros()((2, 2), partition=(1, 2)), "Invalid partition"),  # type: ignore[call-overload]
        (
            lambda: init.Zeros()((2, 2), None, Region((0, 0), (1, 1)), layout={}),
            "a partition and a layout",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()
    if words in ("Invalid seed 1.5", "Invalid partition"):
        with pytest.raises(ArgumentTypeError):
            call()


@pytest.mark.parametrize(
    "part", [Region((1, 0), (2, 2)), Region((0,), (1,)), Region((0, 0, 0), (1, 1, 1))], ids=str
)
def test_a_partition_out_of_the_shape_is_named(part: Region) -> None:
    for initializer in (init.Zeros(), init.RandomUniform(seed=1), init.Orthogonal(seed=1)):
        with pytest.raises(LayoutError, match=r"reaches out of the shape \(2, 2\)"):
            initializer((2, 2), partition=part)


def uniform_cdf(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 1)


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.array([(1 + erf(value / sqrt(2))) / 2 for value in x])


def truncated_cdf(x: np.ndarray) -> np.ndarray:
    low, high = normal_cdf(np.array([-2.0, 2.0]))
    return np.clip((normal_cdf(x) - low) / (high - low), 0, 1)


LAWS = {
    "uniform": (partial(init.RandomUniform, 0.0, 1.0), uniform_cdf, 0.5, sqrt(1 / 12)),
    "normal": (partial(init.RandomNormal, 0.0, 1.0), normal_cdf, 0.0, 1.0),
    "truncated": (partial(init.TruncatedNormal, 0.0, 1.0), truncated_cdf, 0.0, 0.87962566103423978),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mode", ["rfc", "global"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_distributed_as_they_are_called(law: str, mode: Any, dtype: str) -> None:
    """Kolmogorov and Smirnov's distance, mean and deviation of 20,000 values, at five sigma or the
    like."""
    make, cdf, mean, deviation = LAWS[law]
    count = 20_000
    values = make(seed=1234, seed_mode=mode)((count,), dtype).astype(np.float64)
    assert abs(values.mean() - mean) < 5 * deviation / sqrt(count)
    assert abs(values.std() / deviation - 1) < 5 / sqrt(2 * count)
    expected, steps = cdf(np.sort(values)), np.arange(count + 1) / count
    distance = max(np.max(expected - steps[:-1]), np.max(steps[1:] - expected))
    assert distance < 1.95 / sqrt(count)  # the 0.1 % point

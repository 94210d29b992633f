"""Strategies of ``shardvar.testing`` reach every bound that they document, and never pass it; they
shrink to what they document."""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import shardvar.testing as t
from shardvar.layout import Region
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.policies import AllInOnePolicy, BalancedPolicy, MaxShardSizePolicy
from shardvar.testing.arrays import NUMBERS

DRAWN = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@cache
def drawn(strategy: st.SearchStrategy[Any], count: int = 150) -> list[Any]:
    """Return some values of a strategy."""
    found = []

    @settings(DRAWN, max_examples=count)
    @given(strategy)
    def look(value: Any) -> None:
        found.append(value)

    look()
    return found


ARRAYS, CHECKPOINTS, VARIABLES = t.arrays(), t.sharded_checkpoints(), t.sharded_variables()
LAYOUTS, REGIONS, INSIDE = t.layouts(), t.regions(1), t.regions_in((5,))


def _extents(array: Any) -> int:
    return max(array.shape, default=0)


def _largest(bags: t.SparseIds) -> int:
    return max(map(len, bags.bags), default=0)


def _splits(partitioner: Any) -> int:
    return int(np.prod([n or 1 for n in partitioner((500,), "float32")]))


# What is measured of a value, and the least and the greatest number that it may be.
BOUNDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], int], int, int]] = {
    "axes of a shape": (t.shapes(), len, 0, 3),
    "given axes of a shape": (t.shapes(4, min_rank=2), len, 2, 4),
    "extent of a shape": (t.shapes(min_rank=1), max, 0, 6),
    "given extent of a shape": (t.shapes(max_extent=2, min_rank=1), max, 0, 2),
    "axes of an array": (ARRAYS, np.ndim, 0, 3),
    "extent of an array": (ARRAYS, _extents, 0, 6),
    "given axes of an array": (t.arrays(max_rank=1), np.ndim, 0, 1),
    "axes of texts": (t.string_arrays(), np.ndim, 0, 2),
    "extent of texts": (t.string_arrays(), _extents, 0, 3),
    "length of a name": (t.keys(), len, 1, 200),
    "tensors of a checkpoint": (
        t.checkpoints(["bool"], names=st.sampled_from("abcdefgh")),
        len,
        0,
        4,
    ),
    "tensors in shards": (CHECKPOINTS, lambda pair: len(pair[0]), 1, 3),
    "shards of a tensor": (
        CHECKPOINTS,
        lambda pair: max(map(len, pair[1].values())),
        1,
        13,
    ),
    "offset of a region": (REGIONS, lambda region: region.offset[0], 0, 6),
    "extent of a region": (REGIONS, lambda region: region.shape[0], 0, 6),
    "start within a shape": (INSIDE, lambda region: region.offset[0], 0, 5),
    "extent within a shape": (INSIDE, lambda region: region.shape[0], 0, 5),
    "regions of a tiling": (t.tilings((4, 4)), len, 1, 7),
    "given cuts of a tiling": (t.tilings((4, 4), 2), len, 1, 3),
    "shards of a layout": (LAYOUTS, len, 1, 13),
    "few shards of a layout": (t.layouts(5), len, 1, 5),
    "some shards of a layout": (t.layouts(7), len, 1, 7),
    "rows of a shard": (LAYOUTS, max, 0, 4),
    "shards of a partitioner": (t.partitioners(), _splits, 1, 500),
    "shards of a variable": (VARIABLES, lambda pair: len(pair[0].variables), 1, 13),
    "ids": (t.ids(9), len, 0, 12),
    "an id": (t.ids(9, max_size=1).map(list).filter(bool), max, 0, 8),
    "axes of ids": (t.ids(9, max_rank=2), np.ndim, 1, 2),
    "bags": (t.sparse_ids(9), lambda some: len(some.bags), 0, 4),
    "ids of a bag": (t.sparse_ids(9), _largest, 0, 4),
    "axes of an index": (t.slices((3, 4, 5)), len, 0, 4),
    "writes": (t.update_sequences((4, 2)), len, 0, 5),
    "rows of a write": (t.updates((9,), op="add"), lambda update: len(update.ids), 0, 12),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_a_strategy_reaches_its_bounds_and_never_passes_them(what: str) -> None:
    strategy, measure, least, greatest = BOUNDS[what]
    numbers = [measure(value) for value in drawn(strategy)]
    assert (min(numbers), max(numbers)) == (least, greatest)


def test_policies_have_small_and_large_limits() -> None:
    found = drawn(t.policies())
    sizes = [each.max_shard_size for each in found if isinstance(each, MaxShardSizePolicy)]
    files = [each.num_files for each in found if isinstance(each, BalancedPolicy)]
    assert (min(sizes), max(sizes)) == (1, 200) and (min(files), max(files)) == (1, 5)
    assert "AllInOnePolicy" in {type(each).__name__ for each in found}


def _ids(update: t.Update) -> Any:
    return np.asarray(update.ids).tolist()


PLAINEST: list[tuple[st.SearchStrategy[Any], Any]] = [
    (t.shapes(), ()),
    (t.bits(np.dtype(np.int64), (3,)).map(list), [1, 2, 3]),
    (t.arrays().filter(lambda array: array.size > 1).map(np.shape), (2,)),
    (t.arrays().filter(lambda array: array.ndim > 1).map(lambda array: array.flags.c_contiguous), True),
    (t.string_arrays().filter(np.ndim).filter(np.size).map(list), [b""]),
    (t.regions(2), Region([0, 0], [0, 0])),
    (t.regions(1).filter(lambda region: region.offset[0] + region.shape[0]), Region([0], [1])),
    (t.tilings((4, 4)), [Region.whole((4, 4))]),
    (t.layouts(), [0]),
    (t.keys(), "a"),
    (t.checkpoints(), {}),
    (t.checkpoints().filter(bool).map(list), ["a"]),
    (t.sharded_checkpoints().map(lambda pair: pair[1]), {"a": [0]}),
    (t.policies(), AllInOnePolicy()),
    (t.ids(9).filter(lambda rows: len(rows) > 1 and rows[0] > rows[1]).map(list), [1, 0]),
    (t.ids(9).filter(lambda rows: len({*rows}) < len(rows)).map(list), [0, 0]),
    (t.sparse_ids(9), t.SparseIds([], None)),
    (t.slices((3, 4), new_axes=True), ()),
    (t.updates((3,)).filter(lambda update: update.ids is not None).map(_ids), []),
    (t.update_sequences((4, 2)), []),
    (t.refused_updates((3, 2)).map(_ids), [0, 1, 3]),
    (t.sharded_variables().map(lambda pair: [part.shape[0] for part in pair[0].variables]), [0]),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "plainest"), PLAINEST)
def test_a_strategy_shrinks_to_the_plainest_value(
    strategy: st.SearchStrategy[Any], plainest: Any
) -> None:
    looked = settings(DRAWN, phases=[Phase.generate, Phase.shrink])
    assert find(strategy, lambda _value: True, settings=looked) == plainest


def test_rows_are_numbers_vectors_matrices_and_nothing() -> None:
    """Of variables with rows and of variables without."""
    few = drawn(t.sharded_variables(max_shards=1))
    shapes = {(len(full) > 0, full.shape[1:]) for _, full in few}
    assert shapes == {*product([False, True], [(), (1,), (2,), (3, 2), (0,)])}
    tensors = [array for pair in drawn(CHECKPOINTS) for array in pair[0].values()]
    assert {array.shape[1:] for array in tensors} == {(), (2,), (0,)}


def test_indexes_have_every_form() -> None:
    """Integers at both ends, slices beyond both, steps forwards and backwards, an ellipsis, a new
    axis."""
    keys = drawn(t.slices((3,), new_axes=True))
    numbers = {one for key in keys for one in key if isinstance(one, int)}
    some = [one for key in keys for one in key if isinstance(one, slice)]
    assert numbers == {-3, -2, -1, 0, 1, 2}
    assert {one.step for one in some} == {None, 1, 2, 3, -1, -2, -3}
    for bound in ([one.start for one in some], [one.stop for one in some]):
        inside = {number for number in bound if number is not None}
        assert None in bound and (min(inside), max(inside)) == (-6, 6)
    assert {key.count(...) for key in keys} == {key.count(None) for key in keys} == {0, 1}
    assert not any(None in key for key in drawn(t.slices((3, 2))))


def test_operands_of_a_product_are_powers_of_two() -> None:
    for op in ("mul", "div"):
        values = {float(x) for one in drawn(t.updates((3,), op=op), 40) for x in one.values}
        assert values == {0.25, 0.5, 1.0, 2.0, 4.0, 8.0}
        values = {float(x) for one in drawn(t.updates((3,), "uint8", op), 40) for x in one.values}
        assert values == {1.0, 2.0, 4.0, 8.0}
    ops = {(one.op, one.ids is None) for one in drawn(t.updates((3, 2)), 300)}
    assert ops == {(op, True) for op in ("assign", "add", "sub")} | {
        (op, False) for op in ("add", "sub", "mul", "div", "min", "max", "update")
    }
    ops = {(one.op, one.ids is None) for one in drawn(t.updates((3,), "bool"), 40)}
    assert ops == {("assign", True), ("update", False)}


BITS = {"bool": 1, "int2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4, "float6_e3m2fn": 6}


@pytest.mark.parametrize("name", [*NUMBERS, "float6_e3m2fn"])
def test_elements_have_all_bits_of_their_dtype_and_no_others(name: str) -> None:
    dtype = numpy_dtype(name)
    for strategy in (t.arrays([name], 1, 40), t.bits(dtype, (40,))):
        some = drawn(strategy, 60)
        assert {each.dtype.newbyteorder("=") for each in some} == {dtype}
        octets = {*b"".join(each.tobytes() for each in some)}
        assert len(octets) == 2 ** BITS[name] if name in BITS else len(octets) > 128


def test_checkpoints_have_texts_only_if_they_are_asked_for() -> None:
    for strings in (True, False):
        strategy = t.checkpoints(["int8"], strings, names=st.sampled_from("abc"))
        found = [array for one in drawn(strategy, 30) for array in one.values()]
        assert {array.dtype.kind == "O" for array in found} == {False, strings}


def test_arrays_lie_in_memory_in_every_way() -> None:
    some = [each for each in drawn(t.arrays(max_rank=2), 400) if each.size > 1 and each.ndim == 2]
    assert any(not each.flags.writeable for each in some)
    assert any(min(each.strides) < 0 for each in some)
    assert any(not each.dtype.isnative for each in some)
    assert any(each.flags.f_contiguous and not each.flags.c_contiguous for each in some)
    assert any(abs(each.strides[1]) == 2 * each.itemsize != each.strides[0] for each in some)


def test_limits_of_norms_are_halves_and_doubles_of_norms() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]], np.float32)
    assert set(drawn(t.max_norms(rows))) == {2.5, 5.0, 10.0, 20.0}
    assert set(drawn(t.max_norms(rows[1:2]))) == {0.5, 1.0, 2.0}

"""Variables beside TensorFlow's own, on random sequences in layouts that TensorFlow supports (div,
no empty shards)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.partition import div

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
sharded_variable = pytest.importorskip(
    "tensorflow.python.distribute.sharded_variable"
)  # it has no public name

Array = np.ndarray[Any, Any]

VERBS = [
    "scatter_add",
    "scatter_sub",
    "scatter_mul",
    "scatter_div",
    "scatter_min",
    "scatter_max",
    "scatter_update",
]


@st.composite
def both(draw: st.DrawFn) -> tuple[Array, sv.ShardedVariable, Any]:
    """An array, and the two containers of its rows."""
    rows = draw(st.integers(1, 12))
    parts = div(rows, draw(st.integers(1, rows)))
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    array = np.arange(1, rows * 3 + 1, dtype=dtype).reshape(rows, 3)
    ours = sv.ShardedVariable([sv.Variable(array[a:b]) for a, b in parts])
    theirs = sharded_variable.ShardedVariable([tf.Variable(array[a:b]) for a, b in parts])
    return array, ours, theirs


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(np.asarray(ours), tf.convert_to_tensor(theirs).numpy())


@settings(max_examples=40, deadline=None)
@given(both(), st.data())
def test_writes_leave_the_same_bits(pair: tuple[Array, Any, Any], data: st.DataObject) -> None:
    array, ours, theirs = pair
    for verb in data.draw(
        st.lists(st.sampled_from([*VERBS, "assign", "assign_add", "assign_sub"]), max_size=5)
    ):
        if verb.startswith("assign"):
            value = array * np.asarray(data.draw(st.integers(-3, 3)), array.dtype)
            getattr(ours, verb)(value)
            getattr(theirs, verb)(tf.constant(value))
        else:
            ids = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=8))
            values = np.array(
                data.draw(
                    st.lists(
                        st.sampled_from([-3, -2, -1, 1, 2, 7]), min_size=len(ids), max_size=len(ids)
                    )
                ),
                array.dtype,
            ).reshape(-1, 1) * np.ones((1, 3), array.dtype)
            getattr(ours, verb)(sv.IndexedSlices(values, np.array(ids, np.int32)))
            getattr(theirs, verb)(tf.IndexedSlices(tf.constant(values), tf.constant(ids, tf.int32)))
        for shard, other in zip(ours.variables, theirs.variables, strict=True):
            same(shard, other)


@settings(max_examples=60, deadline=None)
@given(both(), st.data())
def test_slices_and_rows_are_the_same_where_tensorflow_is_right(
    pair: tuple[Array, Any, Any], data: st.DataObject
) -> None:
    array, ours, theirs = pair
    start = data.draw(st.none() | st.integers(-len(array), len(array) - 1))
    stop = data.draw(st.none() | st.integers(-20, 20))
    step = data.draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
    same(ours[start:stop:step], theirs[start:stop:step])
    row = data.draw(st.integers(-len(array), len(array) - 1))
    same(ours[row], theirs[row])
    same(ours[row, 1], theirs[row, 1])
    same(ours[..., 1:], theirs[..., 1:])
    mask = data.draw(st.lists(st.booleans(), min_size=len(array), max_size=len(array)))
    same(ours[np.array(mask)], theirs[np.array(mask)])


@settings(max_examples=30, deadline=None)
@given(both())
def test_operators_give_the_same_values(pair: tuple[Array, Any, Any]) -> None:
    _, ours, theirs = pair
    for operate in (
        lambda s: s + s,
        lambda s: s - 1,
        lambda s: 2 * s,
        lambda s: s > 4,
        lambda s: -s,
        abs,
        lambda s: s == s,
    ):
        same(operate(ours), operate(theirs))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.sampled_from(["float32", "float16", "int8", "complex128", "string"]),
    st.integers(1, 600),
    st.integers(1, 50),
    st.data(),
)
def test_partitioners_answer_as_tensorflows(
    shape: list[int], dtype: str, size: int, count: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    theirs = tf.distribute.experimental.partitioners
    pairs = [
        (sv.FixedShardsPartitioner(count), theirs.FixedShardsPartitioner(count)),
        (
            sv.MinSizePartitioner(size, count, rounding="ceil"),
            theirs.MinSizePartitioner(size, count),
        ),
        (sv.MaxSizePartitioner(size, count), theirs.MaxSizePartitioner(size, count)),
        (sv.MaxSizePartitioner(size), theirs.MaxSizePartitioner(size)),
    ]
    for mine, other in pairs:
        assert mine(shape, dtype, axis) == list(
            other(tf.TensorShape(shape), tf.dtypes.as_dtype(dtype), axis=axis)
        )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([None, 50, 200]), max_size=4))
def test_creators_are_called_in_the_same_order(priorities: list[int | None]) -> None:
    """TensorFlow's public scope has no priority; the scope beneath it has."""
    called: dict[str, list[int]] = {"ours": [], "theirs": []}

    def noting(who: str, number: int) -> Any:
        def creator(next_creator: Any, **kwargs: Any) -> Any:
            called[who].append(number)
            return next_creator(**kwargs)

        return creator

    scopes: list[Any] = []
    graph = tf.compat.v1.get_default_graph()
    for number, priority in enumerate(priorities):
        scopes.append(sv.variable_creator_scope(noting("ours", number), priority=priority or 100))
        scopes.append(
            graph._variable_creator_scope(noting("theirs", number), priority=priority or 100)
        )
    for scope in scopes:
        scope.__enter__()
    sv.Variable(1.0)
    tf.Variable(1.0)
    for scope in reversed(scopes):
        scope.__exit__(None, None, None)
    assert called["ours"] == called["theirs"]

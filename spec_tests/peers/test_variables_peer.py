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

"""TensorFlow's own MaxShardSizePolicy on random tensors: the slices of ``compat="tensorflow"``, in
no fewer files."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype
from spec_tests.helpers.max_shard_size_twin import (
    Shards,
    Tensors,
    answer,
    many_tensors,
    specs_of,
    twin,
)

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

sharding_util = pytest.importorskip("tensorflow.python.checkpoint.sharding.sharding_util")
base = pytest.importorskip("tensorflow.python.trackable.base")


def theirs(tensors: Tensors, limit: int) -> Shards:
    given: list[Any] = []
    for key, dtype, shape in tensors:
        tensor = tf.constant(np.zeros(shape, numpy_dtype(dtype)))
        given.append(
            sharding_util.ShardableTensor(
                _tensor_save_spec=None,
                tensor=tensor,
                dtype=tensor.dtype,
                device=tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0/device:CPU:0"),
                name=key,
                shape=tensor.shape,
                slice_spec="",
                checkpoint_key=key,
                trackable=base.Trackable(),
            )
        )
    shards = tf.train.experimental.MaxShardSizePolicy(limit)(given)
    return [{key: list(parts) for key, parts in shard.items()} for shard in shards]


@settings(max_examples=40, deadline=None)
@given(many_tensors, st.integers(1, 300))
def test_compat_is_what_tensorflow_answers_and_ours_takes_no_more_files(
    tensors: Tensors, limit: int
) -> None:
    """Wherever the twin says that TensorFlow ends at all."""
    if twin(tensors, limit) is None:
        return
    found = theirs(tensors, limit)
    assert (
        specs_of(answer(tensors, sv.MaxShardSizePolicy(limit, compat="tensorflow")), empty=False)
        == found
    )
    assert len(specs_of(answer(tensors, sv.MaxShardSizePolicy(limit)), empty=False)) <= len(found)

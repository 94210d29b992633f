"""R-POLICY-1, R-POLICY-1-rows, R-POLICY-3: what a sharding callback drops or casts is saved so,
unnoticed."""

import sys
import tempfile

import tensorflow as tf


class Dropping(tf.train.experimental.ShardingCallback):  # type: ignore[misc]
    description = "drops w"

    def __call__(self, tensors):  # type: ignore[no-untyped-def]
        return [
            {one.checkpoint_key: {one.slice_spec: one.tensor}}
            for one in tensors
            if one.checkpoint_key[0] != "w"
        ]


options = tf.train.CheckpointOptions(experimental_sharding_callback=Dropping())
path = tf.train.Checkpoint(w=tf.Variable([1.0]), b=tf.Variable([2.0])).write(
    tempfile.mkdtemp() + "/model", options
)
saved = [name for name, _ in tf.train.list_variables(path)]
print(f"TensorFlow {tf.__version__}: w and b were saved without an error, and there is {saved}.")
sys.exit(int(not any(name.startswith("w/") for name in saved)))

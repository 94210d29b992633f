"""R-VAR-2-assign: a value with too few rows is refused after the first shards were written."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])])
try:
    variable.assign(tf.constant([1.0, 2.0, 3.0]))
except (ValueError, tf.errors.InvalidArgumentError):
    held = tf.convert_to_tensor(variable).numpy()
    print(
        f"TensorFlow {tf.__version__}: the assignment was refused, and the variable holds {held}."
    )
    sys.exit(int(held.any()))

"""R-ID-1-scatter: a scatter with an id that is not there is refused after the rows before it were
written."""

import sys

import tensorflow as tf

variable = tf.Variable([0.0, 0.0])
try:
    variable.scatter_add(tf.IndexedSlices(tf.constant([1.0, 1.0]), tf.constant([0, 2])))
except (ValueError, tf.errors.InvalidArgumentError):
    print(
        f"TensorFlow {tf.__version__}: the scatter was refused, and the variable holds "
        f"{variable.numpy()}."
    )
    sys.exit(int(variable.numpy().any()))

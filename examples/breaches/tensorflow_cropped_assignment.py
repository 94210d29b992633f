"""R-VAR-2-assign: a value with too many rows is assigned without a word, and what is too much is
dropped."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])])
try:
    variable.assign(tf.constant([1.0, 2.0, 3.0, 4.0, 5.0]))
except (ValueError, tf.errors.InvalidArgumentError) as error:
    sys.exit(print(f"TensorFlow {tf.__version__} refuses: {error}"))
print(
    f"TensorFlow {tf.__version__}: five rows were assigned, and four are held: "
    f"{tf.convert_to_tensor(variable)}"
)
sys.exit(1)

"""R-READ-1: ``sparse_read`` of a sharded variable, and ``tf.gather``, give rows in the order of the
shards."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0.0, 1.0, 2.0]), tf.Variable([3.0, 4.0])])
ids = tf.constant([4, 0, 3])
read, gathered = variable.sparse_read(ids).numpy(), tf.gather(variable, ids).numpy()
print(
    f"TensorFlow {tf.__version__}: for rows 4, 0, 3 sparse_read gives {read}, and tf.gather "
    f"{gathered}."
)
sys.exit(int(read.tolist() != [4, 0, 3] or gathered.tolist() != [4, 0, 3]))

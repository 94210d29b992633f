"""R-VAR-1-bounds: a slice that starts before the first row takes other rows than a tensor gives for
it."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([0.0, 1.0]), tf.Variable([2.0, 3.0])])
came, must = variable[-5::2].numpy(), tf.convert_to_tensor(variable)[-5::2].numpy()
print(f"TensorFlow {tf.__version__}: variable[-5::2] is {came}, and of the same tensor {must}.")
sys.exit(int(came.tolist() != must.tolist()))

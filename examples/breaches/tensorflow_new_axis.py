"""R-VAR-1-new-axis: ``variable[None, 0]`` takes the first row of every shard."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([[1.0, 2.0]]), tf.Variable([[3.0, 4.0]])])
came, must = variable[None, 0].numpy(), tf.convert_to_tensor(variable)[None, 0].numpy()
print(f"TensorFlow {tf.__version__}: variable[None, 0] is {came}, and of the same tensor {must}.")
sys.exit(int(came.tolist() != must.tolist()))

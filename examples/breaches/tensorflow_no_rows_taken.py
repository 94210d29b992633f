"""R-VAR-1-steps: where the slice of the first axis is empty, slices of other axes are ignored."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([[1.0, 2.0]]), tf.Variable([[3.0, 4.0]])])
came, must = variable[0:0, 0:1].shape, tf.convert_to_tensor(variable)[0:0, 0:1].shape
print(
    f"TensorFlow {tf.__version__}: variable[0:0, 0:1] has the shape {came}, and of the same "
    f"tensor {must}."
)
sys.exit(int(came != must))

"""R-VAR-1-ellipsis: where ``...`` stands for no axis, the key is applied to each shard instead of
to the whole."""

import sys

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

variable = ShardedVariable([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0], [4.0]])])
came, must = variable[..., 0:1, :].numpy(), tf.convert_to_tensor(variable)[..., 0:1, :].numpy()
print(
    f"TensorFlow {tf.__version__}: variable[..., 0:1, :] is {came.tolist()}, and of the same "
    f"tensor {must.tolist()}."
)
sys.exit(int(came.tolist() != must.tolist()))

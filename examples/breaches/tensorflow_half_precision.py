"""R-CKPT-1-uneven-numbers: float16 that was saved in 2 shards cannot be restored into 1."""

import sys
import tempfile

import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

one, other, whole = (tf.Variable(tf.ones([rows], tf.float16)) for rows in (1, 1, 2))
path = tf.train.Checkpoint(w=ShardedVariable([one, other])).write(tempfile.mkdtemp() + "/model")
try:
    tf.train.Checkpoint(w=whole).read(path).assert_consumed()
except tf.errors.InvalidArgumentError as error:
    print(f"TensorFlow {tf.__version__}: {error.message}")
    sys.exit(1)

"""R-PART-3-min: ``MinSizePartitioner`` makes parts that are smaller than the minimum which it is
given."""

import sys

import tensorflow as tf

partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=3, max_shards=2
)
parts = partitioner(tf.TensorShape([2, 2]), tf.int8)[0]
print(f"TensorFlow {tf.__version__}: 4 bytes are cut into {parts} parts of at least 3 bytes.")
sys.exit(int(4 // parts < 3))

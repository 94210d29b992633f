"""R-INIT-5: a seeded initializer gives every shard of a variable the same values, although it gets
the shard's offset.

RFC 000 says that "the seed must be changed deterministically for each shard, otherwise each shard
will use the same values".
"""

import sys

import tensorflow as tf

draw = tf.random_normal_initializer(seed=1)
first, second = (
    draw((4, 2), partition_shape=(2, 2), partition_offset=(row, 0)).numpy() for row in (0, 2)
)
print(f"TensorFlow {tf.__version__}: rows 0 and 1 are\n{first}\nand rows 2 and 3 are\n{second}")
sys.exit(int((first == second).all()))

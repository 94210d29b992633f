"""R-LOOKUP-2-bags-empty-last: the last rows of sparse ids have no row in the answer if they are empty."""

import sys

import tensorflow as tf

ids = tf.RaggedTensor.from_row_lengths([0, 1], [2, 0]).to_sparse()
came = tf.nn.embedding_lookup_sparse(tf.constant([[1.0], [2.0]]), ids, None, combiner="sum").shape[
    0
]
must = int(ids.dense_shape[0])
print(f"TensorFlow {tf.__version__}: {must} rows of ids, the last one empty, give {came} row.")
sys.exit(int(came != must))

"""R-OPT-1-adagrad: in a sparse step, a row that comes twice is squared twice instead of once as the
sum."""

import sys

import tensorflow as tf

once, twice = (tf.Variable([[1.0]]) for _ in range(2))
tf.keras.optimizers.Adagrad(0.1).apply_gradients(
    [(tf.IndexedSlices(tf.constant([[2.0]]), [0], [1, 1]), once)]
)
halves = tf.IndexedSlices(tf.constant([[1.0], [1.0]]), [0, 0], [1, 1])
tf.keras.optimizers.Adagrad(0.1).apply_gradients([(halves, twice)])
print(
    f"TensorFlow {tf.__version__}, Keras {tf.keras.__version__}: "
    f"a gradient of 2 leaves {once.numpy().item()}, and one of 1 + 1 {twice.numpy().item()}."
)
sys.exit(int(abs(once.numpy() - twice.numpy()).item() > 1e-4))

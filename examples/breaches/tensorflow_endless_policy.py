"""R-POLICY-4-tiny: saving with a ``MaxShardSizePolicy`` whose limit is below the size of an element
never ends."""

import signal
import sys
import tempfile

import tensorflow as tf


def give_up(*_: object) -> None:
    print(f"TensorFlow {tf.__version__}: after 10 seconds, 3 numbers are still being saved.")
    sys.exit(1)


signal.signal(signal.SIGALRM, give_up)
signal.alarm(10)
policy = tf.train.experimental.MaxShardSizePolicy(1)
options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
try:
    tf.train.Checkpoint(w=tf.Variable([1.0, 2.0, 3.0])).write(
        tempfile.mkdtemp() + "/model", options
    )
except ValueError as error:
    print(f"TensorFlow {tf.__version__} refuses: {error}")

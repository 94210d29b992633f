"""R-SLOT-2-refused: with two parameter servers, a variable of 3 rows is restored from 2, and
holds 2 from then on."""

import sys
import tempfile

import tensorflow as tf

addresses: dict[str, list[str]] = {"worker": [], "ps": []}
for job, task in (("worker", 0), ("ps", 0), ("ps", 1)):
    server = tf.distribute.Server(
        {job: [*addresses[job], "localhost:0"]}, job_name=job, task_index=task
    )
    addresses[job].append(server.target.removeprefix("grpc://"))
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(addresses), rpc_layer="grpc"
)
with tf.distribute.ParameterServerStrategy(resolver).scope():
    saved = {"w": tf.Variable([1.0, 2.0]), "b": tf.Variable([3.0])}
    other = {"w": tf.Variable([0.0, 0.0, 0.0]), "b": tf.Variable([0.0])}
path = tf.train.Checkpoint(**saved).write(tempfile.mkdtemp() + "/model")
try:
    tf.train.Checkpoint(**other).read(path).assert_consumed()
except ValueError as error:
    sys.exit(print(f"TensorFlow {tf.__version__} refuses: {error}"))
print(
    f"TensorFlow {tf.__version__}: a variable of the shape {other['w'].shape} holds "
    f"{other['w'].numpy()}."
)
sys.exit(1)

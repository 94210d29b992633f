"""R-PART-4-rank: a partitioner's answer with three counts is accepted for a variable with two
axes."""

import sys

import tensorflow as tf

servers = [
    tf.distribute.Server({job: ["localhost:0"]}, job_name=job, task_index=0)
    for job in ("worker", "ps")
]
addresses = {
    job: [server.target.removeprefix("grpc://")]
    for job, server in zip(("worker", "ps"), servers, strict=True)
}
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(addresses), rpc_layer="grpc"
)
with tf.distribute.ParameterServerStrategy(resolver, lambda shape, dtype: [2, 1, 1]).scope():
    try:
        variable = tf.Variable(tf.zeros([4, 4]))
    except ValueError as error:
        sys.exit(print(f"TensorFlow {tf.__version__} refuses: {error}"))
print(
    f"TensorFlow {tf.__version__}: [2, 1, 1] for a variable of the shape {variable.shape} was not "
    "refused."
)
sys.exit(1)

"""R-CONCAT-1-few, R-CKPT-1-few, R-CKPT-1-empty: a variable without rows cannot be made under a
fixed partitioner."""

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
partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
with tf.distribute.ParameterServerStrategy(resolver, partitioner).scope():
    try:
        tf.Variable(tf.zeros([0, 2]))
    except ValueError as error:
        print(f"TensorFlow {tf.__version__}: {error}")
        sys.exit(1)

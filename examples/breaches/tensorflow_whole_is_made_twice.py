"""R-INIT-2: an initializer that knows no partitions is called for each shard, which gets a slice of
that answer."""

import itertools
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
calls = itertools.count(1)
with tf.distribute.ParameterServerStrategy(resolver, partitioner).scope():
    variable = tf.Variable(lambda: tf.fill([2], float(next(calls))), shape=[2], dtype=tf.float32)
held = tf.convert_to_tensor(variable).numpy()
print(
    f"TensorFlow {tf.__version__}: of an initial value of which all elements are equal, the "
    f"variable holds {held}."
)
sys.exit(int(held[0] != held[1]))

"""Chapter 8. Gradients, which belong to shards.

A dense gradient of a shard is an array of its shape. A sparse one is a pair (rows, values): values
``[n, *row]`` to be added to the rows ``[n]`` of the shard, which may occur several times.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardvar.spec.partitions import owner
from shardvar.spec.variables import Array, Shards, shard

__all__ = [
    "Gradient",
    "Sparse",
    "dense_gradients",
    "densified",
    "embedding_lookup_gradient",
    "matmul_gradient",
    "sparse_gradients",
]

Sparse = tuple[list[int], Array]
"""The rows of a gradient, and a value for each."""
Gradient = Array | Sparse


# R-GRAD-1 (RFC 000): "gradient computation and update are always performed at the component
# variable level, `grads_and_vars` contains a pair of (gradient, component variable)."
# R-GRAD-2 (RFC 000): "We don't plan to support directly using `ShardedVariable` in TF gradient
# APIs."
def dense_gradients(gradient: Array, shards: Shards) -> list[Array]:
    """Return each shard's part of a gradient that has the variable's shape.

    >>> dense_gradients(np.array([1, 2, 3]), [np.zeros(2), np.zeros(1)])
    [array([1, 2]), array([3])]
    """
    return shard(gradient, [len(each) for each in shards])


# R-OPT-1 (RFC 002): "We don't always use the whole embedding variable in a training step, gradients
# w.r.t. to embeddings are IndexedSlices which are essentially dicts mapping from indices to
# vectors."
def sparse_gradients(ids: Sequence[int], values: Array, shards: Shards) -> list[Sparse]:
    """Return each shard's part of a sparse gradient, in the order of the ids.

    >>> parts = sparse_gradients([2, 0], np.array([10, 20]), [np.zeros(2), np.zeros(1)])
    >>> [(rows, values.tolist()) for rows, values in parts]
    [([0], [20]), ([0], [10])]
    """
    owners = [owner(row, [len(each) for each in shards]) for row in ids]
    parts = []
    for number in range(len(shards)):
        places = [place for place, (found, _) in enumerate(owners) if found == number]
        parts.append(([owners[place][1] for place in places], values[places]))
    return parts


# R-OPT-1 (RFC 002): "essentially dicts mapping from indices to vectors"
# R-HINT-2 (RFC 002): "Updates can be casted to dense tensors"
def densified(gradient: Gradient, shape: Sequence[int]) -> Array:
    """Return a gradient as an array of the shard's shape. Values of one row are summed in order.

    >>> densified(([1, 1], np.array([5.0, 7.0])), [3])
    array([ 0., 12.,  0.])
    """
    if not isinstance(gradient, tuple):
        return gradient
    rows, values = gradient
    found = np.zeros(tuple(shape), values.dtype)
    for row, value in zip(rows, values, strict=True):
        found[row] += value
    return found


# TensorFlow, tf.nn.embedding_lookup: its gradient is IndexedSlices, which may have a row twice.
def embedding_lookup_gradient(ids: npt.ArrayLike, upstream: Array, shards: Shards) -> list[Sparse]:
    """Return the gradient of ``embedding_lookup``: each row that was read gets what flows back.

    >>> parts = embedding_lookup_gradient([2, 2], np.array([1.0, 4.0]), [np.zeros(2), np.zeros(1)])
    >>> [(rows, values.tolist()) for rows, values in parts]
    [([], []), ([0, 0], [1.0, 4.0])]
    """
    flat = np.asarray(ids, np.int64).ravel().tolist()
    return sparse_gradients(flat, upstream.reshape(len(flat), *shards[0].shape[1:]), shards)


# TensorFlow, tf.matmul: its gradient with respect to the second operand.
def matmul_gradient(x: Array, upstream: Array, shards: Shards) -> list[Array]:
    """Return the gradient of ``matmul(x, shards)`` with respect to each shard: ``x.T @ upstream``.

    >>> matmul_gradient(np.array([[1, 2]]), np.array([[10]]), [np.zeros((1, 1)), np.zeros((1, 1))])
    [array([[10]]), array([[20]])]
    """
    return dense_gradients(x.T @ upstream, shards)

"""ShardingCallback: what a user writes to decide which tensors share a file."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from shardvar.checkpoint.callbacks.shardable_tensor import ShardableTensor
from shardvar.planning.policies import ColumnarPolicy, TensorSliceDict


class ShardingCallback(ABC):
    """R-POLICY-18 (RFC 001): "Checkpoint sharding callback function, along with a text description."

    A base to derive from; anything else that can be called so and has a text ``description`` will do too. Arguments of
    the callback are those of its constructor (RFC 001, kwargs).

    >>> class OneFileEach(ShardingCallback):
    ...     description = "A file for each tensor."
    ...
    ...     def __call__(self, shardable_tensors):
    ...         return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in shardable_tensors]
    >>> import numpy as np, os, tempfile
    >>> from shardvar.checkpoint import save
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> save(path, {"a": np.zeros(2), "b": np.ones(3)}, policy=OneFileEach()).file_nbytes
    (16, 24)
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """How the callback alters the collection of tensors: stored in the checkpoint, and repeated in errors."""

    @abstractmethod
    def __call__(self, shardable_tensors: Sequence[ShardableTensor], /) -> Sequence[TensorSliceDict]:
        """For each file, a mapping from checkpoint keys to mappings from slice specs to tensors.

        Every element of every tensor must be in one of them, with the dtype and in the shape that it has; tensors may
        be sliced anew, and values may change. A mapping without tensors makes no file. It is called once a save, before
        anything is written.
        """


ShardingCallback.register(ColumnarPolicy)

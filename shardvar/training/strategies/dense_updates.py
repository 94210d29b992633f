"""A mirrored variable whose sparse updates are made dense before they cross between devices.

R-HINT-2 (RFC 002): "Updates can be casted to dense tensors and use the existing allreduce primitive to exchange
gradients. This can still be faster than running allgather on their corresponding sparse updates." What comes twice for
one row is summed before it is added, so the result may differ from the sparse one in the last bit.
"""

from typing import Any

from shardvar.devices import Device, current_device, device_scope
from shardvar.layout.dtypes import Array
from shardvar.variables import IndexedSlices, MirroredVariable, PerReplica
from shardvar.variables.updates import ADD, SUB, Update


class DenseUpdatesVariable(MirroredVariable):
    """Copies of one variable that are sent whole updates; other writes than additions stay as they are."""

    def _write_sparse(self, update: Update, sparse_delta: Any, name: str) -> Any:
        if update not in (ADD, SUB):
            return super()._write_sparse(update, sparse_delta, name)
        if not isinstance(sparse_delta, PerReplica):
            return self._write_dense(update, self._dense(sparse_delta, current_device()), name, True)
        devices = sparse_delta.devices or (current_device(),) * len(sparse_delta.values)
        dense = [self._dense(value, device) for value, device in zip(sparse_delta.values, devices, strict=True)]
        return self._write_dense(update, PerReplica(dense, devices), name, True)

    def _dense(self, value: Any, device: Device) -> Array | Any:
        """The update as an array of the variable's shape, made where the slices are."""
        if not isinstance(value, IndexedSlices):
            return value
        with device_scope(device):
            return IndexedSlices(value.values, value.indices, self.shape).to_dense()

"""The policies that cut nothing: all in one file, a file a task, a file a device."""

from dataclasses import dataclass

import numpy as np

from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.policies.columnar import ColumnarPolicy
from shardvar.planning.slices import SliceTable


@dataclass(frozen=True, slots=True)
class AllInOnePolicy(ColumnarPolicy):
    """Everything in a single file, which the tensors of several tasks may not share."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places all slices in a single file."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices as they are, all in file 0."""
        return Assignment(slices, np.zeros(len(slices), dtype=np.int64), 1, self.description)


@dataclass(frozen=True, slots=True)
class ShardByTaskPolicy(ColumnarPolicy):
    """A file for each task, the default; one file in formats that have only one.

    R-POLICY-10 (RFC 001): "Common sharding policies like sharding by task and sharding according to a maximum file size
    will be provided".
    """

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places the slices of each task in a file of their own."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices of the task that comes first in file 0, those of the next in file 1."""
        number, _ = slices.tasks()
        if not capabilities.many_files:
            number = np.zeros_like(number)
        return _by_number(slices, number, self.description)


@dataclass(frozen=True, slots=True)
class ShardByDevicePolicy(ColumnarPolicy):
    """A file for each device: R-POLICY-10 (RFC 001), "Callback to split tensors into shards based on their device"."""

    @property
    def description(self) -> str:
        """One sentence about the policy."""
        return "Places the slices of each device in a file of their own."

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices of the device that comes first in file 0, those of the next in file 1."""
        device = np.zeros(len(slices), dtype=np.int64) if slices.device is None else slices.device
        _, first, number = np.unique(device, return_index=True, return_inverse=True)
        position = np.empty(len(first), dtype=np.int64)
        position[np.argsort(first)] = np.arange(len(first))
        return _by_number(slices, position[number], self.description)


def _by_number(slices: SliceTable, number: Ints, description: str) -> Assignment:
    """The slices file by file, in their order within each."""
    order = np.argsort(number, kind="stable")
    num_files = int(number.max(initial=0)) + 1
    return Assignment(slices.take(order), number[order], num_files, description)

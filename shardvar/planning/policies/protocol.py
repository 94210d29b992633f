"""What a policy is: anything that has a description and says which slices share a file, in one of two ways.

    columns    ``assign(slices, capabilities)``: all slices at once, from metadata alone; as shardvar's own do
    callback   ``__call__(shardable_tensors)``: RFC 001's ``ShardingCallback``, tensor by tensor, for everybody

shardvar's own are both, with the law that both give the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shardvar.planning.capabilities import Capabilities
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable

TensorSliceDict = Mapping[str, Mapping[str, Any]]
"""One file of a callback's answer: from keys to the texts of slices to values."""


class TablePolicy(Protocol):
    """Decides which slices share a file."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The slices, possibly cut further, each with its file."""


class CallbackPolicy(Protocol):
    """Decides which slices share a file, tensor by tensor (RFC 001's ``ShardingCallback``)."""

    @property
    def description(self) -> str:
        """One sentence, kept in the index and repeated in errors."""

    def __call__(self, shardable_tensors: Sequence[Any], /) -> Sequence[TensorSliceDict]:
        """For every file the tensors in it: from keys to the texts of slices to values."""


Policy = TablePolicy | CallbackPolicy

"""One policy inside the files of another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from shardvar.checkpoint.arguments import check_policy
from shardvar.checkpoint.callbacks.answer import placed_values
from shardvar.checkpoint.callbacks.lazy_slice import LazySlice
from shardvar.checkpoint.callbacks.protocol import ShardingCallback
from shardvar.checkpoint.callbacks.shardable_tensor import ShardableTensor
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.planning.plan import Assignment
from shardvar.planning.policies import CallbackPolicy, Policy, TableComposition, TablePolicy, TensorSliceDict
from shardvar.planning.policies.composition import composed_description
from shardvar.planning.policies.exceeding import Exceeding


def compose(outer: Policy, inner: Policy) -> Policy:
    """The policy that applies ``inner`` to the tensors of each file of ``outer``'s answer, in order.

    R-POLICY-17 (RFC 001): "we can even get some callback composition going". Law: each file of the answer holds tensors
    of one file of ``outer``'s. Its description is those of both. Of two of shardvar's own, one that decides in columns
    too.

    >>> from shardvar.planning.policies import MaxShardSizePolicy, ShardByTaskPolicy
    >>> compose(ShardByTaskPolicy(), MaxShardSizePolicy(8)).inner.max_shard_size
    8
    """
    for policy in (outer, inner):
        if policy is None:
            raise ArgumentTypeError("None is no policy.", "Give two policies.")
        check_policy(policy)
    if hasattr(outer, "assign") and hasattr(inner, "assign"):
        return TableComposition(cast("TablePolicy", outer), cast("TablePolicy", inner))
    return CallbackComposition(_callable(outer), _callable(inner))


def _callable(policy: Policy) -> CallbackPolicy:
    if callable(policy):
        return policy
    raise ArgumentError(f"{policy!r} decides in columns alone, and is no callback.", "Derive it from ColumnarPolicy.")


@dataclass(frozen=True, slots=True)
class CallbackComposition(ShardingCallback):
    """``inner`` called with the tensors of each file of ``outer``'s answer."""

    outer: CallbackPolicy
    """What is called first."""
    inner: CallbackPolicy
    """What is called for each of its files."""

    @property
    def description(self) -> str:
        """One sentence about each."""
        return composed_description(self.outer.description, self.inner.description)

    def __call__(self, shardable_tensors: Sequence[ShardableTensor], /) -> list[TensorSliceDict]:
        """The files that ``inner`` makes of the first file of ``outer``, then those of the second."""
        known = {each.checkpoint_key: each for each in reversed(shardable_tensors)}
        files: dict[int, list[ShardableTensor]] = {}
        for file, key, spec, value in placed_values(self.outer(shardable_tensors), self.outer.description):
            files.setdefault(file, []).append(_shardable(key, spec, value, known))
        return [shard for tensors in files.values() for shard in self.inner(tensors)]

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        """The files that exceed the inner policy's limit, where it has one."""
        exceeding = getattr(self.inner, "exceeding", None)
        return exceeding(assignment) if exceeding else []


def _shardable(key: str, spec: str, value: Any, known: dict[str, ShardableTensor]) -> ShardableTensor:
    """A value of an answer as something to answer about; where it was, and what for, is known by its key."""
    origin = known.get(key)
    if origin is not None and value is origin.tensor and spec == origin.slice_spec:
        return origin
    shape, spec = tuple(value.shape), spec.strip()
    if origin is None:
        return ShardableTensor(value, value.dtype, "", key, shape, spec, key)
    device = value.device if isinstance(value, LazySlice) else origin.device
    return origin._replace(tensor=value, dtype=value.dtype, device=device, shape=shape, slice_spec=spec)

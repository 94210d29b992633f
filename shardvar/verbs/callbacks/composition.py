"""Composition: one policy inside the files of another.

A composition of two policies that answer in columns also answers in columns; any other is a
callback. Both apply the inner policy to each file of the outer policy's answer, one file after the
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.decision import find_exceeding
from shardvar.planning.plan import Assignment
from shardvar.planning.policies import (
    CallbackPolicy,
    ColumnarPolicy,
    Policy,
    TablePolicy,
    TensorSliceDict,
)
from shardvar.planning.policies.policy import Exceeding
from shardvar.planning.slices import SliceTable, stack
from shardvar.verbs.arguments import check_policy
from shardvar.verbs.callbacks.answer import answer_items
from shardvar.verbs.callbacks.shardable_tensor import LazySlice, ShardableTensor, ShardingCallback


def compose(outer: Policy, inner: Policy) -> Policy:
    """Return the policy that applies one policy inside the files of another, in order.

    Parameters
    ----------
    outer : policy
        The policy that is asked first.
    inner : policy
        The policy that is asked about the tensors of each file of the first answer.

    Returns
    -------
    policy
        The composition. Its description joins both descriptions. Two policies of shardvar compose
        to one that decides in columns.

    Raises
    ------
    ArgumentTypeError
        If one of them is not a policy.
    ArgumentError
        If one decides only in columns, and the other only in a callback.

    Notes
    -----
    R-POLICY-17 (RFC 001): "we can even get some callback composition going". Law: each file of the
    answer holds tensors of one file of ``outer``'s.

    Examples
    --------
    >>> import shardvar as sv
    >>> policy = sv.compose(sv.ShardByTaskPolicy(), sv.MaxShardSizePolicy(8))
    >>> policy.inner.max_shard_size
    8
    >>> policy.description.partition(" Then, in each of these: ")[2]
    'Fills files up to 8 bytes, cutting slices that do not fit.'
    """
    for policy in (outer, inner):
        if policy is None:
            raise ArgumentTypeError("A policy to compose is None.", "Give two policies.")
        check_policy(policy)
    if hasattr(outer, "assign") and hasattr(inner, "assign"):
        return ColumnarComposition(cast("TablePolicy", outer), cast("TablePolicy", inner))
    return CallbackComposition(_callable(outer), _callable(inner))


def _callable(policy: Policy) -> CallbackPolicy:
    if callable(policy):
        return policy
    raise ArgumentError(
        f"{policy!r} decides only in columns and cannot be called.",
        "Derive it from ColumnarPolicy.",
    )


class _Composition:
    """The parts that both compositions share."""

    __slots__ = ()

    outer: Policy
    inner: Policy

    @property
    def description(self) -> str:
        """One sentence about each."""
        return f"{self.outer.description} Then, in each of these: {self.inner.description}"

    def exceeding(self, assignment: Assignment) -> list[Exceeding]:
        """Files that exceed the inner policy's limit, if it has one."""
        return list(find_exceeding(self.inner, assignment))


@dataclass(frozen=True, slots=True)
class ColumnarComposition(_Composition, ColumnarPolicy):
    """``inner`` applied to the slices of each file of ``outer``'s answer."""

    outer: TablePolicy
    """The policy that decides first."""
    inner: TablePolicy
    """The policy that divides each of its files."""

    def assign(self, slices: SliceTable, capabilities: Capabilities) -> Assignment:
        """The files that ``inner`` makes of the first file of ``outer``, then of the second, and so
        on."""
        first = self.outer.assign(slices, capabilities)
        order, bounds = first.by_file()
        answers = [
            self.inner.assign(
                first.slices.take(order[bounds[file] : bounds[file + 1]]), capabilities
            )
            for file in range(first.num_files)
        ]
        # The files of each answer are numbered after the files of the answers before it.
        starts = np.cumsum([0, *(answer.num_files for answer in answers)]).tolist()
        file = np.concatenate(
            [answer.file + start for answer, start in zip(answers, starts, strict=False)]
        )
        return Assignment(
            stack([answer.slices for answer in answers]), file, starts[-1], self.description
        )


@dataclass(frozen=True, slots=True)
class CallbackComposition(_Composition, ShardingCallback):
    """``inner`` called with the tensors of each file of ``outer``'s answer."""

    outer: CallbackPolicy
    """The policy that is called first."""
    inner: CallbackPolicy
    """The policy that is called for each of its files."""

    def __call__(self, shardable_tensors: Sequence[ShardableTensor], /) -> list[TensorSliceDict]:
        """The files that ``inner`` makes of the first file of ``outer``, then of the second, and so
        on."""
        # Reversed, so that the first of several slices with one key is kept.
        known = {each.checkpoint_key: each for each in reversed(shardable_tensors)}
        files: dict[int, list[ShardableTensor]] = {}
        for file, key, spec, value in answer_items(
            self.outer(shardable_tensors), self.outer.description
        ):
            files.setdefault(file, []).append(_shardable(key, spec, value, known))
        return [shard for tensors in files.values() for shard in self.inner(tensors)]


def _shardable(
    key: str, spec: str, value: Any, known: dict[str, ShardableTensor]
) -> ShardableTensor:
    """A value of an answer, to be answered about again; its key leads to its device and object."""
    origin = known.get(key)
    if origin is not None and value is origin.tensor and spec == origin.slice_spec:
        return origin
    shape, spec = tuple(value.shape), spec.strip()
    if origin is None:
        return ShardableTensor(value, value.dtype, "", key, shape, spec, key)
    device = value.device if isinstance(value, LazySlice) else origin.device
    return origin._replace(
        tensor=value, dtype=value.dtype, device=device, shape=shape, slice_spec=spec
    )

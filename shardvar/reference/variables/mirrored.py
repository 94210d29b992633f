"""MirroredVariable: a copy on every replica. AggregatingVariable: one variable that all replicas
update.

R-MIRROR-1 (RFC 000): a MirroredVariable "represents a list of variables residing on different
devices but are always kept in sync by applying the same updates to every copy." Here a write is
planned for every copy and committed to all of them at once, so a reader never finds two copies that
differ. Each copy has its own buffer. A copy may be a sharded variable: RFC 002, "in mirrored
architecture, variables can also sometimes be MirroredVariable with ShardedVariable".

Replicas that compute different values for one write give them as ``PerReplica``. Steps of such a
write: aggregate the values to one, as ``aggregation`` says; then check, plan and commit that one as
any other write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, dtype_name
from shardvar.reference.devices import Device, current_device, move_array, operation_scope
from shardvar.reference.variables.indexed_slices import IndexedSlices
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.updates import ADD, SUB, UpdateKind
from shardvar.reference.variables.values import as_value, check_shape
from shardvar.reference.variables.variable import (
    DelegatingVariable,
    VariableAggregation,
    parse_mode,
)


@dataclass(frozen=True, slots=True, eq=False)
class PerReplica:
    """The values that the replicas computed for one write: arrays, or IndexedSlices."""

    values: tuple[Any, ...]
    """One value for each replica."""
    devices: tuple[Device, ...] = ()
    """The device of each value; empty if all are on the current device."""

    def __init__(self, values: Sequence[Any], devices: Sequence[Device] = ()) -> None:
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "devices", tuple(devices))
        if not self.values or len(self.devices) not in (0, len(self.values)):
            raise ArgumentError(
                f"{len(self.values)} values are on {len(self.devices)} devices.",
                "Give one value and one device a replica.",
            )

    def here(self) -> list[Any]:
        """Return the values, moved to the current device."""
        target = current_device()
        sources = self.devices or (target,) * len(self.values)
        return [
            _moved(value, source, target)
            for value, source in zip(self.values, sources, strict=True)
        ]


class _AggregatingVariable(DelegatingVariable):
    """A kind of variable whose writes may be given per replica."""

    _aggregation: VariableAggregation

    @property
    def aggregation(self) -> VariableAggregation:
        """The rule by which values of several replicas become one."""
        return self._aggregation

    # The scope is opened before aggregating, so that moving the replicas' values here counts as
    # part of this operation.

    def _write_dense(self, update: UpdateKind, value: Any, name: str, read_value: bool) -> Any:
        with operation_scope(name):
            return super()._write_dense(update, self._aggregated(value, update), name, read_value)

    def _write_sparse(self, update: UpdateKind, sparse_delta: Any, name: str) -> Any:
        with operation_scope(name):
            return super()._write_sparse(update, self._aggregated(sparse_delta, update), name)

    def _aggregated(self, value: Any, update: UpdateKind) -> Any:
        return (
            aggregate(value, self._aggregation, update) if isinstance(value, PerReplica) else value
        )


class MirroredVariable(_AggregatingVariable):
    """Copies of one variable, kept equal."""

    def __init__(
        self, copies: Sequence[VariableInterface], aggregation: Any = None, name: str | None = None
    ) -> None:
        self._copies = check_copies(copies)
        self._aggregation = parse_mode(VariableAggregation, aggregation)
        self._name = self._copies[0].name if name is None else name

    @property
    def copies(self) -> tuple[VariableInterface, ...]:
        """The copies, in the order of the replicas; the first is saved for all."""
        return self._copies

    @property
    def name(self) -> str:
        return self._name

    @property
    def nearest(self) -> VariableInterface:
        """The copy that lives on the current device; elsewhere the first."""
        # A sharded copy lives here only if all of its shards do; a read of a distant shard would
        # cross all the same.
        here = current_device()
        lives_here = (
            copy
            for copy in self._copies
            if all(resource.device is here for resource in copy.resources)
        )
        return next(lives_here, self._copies[0])

    @property
    def _targets(self) -> tuple[VariableInterface, ...]:
        return self._copies

    @property
    def _reader(self) -> VariableInterface:
        return self.nearest


class AggregatingVariable(_AggregatingVariable):
    """One variable, plain or sharded, whose updates several replicas give.

    R-MIRROR-2 (RFC 002): "In parameter server architecture, model variables can sometimes be
    AggregatingVariable with a underlying ShardedVariable".
    """

    def __init__(self, variable: VariableInterface, aggregation: Any) -> None:
        if not isinstance(variable, VariableInterface):
            raise ArgumentTypeError(
                f"AggregatingVariable is given {variable!r}.",
                "Give the variable that replicas update.",
            )
        self._variable = variable
        self._aggregation = parse_mode(VariableAggregation, aggregation)

    @property
    def variable(self) -> VariableInterface:
        """The variable that replicas update."""
        return self._variable

    @property
    def _targets(self) -> tuple[VariableInterface, ...]:
        return (self._variable,)


def aggregate(value: PerReplica, aggregation: VariableAggregation, update: UpdateKind = ADD) -> Any:
    """Return one value made from all replicas' values, on the current device; slices stay slices.

    A sum or a mean of slices is defined for additions and subtractions. For other updates of rows
    only the first replica's slices can be taken.
    """
    if aggregation is VariableAggregation.NONE:
        raise ArgumentError(
            "Values of several replicas are given for a variable without an aggregation.",
            "Create the variable with aggregation=.",
        )
    values = value.here()
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return values[0]
    count = len(values) if aggregation is VariableAggregation.MEAN else 1
    if all(isinstance(one, IndexedSlices) for one in values):
        if update not in (ADD, SUB):
            raise ArgumentError(
                f"Slices of several replicas cannot be aggregated to {update.verb} them.",
                "Take only the first replica's.",
            )
        # Slices add up by following one another: the write adds all that belong to one row.
        rows = np.concatenate([one.values for one in values])
        return IndexedSlices(
            _over(rows, count),
            np.concatenate([one.indices for one in values]),
            values[0].dense_shape,
        )
    if any(isinstance(one, IndexedSlices) for one in values):
        raise ArgumentTypeError("Some replicas give slices and some arrays.", "Give one kind.")
    # Shapes are compared before each sum, because NumPy would broadcast [1] over [5] and hide a
    # replica's mistake.
    total = first = as_value(values[0])
    for one in map(as_value, values[1:]):
        check_shape(one.shape, first.shape, "The value of a replica")
        total = total + one
    return _over(total, count)


def check_copies(copies: Sequence[VariableInterface]) -> tuple[VariableInterface, ...]:
    """Return the copies as a tuple of variables of one shape and dtype that share no resource."""
    found = tuple(copies)
    if not found or not all(isinstance(copy, VariableInterface) for copy in found):
        raise ArgumentTypeError(
            f"MirroredVariable is given {found!r}.", "Give a non-empty list of variables."
        )
    kinds = [(copy.shape, dtype_name(copy.dtype)) for copy in found]
    if len(set(kinds)) > 1:
        raise ArgumentError(
            f"The copies differ: {kinds}.", "Give copies of one shape and one dtype."
        )
    # Copies that share a resource would be written twice by one write: adding 1 would add 2.
    resources = [resource for copy in found for resource in copy.resources]
    if len(set(resources)) < len(resources):
        raise ArgumentError("Two copies are one variable.", "Create a variable for each replica.")
    return found


def _over(total: Array, count: int) -> Array:
    """Return ``total / count`` in the dtype of the total; whole numbers are rounded towards zero,
    as everywhere."""
    if count == 1:
        return total
    if total.dtype.kind in "iu":
        # `//` rounds towards minus infinity; on magnitudes that is towards zero: -7 over 2 is -(7
        # // 2) = -3.
        return np.asarray(np.sign(total) * (np.abs(total) // count), total.dtype)
    return np.asarray(total / count, total.dtype)


def _moved(value: Any, source: Device, target: Device) -> Any:
    if isinstance(value, IndexedSlices):
        return IndexedSlices(
            move_array(value.values, source, target), value.indices, value.dense_shape
        )
    return move_array(as_value(value), source, target)

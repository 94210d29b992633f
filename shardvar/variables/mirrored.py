"""MirroredVariable: a copy on every replica. AggregatingVariable: one copy that all replicas update.

R-MIRROR-1 (RFC 000): a MirroredVariable "represents a list of variables residing on different devices but are always
kept in sync by applying the same updates to every copy." Here a write is planned for every copy and committed to all of
them at once, so that no reader finds two copies that differ; each copy has a buffer of its own. A copy may be a sharded
variable: RFC 002, "in mirrored architecture, variables can also sometimes be MirroredVariable with ShardedVariable".

Replicas that compute different values for one write give them as ``PerReplica``; ``aggregation`` makes one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.devices import Device, current_device, move_array, operation_scope
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints, dtype_name
from shardvar.variables.index import Rows
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.interface import VariableInterface
from shardvar.variables.resource import Resource, Write
from shardvar.variables.updates import ADD, SUB, Update
from shardvar.variables.values import as_value, check_shape
from shardvar.variables.variable import Variable, VariableAggregation, parse_mode


@dataclass(frozen=True, slots=True, eq=False)
class PerReplica:
    """What each replica computed for one write: arrays, or IndexedSlices."""

    values: tuple[Any, ...]
    """One a replica."""
    devices: tuple[Device, ...] = ()
    """Where each lies; none where all lie on the current device."""

    def __init__(self, values: Sequence[Any], devices: Sequence[Device] = ()) -> None:
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "devices", tuple(devices))
        if not self.values or len(self.devices) not in (0, len(self.values)):
            raise ArgumentError(
                f"{len(self.values)} values are on {len(self.devices)} devices.", "Give one of each a replica."
            )

    def here(self) -> list[Any]:
        """The values on the current device."""
        target = current_device()
        sources = self.devices or (target,) * len(self.values)
        return [_moved(value, source, target) for value, source in zip(self.values, sources, strict=True)]


class _Aggregating(Variable):
    """A kind of variable whose writes may be given per replica."""

    _aggregation: VariableAggregation

    @property
    def aggregation(self) -> VariableAggregation:
        """How values of several replicas become one."""
        return self._aggregation

    def _write_dense(self, update: Update, value: Any, name: str, read_value: bool) -> Any:
        with operation_scope(name):
            return super()._write_dense(update, self._aggregated(value, update), name, read_value)

    def _write_sparse(self, update: Update, sparse_delta: Any, name: str) -> Any:
        with operation_scope(name):
            return super()._write_sparse(update, self._aggregated(sparse_delta, update), name)

    def _aggregated(self, value: Any, update: Update) -> Any:
        return aggregate(value, self._aggregation, update) if isinstance(value, PerReplica) else value


class MirroredVariable(_Aggregating):
    """Copies of one variable, kept equal."""

    def __init__(self, copies: Sequence[VariableInterface], aggregation: Any = None, name: str | None = None) -> None:
        self._copies = check_copies(copies)
        self._aggregation = parse_mode(VariableAggregation, aggregation)
        self._name = self._copies[0].name if name is None else name

    @property
    def copies(self) -> tuple[VariableInterface, ...]:
        """The copies, in the order of the replicas; the first is saved for all."""
        return self._copies

    @property
    def shape(self) -> tuple[int, ...]:
        return self._copies[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._copies[0].dtype

    @property
    def name(self) -> str:
        return self._name

    @property
    def trainable(self) -> bool:
        return self._copies[0].trainable

    @property
    def nearest(self) -> VariableInterface:
        """The copy that lives on the current device; elsewhere the first."""
        here = current_device()
        lives_here = (copy for copy in self._copies if all(resource.device is here for resource in copy.resources))
        return next(lives_here, self._copies[0])

    @property
    def device(self) -> Device:
        return self.nearest.resources[0].device

    @property
    def resources(self) -> tuple[Resource, ...]:
        return tuple(resource for copy in self._copies for resource in copy.resources)

    def read_value(self) -> Array:
        return self.nearest.read_value()

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        return self.nearest._read_rows(rows, columns)

    def _plan_dense(self, update: Update, value: Array) -> list[Write]:
        return [write for copy in self._copies for write in copy._plan_dense(update, value)]

    def _plan_sparse(self, update: Update, rows: Ints, values: Array) -> list[Write]:
        return [write for copy in self._copies for write in copy._plan_sparse(update, rows, values)]

    def plan_dense(self, update: Update, value: Array) -> Write:
        return _joined(self._plan_dense(update, value))

    def plan_sparse(self, update: Update, rows: Ints, values: Array, order: Ints | None) -> Write:
        return _joined(self._plan_sparse(update, rows, values if order is None else values[order]))


class AggregatingVariable(_Aggregating):
    """One variable, plain or sharded, whose updates several replicas give.

    R-MIRROR-2 (RFC 002): "In parameter server architecture, model variables can sometimes be AggregatingVariable with a
    underlying ShardedVariable".
    """

    def __init__(self, variable: VariableInterface, aggregation: Any) -> None:
        if not isinstance(variable, VariableInterface):
            raise ArgumentTypeError(f"{variable!r} is no variable.", "Give the variable that replicas update.")
        self._variable = variable
        self._aggregation = parse_mode(VariableAggregation, aggregation)

    @property
    def variable(self) -> VariableInterface:
        """The variable itself."""
        return self._variable

    @property
    def shape(self) -> tuple[int, ...]:
        return self._variable.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._variable.dtype

    @property
    def name(self) -> str:
        return self._variable.name

    @property
    def trainable(self) -> bool:
        return self._variable.trainable

    @property
    def device(self) -> Device:
        return self._variable.resources[0].device

    @property
    def resources(self) -> tuple[Resource, ...]:
        return self._variable.resources

    def read_value(self) -> Array:
        return self._variable.read_value()

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        return self._variable._read_rows(rows, columns)

    def _plan_dense(self, update: Update, value: Array) -> list[Write]:
        return self._variable._plan_dense(update, value)

    def _plan_sparse(self, update: Update, rows: Ints, values: Array) -> list[Write]:
        return self._variable._plan_sparse(update, rows, values)

    def plan_dense(self, update: Update, value: Array) -> Write:
        return _joined(self._plan_dense(update, value))

    def plan_sparse(self, update: Update, rows: Ints, values: Array, order: Ints | None) -> Write:
        return _joined(self._plan_sparse(update, rows, values if order is None else values[order]))


def aggregate(value: PerReplica, aggregation: VariableAggregation, update: Update = ADD) -> Any:
    """One value of those of all replicas, on the current device; slices stay slices.

    A sum or a mean means something where values are added or subtracted, or replace everything; else only the first can
    be taken.
    """
    if aggregation is VariableAggregation.NONE:
        raise ArgumentError("Values of several replicas are given, and no aggregation.", "Create with aggregation=.")
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
        rows = np.concatenate([one.values for one in values])
        return IndexedSlices(_over(rows, count), np.concatenate([one.indices for one in values]), values[0].dense_shape)
    if any(isinstance(one, IndexedSlices) for one in values):
        raise ArgumentTypeError("Some replicas give slices and some arrays.", "Give one kind.")
    total = first = as_value(values[0])
    for one in map(as_value, values[1:]):
        check_shape(one.shape, first.shape, "The value of a replica")
        total = total + one
    return _over(total, count)


def check_copies(copies: Sequence[VariableInterface]) -> tuple[VariableInterface, ...]:
    """The copies, proven to be of one shape and dtype, no two of them one variable."""
    found = tuple(copies)
    if not found or not all(isinstance(copy, VariableInterface) for copy in found):
        raise ArgumentTypeError(f"MirroredVariable is given {found!r}.", "Give a non-empty list of variables.")
    kinds = [(copy.shape, dtype_name(copy.dtype)) for copy in found]
    if len(set(kinds)) > 1:
        raise ArgumentError(f"The copies differ: {kinds}.", "Copies have one shape and one dtype.")
    resources = [resource for copy in found for resource in copy.resources]
    if len(set(resources)) < len(resources):
        raise ArgumentError("Two copies are one variable.", "Each replica owns its copy.")
    return found


def _over(total: Array, count: int) -> Array:
    """``total / count`` in the dtype of the total; whole numbers towards zero, as everywhere."""
    if count == 1:
        return total
    if total.dtype.kind in "iu":
        return np.asarray(np.sign(total) * (np.abs(total) // count), total.dtype)
    return np.asarray(total / count, total.dtype)


def _moved(value: Any, source: Device, target: Device) -> Any:
    if isinstance(value, IndexedSlices):
        return IndexedSlices(move_array(value.values, source, target), value.indices, value.dense_shape)
    return move_array(as_value(value), source, target)


def _joined(writes: Sequence[Write]) -> Write:
    """Several writes as one."""

    def apply() -> None:
        for write in writes:
            write.apply()

    return Write(tuple(resource for write in writes for resource in write.resources), apply)

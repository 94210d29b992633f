"""Variables with a copy on every replica: kept in sync, or synchronized when they are read.

R-MIRROR-1 (RFC 000): a MirroredVariable "represents a list of variables residing on different
devices but are always kept in sync by applying the same updates to every copy." Here a write is
planned for every copy and committed to all of them at once, so a reader never finds two copies that
differ. Each copy has its own buffer. A copy may be a sharded variable: RFC 002, "in mirrored
architecture, variables can also sometimes be MirroredVariable with ShardedVariable".

Replicas that compute different values for one write give them as ``PerReplica``. The values are
aggregated by the rule ``aggregation``; the result is checked, planned and committed as in any other
write.

Of a ``SyncOnReadVariable`` each replica has its own copy, and readers outside the replicas see the
copies as one value. ``synchronization="ON_READ"`` asks for it where a strategy mirrors. It suits
counters and moving averages, which every replica updates many times a step and which are rarely
read. TensorFlow has this kind, and RFC 000 names it among the kinds of variables. ``aggregation``
is the rule:

    inside ``strategy.run`` reads and writes go to the replica's own copy; nothing crosses between
    devices
    outside, a read           the sum or the mean of the copies, or the first one
    outside, ``assign``       gives the copies values that read as the assigned value: equal shares
                              for a sum, else itself
    outside, other writes     go to every copy, and are refused for a sum, which would count them
                              once for each copy

So the value that is read is saved, and a restored variable reads as it was saved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints, dtype_name
from shardvar.records import entity
from shardvar.reference.devices import Device, current_device, move_array, operation_scope
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.rows import IndexedSlices, RowColumns, Rows
from shardvar.reference.variables.values import (
    ADD,
    REPLACE,
    SUB,
    UpdateKind,
    Write,
    as_value,
    cast_value,
    check_shape,
    commit,
    holding,
)
from shardvar.reference.variables.variable import (
    DelegatingVariable,
    Variable,
    VariableAggregation,
    VariableSynchronization,
    parse_mode,
)


@entity
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
        moved: list[Any] = []
        for value, source in zip(
            self.values, self.devices or (target,) * len(self.values), strict=True
        ):
            if isinstance(value, IndexedSlices):
                rows = move_array(value.values, source, target)
                moved.append(IndexedSlices(rows, value.indices, value.dense_shape))
            else:
                moved.append(move_array(as_value(value), source, target))
        return moved


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


class _CopiedVariable(DelegatingVariable):
    """A kind of variable with a copy for each replica."""

    def __init__(
        self, copies: Sequence[VariableInterface], aggregation: Any = None, name: str | None = None
    ) -> None:
        self._copies = tuple(copies)
        if not self._copies or not all(
            isinstance(copy, VariableInterface) for copy in self._copies
        ):
            raise ArgumentTypeError(
                f"MirroredVariable is given {self._copies!r}.",
                "Give a non-empty list of variables.",
            )
        kinds = [(copy.shape, dtype_name(copy.dtype)) for copy in self._copies]
        if len(set(kinds)) > 1:
            raise ArgumentError(
                f"The copies differ: {kinds}.", "Give copies of one shape and one dtype."
            )
        # Copies that share a resource would be written twice by one write: adding 1 would add 2.
        resources = [resource for copy in self._copies for resource in copy.resources]
        if len(set(resources)) < len(resources):
            raise ArgumentError(
                "Two copies are one variable.", "Create a variable for each replica."
            )
        self._aggregation: VariableAggregation = parse_mode(VariableAggregation, aggregation)
        self._name = self._copies[0].name if name is None else name

    @property
    def copies(self) -> tuple[VariableInterface, ...]:
        """The copies, in the order of the replicas; of a mirrored variable the first is saved."""
        return self._copies

    @property
    def name(self) -> str:
        return self._name


class MirroredVariable(_CopiedVariable, _AggregatingVariable):
    """Copies of one variable, kept equal."""

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
    """Return one value of all replicas' values, on the current device; slices stay slices."""
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


def _over(total: Array, count: int) -> Array:
    """Return ``total / count`` in the dtype of the total; whole numbers are rounded towards zero."""
    if count == 1:
        return total
    if total.dtype.kind in "iu":
        # `//` rounds towards minus infinity; on magnitudes that is towards zero: -7 over 2 is -(7
        # // 2) = -3.
        return np.asarray(np.sign(total) * (np.abs(total) // count), total.dtype)
    return np.asarray(total / count, total.dtype)


# A context variable, because replicas may run in threads: each sees its own number.
_replica: ContextVar[int | None] = ContextVar("replica", default=None)


@contextmanager
def replica_scope(number: int) -> Iterator[None]:
    """Run the code inside as the program of this replica."""
    token = _replica.set(number)
    try:
        yield
    finally:
        _replica.reset(token)


class SyncOnReadVariable(_CopiedVariable):
    """Copies of one variable that become one value where they are read."""

    @property
    def aggregation(self) -> VariableAggregation:
        """The rule by which the copies are read as one value."""
        return self._aggregation

    @property
    def synchronization(self) -> VariableSynchronization:
        """Always ``ON_READ``."""
        return VariableSynchronization.ON_READ

    @property
    def _own(self) -> VariableInterface | None:
        """The copy of the replica whose program runs here, or None outside the replicas."""
        number = _replica.get()
        return None if number is None else self._copies[number % len(self._copies)]

    @property
    def _targets(self) -> tuple[VariableInterface, ...]:
        return self._copies if self._own is None else (self._own,)

    def read_value(self) -> Array:
        if self._own is not None:
            return self._own.read_value()
        with operation_scope("read_value"):
            return self._aggregated(lambda copy: copy.read_value())

    def _read_rows(self, rows: Rows, columns: RowColumns = ()) -> Array:
        if self._own is not None:
            return self._own._read_rows(rows, columns)
        return self._aggregated(lambda copy: copy._read_rows(rows, columns))

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        if self._own is not None:
            return super().plan_writes(update, value)
        if update is REPLACE:
            return self._plan_each(REPLACE, self._one_each(REPLACE, value))
        # Combined with the value that is read outside, and assigned as a whole: the way of a
        # variable without targets.
        return Variable.plan_writes(self, update, value)

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        if self._own is not None:
            return super().plan_row_writes(update, rows, values, order)
        return Variable.plan_row_writes(self, update, rows, values, order)

    def _write_dense(self, update: UpdateKind, value: Any, name: str, read_value: bool) -> Any:
        if self._own is not None:
            self._own._write_dense(update, value, name, read_value)
            return self._written(read_value)
        # Check. A sum counts an addition once for each copy that gets it.
        if update in (ADD, SUB) and self._aggregation is VariableAggregation.SUM:
            raise ArgumentError(
                f"{self.name} is read as the sum of its copies: {update.verb} to every copy "
                "would count several times.",
                "Add inside strategy.run(function), or assign the whole value.",
            )
        with operation_scope(name):
            # Plan. One array a copy, all of them checked before the first is written.
            arrays = [self._checked(update, one) for one in self._one_each(update, value)]
            # Commit.
            commit(self._plan_each(update, arrays))
        return self._written(read_value)

    def _write_sparse(self, update: UpdateKind, sparse_delta: Any, name: str) -> Any:
        if self._own is None:
            raise ArgumentError(
                f"{self.name} has a copy on each replica and cannot be scattered to from outside "
                "them.",
                "Scatter inside strategy.run(function), or assign the whole value.",
            )
        self._own._write_sparse(update, sparse_delta, name)
        return self._written(True)

    def _plan_each(self, update: UpdateKind, arrays: Sequence[Array]) -> list[Write]:
        pairs = zip(self._copies, arrays, strict=True)
        return [write for copy, array in pairs for write in copy.plan_writes(update, array)]

    def _aggregated(self, read: Any) -> Array:
        if self._aggregation is VariableAggregation.NONE:
            raise ArgumentError(
                f"{self.name} is read from outside its replicas, and no aggregation says what "
                "its copies are together.",
                "Create it with aggregation=, or read it inside strategy.run(function).",
            )
        # The mutexes of all copies are held, so that the sum is of one moment.
        copies = (
            self._copies[:1]
            if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA
            else self._copies
        )
        with holding(self.resources):
            return as_value(
                aggregate(PerReplica([read(copy) for copy in copies]), self._aggregation)
            )

    def _one_each(self, update: UpdateKind, value: Any) -> Sequence[Any]:
        """Return the value that is written to each copy."""
        count = len(self._copies)
        if isinstance(value, PerReplica):
            if len(value.values) != count:
                raise ArgumentError(
                    f"{len(value.values)} values are given for {count} copies.",
                    "Give one a replica.",
                )
            return value.here()
        if update is not REPLACE or self._aggregation is not VariableAggregation.SUM:
            return [value] * count
        # Equal shares, whose sum is the value. Of integers the first copies take one more, until
        # nothing is left over: 7 over 3 copies is 3 + 2 + 2, because 7 // 3 = 2 leaves 1, which is
        # more than 0 and not more than 1 or 2.
        whole = cast_value(value, self.dtype, "The value")
        if whole.dtype.kind not in "iu":
            return [np.asarray(whole / count, whole.dtype)] * count
        share, left = whole // count, whole % count
        return [np.asarray(share + (left > number), whole.dtype) for number in range(count)]

"""SyncOnReadVariable: each replica has its own copy, and readers outside the replicas see the
copies as one value.

``synchronization="ON_READ"`` asks for it where a strategy mirrors. It suits counters and moving
averages, which every replica updates many times a step and which are rarely read. TensorFlow has
this kind, and RFC 000 names it among the kinds of variables. ``aggregation`` is the rule:

    inside ``strategy.run`` reads and writes go to the replica's own copy; nothing crosses between
    devices
    outside, a read           the sum or the mean of the copies, or the first one
    outside, ``assign``       gives the copies values that read as the one assigned: equal shares
                              for a sum, else itself
    outside, other writes     go to every copy, and are refused for a sum, which would count them
                              once for each copy

So the value that is saved is the one that is read, and a restored variable reads as it was saved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.devices import operation_scope
from shardvar.reference.variables.index import Rows
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import PerReplica, aggregate, check_copies
from shardvar.reference.variables.updates import ADD, REPLACE, SUB, UpdateKind, check_update
from shardvar.reference.variables.values import as_value, cast_value, check_shape
from shardvar.reference.variables.variable import (
    DelegatingVariable,
    Variable,
    VariableAggregation,
    VariableSynchronization,
    parse_mode,
)
from shardvar.reference.variables.writes import Write, commit, holding

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


class SyncOnReadVariable(DelegatingVariable):
    """Copies of one variable that become one value where they are read."""

    def __init__(
        self, copies: Sequence[VariableInterface], aggregation: Any = None, name: str | None = None
    ) -> None:
        self._copies = check_copies(copies)
        self._aggregation: VariableAggregation = parse_mode(VariableAggregation, aggregation)
        self._name = self._copies[0].name if name is None else name

    @property
    def copies(self) -> tuple[VariableInterface, ...]:
        """The copies, in the order of the replicas."""
        return self._copies

    @property
    def aggregation(self) -> VariableAggregation:
        """The rule by which the copies are read as one value."""
        return self._aggregation

    @property
    def synchronization(self) -> VariableSynchronization:
        """Always ``ON_READ``."""
        return VariableSynchronization.ON_READ

    @property
    def name(self) -> str:
        return self._name

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

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
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
        # Check. A sum counts an addition once for each copy that gets it, so the caller must say
        # which.
        self._check_outside(update)
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
        """Return the writes of each copy with its own array."""
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

    def _check_outside(self, update: UpdateKind) -> None:
        if update in (ADD, SUB) and self._aggregation is VariableAggregation.SUM:
            raise ArgumentError(
                f"{self.name} is read as the sum of its copies: {update.verb} to every copy "
                "would count several times.",
                "Add inside strategy.run(function), or assign the whole value.",
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

    def _checked(self, update: UpdateKind, value: Any) -> Array:
        array = cast_value(value, self.dtype, "The value")
        check_shape(array.shape, self.shape, "The value")
        check_update(update, self.dtype, array)
        return array

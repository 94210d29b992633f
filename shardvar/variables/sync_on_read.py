"""SyncOnReadVariable: each replica has a copy of its own, and whoever reads from outside the replicas sees them as one.

``synchronization="ON_READ"`` asks for it where a strategy mirrors: counters and moving averages that every replica
updates many times a step, and that nobody reads in between. It is TensorFlow's, which RFC 000 names among the kinds of
variables; the word for its rule is ``aggregation``:

    inside ``strategy.run``   reads and writes are those of the replica's own copy; nothing crosses between devices
    outside, a read           the sum or the mean of the copies, or the first one
    outside, ``assign``       gives the copies values that read as the one assigned: its share for a sum, itself else
    outside, other writes     are those of every copy, where the value read changes as if it were written: not for a sum

So what is saved is what is read, and what is restored reads as it was saved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from shardvar.devices import Device, operation_scope
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.variables.index import Rows
from shardvar.variables.interface import VariableInterface
from shardvar.variables.mirrored import PerReplica, aggregate, check_copies
from shardvar.variables.resource import Resource, commit, holding
from shardvar.variables.updates import ADD, REPLACE, SUB, Update, check_update
from shardvar.variables.values import as_value, cast_value, check_shape
from shardvar.variables.variable import Variable, VariableAggregation, VariableSynchronization, parse_mode

_replica: ContextVar[int | None] = ContextVar("replica", default=None)


@contextmanager
def replica_scope(number: int) -> Iterator[None]:
    """Inside, the program is this replica's."""
    token = _replica.set(number)
    try:
        yield
    finally:
        _replica.reset(token)


class SyncOnReadVariable(Variable):
    """Copies of one variable that become one value where they are read."""

    def __init__(self, copies: Sequence[VariableInterface], aggregation: Any = None, name: str | None = None) -> None:
        self._copies = check_copies(copies)
        self._aggregation: VariableAggregation = parse_mode(VariableAggregation, aggregation)
        self._name = self._copies[0].name if name is None else name

    @property
    def copies(self) -> tuple[VariableInterface, ...]:
        """The copies, in the order of the replicas."""
        return self._copies

    @property
    def aggregation(self) -> VariableAggregation:
        """What the copies are read as."""
        return self._aggregation

    @property
    def synchronization(self) -> VariableSynchronization:
        """On read."""
        return VariableSynchronization.ON_READ

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
    def device(self) -> Device:
        return (self._own or self._copies[0]).resources[0].device

    @property
    def resources(self) -> tuple[Resource, ...]:
        copies = self._copies if self._own is None else (self._own,)
        return tuple(resource for copy in copies for resource in copy.resources)

    def read_value(self) -> Array:
        if self._own is not None:
            return self._own.read_value()
        with operation_scope("read_value"):
            return self._aggregated(lambda copy: copy.read_value())

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        if self._own is not None:
            return self._own._read_rows(rows, columns)
        return self._aggregated(lambda copy: copy._read_rows(rows, columns))

    def _write_dense(self, update: Update, value: Any, name: str, read_value: bool) -> Any:
        if self._own is not None:
            self._own._write_dense(update, value, name, read_value)
            return self._written(read_value)
        self._check_outside(update)
        with operation_scope(name):
            arrays = [self._checked(update, one) for one in self._one_each(update, value)]
            pairs = zip(self._copies, arrays, strict=True)
            commit([write for copy, array in pairs for write in copy._plan_dense(update, array)])
        return self._written(read_value)

    def _write_sparse(self, update: Update, sparse_delta: Any, name: str) -> Any:
        if self._own is None:
            raise ArgumentError(
                f"{self.name} is scattered to from outside its replicas, each of which has a copy of its own.",
                "Scatter inside strategy.run(function), or assign the whole value.",
            )
        self._own._write_sparse(update, sparse_delta, name)
        return self._written(True)

    @property
    def _own(self) -> VariableInterface | None:
        """The copy of the replica whose program this is, if it is one's."""
        number = _replica.get()
        return None if number is None else self._copies[number % len(self._copies)]

    def _aggregated(self, read: Any) -> Array:
        if self._aggregation is VariableAggregation.NONE:
            raise ArgumentError(
                f"{self.name} is read from outside its replicas, and no aggregation says what its copies are together.",
                "Create it with aggregation=, or read it inside strategy.run(function).",
            )
        copies = self._copies[:1] if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA else self._copies
        with holding(self.resources):
            return as_value(aggregate(PerReplica([read(copy) for copy in copies]), self._aggregation))

    def _check_outside(self, update: Update) -> None:
        if update in (ADD, SUB) and self._aggregation is VariableAggregation.SUM:
            raise ArgumentError(
                f"{self.name} is read as the sum of its copies: {update.verb} to which of them is not said.",
                "Add inside strategy.run(function), or assign the whole value.",
            )

    def _one_each(self, update: Update, value: Any) -> Sequence[Any]:
        """What is written to each copy."""
        count = len(self._copies)
        if isinstance(value, PerReplica):
            if len(value.values) != count:
                raise ArgumentError(f"{len(value.values)} values are given for {count} copies.", "Give one a replica.")
            return value.here()
        if update is not REPLACE or self._aggregation is not VariableAggregation.SUM:
            return [value] * count
        # Equal shares, whose sum is the value; of integers, what is left over goes to the first copies.
        whole = cast_value(value, self.dtype, "The value")
        if whole.dtype.kind not in "iu":
            return [np.asarray(whole / count, whole.dtype)] * count
        share, left = whole // count, whole % count
        return [np.asarray(share + (left > number), whole.dtype) for number in range(count)]

    def _checked(self, update: Update, value: Any) -> Array:
        array = cast_value(value, self.dtype, "The value")
        check_shape(array.shape, self.shape, "The value")
        check_update(update, self.dtype, array)
        return array

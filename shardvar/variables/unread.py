"""UnreadVariable: what ``assign`` of a plain variable returns.

R-ASSIGN-1 (RFC 003): "Implement the subclass to be returned from tf.assign*". It is a variable, so that writes can be
chained, and it reads when it is asked, not before: a write that nobody reads moves nothing. It is no snapshot: what it
reads is the value of then.
"""

from typing import Any

import numpy as np

from shardvar.devices import Device
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.index import Rows
from shardvar.variables.resource import Resource, Write
from shardvar.variables.updates import Update
from shardvar.variables.variable import Variable


class UnreadVariable(Variable):
    """Another name for a variable that was just written."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

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
        return self._variable.device

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

    def _written(self, read_value: bool) -> Any:
        return self._variable._written(read_value)

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        return self._variable._assignable_shape

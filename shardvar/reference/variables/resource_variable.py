"""ResourceVariable: the default kind of variable, a resource with a name.

``sv.Variable(...)`` makes it unless a creator makes something else. The decorator of the class
tells ``Variable`` so, which does not import this module.
"""

from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.region import read_declared_shape
from shardvar.reference.devices import Buffer, Device, current_device, device_scope, operation_scope
from shardvar.reference.variables.initial_value import evaluate
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.operations import (
    gather_rows,
    plan_row_write,
    plan_write,
    read_range,
    read_variable_op,
)
from shardvar.reference.variables.scopes import scoped_name
from shardvar.reference.variables.updates import UpdateKind
from shardvar.reference.variables.values import check_shape
from shardvar.reference.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    as_default_kind,
    parse_mode,
)
from shardvar.reference.variables.writes import Resource, Write


@as_default_kind
class ResourceVariable(Variable):
    """A variable whose value is in one resource on one device.

    R-VAR-7 (RFC 003): reads are snapshots, and a read sees each write that it is ordered after:
    both hold the mutex.
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        *,
        shape: Any = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
        device: Device | None = None,
        colocated_with: VariableInterface | None = None,
    ) -> None:
        # Check: modes, name, shape. Nothing is evaluated before they are known to be valid.
        self._synchronization = parse_mode(VariableSynchronization, synchronization)
        self._aggregation = parse_mode(VariableAggregation, aggregation)
        on_read = self._synchronization is VariableSynchronization.ON_READ
        self._trainable = not on_read if trainable is None else bool(trainable)
        self._constraint = constraint
        self._name = scoped_name("Variable" if name is None else name)
        # R-CREATE-3 (RFC 000): "residing in the same device as the “colocated_with” variable".
        home = device or current_device() if colocated_with is None else device_of(colocated_with)
        declared = None if shape is None else read_declared_shape(shape)
        # Plan: the initial value, where it is, and whether its array may become the buffer. An
        # array of the caller's is copied, because the variable must not change with it.
        value, source, owns_value = evaluate(initial_value, declared, dtype, home)
        if declared is not None:
            check_shape(value.shape, declared, f"The initial value of {self._name}")
        self._declared_shape = value.shape if declared is None else declared
        # Move: this is where the device's limit is enforced.
        with operation_scope("create"):
            self._resource = Resource(value, home, source=source, owns_value=owns_value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._resource.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._resource.array.dtype

    @property
    def name(self) -> str:
        return self._name

    @property
    def trainable(self) -> bool:
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """The moment at which the copies of a mirrored variable are made equal."""
        return self._synchronization  # type: ignore[no-any-return]

    @property
    def aggregation(self) -> VariableAggregation:
        """The rule by which updates of several replicas become one."""
        return self._aggregation  # type: ignore[no-any-return]

    @property
    def constraint(self) -> Any:
        """A function that an optimizer applies to the value after an update, or None."""
        return self._constraint

    @property
    def device(self) -> Device:
        return self._resource.device

    @property
    def resource(self) -> Resource:
        """The pair of a buffer and a mutex, for the low-level operations."""
        return self._resource

    @property
    def resources(self) -> tuple[Resource, ...]:
        return (self._resource,)

    def read_value(self) -> Array:
        with operation_scope("read_value"):
            return read_variable_op(self._resource)

    def read_range(self, out: Array, ranges: tuple[slice, ...]) -> None:
        read_range(self._resource, out, ranges)

    def rows_buffer(self) -> Buffer | None:
        return self._resource.buffer

    def gather_rows(self, out: Array, rows: Ints, places: Ints | None) -> None:
        gather_rows(self._resource, out, rows, places)

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        return [plan_write(self._resource, update, value)]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        return [plan_row_write(self._resource, update, rows, values, order)]

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        return self._declared_shape

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a variable of the same name and device with a copy of the value."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        # What is tracked with the variable, and the sharded variable that it is a shard of, refer
        # to the original.
        for name in ("_children", "_child_slots", "_child_hooks", "_container"):
            twin.__dict__.pop(name, None)
        # On its own device a read moves nothing, so the ledger does not count the copy.
        with device_scope(self.device):
            twin._resource = Resource(self.read_value(), self.device, owns_value=True)
        return twin


def device_of(variable: Any) -> Device:
    """Return the device on which a variable lives; of a sharded one, its first shard's."""
    if not isinstance(variable, VariableInterface):
        raise ArgumentTypeError(f"colocated_with is {variable!r}.", "Give a variable.")
    resources = variable.resources
    if not resources:
        raise ArgumentError(
            f"{variable.name} holds no resource on a device.", "Colocate with a resource variable."
        )
    return resources[0].device

"""The low-level operations that implement variables, for whoever builds a kind of variable of their own.

R-OPS-1 (RFC 003): "We will expose the internal ops used to implement ResourceVariable as
tf.experimental.variable_operations (name TBD). This way users and libraries can, if they need to, modify the behavior
of variables at will."

All work on a ``Resource``. Values come from the current device and go to it; what crosses is counted by the ledger. The
``plan_`` functions return a ``Write`` for ``commit``, so that several resources can be written as one; the others plan
and commit at once. Rows must be in range, which is the caller's to check.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardvar.devices import Device, adopt, allocate, copy_into, current_device, gather_into, move_array, place
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.resource import Resource, Write, commit, holding
from shardvar.variables.scatter import scatter_sorted, sort_rows
from shardvar.variables.updates import ADD, REPLACE, SUB, Update
from shardvar.variables.values import as_value, cast_value, check_shape

_MUCH_NBYTES = 1 << 16
"""From so many bytes on a copy takes longer than to make a buffer."""


def variable_handle(value: Any, device: Device | None = None) -> Resource:
    """A new resource on a device, by default the current one, with a copy of the value."""
    return Resource(as_value(value), device)


def destroy_resource(resource: Resource) -> None:
    """Give its memory back now; using it afterwards is an error."""
    with resource.mutex:
        resource.buffer.release()


def read_variable_op(resource: Resource) -> Array:
    """A snapshot on the current device.

    R-READ-2 (RFC 003): "no mutation is done to the Tensor returned by a read_variable_op after it's been read".
    """
    with resource.mutex:
        return place(resource.array, source=resource.device).array


def assign_variable_op(resource: Resource, value: Any) -> None:
    """Replace the value by another of its shape."""
    commit([plan_dense(resource, REPLACE, _fitting(resource, value))])


def assign_add_variable_op(resource: Resource, delta: Any) -> None:
    """Add a value of the same shape. Concurrent additions lose nothing, since the mutex is held from read to write."""
    commit([plan_dense(resource, ADD, _fitting(resource, delta))])


def assign_sub_variable_op(resource: Resource, delta: Any) -> None:
    """Subtract a value of the same shape."""
    commit([plan_dense(resource, SUB, _fitting(resource, delta))])


def resource_gather(resource: Resource, rows: Ints) -> Array:
    """The rows, in this order, on the current device."""
    with resource.mutex:
        out = allocate((len(rows), *resource.array.shape[1:]), resource.array.dtype).array
        gather_rows(resource, out, rows, None)
    return out


def resource_scatter(resource: Resource, update: Update, rows: Ints, values: Array) -> None:
    """Combine rows with values, in their order."""
    ascending, order = sort_rows(rows)
    with holding([resource]):
        fitting = cast_value(values, resource.array.dtype, "The values")
        commit([plan_sparse(resource, update, ascending, fitting, order)])


def read_run(resource: Resource, out: Array, run: tuple[slice, ...]) -> None:
    """``out[...] = value[run]``, a slice for each of the first axes, where ``out`` lives on the current device."""
    with resource.mutex:
        copy_into(out, resource.array[run], resource.device, current_device())


def gather_rows(resource: Resource, out: Array, rows: Ints, places: Ints | None) -> None:
    """``out[places] = value[rows]``, where ``out`` lives on the current device; places None means all."""
    with resource.mutex:
        gather_into(out, resource.array, rows, resource.device, current_device(), places)


def plan_dense(resource: Resource, update: Update, value: Array) -> Write:
    """The write of all elements; ``value`` has the dtype, and the shape but where it replaces."""
    here, device = current_device(), resource.device
    if update is not REPLACE:
        moved = move_array(value, here, device)
        return Write((resource,), lambda: update.apply(resource.array, moved))
    if value.shape == resource.array.shape and value.dtype != np.object_:
        return Write((resource,), lambda: copy_into(resource.array, value, here, device))
    # The bytes in use change: the new value is on the device, and has found room there, before the old one goes.
    buffer = place(value, device, source=here)
    return Write((resource,), lambda: setattr(resource, "buffer", buffer))


def plan_replacements(resources: Sequence[Resource], values: Sequence[Array]) -> list[Write]:
    """``plan_dense`` of REPLACE for many, with values that nobody else holds: one write, which costs less than many.

    Large values on a device without a limit become the buffers themselves, without a copy.
    """
    here = current_device()
    kept, writes = [], []
    for resource, value in zip(resources, values, strict=True):
        if value.shape == resource.array.shape and value.dtype != np.object_:
            kept.append((resource, value))
        else:
            writes.append(plan_dense(resource, REPLACE, value))

    def apply() -> None:
        for resource, value in kept:
            device = resource.device
            if value.nbytes >= _MUCH_NBYTES and device is here and device.memory_limit is None:
                resource.buffer = adopt(value, device)
            else:
                copy_into(resource.array, value, here, device)

    return [Write(tuple(resource for resource, _ in kept), apply), *writes]


def plan_sparse(resource: Resource, update: Update, rows: Ints, values: Array, order: Ints | None) -> Write:
    """The write of ``values[order]`` to ``rows``, which ascend; order None means as they are.

    Strings change the bytes in use: all of them find room on the device before the old ones go. Whoever plans a write
    of strings holds the mutex until it is committed.
    """
    here, device = current_device(), resource.device
    if values.dtype == np.object_:
        new = resource.array.copy()
        scatter_sorted(new, rows, move_array(values if order is None else values[order], here, device), update)
        buffer = place(new, device, source=device)
        return Write((resource,), lambda: setattr(resource, "buffer", buffer))
    if order is None:
        moved = move_array(values, here, device)
    else:
        moved = allocate((len(rows), *values.shape[1:]), values.dtype, device).array
        gather_into(moved, values, order, here, device)
    return Write((resource,), lambda: scatter_sorted(resource.array, rows, moved, update))


def _fitting(resource: Resource, value: Any) -> Array:
    with holding([resource]):
        array = cast_value(value, resource.array.dtype, "The value")
        check_shape(array.shape, resource.array.shape, "The value")
    return array

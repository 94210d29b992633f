"""The low-level operations that implement variables, for building other kinds of variables.

R-OPS-1 (RFC 003): "We will expose the internal ops used to implement ResourceVariable as
tf.experimental.variable_operations (name TBD). This way users and libraries can, if they need to,
modify the behavior of variables at will."

All operations work on a ``Resource``. Values come from the current device and go to it; the ledger
counts what crosses. The ``plan_`` functions return a ``Write`` for ``commit``, so that several
resources can be written at once; the other functions plan and commit in one call. Rows must be in
range, which the caller checks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.devices import (
    Device,
    adopt,
    allocate,
    copy_into,
    current_device,
    gather_into,
    move_array,
    place,
)
from shardvar.reference.variables.values import (
    ADD,
    REPLACE,
    SUB,
    Resource,
    UpdateKind,
    Write,
    as_value,
    cast_value,
    check_shape,
    commit,
    holding,
    scatter_sorted,
    sort_rows,
)

__all__ = [
    "assign_add_variable_op",
    "assign_sub_variable_op",
    "assign_variable_op",
    "destroy_resource",
    "read_variable_op",
    "resource_gather",
    "resource_scatter",
    "variable_handle",
]

_MUCH_NBYTES = 1 << 16
"""From so many bytes on a copy takes longer than making a buffer."""


def variable_handle(value: npt.ArrayLike, device: Device | None = None) -> Resource:
    """Return a new resource with a copy of a value.

    Parameters
    ----------
    value : array_like
        The value.
    device : Device, optional
        The device that holds it; by default the current one.

    Returns
    -------
    Resource
        A buffer and its mutex.

    Raises
    ------
    DeviceFull
        If the value does not fit the device.
    ArgumentTypeError
        If the value holds Python objects.
    """
    return Resource(as_value(value), device)


def destroy_resource(resource: Resource) -> None:
    """Give the memory of a resource back now; using it afterwards is an error.

    Parameters
    ----------
    resource : Resource
        The resource.
    """
    with resource.mutex:
        resource.buffer.release()


def read_variable_op(resource: Resource) -> Array:
    """Return a snapshot on the current device.

    R-READ-2 (RFC 003): "no mutation is done to the Tensor returned by a read_variable_op after it's
    been read".

    Parameters
    ----------
    resource : Resource
        The resource to read.

    Raises
    ------
    DeviceFull
        If the value does not fit the current device.
    """
    with resource.mutex:
        return place(resource.array, source=resource.device).array


def assign_variable_op(resource: Resource, value: npt.ArrayLike) -> None:
    """Replace the value by another of its shape.

    Parameters
    ----------
    resource : Resource
        The resource to write.
    value : array_like
        The new value.

    Raises
    ------
    ArgumentError
        If the shape differs, or the dtype cannot be cast.
    """
    commit([plan_write(resource, REPLACE, _fitting(resource, value))])


def assign_add_variable_op(resource: Resource, delta: npt.ArrayLike) -> None:
    """Add a value of the same shape.

    Concurrent additions lose nothing: the mutex is held from read to write.

    See ``assign_variable_op`` for the other parameters.

    Parameters
    ----------
    delta : array_like
        The value to add.
    """
    commit([plan_write(resource, ADD, _fitting(resource, delta))])


def assign_sub_variable_op(resource: Resource, delta: npt.ArrayLike) -> None:
    """Subtract a value of the same shape. See ``assign_variable_op`` for the other parameters.

    Parameters
    ----------
    delta : array_like
        The value to subtract.
    """
    commit([plan_write(resource, SUB, _fitting(resource, delta))])


def resource_gather(resource: Resource, rows: Ints) -> Array:
    """Return rows, in the given order, on the current device.

    Parameters
    ----------
    resource : Resource
        The resource to read.
    rows : ndarray of int64
        [n], in range, which the caller checks.
    """
    with resource.mutex:
        out = allocate((len(rows), *resource.array.shape[1:]), resource.array.dtype).array
        gather_rows(resource, out, rows, None)
    return out


def resource_scatter(resource: Resource, update: UpdateKind, rows: Ints, values: Array) -> None:
    """Combine rows with values, in their order.

    Parameters
    ----------
    resource : Resource
        The resource to write.
    update : UpdateKind
        The way in which old and new rows are combined.
    rows : ndarray of int64
        [n], in range, which the caller checks.
    values : ndarray
        [n, *row].

    Raises
    ------
    ArgumentError
        If the dtype of `values` cannot be cast.
    """
    ordered, order = sort_rows(rows)
    with holding([resource]):
        fitting = cast_value(values, resource.array.dtype, "The values")
        commit([plan_row_write(resource, update, ordered, fitting, order)])


def read_range(resource: Resource, out: Array, ranges: tuple[slice, ...]) -> None:
    """``out[...] = value[ranges]``, a slice for each of the first axes."""
    with resource.mutex:
        copy_into(out, resource.array[ranges], resource.device, current_device())


def gather_rows(resource: Resource, out: Array, rows: Ints, places: Ints | None) -> None:
    """``out[places] = value[rows]``; places None means all of ``out``."""
    with resource.mutex:
        gather_into(out, resource.array, rows, resource.device, current_device(), places)


def plan_write(resource: Resource, update: UpdateKind, value: Array) -> Write:
    """Return the write of all elements; ``value`` has the dtype, and to combine also the shape."""
    here, device = current_device(), resource.device
    if update is not REPLACE:
        moved = move_array(value, here, device)
        return Write((resource,), lambda: update.apply(resource.array, moved))
    # The size stays: copying into the old buffer cannot fail and needs no other memory, so it can
    # wait for the commit.
    if value.shape == resource.array.shape and value.dtype != np.object_:
        return Write((resource,), lambda: copy_into(resource.array, value, here, device))
    # The bytes in use change. The new value finds room on the device while the old one is still
    # there, so a device that is too small raises DeviceFull here and not in the commit.
    buffer = place(value, device, source=here)
    return Write((resource,), lambda: setattr(resource, "buffer", buffer))


def plan_replacements(resources: Sequence[Resource], values: Sequence[Array]) -> list[Write]:
    """Return the writes of many new values, to which the caller keeps no reference."""
    # As ``plan_write`` with REPLACE for each; one write for all costs less. Large values on a
    # device without a limit become the buffers themselves.
    here = current_device()
    kept, writes = [], []
    for resource, value in zip(resources, values, strict=True):
        if value.shape == resource.array.shape and value.dtype != np.object_:
            kept.append((resource, value))
        else:
            writes.append(plan_write(resource, REPLACE, value))

    def apply() -> None:
        for resource, value in kept:
            device = resource.device
            # A limited device would count the old and the new buffer at once, and may have no room
            # for both.
            if value.nbytes >= _MUCH_NBYTES and device is here and device.memory_limit is None:
                resource.buffer = adopt(value, device)
            else:
                copy_into(resource.array, value, here, device)

    return [Write(tuple(resource for resource, _ in kept), apply), *writes]


def plan_row_write(
    resource: Resource, update: UpdateKind, rows: Ints, values: Array, order: Ints | None
) -> Write:
    """Return the write of ``values[order]`` to ascending ``rows``; strings are combined at once."""
    here, device = current_device(), resource.device
    if values.dtype == np.object_:
        # Strings change the bytes in use: all of them find room on the device before the old ones
        # go.
        new = resource.array.copy()
        scatter_sorted(
            new, rows, move_array(values if order is None else values[order], here, device), update
        )
        buffer = place(new, device, source=device)
        return Write((resource,), lambda: setattr(resource, "buffer", buffer))
    if order is None:
        moved = move_array(values, here, device)
    else:
        # Sort while moving: one pass over the values instead of a sorted copy here and another on
        # the device.
        moved = allocate((len(rows), *values.shape[1:]), values.dtype, device).array
        gather_into(moved, values, order, here, device)
    return Write((resource,), lambda: scatter_sorted(resource.array, rows, moved, update))


def _fitting(resource: Resource, value: Any) -> Array:
    with holding([resource]):
        array = cast_value(value, resource.array.dtype, "The value")
        check_shape(array.shape, resource.array.shape, "The value")
    return array

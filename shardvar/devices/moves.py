"""Buffers, and the only functions that move bytes from one device to another.

A plain array lives where the program computes: on ``current_device()``, unless a function says ``source``. A ``Buffer``
is an array that lives on a device for as long as anything refers to it. Each move copies, and what it copied is what
the ledger counts. Moves within one device copy where the caller asked for a copy, and are not counted.

    allocate        zeros on a device
    adopt           an array that was made on the device and belongs to nobody else: no copy
    place           a copy of a value, on a device
    move            a buffer's value on another device
    move_array      the same for an array, with source and target named
    copy_into       values into memory that lives on the target already

``devices.gather`` moves rows.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.devices.device import Device, current_device, value_nbytes
from shardvar.devices.ledger import record_transfer
from shardvar.errors import ScopeError
from shardvar.layout.dtypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """An array that lives on a device and counts against its limit.

    The array may be written in place. Its bytes are given back when the last view of it is gone, or on ``release()``.
    """

    device: Device
    """Where it lives."""
    _array: Array
    _finalizer: "weakref.finalize[[int], Array]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_finalizer", self.device.account(self._array))

    @property
    def array(self) -> Array:
        """The memory itself, not a copy; ``ScopeError`` after ``release()``."""
        if not self._finalizer.alive:
            raise ScopeError(f"A buffer on {self.device} was used after its release.", "Read it before releasing it.")
        return self._array

    @property
    def nbytes(self) -> int:
        """The bytes that it holds."""
        return value_nbytes(self._array)

    def release(self) -> None:
        """Give its bytes back now. A second release does nothing."""
        self._finalizer()

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)(self.device, _copy_for(self.device, self.array))


def allocate(
    shape: Sequence[int], dtype: npt.DTypeLike, device: Device | None = None, *, is_zeroed: bool = True
) -> Buffer:
    """Zeros (empty strings for objects) on a device, the current one by default; the limit is checked first.

    ``is_zeroed=False`` is for callers that write every element next: their values are anything until then.
    """
    device = device or current_device()
    dtype = np.dtype(dtype)
    if dtype == np.object_:
        return Buffer(device, np.full(shape, b"", object))
    device.check_room(prod(shape) * dtype.itemsize)
    return Buffer(device, np.zeros(shape, dtype) if is_zeroed else np.empty(shape, dtype))


def adopt(array: Array, device: Device | None = None) -> Buffer:
    """A buffer around an array that was made on the device and to which nobody else holds a reference.

    It is copied only where it cannot be a buffer: where it is a view, read-only or not in C order.
    """
    device = device or current_device()
    is_own = array.flags.owndata and array.flags.writeable and array.flags.c_contiguous
    return Buffer(device, array if is_own else _copy_for(device, array))


def place(value: npt.ArrayLike, device: Device | None = None, *, source: Device | None = None) -> Buffer:
    """A copy of a value on a device; it moves there from ``source``, by default the current device."""
    here = current_device()
    device, source = device or here, source or here
    array = np.asarray(value)
    buffer = Buffer(device, _copy_for(device, array))
    record_transfer(source, device, value_nbytes(array))
    return buffer


def move(buffer: Buffer, target: Device | None = None) -> Buffer:
    """The buffer's value on another device, by default the current one; the same buffer where it lives there."""
    target = target or current_device()
    return buffer if buffer.device is target else place(buffer.array, target, source=buffer.device)


def move_array(array: Array, source: Device, target: Device) -> Array:
    """The array on the target, where it counts as used until it is dropped; the same array where it is there."""
    return array if source is target else place(array, target, source=source).array


def copy_into(out: Array, values: npt.ArrayLike, source: Device, target: Device) -> None:
    """Write values that live on ``source`` to ``out``, memory that lives on ``target``: ``out[...] = values``."""
    array = np.asarray(values)
    out[...] = array
    record_transfer(source, target, value_nbytes(array))


def _copy_for(device: Device, array: Array) -> Array:
    """A copy in C order that owns its memory, once it is known to fit."""
    device.check_room(value_nbytes(array))
    copy: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype.newbyteorder("="))
    copy[...] = array
    return copy

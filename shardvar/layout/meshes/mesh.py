"""Meshes: devices in a grid, with a number and a coordinate for each device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, SupportsIndex

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Ints
from shardvar.layout.region import read_integers
from shardvar.limits import MAX_DEVICES, MAX_RANK


@dataclass(frozen=True, slots=True)
class Mesh:
    """A grid of devices, counted in C order: the last axis varies fastest.

    Parameters
    ----------
    shape : sequence of int
        The number of devices along each axis, at least 1.
    axis_names : sequence of str, optional
        A name for each axis, all different. Without names, axes have only positions, and the
        attribute is None.
    devices : sequence of int, optional
        The number of the device at each coordinate, in C order: each of 0 to ``size - 1`` once. By
        default the devices are in this order. JAX takes devices in any order.

    Raises
    ------
    ArgumentTypeError
        If `shape` or `devices` holds other values than integers, or `axis_names` is not a sequence
        of texts.
    ArgumentError
        If an axis has no devices, the mesh is larger than is supported, or `axis_names` or
        `devices` does not fit `shape`.

    Examples
    --------
    >>> mesh = Mesh((2, 3), ("dp", "tp"))
    >>> mesh.size, mesh.coordinate(4), mesh.axis("tp")
    (6, (1, 1), 1)
    >>> Mesh((2, 2), ("x", "y"), devices=(3, 1, 2, 0)).coordinate(3)
    (0, 0)
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...] | None
    devices: tuple[int, ...]

    # By hand, as in ``Region``: any sequences may be given and tuples are kept.
    def __init__(
        self,
        shape: Sequence[SupportsIndex],
        axis_names: Sequence[str] | None = None,
        devices: Sequence[SupportsIndex] | None = None,
    ) -> None:
        extents = read_integers(shape, "mesh shape")
        object.__setattr__(self, "shape", extents)
        object.__setattr__(
            self, "axis_names", None if axis_names is None else _read_names(axis_names)
        )
        self._check_axes()
        numbers = (
            range(self.size) if devices is None else read_integers(devices, "order of devices")
        )
        object.__setattr__(self, "devices", tuple(numbers))
        if devices is not None and sorted(self.devices) != list(range(self.size)):
            raise ArgumentError(
                f"devices is {self.devices} for a mesh of {self.size} devices.",
                f"Give each number from 0 to {self.size - 1} once, in C order over the mesh.",
            )

    def _check_axes(self) -> None:
        """Raise ``ArgumentError`` unless the extents are positive and the names are different
        texts, one an axis."""
        if any(extent < 1 for extent in self.shape):
            raise ArgumentError(
                f"The mesh shape {self.shape} has an axis without devices.",
                "Give extents from 1 on.",
            )
        if prod(self.shape) > MAX_DEVICES or len(self.shape) > MAX_RANK:
            raise ArgumentError(
                f"A mesh of shape {self.shape} has {prod(self.shape)} devices on "
                f"{len(self.shape)} axes.",
                f"At most {MAX_DEVICES} devices on {MAX_RANK} axes are supported.",
            )
        names = self.axis_names
        if names is None:
            return
        if len(names) != len(self.shape) or len(set(names)) != len(names):
            raise ArgumentError(
                f"axis_names is {names} for the mesh shape {self.shape}.",
                "Give a different name for each axis.",
            )

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def coordinates(self) -> Ints:
        """The coordinate of each device.

        Returns
        -------
        ndarray of int64
            [size, rank], row ``i`` for device ``i``.

        Examples
        --------
        >>> Mesh((2, 2)).coordinates().tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        in_c_order = np.indices(self.shape, dtype=np.int64).reshape(self.rank, self.size).T
        by_device = np.empty_like(in_c_order)
        by_device[np.array(self.devices, np.int64)] = in_c_order
        return by_device

    def coordinate(self, device: int) -> tuple[int, ...]:
        """The coordinate of one device.

        Parameters
        ----------
        device : int
            The number of the device, from 0.

        Returns
        -------
        tuple of int
            The position of the device along each axis.

        Raises
        ------
        OutOfRange
            If the mesh does not have the device.
        ArgumentTypeError
            If `device` is not an integer.
        """
        self.check_device(device)
        place = self.devices.index(device)
        return tuple(int(i) for i in np.unravel_index(place, self.shape))

    def axis(self, name: str | int) -> int:
        """The position of an axis that is given by its name or its position.

        Parameters
        ----------
        name : str or int
            The name, or the position; negative positions count from the end.

        Raises
        ------
        ArgumentError
            If the mesh does not have the name.
        OutOfRange
            If the mesh does not have the position.
        """
        if isinstance(name, str) or not hasattr(name, "__index__"):
            if self.axis_names is None:
                raise ArgumentError(
                    f"The mesh {self} has no axis {name!r}.",
                    "Name its axes: sv.Mesh(shape, names).",
                )
            if name not in self.axis_names:
                raise ArgumentError(
                    f"The mesh {self} has no axis {name!r}.", "Name one of its axes."
                )
            return self.axis_names.index(name)
        if not -self.rank <= name < self.rank:
            raise OutOfRange(f"The mesh {self} has no axis {name}.", f"It has {self.rank} axes.")
        return int(name) % self.rank

    def check_device(self, device: int) -> None:
        """Raise an error unless the mesh has a device of this number.

        Parameters
        ----------
        device : int
            The number of the device, from 0.

        Raises
        ------
        OutOfRange
            If the mesh does not have the device.
        ArgumentTypeError
            If `device` is not an integer.
        """
        if not hasattr(device, "__index__"):
            raise ArgumentTypeError(
                f"The device is {device!r}.", "Give its number, counted from 0."
            )
        if not 0 <= device < self.size:
            raise OutOfRange(
                f"The mesh {self} has no device {device}.",
                f"Give a number from 0 to {self.size - 1}.",
            )

    def __str__(self) -> str:
        names = self.axis_names or map(str, range(self.rank))
        return f"({', '.join(f'{name}={extent}' for name, extent in zip(names, self.shape, strict=True))})"


def _read_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names as a tuple; ``ArgumentTypeError`` for one text, whose letters would be names, and for
    other values."""
    given: Any = names
    if (
        isinstance(given, str)
        or not isinstance(given, Iterable)
        or not all(isinstance(each, str) for each in given)
    ):
        raise ArgumentTypeError(
            f"axis_names is {given!r}.", "Give a sequence with a text for each axis."
        )
    return tuple(given)


def check_mesh(mesh: Mesh) -> None:
    """Raise ``ArgumentTypeError`` unless the argument is a ``Mesh``."""
    if not isinstance(mesh, Mesh):
        raise ArgumentTypeError(f"The mesh is {mesh!r}.", "Give sv.Mesh(shape, axis_names).")

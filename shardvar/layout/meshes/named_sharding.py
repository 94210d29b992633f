"""JAX's NamedSharding: one entry of the PartitionSpec for each axis of the tensor (jax 0.10.2,
``jax.sharding``).

An entry names the mesh axes that cut this tensor axis, into as many equal parts as they have
devices together. The part of a device is its coordinate on the named axes, in C order in the order
in which the entry names them; the other mesh axes replicate. JAX has no uneven arrays: "the
dimension size is 7" and "tiling factors [...] should evenly divide the shape" is an error of
``devices_indices_map`` and of ``device_put``.

``with_sharding_constraint`` inside of jit replicates what does not divide, without an error; this
module refuses it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Ints
from shardvar.layout.meshes.intervals import Intervals
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import read_shape

UNCONSTRAINED = "UNCONSTRAINED"
"""The entry of a spec that leaves a tensor axis to the compiler; as a layout it is None."""

SpecEntry = str | Sequence[str] | None
"""The mesh axes that cut a tensor axis: a name, several names, or None."""

_RULE = "NamedSharding (jax 0.10)"


def named_sharding(
    shape: Sequence[int], mesh: Mesh, spec: Iterable[SpecEntry], *, unreduced: Iterable[str] = ()
) -> Layout:
    """The layout of an array with ``NamedSharding(mesh, PartitionSpec(*spec))``.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.
    mesh : Mesh
        The devices; its axes have names.
    spec : iterable of str, sequence of str, or None
        For each tensor axis the mesh axes that cut it. Axes behind the last entry stay whole. A
        ``PartitionSpec`` of JAX may be given as it is, and brings the unreduced axes that it has.
    unreduced : iterable of str, default ()
        The mesh axes whose devices hold terms of a sum. JAX accepts it only for mesh axes of the
        type Explicit.

    Returns
    -------
    Layout
        One region a device, unless the array has no elements.

    Raises
    ------
    ArgumentError
        Where JAX refuses the spec: a mesh axis that is named twice, a name that the mesh does not
        have.
    ArgumentTypeError
        If an entry of `spec` or of `unreduced` is of another type.
    OutOfRange
        If an entry behind the last axis of the array names a mesh axis.
    LayoutError
        If an extent does not divide.

    Examples
    --------
    >>> layout = named_sharding((8, 6), Mesh((2, 2), ("x", "y")), (("y", "x"), None))
    >>> [str(layout.regions(device)[0]) for device in range(4)]
    ['[0:2, 0:6]', '[4:6, 0:6]', '[2:4, 0:6]', '[6:8, 0:6]']
    >>> named_sharding((7, 6), Mesh((2, 2), ("x", "y")), ("x",))
    Traceback (most recent call last):
    shardvar.errors.LayoutError: Axis 0 of the shape (7, 6) has 7 indices, which ('x',) cuts into 2 parts. Pad the \
tensor, or name mesh axes whose number of devices divides it: JAX has no uneven arrays.
    """
    check_mesh(mesh)
    extents, entries = read_shape(shape), _read_spec(spec)
    # JAX's PartitionSpec keeps unreduced axes apart from its entries.
    pending = _read_axes(mesh, unreduced or getattr(spec, "unreduced", ()))
    _check_names(mesh, entries, pending)
    if any(entries[len(extents) :]):
        raise OutOfRange(
            f"The spec {tuple(entries)} names mesh axes for more axes than the shape {extents} "
            "has.",
            "Leave them out.",
        )
    axes = [Intervals.whole(extent, mesh.size) for extent in extents]
    for dim, (names, extent) in enumerate(zip(entries, extents, strict=False)):
        part, count = _parts(mesh, names)
        if extent % count:
            raise LayoutError(
                f"Axis {dim} of the shape {extents} has {extent} indices, which {names} cuts "
                f"into {count} parts.",
                "Pad the tensor, or name mesh axes whose number of devices divides it: JAX has "
                "no uneven arrays.",
            )
        axes[dim] = axes[dim].cut(part, count)
    return Layout.from_axes(
        extents, mesh, _RULE, axes, [(mesh.axis(name), "sum") for name in pending]
    )


def _parts(mesh: Mesh, names: Sequence[str]) -> tuple[Ints, int]:
    """The part of each device along an axis that mesh axes cut, and the number of parts."""
    coordinates, count = mesh.coordinates(), 1
    part = np.zeros(mesh.size, np.int64)
    for axis in map(mesh.axis, names):
        part = part * mesh.shape[axis] + coordinates[:, axis]
        count *= mesh.shape[axis]
    return part, count


def _read_spec(spec: Iterable[SpecEntry]) -> list[tuple[str, ...]]:
    """The names of each entry. ``()`` means None, and ``("x",)`` means ``"x"``, as in JAX."""
    # The PartitionSpec of JAX keeps its entries in this field, and cannot be iterated if axes are
    # unreduced.
    given: Any = getattr(spec, "partitions", spec)
    if isinstance(given, str | Set | Mapping) or not isinstance(given, Iterable):
        raise ArgumentTypeError(
            f"The spec is {given!r}.", "Give a tuple with one entry for each axis of the tensor."
        )
    entries = []
    for entry in (given := tuple(given)):
        # JAX's UNCONSTRAINED is an object that prints so.
        names = (
            ()
            if entry is None or str(entry) == UNCONSTRAINED
            else (entry,)
            if isinstance(entry, str)
            else entry
        )
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise ArgumentTypeError(
                f"The spec {given} has the entry {entry!r}.",
                "Give None, a name, or a tuple of names.",
            )
        entries.append(tuple(names))
    return entries


def _read_axes(mesh: Mesh, names: Iterable[str]) -> tuple[str, ...]:
    """The names of ``unreduced``, in the order of the mesh; ``ArgumentError`` for unknown ones."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentTypeError(f"unreduced is {names!r}.", "Give a tuple of names.")
    return tuple(sorted(names, key=mesh.axis))


def _check_names(mesh: Mesh, entries: Sequence[Sequence[str]], unreduced: Sequence[str]) -> None:
    """Raise ``ArgumentError`` for a name that the mesh does not have, or that occurs twice."""
    named = Counter([name for names in entries for name in names])
    for name in named:
        mesh.axis(name)
    twice = sorted(name for name, count in named.items() if count > 1)
    if twice:
        raise ArgumentError(
            f"The spec names the mesh axis {twice[0]!r} {named[twice[0]]} times.",
            "A mesh axis cuts one tensor axis.",
        )
    both = sorted(named.keys() & set(unreduced))
    if both or len(set(unreduced)) != len(unreduced):
        name = (both or [*unreduced])[0]
        raise ArgumentError(
            f"unreduced has the mesh axis {name!r}, which is named elsewhere.", "Name it once."
        )

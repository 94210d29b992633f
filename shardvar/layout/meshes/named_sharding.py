"""Layouts with an entry for each axis of the tensor: JAX, Keras, and TensorFlow's.

**JAX** (0.10.2, ``jax.sharding.NamedSharding``). An entry of the PartitionSpec names the mesh axes
that cut this tensor axis, into as many equal parts as they have devices together. The part of a
device is its coordinate on the named axes, in C order in the order in which the entry names them;
the other mesh axes replicate. JAX has no uneven arrays: "the dimension size is 7" and "tiling
factors [...] should evenly divide the shape" is an error of ``devices_indices_map`` and of
``device_put``.

``with_sharding_constraint`` inside of jit replicates what does not divide, without an error; this
module refuses it.

**Keras** (3.15.1, ``keras.distribution``, JAX backend). ``TensorLayout(axes, device_mesh)`` names a
mesh axis or None for each axis of the tensor, and is a NamedSharding without tuples of names. A
``LayoutMap`` gives variables their layouts by their paths: an exact name, or a regular expression
that matches the whole path; "Path ... matches multiple layout specification keys" is an error, and
a variable that nothing matches is replicated.

**TF DTensor** (tensorflow 2.21.0, ``tf.experimental.dtensor``). ``Layout(sharding_specs, mesh)``
has exactly one entry for each axis, a name or "unsharded".

The last two need extents that divide, and take a mesh axis once.

**Parameter servers**, as TensorFlow's strategy shards variables over them: RFC 000's div rule on
the first axis.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.meshes.layout import Intervals, Layout, Mesh, check_mesh, div_bounds
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
    terms = unreduced or getattr(spec, "unreduced", ())
    if isinstance(terms, str) or not isinstance(terms, Iterable):
        raise ArgumentTypeError(f"unreduced is {terms!r}.", "Give a tuple of names.")
    pending = tuple(sorted(terms, key=mesh.axis))
    _check_names(mesh, entries, pending)
    if any(entries[len(extents) :]):
        raise OutOfRange(
            f"The spec {tuple(entries)} names mesh axes for more axes than the shape {extents} "
            "has.",
            "Leave them out.",
        )
    axes = [Intervals.whole(extent, mesh.size) for extent in extents]
    for dim, (names, extent) in enumerate(zip(entries, extents, strict=False)):
        # The part of each device, and the number of parts.
        part, count = np.zeros(mesh.size, np.int64), 1
        for axis in map(mesh.axis, names):
            part = part * mesh.shape[axis] + mesh.coordinates()[:, axis]
            count *= mesh.shape[axis]
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


UNSHARDED = "unsharded"
"""The entry of TF DTensor for an axis that is not cut, ``tf.experimental.dtensor.UNSHARDED``."""

_KERAS_RULE = "keras.distribution.TensorLayout (keras 3.15)"
_TENSORFLOW_RULE = "tf.experimental.dtensor.Layout (tensorflow 2.21)"


def tensor_layout(shape: Sequence[int], mesh: Mesh, axes: Sequence[str | None]) -> Layout:
    """Return the layout of a variable with ``TensorLayout(axes, device_mesh)`` of Keras.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    mesh : Mesh
        The devices, with names of the axes.
    axes : sequence of str or None
        A mesh axis, or None, for each axis of the variable. Axes behind the last entry are whole.

    Returns
    -------
    Layout
        The layout; errors are the same as for `named_sharding`.

    Examples
    --------
    >>> layout = tensor_layout((8, 6), Mesh((2, 2), ("batch", "model")), (None, "model"))
    >>> [str(region) for region in layout.regions(1)], layout.replicas
    (['[0:8, 3:6]'], ((0, 2), (1, 3)))
    """
    return replace(named_sharding(shape, mesh, _read_names(axes)), rule=_KERAS_RULE)


def layouts_by_path(
    layout_map: Mapping[str, Sequence[str | None]], mesh: Mesh, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Layout]:
    """Return the layouts that a ``LayoutMap`` of Keras gives variables, by their paths.

    Parameters
    ----------
    layout_map : mapping of str to sequence of str or None
        Axes by path, or by a regular expression that matches the whole path.
    mesh : Mesh
        The devices, with names of the axes.
    shapes : mapping of str to sequence of int
        The shapes of the variables, by their paths.

    Returns
    -------
    dict of str to Layout
        The layouts, by path; replicated where no key matches.

    Raises
    ------
    ArgumentError
        If several keys match a path and none is equal to it, or a key is an invalid expression.

    Examples
    --------
    >>> mesh = Mesh((1, 2), ("batch", "model"))
    >>> found = layouts_by_path({".*kernel": (None, "model")}, mesh, {"dense/kernel": (4, 6), "dense/bias": (6,)})
    >>> [len(layout.replicas) for layout in found.values()]
    [2, 1]
    """
    layouts = {}
    for path, shape in shapes.items():
        keys = [path]
        if path not in layout_map:
            try:
                keys = [key for key in layout_map if re.fullmatch(key, path)]
            except re.error as error:
                raise ArgumentError(
                    f"A key of the layout map is not a regular expression: {error}.", "Mend it."
                ) from None
        if len(keys) > 1:
            raise ArgumentError(
                f"The path {path!r} matches the keys {', '.join(keys)}.", "Let one key match it."
            )
        layouts[path] = tensor_layout(shape, mesh, layout_map[keys[0]] if keys else ())
    return layouts


def tensorflow_dtensor(shape: Sequence[int], mesh: Mesh, sharding_specs: Sequence[str]) -> Layout:
    """Return the layout of a tensor with ``Layout(sharding_specs, mesh)`` of TensorFlow's DTensor.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor.
    mesh : Mesh
        The devices, with names of the axes.
    sharding_specs : sequence of str
        A mesh axis, or ``"unsharded"``, for each axis of the tensor.

    Returns
    -------
    Layout
        The layout; other errors are the same as for `named_sharding`.

    Raises
    ------
    ArgumentError
        If there is not one entry for each axis.

    Examples
    --------
    >>> layout = tensorflow_dtensor((4, 6), Mesh((2, 2), ("x", "y")), ["y", UNSHARDED])
    >>> [str(layout.regions(device)[0]) for device in range(4)]
    ['[0:2, 0:6]', '[2:4, 0:6]', '[0:2, 0:6]', '[2:4, 0:6]']
    """
    extents, specs = read_shape(shape), _read_names(sharding_specs)
    if None in specs or len(specs) != len(extents):
        raise ArgumentError(
            f"The sharding specs {specs} are for {len(specs)} axes, and the shape {extents} has "
            f"{len(extents)}.",
            f"Give a mesh axis or {UNSHARDED!r} for each axis of the tensor.",
        )
    names = [None if spec == UNSHARDED else spec for spec in specs]
    return replace(named_sharding(extents, mesh, names), rule=_TENSORFLOW_RULE)


def _read_names(axes: Sequence[str | None]) -> tuple[str | None, ...]:
    """The entries as a tuple; ``ArgumentTypeError`` for anything but names and None."""
    given: Any = axes
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ArgumentTypeError(
            f"The axes are {axes!r}.", "Give one name, or None, for each axis of the tensor."
        )
    for entry in given:
        if entry is not None and not isinstance(entry, str):
            raise ArgumentTypeError(
                f"The axes {axes} have the entry {entry!r}.",
                "Give one name for each axis; `named_sharding` cuts an axis by several.",
            )
    return tuple(given)


def parameter_servers(shape: Sequence[int], mesh: Mesh) -> Layout:
    """The layout of a variable that is sharded over parameter servers, one shard a server.

    The first ``rows % servers`` of them hold one row more.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    mesh : Mesh
        The servers, along one axis.

    Raises
    ------
    LayoutError
        If `mesh` has several axes, since servers are numbered, or the variable is a scalar, which
        is never sharded.
    ArgumentError
        If `shape` is not a shape or `mesh` is not a ``Mesh``.

    Examples
    --------
    >>> layout = parameter_servers((13, 4), Mesh((5,)))
    >>> [str(layout.regions(server)[0]) for server in range(5)]
    ['[0:3, 0:4]', '[3:6, 0:4]', '[6:9, 0:4]', '[9:11, 0:4]', '[11:13, 0:4]']
    """
    check_mesh(mesh)
    extents = read_shape(shape)
    if mesh.rank != 1:
        raise LayoutError(
            f"Parameter servers have one number each, not a place in the mesh {mesh}.",
            "Give one axis.",
        )
    if not extents:
        raise LayoutError(
            "A scalar cannot be cut along its first axis.", "Keep it whole on one server."
        )
    rows, *others = (Intervals.whole(extent, mesh.size) for extent in extents)
    # The place of each device in the order of the servers.
    number = np.argsort(np.array(mesh.devices, np.int64))
    return Layout.from_axes(
        extents,
        mesh,
        "div on the first axis, RFC 000",
        [rows.cut(number, mesh.size, div_bounds), *others],
    )

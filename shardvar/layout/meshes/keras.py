"""Keras' distribution and TensorFlow's DTensor: one entry for each axis of the tensor, a mesh axis
or nothing.

**Keras** (3.15.1, ``keras.distribution``, JAX backend). ``TensorLayout(axes, device_mesh)`` names a
mesh axis or None for each axis of the tensor, and is a NamedSharding without tuples of names. A
``LayoutMap`` gives variables their layouts by their paths: an exact name, or a regular expression
that matches the whole path; "Path ... matches multiple layout specification keys" is an error, and
a variable that nothing matches is replicated.

**TF DTensor** (tensorflow 2.21.0, ``tf.experimental.dtensor``). ``Layout(sharding_specs, mesh)``
has exactly one entry for each axis, a name or "unsharded".

Both need extents that divide, and take a mesh axis once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layout.meshes.named_sharding import named_sharding
from shardvar.layout.region import read_shape

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
    return _with_rule(named_sharding(shape, mesh, _read_names(axes)), _KERAS_RULE)


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
    return {
        path: tensor_layout(shape, mesh, _find(layout_map, path)) for path, shape in shapes.items()
    }


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
    return _with_rule(named_sharding(extents, mesh, names), _TENSORFLOW_RULE)


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


def _find(layout_map: Mapping[str, Sequence[str | None]], path: str) -> Sequence[str | None]:
    if path in layout_map:
        return layout_map[path]
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
    return layout_map[keys[0]] if keys else ()


def _with_rule(layout: Layout, rule: str) -> Layout:
    return Layout(layout.shape, layout.mesh, rule, layout.device, layout.offset, layout.extent)

"""Parameter servers, as TensorFlow's strategy shards variables over them: RFC 000's div rule on the
first axis."""

from collections.abc import Sequence

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.meshes.intervals import Intervals, div_bounds
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import read_shape

_RULE = "div on the first axis, RFC 000"


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
        extents, mesh, _RULE, [rows.cut(number, mesh.size, div_bounds), *others]
    )

"""Wrong implementations of the family mesh that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("spec_parts", "V-REFUSE-2-names")
def unknown_names_are_copies(self: Right, value: Any, mesh: Any, names: Any, spec: Any) -> Any:
    """A name that the mesh does not have copies."""
    known = [tuple(name for name in entry if name in names) for entry in spec]
    return Right.spec_parts(self, value, mesh, names, known)


@wrong("spec_parts", "V-REFUSE-2-long")
def long_specs_are_cropped(self: Right, value: Any, mesh: Any, names: Any, spec: Any) -> Any:
    """Entries behind the last axis are ignored."""
    return Right.spec_parts(self, value, mesh, names, spec[: value.ndim])


@wrong("mesh_parts", "V-MESH-1-empty")
def nothing_is_not_placed(self: Right, value: Any, mesh: Any, placements: Any) -> Any:
    """A tensor without elements is an error."""
    if not value.size:
        raise ValueError("empty")
    return Right.mesh_parts(self, value, mesh, placements)


@wrong("mesh_parts", "V-MESH-1-axes")
def ranks_above_three_are_turned(self: Right, value: Any, mesh: Any, placements: Any) -> Any:
    """The last axes of tensors of rank four and more are exchanged where they are equal."""
    found = Right.mesh_parts(self, value, mesh, placements)
    return [
        p.swapaxes(-1, -2) if value.ndim > 3 and p.shape[-1] == p.shape[-2] else p for p in found
    ]


@wrong("mesh_parts", "V-MESH-1-numbers")
def parts_are_views(self: Right, value: Any, mesh: Any, placements: Any) -> Any:
    """Parts of one-byte dtypes are two-byte ones."""
    found = Right.mesh_parts(self, value, mesh, placements)
    return [p.astype(np.int16) if p.dtype in (np.int8, np.uint8) else p for p in found]


@wrong("mesh_slices", "V-STATED-1-three-axes")
def offsets_of_the_last_axis_are_zero(self: Right, shape: Any, mesh: Any, placements: Any) -> Any:
    """Offsets behind the second axis are zero."""
    return [
        ((*o[:2], *[0] * (len(o) - 2)), s)
        for o, s in Right.mesh_slices(self, shape, mesh, placements)
    ]


@wrong("fsdp_parts", "V-FSDP-1-numbers")
def one_rank_is_not_cut(self: Right, value: Any, mesh: Any) -> Any:
    """Vectors are not cut by FSDP."""
    found = Right.fsdp_parts(self, value, mesh)
    if value.ndim == 1:
        return [self.chunk(value, 0, t, mesh[1]) for _, t in self.coordinates(mesh)]
    return found


@wrong("coordinates", "V-MESH-1")
def four_devices_are_a_ring(self: Right, mesh: Any) -> Any:
    """On a mesh of three axes devices are in the order of a ring."""
    every = list(np.ndindex(*mesh))
    if len(mesh) == 3:
        every = [(c[0], c[1], mesh[2] - 1 - c[2] if c[1] % 2 else c[2]) for c in every]
    return iter(every)

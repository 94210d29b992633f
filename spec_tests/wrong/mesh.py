"""Wrong parts of meshes."""

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("mesh_parts", "V-MESH-2")
def cuts_from_the_right(self, value, mesh, placements):
    """The last mesh axis cuts first."""
    parts = []
    for coordinate in np.ndindex(*mesh):
        part = value
        for at, count, placement in reversed(list(zip(coordinate, mesh, placements, strict=True))):
            part = self.placed(part, placement, at, count)
        parts.append(part)
    return parts


@wrong("chunk", "V-MESH-3")
def parts_by_div(self, value, axis, part, count):
    """Rows are divided by the div rule of RFC 000."""
    return np.array_split(value, count, axis)[part]


@wrong("chunk", "V-MESH-3-few")
def remainder_is_dropped(self, value, axis, part, count):
    """All parts are rounded down, so that what does not divide is nowhere."""
    size = value.shape[axis] // count
    return value[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]


@wrong("chunk", "V-MESH-3-order")
def parts_are_padded(self, value, axis, part, count):
    """The last part is filled up with zeros."""
    size = -(-value.shape[axis] // count)
    found = value[(slice(None),) * axis + (slice(part * size, (part + 1) * size),)]
    widths = [(0, 0)] * value.ndim
    widths[axis] = (0, size - found.shape[axis])
    return np.pad(found, widths)


@wrong("placed", "V-STRIDED-1")
def strided_like_any(self, value, placement, part, count):
    """A strided shard is one range."""
    axis = placement[1] if isinstance(placement, tuple) else placement
    return value if axis is None else self.chunk(value, axis, part, count)


@wrong("placed", "V-STRIDED-1-uneven")
def strided_by_unflattening(self, value, placement, part, count):
    """The ranges of a strided shard are as large as the device's parts of it allow: all equal, the
    rest last."""
    if not isinstance(placement, tuple):
        return Right.placed(self, value, placement, part, count)
    _, axis, factor = placement
    size = max(1, value.shape[axis] // factor)
    cuts = np.split(value, range(size, size * factor, size), axis)
    return np.concatenate([self.chunk(run, axis, part, count) for run in cuts], axis)


@wrong("mesh_slices", "V-STATED-1")
def offsets_of_the_last_cut(self, shape, mesh, placements):
    """Where two mesh axes cut one axis, the offset is that within the first part."""
    slices = Right.mesh_slices(self, shape, mesh, placements)
    found = []
    for coordinate, (offset, local) in zip(np.ndindex(*mesh), slices, strict=True):
        given = list(offset)
        for at, axis in zip(coordinate, placements, strict=True):
            if axis is not None:
                given[axis] = at * local[axis]
        found.append((tuple(given), local))
    return found


@wrong("check", "V-REFUSE-1")
def any_axis_will_do(self, rank, mesh, placements):
    """An axis that is missing is not noticed, and not cut."""
    if len(mesh) != len(placements):
        raise ValueError(f"{placements}")
    self.placed = lambda value, axis, *part: (
        value if axis >= rank else Right.placed(self, value, axis, *part)
    )


@wrong("spec_constrained", "V-SPEC-1-constraint")
def constraints_are_hints(self, value, mesh, names, spec):
    """A constraint is checked and not obeyed."""
    self.check_spec(value, mesh, names, spec)
    return [value for _ in range(int(np.prod(mesh)))]


@wrong("spec_constrained", "V-REFUSE-2-constraint")
def what_does_not_divide_is_copied(self, value, mesh, names, spec):
    """A constraint that does not divide is dropped: JAX's."""
    try:
        return Right.spec_constrained(self, value, mesh, names, spec)
    except ValueError:
        return [value for _ in range(int(np.prod(mesh)))]


@wrong("check_spec", "V-REFUSE-2")
def each_name_divides_by_itself(self, value, mesh, names, spec):
    """Extents are cut that the names of an entry divide each, and not together."""
    for name in {name for entry in spec for name in entry}:
        Right.check_spec(self, value, mesh, names, [tuple(n for n in e if n == name) for e in spec])


@wrong("check_spec", "V-REFUSE-2-names")
def names_may_come_twice(self, value, mesh, names, spec):
    """A mesh axis may cut two axes of the tensor."""
    if any(name not in names for entry in spec for name in entry):
        raise ValueError(f"{spec}")


@wrong("fsdp_shapes", "V-FSDP-1-stated")
def shapes_of_the_placements(self, shape, mesh):
    """The placements, read from left to right, say what is stated: PyTorch's."""
    return [each for _, each in Right.mesh_slices(self, shape, mesh, (("strided", 0, mesh[1]), 0))]


@wrong("chunk", "V-MESH-3")
def other_axes_by_div(self, value, axis, part, count):
    """Axes but the first are divided by the div rule."""
    if not axis:
        return Right.chunk(self, value, axis, part, count)
    return np.array_split(value, count, axis)[part]


@wrong("check", "V-MESH-1-negative")
def negative_axes_are_the_first(self, rank, mesh, placements):
    """An axis below zero is taken for the first one."""
    kept = [0 if isinstance(one, int) and one < 0 else one for one in placements]
    Right.check(self, rank, mesh, kept)
    place = Right.placed
    self.placed = lambda value, axis, *part: place(
        self, value, 0 if isinstance(axis, int) and axis < 0 else axis, *part
    )


@wrong("fsdp_parts", "V-FSDP-1")
def fsdp_by_div(self, value, mesh):
    """FSDP divides the rows of a rank by the div rule."""
    return [
        np.array_split(self.chunk(value, 0, tensor, mesh[1]), mesh[0])[data]
        for data, tensor in np.ndindex(*mesh)
    ]


@wrong("mesh_gather", "V-WHOLE-1-missing")
def missing_parts_are_zeros(self, parts, shape, mesh, placements):
    """What no part holds is zero."""
    places = self.places(shape, mesh, placements)
    filled = [*parts, *[np.zeros(0, parts[0].dtype)] * len(places)]
    flat = np.zeros(int(np.prod(shape)), parts[0].dtype)
    for part, place in zip(filled, places, strict=False):
        flat[place.ravel()[: part.size]] = part.ravel()
    return flat.reshape(shape)


change_what_is_given(
    ("mesh_parts", "V-REFUSE-1-number", "placements_are_cropped",
     "Placements are cropped, or filled up by copies, to the axes of the mesh.",
     "placements", lambda mesh, placements: (*placements, *[None] * len(mesh))[:len(mesh)]),
    ("spec_parts", "V-SPEC-1", "names_in_the_order_of_the_mesh", "The order of the names of an entry is lost.",
     "spec", lambda spec: [tuple(sorted(entry)) for entry in spec]),
    ("placed", "V-STRIDED-1", "the_factor_is_the_mesh",
     "The split factor of a strided shard is always the size of its mesh axis.",
     "placement", lambda placement, count: ("strided", placement[1], count) if isinstance(placement, tuple)
        else placement),
    ("placed", "V-STRIDED-1-factor", "strided_columns_are_rows",
     "A strided shard cuts the first axis, whichever it names.",
     "placement", lambda placement: ("strided", 0, placement[2]) if isinstance(placement, tuple) else placement),
    ("mesh_parts", "V-MESH-1", "third_mesh_axis_copies", "Mesh axes after the second one hold copies.",
     "placements", lambda placements: [*placements[:2], *[None] * len(placements[2:])]),
    ("spec_parts", "V-SPEC-1-short", "short_specs_cut_the_last_axes",
     "A spec of fewer entries than axes cuts the last axes.",
     "spec", lambda value, spec: [*[()] * (value.ndim - len(spec)), *spec]),
    ("spec_parts", "V-SPEC-1-three-axes", "names_at_both_ends", "Of an entry of three names the middle one is lost.",
     "spec", lambda spec: [(entry[0], entry[-1]) if len(entry) > 2 else entry for entry in spec]),
    ("spec_parts", "V-SPEC-1-three-axes", "third_names_come_first",
     "Three names of one axis cut it from the last to the first.",
     "spec", lambda spec: [entry[::-1] if len(entry) > 2 else entry for entry in spec]),
)  # fmt: skip

change_what_is_found(
    ("mesh_parts", "V-MESH-1-scalars", "scalars_are_rows", "A scalar becomes an array of one element.",
     lambda found, value: [np.atleast_1d(part).copy() if value.ndim else part[None] for part in found]),
    ("mesh_slices", "V-STATED-1-uneven", "equal_shapes_are_stated",
     "All devices are said to hold as much as the first one.",
     lambda found: [(offset, found[0][1]) for offset, _ in found]),
    ("mesh_slices", "V-STATED-1-few", "a_row_for_everyone", "A device that holds nothing is said to hold a row.",
     lambda found: [(offset, tuple(max(1, extent) for extent in local)) for offset, local in found]),
    ("mesh_parts", "V-MESH-1-numbers", "parts_of_unsigned_integers_are_signed", "The parts of uint16 are int32.",
     lambda found: [part.astype(np.int32) if part.dtype == np.uint16 else part for part in found]),
)  # fmt: skip


# Written without a look at the rules.


@wrong("mesh_parts", "V-MESH-1-empty")
def nothing_is_not_placed(self, value, mesh, placements):
    """A tensor without elements is an error."""
    if not value.size:
        raise ValueError("empty")
    return Right.mesh_parts(self, value, mesh, placements)


@wrong("fsdp_parts", "V-FSDP-1-numbers")
def one_rank_is_not_cut(self, value, mesh):
    """Vectors are not cut by FSDP."""
    found = Right.fsdp_parts(self, value, mesh)
    if value.ndim == 1:
        return [self.chunk(value, 0, t, mesh[1]) for _, t in self.coordinates(mesh)]
    return found


@wrong("coordinates", "V-MESH-1")
def four_devices_are_a_ring(self, mesh):
    """On a mesh of three axes devices are in the order of a ring."""
    every = list(np.ndindex(*mesh))
    if len(mesh) == 3:
        every = [(c[0], c[1], mesh[2] - 1 - c[2] if c[1] % 2 else c[2]) for c in every]
    return iter(every)


change_what_is_given(
    ("spec_parts", "V-REFUSE-2-names", "unknown_names_are_copies", "A name that the mesh does not have copies.",
     "spec", lambda names, spec: [tuple(name for name in entry if name in names) for entry in spec]),
    ("spec_parts", "V-REFUSE-2-long", "long_specs_are_cropped", "Entries behind the last axis are ignored.",
     "spec", lambda value, spec: spec[:value.ndim]),
    ("spec_constrained", "V-REFUSE-2-names", "unknown_names_do_not_constrain", "An unknown name constrains nothing.",
     "spec", lambda names, spec: [tuple(name for name in entry if name in names) for entry in spec]),
)  # fmt: skip

change_what_is_found(
    ("coordinates", "V-MESH-1", "devices_in_the_order_of_names", "Devices are sorted by their numbers as text.",
     lambda found: iter([at for _, at in sorted((str(number), at) for number, at in enumerate(found))])),
    ("mesh_parts", "V-MESH-1-axes", "ranks_above_three_are_turned",
     "The last axes of tensors of rank four and more are exchanged where they are equal.",
     lambda found, value: [p.swapaxes(-1, -2) if value.ndim > 3 and p.shape[-1] == p.shape[-2] else p for p in found]),
    ("mesh_parts", "V-MESH-1-numbers", "parts_are_views", "Parts of one-byte dtypes are two-byte ones.",
     lambda found: [p.astype(np.int16) if p.dtype in (np.int8, np.uint8) else p for p in found]),
    ("mesh_slices", "V-STATED-1-three-axes", "offsets_of_the_last_axis_are_zero",
     "Offsets behind the second axis are zero.", lambda found: [((*o[:2], *[0] * (len(o) - 2)), s) for o, s in found]),
)  # fmt: skip

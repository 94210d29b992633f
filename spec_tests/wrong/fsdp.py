"""Wrong FSDP over tensor parallelism on any axes, and wrong meshes of three axes.

From PyTorch's issues on `_StridedShard`, HSDP and `shard_placement_fn`, and from mistakes that are
easily made.
"""

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("check_hsdp", "V-FSDP-1-divide")
def uneven_columns_are_dropped(self, shape, mesh, fsdp_axis, tp_axis):
    """Axes but the first that do not divide are not refused, and columns are dropped."""
    self.chunk = lambda value, axis, part, count: (
        value[
            (slice(None),) * axis
            + (slice(part * (n := value.shape[axis] // count), (part + 1) * n),)
        ]
        if axis
        else Right.chunk(self, value, axis, part, count)
    )


@wrong("of_rank", "V-FSDP-1-copies")
def ranks_by_the_first_axis(self, value, mesh, coordinate, fsdp_axis, tp_axis):
    """In a mesh of three axes the tensor parallel rank is that of the copies."""
    copy, shard, rank = coordinate
    if mesh[0] == mesh[2]:
        copy, rank = rank, copy
    return Right.of_rank(self, value, mesh, (copy, shard, rank), fsdp_axis, tp_axis)


@wrong("of_rank", "V-FSDP-1-rows")
def ranges_of_the_flat_parameter(self, value, mesh, coordinate, fsdp_axis, tp_axis):
    """A device holds a range of whole rows, by its number: FSDP and tensor parallelism are one
    cut."""
    if tp_axis != fsdp_axis:
        return Right.of_rank(self, value, mesh, coordinate, fsdp_axis, tp_axis)
    number = coordinate[1] * mesh[2] + coordinate[2]
    return self.chunk(value, fsdp_axis, number, mesh[1] * mesh[2])


@wrong("hsdp_parts", "V-FSDP-1-ranks")
def experts_are_rows(self, value, mesh, fsdp_axis, tp_axis):
    """A third axis is never cut: parameters are matrices."""
    return Right.hsdp_parts(
        self, value, mesh, min(fsdp_axis, 1), None if tp_axis is None else min(tp_axis, 1)
    )


@wrong("mesh_parts", "V-STRIDED-1-three-axes")
def the_last_cut_goes_first(self, value, mesh, placements):
    """On three axes a strided shard's factor is the size of the next axis of the mesh only."""
    fixed = [
        (one[0], one[1], mesh[number + 1])
        if isinstance(one, tuple) and number + 1 < len(mesh) and len(mesh) == 3
        else one
        for number, one in enumerate(placements)
    ]
    return Right.mesh_parts(self, value, mesh, fixed)


@wrong("mesh_parts", "V-STRIDED-1-two")
def a_second_strided_shard_is_a_range(self, value, mesh, placements):
    """Of two strided shards the second one is an ordinary shard."""
    seen, fixed = False, []
    for one in placements:
        fixed.append(one[1] if isinstance(one, tuple) and seen else one)
        seen |= isinstance(one, tuple)
    return Right.mesh_parts(self, value, mesh, fixed)


@wrong("mesh_parts", "V-STRIDED-1-three-axes")
def strided_behind_copies(self, value, mesh, placements):
    """A strided shard that follows copies is an ordinary shard: HSDP over tensor parallelism."""
    fixed = [
        one[1] if isinstance(one, tuple) and number and placements[number - 1] is None else one
        for number, one in enumerate(placements)
    ]
    return Right.mesh_parts(self, value, mesh, fixed)


@wrong("mesh_gather", "V-WHOLE-1-three-axes")
def gathered_without_the_third_axis(self, parts, shape, mesh, placements):
    """The parts of strided shards on three axes are joined as they come."""
    if len(mesh) < 3 or not any(isinstance(one, tuple) for one in placements):
        return Right.mesh_gather(self, parts, shape, mesh, placements)
    return Right.mesh_gather(
        self, parts, shape, mesh, [one[1] if isinstance(one, tuple) else one for one in placements]
    )


@wrong("mesh_slices", "V-STATED-1-three-axes")
def offsets_of_two_axes(self, shape, mesh, placements):
    """Offsets leave out what the third axis of the mesh cuts."""
    found = Right.mesh_slices(self, shape, mesh, placements)
    if len(mesh) < 3:
        return found
    step = mesh[2]
    return [(found[number - number % step][0], each[1]) for number, each in enumerate(found)]


@wrong("mesh_parts", "V-STRIDED-1-factor-uneven")
def uneven_runs_by_div(self, value, mesh, placements):
    """The ranges of a strided shard are divided by the div rule."""
    self.check(value.ndim, mesh, placements)
    parts = []
    for coordinate in self.coordinates(mesh):
        part = value
        for at, count, one in zip(coordinate, mesh, placements, strict=True):
            if isinstance(one, tuple):
                runs = np.array_split(part, one[2], one[1])
                part = np.concatenate([self.chunk(r, one[1], at, count) for r in runs], one[1])
            else:
                part = self.placed(part, one, at, count)
        parts.append(part)
    return parts


@wrong("mesh_move", "V-MOVE-1-three-axes")
def strided_sources_of_three_axes(self, value, mesh, source, target):
    """Copies on the first of three axes keep the rows that they had."""
    if len(mesh) == 3 and any(isinstance(one, tuple) for one in source):
        parts = self.mesh_parts(value, mesh, source)
        plain = [one[1] if isinstance(one, tuple) else one for one in source]
        return self.mesh_parts(self.mesh_gather(parts, value.shape, mesh, plain), mesh, target)
    return Right.mesh_move(self, value, mesh, source, target)


change_what_is_given(
    ("of_rank", "V-FSDP-1-columns", "tensor_parallelism_cuts_rows", "Tensor parallelism of the columns cuts the rows.",
     "tp_axis", lambda tp_axis: None if tp_axis is None else 0),
    ("of_rank", "V-FSDP-1-second", "fsdp_cuts_rows",
     "FSDP cuts the rows, whichever axis it is asked to: `shard_placement_fn` is ignored.", "fsdp_axis", lambda: 0),
    ("hsdp_parts", "V-FSDP-1-copies", "no_axis_is_the_first",
     "A parameter that tensor parallelism does not cut is cut by it along the rows.",
     "tp_axis", lambda tp_axis: tp_axis or 0),
    ("mesh_move", "V-MOVE-1-three-axes", "moved_by_two_axes",
     "A move to strided shards on three axes ends in ordinary ones.",
     "target", lambda mesh, target: [one[1] if isinstance(one, tuple) else one for one in target]
        if len(mesh) == 3 else target),
)  # fmt: skip

change_what_is_found(
    ("of_rank", "V-FSDP-1-rows", "empty_ranks_get_a_row", "A device that would hold nothing holds the last row again.",
     lambda found, value: found if found.size else np.zeros((1, *value.shape[1:]), value.dtype)),
    ("hsdp_parts", "V-FSDP-1-hybrid-numbers", "masters_are_float32",
     "Shards are held as float32, whatever the parameter is.",
     lambda found: [part.astype(np.float32) for part in found]),
)  # fmt: skip

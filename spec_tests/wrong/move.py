"""Wrong redistributions and reductions."""

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("mesh_gather", "V-WHOLE-1")
def parts_in_the_order_of_devices(self, parts, shape, mesh, placements):
    """Parts are joined along the first axis, as they come."""
    return np.concatenate(parts)[: shape[0]]


@wrong("mesh_gather", "V-WHOLE-1-uneven")
def all_as_large_as_the_first(self, parts, shape, mesh, placements):
    """Each part is taken to be as large as the first one, and so is the whole: from_local without a
    shape."""
    size = [n * int(np.prod([k for k, one in zip(mesh, placements, strict=True) if one == axis]))
            for axis, n in enumerate(parts[0].shape)]  # fmt: skip
    return Right.mesh_gather(
        self, [np.resize(part, parts[0].shape) for part in parts], size, mesh, placements
    )


@wrong("mesh_gather", "V-WHOLE-1-few")
def empty_parts_end_it(self, parts, shape, mesh, placements):
    """Parts are joined up to the first empty one, and what follows is zeros."""
    first = next((number for number, part in enumerate(parts) if not part.size), len(parts))
    rest = [np.zeros_like(part) for part in parts[first:]]
    return Right.mesh_gather(self, [*parts[:first], *rest], shape, mesh, placements)


@wrong("mesh_move", "V-MOVE-1-order")
def stacked_cuts_swap(self, value, mesh, source, target):
    """Where two mesh axes cut one axis in the end, the last one cuts first."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    if len(mesh) != 2 or target[0] is None or target[0] != target[1]:
        return parts
    swapped = Right.mesh_parts(self, value, mesh[::-1], target)
    return [swapped[b * mesh[0] + a] for a, b in np.ndindex(*mesh)]


@wrong("mesh_move", "V-MOVE-1-uneven")
def blocks_are_exchanged(self, value, mesh, source, target):
    """What moves is padded to equal blocks, and the padding stays."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    shape = np.max([part.shape for part in parts], axis=0)
    return [
        np.pad(part, [(0, most - n) for most, n in zip(shape, part.shape, strict=True)])
        for part in parts
    ]


@wrong("mesh_move", "V-MOVE-1-few")
def nothing_comes_from_nothing(self, value, mesh, source, target):
    """A device that held nothing gets nothing."""
    before = Right.mesh_parts(self, value, mesh, source)
    after = Right.mesh_move(self, value, mesh, source, target)
    return [new if old.size else new[:0] for old, new in zip(before, after, strict=True)]


@wrong("mesh_move", "V-MOVE-1-strided")
def strided_shards_move_as_ranges(self, value, mesh, source, target):
    """Strided shards are moved as if each were a range."""
    parts = Right.mesh_parts(self, value, mesh, source)
    plain = [one[1] if isinstance(one, tuple) else one for one in source]
    return Right.mesh_parts(
        self, Right.mesh_gather(self, parts, value.shape, mesh, plain), mesh, target
    )


@wrong("mesh_move", "V-MOVE-1-strided-uneven")
def uneven_strided_shards_move_as_ranges(self, value, mesh, source, target):
    """Strided shards of several sizes are moved as if each were a range."""
    parts = Right.mesh_parts(self, value, mesh, source)
    if len({part.shape for part in parts}) == 1:
        return Right.mesh_move(self, value, mesh, source, target)
    return strided_shards_move_as_ranges(self, value, mesh, source, target)


@wrong("mesh_move_joined", "V-MOVE-1-joined")
def joined_axes_cut_once(self, value, mesh, source, target):
    """Parts of two cuts are put together as if one cut had made them: PyTorch's."""
    size = -(-len(value) // int(np.prod(mesh)))
    padded = [
        np.resize(np.pad(p, [(0, size), (0, 0)]), (size, *p.shape[1:]))
        for p in self.mesh_parts(value, mesh, source)
    ]
    return Right.mesh_parts(self, np.concatenate(padded)[: len(value)], mesh, target)


@wrong("combined", "V-TERM-1")
def first_term_counts(self, terms, op):
    """A pending value is what the first device holds."""
    return terms[0]


@wrong("mesh_reduce", "V-TERM-1-cut")
def terms_are_cut_before(self, terms, mesh, axis, op, placements):
    """Each device cuts its own term, and the terms are not added where something was cut."""
    if placements[axis] is None:
        return Right.mesh_reduce(self, terms, mesh, axis, op, placements)
    parts = [Right.mesh_parts(self, term, mesh, placements) for term in terms]
    return [parts[coordinate[axis]][device] for device, coordinate in enumerate(np.ndindex(*mesh))]


@wrong("combined", "V-TERM-1-numbers")
def reductions_pass_over_nan(self, terms, op):
    """A NaN is passed over by min and max."""
    if op in ("min", "max"):
        return {"min": np.fmin, "max": np.fmax}[op].reduce(np.stack(terms))
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-mean")
def means_are_floored(self, terms, op):
    """The mean of integers is rounded down."""
    if op == "avg" and terms[0].dtype.kind in "iu":
        return (np.sum(terms, axis=0) // len(terms)).astype(terms[0].dtype)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-ops")
def means_by_the_first_two(self, terms, op):
    """The mean of more than two terms is divided by two."""
    if op == "avg":
        return (np.sum(terms, axis=0) / min(2, len(terms))).astype(terms[0].dtype)
    return Right.combined(self, terms, op)


@wrong("mesh_gather", "V-WHOLE-1-numbers")
def copies_are_added(self, parts, shape, mesh, placements):
    """Where all mesh axes hold copies, their mean is taken, in the dtype of the parts."""
    if any(one is not None for one in placements) or len(parts) < 2:
        return Right.mesh_gather(self, parts, shape, mesh, placements)
    return (parts[0] / 2 + parts[1] / 2).astype(parts[0].dtype)


@wrong("mesh_move", "V-MOVE-1-memory")
def moves_clear_their_source(self, value, mesh, source, target):
    """The memory of the source is given back: it holds zeros."""
    moved = [part.copy() for part in Right.mesh_move(self, value, mesh, source, target)]
    value[...] = 0
    return moved


change_what_is_given(
    ("mesh_gather", "V-WHOLE-1-strided", "strided_parts_are_ranges",
     "Strided shards are put together as if each were a range.",
     "placements", lambda placements: [one[1] if isinstance(one, tuple) else one for one in placements]),
    ("mesh_move", "V-MOVE-1", "rows_move_alone", "Only cuts of the first axis are made anew.",
     "target", lambda target: [None if axis else axis for axis in target]),
    ("mesh_move", "V-MOVE-1-to-strided", "strided_targets_are_ranges", "A strided shard in the end is a range.",
     "target", lambda target: [one[1] if isinstance(one, tuple) else one for one in target]),
    ("mesh_reduce", "V-TERM-1-columns", "pending_axes_are_the_first",
     "Of the terms of a mesh axis only as many count as the first axis has devices.",
     "terms", lambda terms, mesh: terms[:mesh[0]]),
    ("mesh_reduce", "V-TERM-1-three-axes", "the_last_term_of_three_axes_is_lost",
     "On a mesh of three axes a term is left out.",
     "terms", lambda terms, mesh: terms[:-1] if len(mesh) == 3 and len(terms) > 1 else terms),
    ("combined", "V-TERM-1-numbers", "sums_of_terms_are_real",
     "The imaginary parts of all terms but the first are lost.",
     "terms", lambda terms: [terms[0], *(t.real.astype(t.dtype) for t in terms[1:])]),
)  # fmt: skip

change_what_is_found(
    ("mesh_move", "V-MOVE-1-numbers", "moves_through_floats", "What moves is float32 on its way.",
     lambda found, value: [part.astype(np.float32).astype(value.dtype) for part in found]),
)  # fmt: skip


# Written without a look at the rules.


@wrong("mesh_gather", "V-WHOLE-1-axes")
def wholes_of_rank_four(self, parts, shape, mesh, placements):
    """A tensor of rank four and more is gathered along its first axis only."""
    if len(shape) > 3 and any(p not in (None, 0) for p in placements):
        return np.resize(np.concatenate(list(parts)), shape)
    return Right.mesh_gather(self, parts, shape, mesh, placements)


@wrong("combined", "V-TERM-1-numbers")
def doubles_are_reduced_as_singles(self, terms, op):
    """float64 terms are reduced as float32."""
    if terms[0].dtype == np.float64:
        return Right.combined(self, [t.astype(np.float32) for t in terms], op).astype(np.float64)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-numbers")
def unsigned_terms_are_signed(self, terms, op):
    """The extremes of unsigned terms are those of signed numbers."""
    d = terms[0].dtype
    if d.kind == "u" and op in ("min", "max"):
        s = np.dtype(f"i{d.itemsize}")
        return Right.combined(self, [t.view(s) for t in terms], op).view(d)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-numbers")
def small_integers_are_summed_wide(self, terms, op):
    """A sum of int8 terms is int64."""
    if terms[0].dtype.itemsize == 1 and op == "sum":
        return np.sum(np.stack(terms), axis=0, dtype=np.int64)
    return Right.combined(self, terms, op)


@wrong("mesh_move", "V-MOVE-1-axes")
def moves_of_rank_four(self, value, mesh, source, target):
    """Tensors of rank four and more do not move."""
    return self.mesh_parts(value, mesh, source if value.ndim > 3 else target)


change_what_is_given(
    ("mesh_gather", "V-WHOLE-1-numbers", "imaginary_parts_stay_behind",
     "Complex parts are gathered without their imaginary parts.",
     "parts", lambda parts: [p.real.astype(p.dtype) if p.dtype.kind == "c" else p for p in parts]),
    ("mesh_reduce", "V-TERM-1-columns", "a_pending_axis_stays_whole",
     "The pending axis of the mesh cannot cut what comes out: it holds copies.",
     "placements", lambda axis, placements: [None if n == axis and p == 1 else p for n, p in enumerate(placements)]),
    ("mesh_move_joined", "V-MOVE-1-joined-axes", "joined_columns",
     "Where axes were joined, the columns are those of the source.",
     "target", lambda source, target: [s if s == 1 else t for s, t in zip(source, target, strict=True)]),
)  # fmt: skip

"""Wrong redistributions and reductions."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("mesh_gather", "V-WHOLE-1")
def parts_in_the_order_of_devices(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Parts are joined along the first axis, as they come."""
    return np.concatenate(parts)[: shape[0]]


@wrong("mesh_gather", "V-WHOLE-1-uneven")
def all_as_large_as_the_first(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Each part is taken to be as large as the first one, and so is the whole: from_local without a
    shape."""
    size = [n * int(np.prod([k for k, one in zip(mesh, placements, strict=True) if one == axis]))
            for axis, n in enumerate(parts[0].shape)]  # fmt: skip
    return Right.mesh_gather(
        self, [np.resize(part, parts[0].shape) for part in parts], size, mesh, placements
    )


@wrong("mesh_gather", "V-WHOLE-1-few")
def empty_parts_end_it(self: Right, parts: Any, shape: Any, mesh: Any, placements: Any) -> Any:
    """Parts are joined up to the first empty one, and what follows is zeros."""
    first = next((number for number, part in enumerate(parts) if not part.size), len(parts))
    rest = [np.zeros_like(part) for part in parts[first:]]
    return Right.mesh_gather(self, [*parts[:first], *rest], shape, mesh, placements)


@wrong("mesh_gather", "V-WHOLE-1-strided")
def strided_parts_are_ranges(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Strided shards are put together as if each were a range."""
    plain = [one[1] if isinstance(one, tuple) else one for one in placements]
    return Right.mesh_gather(self, parts, shape, mesh, plain)


@wrong("mesh_move", "V-MOVE-1")
def rows_move_alone(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Only cuts of the first axis are made anew."""
    return Right.mesh_move(self, value, mesh, source, [None if axis else axis for axis in target])


@wrong("mesh_move", "V-MOVE-1-order")
def stacked_cuts_swap(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Where two mesh axes cut one axis in the end, the last one cuts first."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    if len(mesh) != 2 or target[0] is None or target[0] != target[1]:
        return parts
    swapped = Right.mesh_parts(self, value, mesh[::-1], target)
    return [swapped[b * mesh[0] + a] for a, b in np.ndindex(*mesh)]


@wrong("mesh_move", "V-MOVE-1-uneven")
def blocks_are_exchanged(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """What moves is padded to equal blocks, and the padding stays."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    shape = np.max([part.shape for part in parts], axis=0)
    return [
        np.pad(part, [(0, most - n) for most, n in zip(shape, part.shape, strict=True)])
        for part in parts
    ]


@wrong("mesh_move", "V-MOVE-1-few")
def nothing_comes_from_nothing(
    self: Right, value: Array, mesh: Any, source: Any, target: Any
) -> Any:
    """A device that held nothing gets nothing."""
    before = Right.mesh_parts(self, value, mesh, source)
    after = Right.mesh_move(self, value, mesh, source, target)
    return [new if old.size else new[:0] for old, new in zip(before, after, strict=True)]


@wrong("mesh_move", "V-MOVE-1-strided")
def strided_shards_move_as_ranges(
    self: Right, value: Array, mesh: Any, source: Any, target: Any
) -> Any:
    """Strided shards are moved as if each were a range."""
    parts = Right.mesh_parts(self, value, mesh, source)
    plain = [one[1] if isinstance(one, tuple) else one for one in source]
    return Right.mesh_parts(
        self, Right.mesh_gather(self, parts, value.shape, mesh, plain), mesh, target
    )


@wrong("mesh_move_joined", "V-MOVE-1-joined")
def joined_axes_cut_once(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """Parts of two cuts are put together as if one cut had made them: PyTorch's."""
    size = -(-len(value) // int(np.prod(mesh)))
    padded = [
        np.resize(np.pad(p, [(0, size), (0, 0)]), (size, *p.shape[1:]))
        for p in self.mesh_parts(value, mesh, source)
    ]
    return Right.mesh_parts(self, np.concatenate(padded)[: len(value)], mesh, target)


@wrong("combined", "V-TERM-1")
def first_term_counts(self: Right, terms: Any, op: str) -> Any:
    """A pending value is what the first device holds."""
    return terms[0]


@wrong("mesh_reduce", "V-TERM-1-cut")
def terms_are_cut_before(
    self: Right, terms: Any, mesh: Any, axis: int, op: str, placements: Any
) -> Any:
    """Each device cuts its own term, and the terms are not added where something was cut."""
    if placements[axis] is None:
        return Right.mesh_reduce(self, terms, mesh, axis, op, placements)
    parts = [Right.mesh_parts(self, term, mesh, placements) for term in terms]
    return [parts[coordinate[axis]][device] for device, coordinate in enumerate(np.ndindex(*mesh))]


@wrong("mesh_move", "V-MOVE-1-numbers")
def moves_through_floats(self: Right, value: Array, mesh: Any, source: Any, target: Any) -> Any:
    """What moves is float32 on its way."""
    parts = Right.mesh_move(self, value, mesh, source, target)
    return [part.astype(np.float32).astype(value.dtype) for part in parts]


@wrong("mesh_move", "V-MOVE-1-to-strided")
def strided_targets_are_ranges(
    self: Right, value: Array, mesh: Any, source: Any, target: Any
) -> Any:
    """A strided shard in the end is a range."""
    plain = [one[1] if isinstance(one, tuple) else one for one in target]
    return Right.mesh_move(self, value, mesh, source, plain)


@wrong("combined", "V-TERM-1-numbers")
def reductions_pass_over_nan(self: Right, terms: Any, op: str) -> Any:
    """A NaN is passed over by min and max."""
    if op in ("min", "max"):
        return {"min": np.fmin, "max": np.fmax}[op].reduce(np.stack(terms))
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-mean")
def means_are_floored(self: Right, terms: Any, op: str) -> Any:
    """The mean of integers is rounded down."""
    if op == "avg" and terms[0].dtype.kind in "iu":
        return (np.sum(terms, axis=0) // len(terms)).astype(terms[0].dtype)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-ops")
def means_by_the_first_two(self: Right, terms: Any, op: str) -> Any:
    """The mean of more than two terms is divided by two."""
    if op == "avg":
        return (np.sum(terms, axis=0) / min(2, len(terms))).astype(terms[0].dtype)
    return Right.combined(self, terms, op)


@wrong("mesh_reduce", "V-TERM-1-columns")
def pending_axes_are_the_first(
    self: Right, terms: Any, mesh: Any, axis: int, op: str, placements: Any
) -> Any:
    """Of the terms of a mesh axis only as many count as the first axis has devices."""
    return Right.mesh_reduce(self, terms[: mesh[0]], mesh, axis, op, placements)


@wrong("mesh_gather", "V-MOVE-1-numbers")
def copies_are_added(self: Right, parts: Any, shape: Any, mesh: Any, placements: Any) -> Any:
    """Where all mesh axes hold copies, their mean is taken, in the dtype of the parts."""
    if any(one is not None for one in placements) or len(parts) < 2:
        return Right.mesh_gather(self, parts, shape, mesh, placements)
    return (parts[0] / 2 + parts[1] / 2).astype(parts[0].dtype)


@wrong("mesh_reduce", "V-TERM-1-three-axes")
def the_last_term_of_three_axes_is_lost(
    self: Right, terms: Any, mesh: Any, axis: int, op: str, placements: Any
) -> Any:
    """On a mesh of three axes a term is left out."""
    kept = terms[:-1] if len(mesh) == 3 and len(terms) > 1 else terms
    return Right.mesh_reduce(self, kept, mesh, axis, op, placements)


@wrong("combined", "V-TERM-1-numbers")
def sums_of_terms_are_real(self: Right, terms: Any, op: str) -> Any:
    """The imaginary parts of all terms but the first are lost."""
    return Right.combined(self, [terms[0], *(t.real.astype(t.dtype) for t in terms[1:])], op)


@wrong("mesh_move", "V-MOVE-1-memory")
def moves_clear_their_source(self: Right, value: Any, mesh: Any, source: Any, target: Any) -> Any:
    """The memory of the source is given back: it holds zeros."""
    moved = [part.copy() for part in Right.mesh_move(self, value, mesh, source, target)]
    value[...] = 0
    return moved

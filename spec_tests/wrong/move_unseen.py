"""Wrong implementations of the family move that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("mesh_gather", "V-WHOLE-1-axes")
def wholes_of_rank_four(self: Right, parts: Any, shape: Any, mesh: Any, placements: Any) -> Any:
    """A tensor of rank four and more is gathered along its first axis only."""
    if len(shape) > 3 and any(p not in (None, 0) for p in placements):
        return np.resize(np.concatenate(list(parts)), shape)
    return Right.mesh_gather(self, parts, shape, mesh, placements)


@wrong("mesh_gather", "V-WHOLE-1-numbers")
def imaginary_parts_stay_behind(
    self: Right, parts: Any, shape: Any, mesh: Any, placements: Any
) -> Any:
    """Complex parts are gathered without their imaginary parts."""
    return Right.mesh_gather(
        self,
        [p.real.astype(p.dtype) if p.dtype.kind == "c" else p for p in parts],
        shape,
        mesh,
        placements,
    )


@wrong("combined", "V-TERM-1-numbers")
def doubles_are_reduced_as_singles(self: Right, terms: Any, op: str) -> Any:
    """float64 terms are reduced as float32."""
    if terms[0].dtype == np.float64:
        return Right.combined(self, [t.astype(np.float32) for t in terms], op).astype(np.float64)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-numbers")
def unsigned_terms_are_signed(self: Right, terms: Any, op: str) -> Any:
    """The extremes of unsigned terms are those of signed numbers."""
    d = terms[0].dtype
    if d.kind == "u" and op in ("min", "max"):
        s = np.dtype(f"i{d.itemsize}")
        return Right.combined(self, [t.view(s) for t in terms], op).view(d)
    return Right.combined(self, terms, op)


@wrong("combined", "V-TERM-1-numbers")
def small_integers_are_summed_wide(self: Right, terms: Any, op: str) -> Any:
    """A sum of int8 terms is int64."""
    if terms[0].dtype.itemsize == 1 and op == "sum":
        return np.sum(np.stack(terms), axis=0, dtype=np.int64)
    return Right.combined(self, terms, op)


@wrong("mesh_reduce", "V-TERM-1-columns")
def a_pending_axis_stays_whole(
    self: Right, terms: Any, mesh: Any, axis: int, op: str, placements: Any
) -> Any:
    """The pending axis of the mesh cannot cut what comes out: it holds copies."""
    fixed = [None if n == axis and p == 1 else p for n, p in enumerate(placements)]
    return Right.mesh_reduce(self, terms, mesh, axis, op, fixed)


@wrong("mesh_move", "V-MOVE-1-axes")
def moves_of_rank_four(self: Right, value: Any, mesh: Any, source: Any, target: Any) -> Any:
    """Tensors of rank four and more do not move."""
    return self.mesh_parts(value, mesh, source if value.ndim > 3 else target)


@wrong("mesh_move_joined", "V-MOVE-1-joined-axes")
def joined_columns(self: Right, value: Any, mesh: Any, source: Any, target: Any) -> Any:
    """Where axes were joined, the columns are those of the source."""
    fixed = [s if s == 1 else t for s, t in zip(source, target, strict=True)]
    return Right.mesh_move_joined(self, value, mesh, source, fixed)

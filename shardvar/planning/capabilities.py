"""Capabilities: the limits of a format, and the slices that fit it."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import NAMES, STRING, Bools, Ints, code
from shardvar.limits import MAX_KEY_NBYTES
from shardvar.planning.slices import SliceTable

_NAMED = 8
"""Keys that an error names; the rest it counts."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The limits of a format. Planning joins slices that must be whole, and refuses the rest."""

    dtypes: frozenset[str]
    """The element types that it can hold at all."""
    slice_dtypes: frozenset[str]
    """The element types whose slices it can hold; others are joined and written whole."""
    max_slice_rank: int = 0
    """Tensors of more axes are written whole."""
    empty_slices: bool = False
    """True if a slice without elements can be stored next to others of its tensor."""
    many_files: bool = True
    """True if it can have more than one data file."""
    atomic_overwrite: bool = True
    """True if an existing checkpoint is replaced in one step, so that no crash leaves a mixture."""
    holds_objects: bool = False
    """True if it holds plain objects, such as settings, in addition to tensors
    (``formats.objects``)."""
    guards_metadata: bool = False
    """True if a checksum covers the user's metadata."""
    holds_texts: bool = True
    """True if it keeps the user's metadata."""
    objects_in_tensor: bool = False
    """True if the objects are a tensor, since the format has no metadata of the user."""
    holds_ties: bool = False
    """True if two keys may have the same bytes: tied weights."""
    holds_digests: bool = False
    """True if it can carry the digests of its tensors."""
    holds_references: bool = False
    """True if tensors may lie in data files of another checkpoint of the same directory."""
    is_grid: bool = False
    """True if the slices of a tensor must be equal; the last on axis 0 may be shorter."""
    is_separate: bool = False
    """True if each slice is a file."""
    is_exact: bool = False
    """True if a data file has only the bytes of slices that the index names: one is left out by
    writing the file again."""
    folder_index: str = ""
    """The name of the index of a format whose checkpoint is a folder, which holds no other
    checkpoint; else empty."""
    folders: frozenset[str] = frozenset()
    """The names of checkpoints that are folders, of a format whose other checkpoints are files."""


def check_holds(slices: SliceTable, capabilities: Capabilities, format_name: str) -> None:
    """Raise ``UnsupportedError``, naming keys and dtypes, unless the format can hold every tensor.

    No format holds a key that is longer than readers accept.
    """
    for key in slices.tensors.keys:
        # A character has at most four bytes: only long keys are encoded to be measured.
        if (
            len(key) > MAX_KEY_NBYTES // 4
            and (nbytes := len(key.encode("utf-8", "surrogatepass"))) > MAX_KEY_NBYTES
        ):
            cause = (
                f"The key {key!r} has {nbytes} bytes, which is beyond the limit of {MAX_KEY_NBYTES}"
            )
            raise UnsupportedError(f"{cause} (MAX_KEY_NBYTES).", "Choose a shorter key.")
    if not capabilities.dtypes:
        raise UnsupportedError(
            f"shardvar can read {format_name} but not write it.",
            "Choose another one, such as safetensors (--format).",
        )
    refused = np.flatnonzero(~_codes_of(capabilities.dtypes)[slices.tensors.codes])
    if len(refused):
        named = ", ".join(
            f"{slices.tensors.keys[row]!r} ({slices.tensors.dtype(row)})"
            for row in refused[:_NAMED].tolist()
        )
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        # Only numbers become other numbers.
        cast = (
            ""
            if {slices.tensors.dtype(row) for row in refused.tolist()} == {STRING}
            else ", cast them"
        )
        raise UnsupportedError(
            f"The format {format_name} cannot hold {named}{more}.",
            f"Leave them out (--exclude){cast}, or choose another format.",
        )


def cuttable_rows(slices: SliceTable, capabilities: Capabilities) -> Bools:
    """[m] True if the format can hold slices of the tensor; never for strings and scalars."""
    ranks = slices.tensors.ranks
    held = _codes_of(capabilities.slice_dtypes)[slices.tensors.codes]
    allowed: Bools = held & (ranks > 0) & (ranks <= capabilities.max_slice_rank)
    return np.asarray(allowed[slices.tensor])


def join_whole(slices: SliceTable, capabilities: Capabilities) -> SliceTable:
    """Join the slices of every tensor that the format cannot cut, at the place of its first slice.

    Slices without elements are dropped if the format cannot store them next to others.
    """
    tensors = slices.tensors
    cuttable = _codes_of(capabilities.slice_dtypes)[tensors.codes] & (
        tensors.ranks <= capabilities.max_slice_rank
    )
    if capabilities.is_grid:
        cuttable &= are_grids(slices)
    joined = (~cuttable)[slices.tensor]
    keep = np.ones(len(slices), dtype=np.bool)
    if not capabilities.empty_slices:
        empty = ~(slices.shape > 0).all(axis=1)
        keep &= ~empty
        # A tensor without elements keeps one slice: the whole of it.
        joined |= ~(tensors.shapes[slices.tensor] > 0).all(axis=1)
    # Of the slices that are joined only the first stays, and becomes the whole tensor.
    _, first = np.unique(slices.tensor, return_index=True)
    is_first = np.zeros(len(slices), dtype=np.bool)
    is_first[first] = True
    keep = np.where(joined, is_first, keep)
    rows = np.flatnonzero(keep)
    shape = np.where(joined[:, None], tensors.shapes[slices.tensor], slices.shape)[rows]
    offset = np.where(joined[:, None], 0, slices.offset)[rows]
    # Sizes are computed again, since joined slices are larger. The sizes of strings are kept,
    # because they do not follow from shapes.
    table = SliceTable.of(tensors, slices.tensor[rows], offset, shape, slices.nbytes[rows])
    return (
        table
        if slices.device is None
        else replace(table, device=slices.device[rows], devices=slices.devices)
    )


def are_grids(slices: SliceTable) -> Bools:
    """[n] True for tensors whose slices are equal, except that the last ones on axis 0 may be
    shorter.

    Slices without elements do not count. For example, 13 rows in slices of 3, 3, 3, 3 and 1 are a
    grid.
    """
    shapes, step = slices.tensors.shapes, grid_steps(slices)
    mine, full = step[slices.tensor], shapes[slices.tensor]
    fits = (slices.offset % mine == 0) & (slices.shape == np.minimum(mine, full - slices.offset))
    fits[:, 1:] &= (full % mine == 0)[:, 1:]
    is_odd = ~fits.all(axis=1) & (slices.shape > 0).all(axis=1)
    fit: Bools = np.bincount(slices.tensor[is_odd], minlength=len(shapes)) == 0
    return fit


def grid_steps(slices: SliceTable) -> Ints:
    """[n, rank] the extents of the slice of each tensor that begins at its first element, at least
    1 on each axis."""
    step = slices.tensors.shapes.copy()
    rows = np.flatnonzero((slices.offset == 0).all(axis=1) & (slices.shape > 0).all(axis=1))
    step[slices.tensor[rows]] = slices.shape[rows]
    return np.maximum(step, 1)


@lru_cache(maxsize=64)  # each format asks for the same two sets, at every write
def _codes_of(names: frozenset[str]) -> Bools:
    """[number of dtypes] True at the codes of these dtypes, to be indexed by a column of codes."""
    # A lookup table: one indexing answers for a whole column.
    held = np.zeros(len(NAMES), dtype=np.bool)
    held[list(map(code, names))] = True
    held.flags.writeable = False
    return held

"""What a format can hold, and how slices are fitted to it before a byte is written."""

from dataclasses import dataclass, replace

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import NAMES, code
from shardvar.planning.slices import SliceTable

_NAMED = 8
"""Keys that an error names; the rest it counts."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a format can hold; given to planning, which joins what must be whole and refuses the rest."""

    dtypes: frozenset[str]
    """The element types that it can hold at all."""
    slice_dtypes: frozenset[str]
    """The element types of which it can hold slices; tensors of others are joined and written whole."""
    max_slice_rank: int = 0
    """Tensors of more axes are written whole."""
    empty_slices: bool = False
    """Whether a slice without elements can be stored beside others of its tensor."""
    many_files: bool = True
    """Whether it can have more than one data file."""
    atomic_overwrite: bool = True
    """Whether an existing checkpoint is replaced in one step, so that no crash leaves a mixture."""


def check_holds(slices: SliceTable, capabilities: Capabilities, format_name: str) -> None:
    """Raise ``UnsupportedError``, naming keys and dtypes, unless the format can hold every tensor."""
    held = np.zeros(len(NAMES), dtype=np.bool)
    held[[code(name) for name in capabilities.dtypes]] = True
    refused = np.flatnonzero(~held[slices.tensors.codes])
    if len(refused):
        named = ", ".join(
            f"{slices.tensors.keys[row]!r} ({slices.tensors.dtype(row)})" for row in refused[:_NAMED].tolist()
        )
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise UnsupportedError(
            f"The format {format_name} cannot hold {named}{more}.",
            "Leave them out with a filter, cast them, or choose another format.",
        )


def join_whole(slices: SliceTable, capabilities: Capabilities) -> SliceTable:
    """The slices, with those of every tensor that the format cannot cut joined to one, at the place of the first.

    Slices without elements are dropped where the format cannot store them beside others.
    """
    cuttable = np.zeros(len(NAMES), dtype=np.bool)
    cuttable[[code(name) for name in capabilities.slice_dtypes]] = True
    tensors = slices.tensors
    joined = (~cuttable[tensors.codes] | (tensors.ranks > capabilities.max_slice_rank))[slices.tensor]
    keep = np.ones(len(slices), dtype=np.bool)
    if not capabilities.empty_slices:
        empty = ~(slices.shape > 0).all(axis=1)
        keep &= ~empty
        # A tensor without elements keeps one slice: the whole of it.
        joined |= ~(tensors.shapes[slices.tensor] > 0).all(axis=1)
    _, first = np.unique(slices.tensor, return_index=True)
    is_first = np.zeros(len(slices), dtype=np.bool)
    is_first[first] = True
    keep = np.where(joined, is_first, keep)
    rows = np.flatnonzero(keep)
    shape = np.where(joined[:, None], tensors.shapes[slices.tensor], slices.shape)[rows]
    offset = np.where(joined[:, None], 0, slices.offset)[rows]
    table = SliceTable.of(tensors, slices.tensor[rows], offset, shape, slices.nbytes[rows])
    return table if slices.device is None else replace(table, device=slices.device[rows], devices=slices.devices)

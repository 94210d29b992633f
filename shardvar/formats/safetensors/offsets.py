"""The places of slices in files that PyTorch's distributed checkpoints wrote as safetensors.

    __metadata__["DCP_SHARDING_INFO"]    JSON: {KEY: {"saved_offsets": [int, ...]}}
    __metadata__["DCP_VERSION"]          "1.0"

A tensor of such a file is a slice of a larger one, and begins at these offsets of it. No file says
how large the whole tensor is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardvar.errors import IncompleteCheckpoint
from shardvar.wire import strict_json
from shardvar.wire.damage import invalid
from shardvar.wire.safetensors_header import Header

SHARDING_INFO_KEY = "DCP_SHARDING_INFO"
LAYOUT_KEYS = (SHARDING_INFO_KEY, "DCP_VERSION")
"""The keys in ``__metadata__`` that describe the layout of the files, and not their content."""

_MAX_DEPTH = 32


def saved_offsets(header: Header) -> dict[str, Sequence[int]] | None:
    """Return the offsets of each slice by key; None if the file says nothing about slices.

    A key without offsets of the right form is left out: its place is unknown.
    """
    text = header.metadata.get(SHARDING_INFO_KEY)
    if text is None:
        return None
    info = strict_json.parse_json(text.encode("utf-8"), _MAX_DEPTH)
    if type(info) is not dict:
        raise invalid(f"{SHARDING_INFO_KEY} is not a JSON object.")
    places = {
        key: _offsets(info.get(key), len(shape))
        for key, shape in zip(header.keys, header.shapes, strict=True)
    }
    return {key: offsets for key, offsets in places.items() if offsets is not None}


def partial_tensors(header: Header) -> Mapping[str, IncompleteCheckpoint]:
    """Return the tensors of a file that are slices at other offsets than 0, each with the error of
    reading only it."""
    return {
        key: IncompleteCheckpoint(
            f"{key!r} is a slice that begins at {list(offsets)} of its tensor; the other slices "
            "are in other files.",
            "Name the folder that holds the shards of all ranks, under the names that PyTorch "
            "gave them.",
        )
        for key, offsets in (saved_offsets(header) or {}).items()
        if any(offsets)
    }


def _offsets(info: Any, rank: int) -> Sequence[int] | None:
    offsets = info.get("saved_offsets") if type(info) is dict else None
    if type(offsets) is not list or len(offsets) != rank or not set(map(type, offsets)) <= {int}:
        return None
    return offsets if min(offsets, default=0) >= 0 else None

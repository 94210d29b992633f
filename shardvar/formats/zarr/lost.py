"""Arrays that a group lost, as far as its files tell.

A group of Zarr lists no arrays: if the description of one is lost, nothing else changes. Three
things show it:

    consolidated metadata   repeat the description of every array: the file ``.zmetadata`` of
                            version 2, and a field of the group's ``zarr.json`` of version 3.
                            Readers that use them read no other
    the attribute           ``shardvar_arrays`` of a group that shardvar wrote lists the paths of
                            its arrays, where it has no consolidated metadata. Other programs keep
                            it, and do not know what it means
    chunks                  files that are named as chunks, in a folder that is not an array's

An array that was removed on purpose is also missing: zarr-python removes it from consolidated
metadata that it has read, and nothing else does. No file tells the two apart, so the error says
what to do in either case.

A description that differs from its repetition is also a problem, since readers choose different
ones.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardvar.errors import CheckpointError, InvalidCheckpoint, MissingFile, prefix_errors
from shardvar.formats.protocol import Finding
from shardvar.formats.zarr.contents import DOCUMENTS, Description
from shardvar.formats.zarr.files import PathListing
from shardvar.formats.zarr.names import CHUNK
from shardvar.wire.damage import WRITE_AGAIN, invalid
from shardvar.wire.zarr_metadata import ARRAYS_ATTRIBUTE, CORE_V2, CORE_V3, parse_object

CONSOLIDATED = ".zmetadata"
"""The consolidated metadata of version 2."""
_COPY_AGAIN = "Copy the group again, with all its folders."


def lost_arrays(
    listing: PathListing,
    found: Sequence[str],
    known: Collection[str],
    repeated: Collection[str],
    listed: Collection[str],
) -> dict[str, CheckpointError]:
    """Return an error for each array that is lost, and for each whose folder has others, by path.

    ``found`` are the arrays that are there. ``known`` have an error already, ``repeated`` are
    described by the consolidated metadata, and ``listed`` by the attribute.
    """
    there = {*found, *known}
    errors: dict[str, CheckpointError] = {}
    for path in sorted({*listed} - there):
        cause = (
            f"The array {path!r} is missing, which the attribute {ARRAYS_ATTRIBUTE!r} of the group "
            "lists."
        )
        errors[path] = MissingFile(
            cause, f"{_COPY_AGAIN} If it was removed on purpose, also remove it from the list."
        )
    for path in sorted({*repeated} - there):
        cause = f"The array {path!r} is missing, which the consolidated metadata describe."
        errors[path] = MissingFile(
            cause, f"{_COPY_AGAIN} If it was removed on purpose, consolidate the metadata again."
        )
    for path in sorted(_folders_of_chunks(listing, there | {*errors})):
        errors[path] = MissingFile(
            f"{path!r} has chunks of an array, whose description is missing.", _COPY_AGAIN
        )
    # Zarr has no arrays in arrays: one of the two is misplaced.
    paths = sorted(there)
    for path in found:
        below = (
            paths[bisect_left(paths, f"{path}/") :][:1]
            if path
            else [each for each in paths if each][:1]
        )
        if below and below[0].startswith(f"{path}/".removeprefix("/")):
            errors[path] = InvalidCheckpoint(
                f"The array {path!r} has another in its folder, {below[0]!r}.", WRITE_AGAIN
            )
    return errors


def listed_arrays(attributes: Mapping[str, Any]) -> list[str]:
    """Return the paths of arrays that a group's attributes list; a text there is a user's."""
    paths = attributes.get(ARRAYS_ATTRIBUTE)
    if type(paths) is not list:
        return []
    if not all(type(path) is str for path in paths):
        raise invalid(f"The attribute {ARRAYS_ATTRIBUTE!r} is not a list of texts.")
    return paths


def repeated_arrays(data: bytes, document: str) -> dict[str, Any]:
    """Return the descriptions of arrays that consolidated metadata have, by path."""
    with prefix_errors(document):
        fields = parse_object(data, "consolidated metadata")
        if document != CONSOLIDATED:
            fields = fields.get("consolidated_metadata") or {}
        nodes = fields.get("metadata", {}) if type(fields) is dict else None
        if type(nodes) is not dict or not all(type(node) is dict for node in nodes.values()):
            raise invalid("The consolidated metadata are not an object of objects.")
    if document == CONSOLIDATED:
        suffix = f"/{DOCUMENTS[2]}"
        return {
            path.removesuffix(suffix): node for path, node in nodes.items() if path.endswith(suffix)
        }
    return {path: node for path, node in nodes.items() if node.get("node_type") == "array"}


def compare_repeated(
    found: Sequence[Description], repeated: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield the arrays that consolidated metadata do not describe, or describe otherwise."""
    for each in found if repeated else ():
        other = repeated.get(each.path)
        if other is None:
            cause = (
                "The consolidated metadata do not describe it, so that some readers do not see it."
            )
            yield Finding(each.document, cause, False)
            continue
        try:
            own = parse_object(each.data, "a description of Zarr")
        except CheckpointError:  # the fault of its key
            continue
        core = CORE_V2 if each.version == 2 else CORE_V3
        # NaN is not equal to itself.
        differing = [name for name in core if str(own.get(name)) != str(other.get(name))]
        if differing:
            cause = (
                "The consolidated metadata, which some readers use, have another "
                f"{' and another '.join(differing)}."
            )
            yield Finding(each.document, cause, True)


def _folders_of_chunks(listing: PathListing, arrays: Collection[str]) -> set[str]:
    """Return the folders that have chunks and are in none of the arrays.

    A lone number may be any program's file, such as ``logs/17``: it is taken for a chunk only if
    the first, ``0``, is there.
    """
    is_outside = np.ones(len(listing.names), np.bool)
    for path in arrays:
        rows = listing.rows_below(path)
        is_outside[rows.start : rows.stop] = False
    chunks = (CHUNK.fullmatch(listing.names[row]) for row in np.flatnonzero(is_outside).tolist())
    return {
        chunk[1]
        for chunk in chunks
        if chunk is not None and (chunk[2] == "0" or not chunk[2].isdigit())
    }

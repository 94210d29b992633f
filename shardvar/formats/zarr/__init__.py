"""Zarr groups, and checkpoints of Orbax, which consist of Zarr arrays; without JAX, Orbax and
zarr-python.

files      file names, the files of a tree of folders, and ranges of files that are read together
database   the values of the database of a checkpoint of Orbax, and writing it
contents   the arrays as a table of contents, their claims, and checksums at the ends of chunks
source     the payloads; TensorStore, which decodes chunks
sink       writing a folder of arrays
orbax      checkpoints of Orbax: their index, and their format

The codec of an array's description is ``wire.zarr_metadata``.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    MissingFile,
    ReadError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding, Format, NewCheckpoint
from shardvar.formats.zarr.contents import DOCUMENTS, ArrayContents, Description
from shardvar.formats.zarr.files import (
    CHUNK,
    GROUPS,
    PathListing,
    Tree,
    check_finished,
    find_group,
    folders_above,
    open_tree,
    read_document,
)
from shardvar.formats.zarr.sink import (
    WRITTEN,
    ArraysSink,
    ChunkWriter,
    build_array,
    build_group,
    build_root,
    check_arrays,
    chunk_paths,
    files_of_chunks,
    own_files,
    remove_arrays,
)
from shardvar.formats.zarr.source import Decoder, ZarrSource
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Capabilities, grid_steps
from shardvar.records import frozen
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import invalid
from shardvar.wire.zarr_metadata import (
    ARRAYS_ATTRIBUTE,
    CORE_V2,
    CORE_V3,
    MAX_AXES,
    parse_document,
    parse_object,
)

INDEX = "zarr.json"
"""The description of the group, version 3."""
_SIDES = frozenset({*GROUPS, ".zattrs"})

CAPABILITIES = Capabilities(
    dtypes=WRITTEN,
    slice_dtypes=WRITTEN,
    max_slice_rank=MAX_AXES,
    atomic_overwrite=False,
    holds_objects=True,
    is_grid=True,
    is_separate=True,
    folder_index=INDEX,
)
"""Numbers, in chunks of one shape."""


# Open a group of Zarr, or one array: the tree of folders is walked, and each description read.
#
# Consolidated metadata repeat the descriptions, and an attribute of shardvar's lists the arrays: they
# name the arrays there should be (below), and nothing else is taken from them.


def _read_group(name: str, tree: Tree) -> ZarrSource:
    storage, sizes = tree.root, {path: each.nbytes for path, each in tree.files.items()}
    listing, contents = PathListing([*sizes], sizes), ArrayContents(fills=True)
    with prefix_errors(storage.path):
        with prefix_errors(name):
            version, octets = 3 if name == INDEX else 2, read_document(tree, name)
            is_group = name != CONSOLIDATED
            fields = parse_document(octets, version, MAX_TREE_NBYTES) if is_group else {}
        attributes: Any = fields.get("attributes")
        if version == 2 and listing.has(".zattrs"):
            with prefix_errors(".zattrs"):
                octets = read_document(tree, ".zattrs")
                attributes = parse_object(octets, "the attributes of a group")
        attributes = attributes if type(attributes) is dict else {}
        arrays = _arrays(tree, listing, contents)
        arrays = _without_lost(arrays, tree, listing, contents, attributes)
        if type(attributes.get(ARRAYS_ATTRIBUTE)) is list:
            del attributes[ARRAYS_ATTRIBUTE]  # the writer's, and not the user's
        metadata = Metadata(user=text_of(attributes))
        contents.add(arrays, listing)
        index, file_sizes = contents.table(listing, metadata)
    data = DataFiles(tree, index.files, file_sizes)
    return ZarrSource(index, data, contents, Decoder.of(storage), tree)


def text_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return attributes as text; values other than text as JSON."""
    return {
        key: value if type(value) is str else json.dumps(value, ensure_ascii=False)
        for key, value in fields.items()
    }


def _without_lost(
    arrays: Sequence[Description],
    tree: Tree,
    listing: PathListing,
    contents: ArrayContents,
    attributes: Mapping[str, Any],
) -> list[Description]:
    """Note faults that other descriptions show, and return the arrays without one."""
    repeated: dict[str, Any] = {}
    listed: list[str] = []
    try:
        listed = listed_arrays(attributes)
    except CheckpointError as error:
        contents.findings.append(Finding(DOCUMENTS[3], error.cause, True))
    try:
        for document in (DOCUMENTS[3], CONSOLIDATED):
            if listing.has(document):
                repeated = repeated_arrays(read_document(tree, document), document)
                break
        contents.findings += compare_repeated(arrays, repeated)
    except CheckpointError as error:
        contents.findings.append(Finding(CONSOLIDATED, error.cause, True))
    paths = [each.path for each in arrays]
    contents.faults.update(lost_arrays(listing, paths, {*contents.faults}, repeated, listed))
    return [each for each in arrays if each.key not in contents.faults]


def _arrays(tree: Tree, listing: PathListing, contents: ArrayContents) -> list[Description]:
    """Return the descriptions of all arrays below a folder; unreadable ones are faults."""
    versions: dict[str, list[int]] = {}
    for path in listing.names:
        folder, _, last = path.rpartition("/")
        if last in (".zarray", "zarr.json"):
            versions.setdefault(folder, []).append(2 if last == ".zarray" else 3)
    answers = dict(
        as_answered(lambda item: (item[0], _describe(tree, *item)), versions.items(), tree.traits)
    )
    in_order = [(folder, answers[folder]) for folder in versions]
    for folder, each in in_order:
        if isinstance(each, Exception):
            # Of the storage: its refusal is the array's.
            contents.faults[folder] = each  # type: ignore[assignment]
    return [each for _, each in in_order if isinstance(each, Description)]


def _describe(
    tree: Tree, folder: str, versions: Sequence[int]
) -> Description | ReadError | StorageError | None:
    """Return the description of the array in a folder, or its error; None for a group."""
    description = Description(folder, folder, versions[0], b"")
    try:
        with prefix_errors(description.document):
            data = read_document(tree, description.document)
            if (
                3 in versions
                and parse_document(data, 3, MAX_TREE_NBYTES).get("node_type") == "group"
            ):
                return None
            if len(versions) > 1:
                raise invalid(
                    "The folder has descriptions of two versions of Zarr, and readers choose "
                    "different ones."
                )
    except (*READ_ERRORS, StorageError) as error:
        if not folder:  # a checkpoint, and not one of its arrays
            raise
        return error
    return Description(folder, folder, versions[0], data)


# Arrays that a group lost, as far as its files tell.
#
# A group of Zarr lists no arrays: if the description of one is lost, nothing else changes. Three
# things show it:
#
#     consolidated metadata   repeat the description of every array: the file ``.zmetadata`` of
#                             version 2, and a field of the group's ``zarr.json`` of version 3.
#                             Readers that use them read no other
#     the attribute           ``shardvar_arrays`` of a group that shardvar wrote lists the paths of
#                             its arrays, where it has no consolidated metadata. Other programs keep
#                             it, and do not know it
#     chunks                  files that are named as chunks, in a folder that is not an array's
#
# An array that was removed on purpose is also missing: zarr-python removes it from consolidated
# metadata that it has read, and nothing else does. No file tells the two apart, so the error has a
# remedy for either case.
#
# A description that differs from its repetition is also a problem, since readers choose different
# ones.


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
    # Folders that have chunks and are in none of the arrays. A lone number may be any program's file,
    # such as ``logs/17``: it is taken for a chunk only if the first, ``0``, is there.
    is_outside = np.ones(len(listing.names), np.bool)
    for path in there | {*errors}:
        rows = listing.rows_below(path)
        is_outside[rows.start : rows.stop] = False
    chunks = (CHUNK.fullmatch(listing.names[row]) for row in np.flatnonzero(is_outside).tolist())
    folders = {
        chunk[1] for chunk in chunks if chunk and (chunk[2] == "0" or not chunk[2].isdigit())
    }
    for path in sorted(folders):
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
            errors[path] = invalid(f"The array {path!r} has another in its folder, {below[0]!r}.")
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
    arrays: Sequence[Description], repeated: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield the arrays that consolidated metadata do not describe, or describe otherwise."""
    for each in arrays if repeated else ():
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


@frozen
class ZarrFormat(Format):
    """Zarr of version 2 or 3: a folder with a group, or with one array. Version 3 is written."""

    name: str = "zarr"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_group(storage.names(), name)

    def open(self, storage: Storage, name: str) -> ZarrSource:
        check_finished(storage, name)
        return open_tree(storage, name, partial(_read_group, name))

    def lay_out(self, new: NewCheckpoint) -> ArraysSink:
        from shardvar.formats.objects import texts_with_objects  # of a write

        slices, keys = new.assignment.slices, new.assignment.slices.tensors.keys
        check_arrays(new, self, INDEX, keys)
        if ARRAYS_ATTRIBUTE in new.metadata.user:
            cause = (
                f"The metadata have the key {ARRAYS_ATTRIBUTE!r}, under which the format zarr "
                "lists the arrays."
            )
            raise UnsupportedError(cause, "Give it another name.")
        documents = {f"{folder}/{INDEX}": build_group({}) for folder in folders_above(keys)}
        steps = grid_steps(slices).tolist()
        for row, key in enumerate(keys):
            shape = slices.tensors.shape(row)
            documents[f"{key}/{INDEX}"] = build_array(
                key, slices.tensors.dtype(row), shape, steps[row][: len(shape)]
            )
        nodes = {path.removesuffix(f"/{INDEX}"): document for path, document in documents.items()}
        dtypes = {slices.tensors.dtype(row) for row in range(len(keys))}
        return ArraysSink(
            new=new,
            paths=files_of_chunks(new.assignment, chunk_paths(slices, keys, version=3)),
            start=np.zeros(len(slices), np.int64),
            writer=ChunkWriter.of(slices, is_guarded=True),
            documents=documents,
            index=INDEX,
            content=build_root(texts_with_objects(new.metadata), nodes, keys, dtypes),
            sides=_SIDES,
        )

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the group of the folder, and not the folder."""
        remove_arrays(storage, INDEX, _SIDES)

    def owned(self, folder: Storage) -> set[str]:
        return own_files(folder, INDEX, _SIDES)


FORMAT = ZarrFormat()

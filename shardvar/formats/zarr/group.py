"""Open a group of Zarr, or one array: the tree of folders is walked, and each description read.

Consolidated metadata repeat the descriptions, and an attribute of shardvar's lists the arrays: they
say which arrays there should be (``lost``), and nothing else is taken from them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    InvalidCheckpoint,
    ReadError,
    StorageError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.zarr.contents import DOCUMENTS, ArrayContents, Convention, Description
from shardvar.formats.zarr.decoder import Decoder
from shardvar.formats.zarr.files import PathListing, Tree, open_tree, read_document
from shardvar.formats.zarr.lost import (
    CONSOLIDATED,
    compare_repeated,
    listed_arrays,
    lost_arrays,
    repeated_arrays,
)
from shardvar.formats.zarr.names import check_finished
from shardvar.formats.zarr.source import ZarrSource
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.planning.index import Metadata
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import WRITE_AGAIN
from shardvar.wire.zarr_metadata import ARRAYS_ATTRIBUTE, parse_document, parse_object

CONVENTION = Convention(fills=True)


def open_group(storage: Storage, name: str) -> ZarrSource:
    """Open the group or the array of a folder, by the name of its description."""
    check_finished(storage, name)
    return open_tree(storage, name, partial(_read_group, name))


def _read_group(name: str, tree: Tree) -> ZarrSource:
    storage, sizes = tree.root, {path: each.nbytes for path, each in tree.files.items()}
    listing, contents = PathListing([*sizes], sizes), ArrayContents()
    with prefix_errors(storage.path):
        attributes = _attributes(tree, listing, name)
        found = _arrays(tree, listing, contents)
        found = _without_lost(found, tree, listing, contents, attributes)
        if type(attributes.get(ARRAYS_ATTRIBUTE)) is list:
            del attributes[ARRAYS_ATTRIBUTE]  # the writer's, and not the user's
        metadata = Metadata(user=text_of(attributes))
        contents.add(found, listing, CONVENTION)
        index, file_sizes = contents.table(listing, CONVENTION, metadata)
    data = DataFiles(tree, index.files, file_sizes)
    return ZarrSource(index, data, contents, CONVENTION, Decoder.of(storage), tree)


def text_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return attributes as text; values other than text as JSON."""
    return {
        key: value if type(value) is str else json.dumps(value, ensure_ascii=False)
        for key, value in fields.items()
    }


def _attributes(tree: Tree, listing: PathListing, name: str) -> dict[str, Any]:
    """Return the attributes of the group, after checking its description."""
    with prefix_errors(name):
        version = 3 if name == "zarr.json" else 2
        data = read_document(tree, name)
        fields = {} if name == ".zmetadata" else parse_document(data, version, MAX_TREE_NBYTES)
        attributes = fields.get("attributes")
    if version == 2 and listing.has(".zattrs"):
        with prefix_errors(".zattrs"):
            attributes = parse_object(read_document(tree, ".zattrs"), "the attributes of a group")
    return attributes if type(attributes) is dict else {}


def _without_lost(
    found: Sequence[Description],
    tree: Tree,
    listing: PathListing,
    contents: ArrayContents,
    attributes: Mapping[str, Any],
) -> list[Description]:
    """Note what is said about the arrays, and return the ones without a fault by their place."""
    repeated: dict[str, Any] = {}
    listed: list[str] = []
    try:
        listed = listed_arrays(attributes)
    except CheckpointError as error:
        contents.findings.append(Finding(DOCUMENTS[3], error.cause, True))
    try:
        repeated = _read_repeated(tree, listing)
        contents.findings += compare_repeated(found, repeated)
    except CheckpointError as error:
        contents.findings.append(Finding(CONSOLIDATED, error.cause, True))
    paths = [each.path for each in found]
    contents.faults.update(lost_arrays(listing, paths, {*contents.faults}, repeated, listed))
    return [each for each in found if each.key not in contents.faults]


def _read_repeated(tree: Tree, listing: PathListing) -> dict[str, Any]:
    """Return the descriptions that the consolidated metadata have, by path, if any."""
    for document in (DOCUMENTS[3], CONSOLIDATED):
        if listing.has(document):
            return repeated_arrays(read_document(tree, document), document)
    return {}


def _arrays(tree: Tree, listing: PathListing, contents: ArrayContents) -> list[Description]:
    """Return the descriptions of all arrays below a folder; unreadable ones are faults."""
    versions: dict[str, list[int]] = {}
    for path in listing.names:
        folder, _, last = path.rpartition("/")
        if last in (".zarray", "zarr.json"):
            versions.setdefault(folder, []).append(2 if last == ".zarray" else 3)
    answers = as_answered(
        lambda item: (item[0], _describe(tree, *item)), versions.items(), tree.traits
    )
    found = dict(answers)
    in_order = [(folder, found[folder]) for folder in versions]
    for folder, each in in_order:
        if isinstance(each, Exception):
            # Of the storage: its refusal is the array's.
            contents.faults[folder] = each  # type: ignore[assignment]
    return [each for _, each in in_order if isinstance(each, Description)]


def _describe(
    tree: Tree, folder: str, versions: Sequence[int]
) -> Description | ReadError | StorageError | None:
    """Return the description of the array in a folder, or what is wrong with it; None if the folder
    is a group."""
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
                cause = (
                    "The folder has descriptions of two versions of Zarr, and readers choose "
                    "different ones."
                )
                raise InvalidCheckpoint(cause, WRITE_AGAIN)
    except (*READ_ERRORS, StorageError) as error:
        if not folder:  # a checkpoint, and not one of its arrays
            raise
        return error
    return Description(folder, folder, versions[0], data)

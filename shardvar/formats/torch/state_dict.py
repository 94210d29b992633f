"""The contents of files that ``torch.save`` wrote: one file, or a set with an index.

    model.pt, model.pth, model.bin, model.ckpt    an archive with one pickle
    pytorch_model.bin.index.json                  {"weight_map": {key: file}}, of a set of such archives

A fault of a tensor is a fault of its key and leaves the others readable.
"""

from collections.abc import Mapping

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    StorageError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.contents import SavedContents, Stored, torch_source
from shardvar.formats.torch.items import payload_of
from shardvar.formats.torch.names import is_bare
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.tensors import is_tensor
from shardvar.formats.torch.unpickled import unpickle
from shardvar.pictures.words import named
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import DISTRUST
from shardvar.wire.set_index import read_set_index


def open_file(storage: Storage, name: str) -> TorchSource:
    """Open one file."""
    data = DataFiles(storage, [name])
    contents = SavedContents()
    _add(contents, 0, data.open(0), None)
    return torch_source(data, contents)


def open_set(storage: Storage, name: str) -> TorchSource:
    """Open a set, by the name of its index."""
    weight_map = _read_index(storage, name)
    names = sorted(set(weight_map.values()))
    data = DataFiles(storage, names)
    contents = SavedContents()
    for number, file in enumerate(names):
        keys = {key for key, each in weight_map.items() if each == file}
        try:
            if not is_bare(file):
                cause = (
                    f"{storage.path}: the index names {file[:200]!r}, which is not a file next to "
                    "it."
                )
                raise InvalidCheckpoint(cause, DISTRUST)
            found = _add(contents, number, data.open(number), keys)
        except (*READ_ERRORS, StorageError) as error:
            contents.faults.update((key, error.at(repr(key))) for key in keys)
            continue
        for key in keys - found:
            cause = (
                f"{key!r}: the index says that it is in {file!r} of {storage.path}, but it is not."
            )
            contents.faults[key] = IncompleteCheckpoint(
                cause, "Fetch that file again from the source of the set."
            )
        if found - keys:
            others = named(sorted(found - keys))
            contents.findings.append(
                Finding(file, f"It holds {others}, which the index does not name there.", True)
            )
    return torch_source(data, contents)


def _read_index(storage: Storage, name: str) -> Mapping[str, str]:
    """Return the file of each key of a set."""
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            return read_set_index(file.read, file.size).weight_map
    finally:
        file.close()


def _add(
    contents: SavedContents, number: int, file: ReadableFile, wanted: set[str] | None
) -> set[str]:
    """Add the leaves of one file, either the wanted ones or all; return the keys of all."""
    unpickled = unpickle(file)
    if not unpickled.archive.has_checksums:
        contents.unguarded |= unpickled.leaves.keys()
    for key in unpickled.leaves.keys() if wanted is None else unpickled.leaves.keys() & wanted:
        try:
            value = unpickled.value(key)
            stored = (
                Stored.whole(number, whole_of(value, unpickled.view))
                if is_tensor(value)
                else Stored(number, payload_of(value))
            )
            contents.stored[key] = [stored]
        except READ_ERRORS as error:
            contents.faults[key] = error.at(file.name, repr(key))
    return set(unpickled.leaves)

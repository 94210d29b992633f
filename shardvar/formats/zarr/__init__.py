"""Zarr groups, and checkpoints of Orbax, which consist of Zarr arrays; without JAX, Orbax and
zarr-python.

names      file names, and the checkpoints that a folder holds
files      the files of a tree of folders, and ranges of files that are read together
database   the values of the database of a checkpoint of Orbax, and writing it
contents   the arrays as a table of contents, what they may claim, and checksums at the ends of chunks
source     the payloads; TensorStore, which decodes chunks
group      opening a group of Zarr
sink       writing a folder of arrays
orbax      checkpoints of Orbax: their index, and their format

The codec of an array's description is ``wire.zarr_metadata``.
"""

from dataclasses import dataclass

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.objects import texts_with_objects
from shardvar.formats.protocol import Format, NewCheckpoint
from shardvar.formats.zarr.group import open_group
from shardvar.formats.zarr.names import GROUPS, find_group, folders_above
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
    remove_arrays,
)
from shardvar.formats.zarr.source import ZarrSource
from shardvar.planning.capabilities import Capabilities, grid_steps
from shardvar.storage.protocol import Storage
from shardvar.wire.zarr_metadata import ARRAYS_ATTRIBUTE, MAX_AXES

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


@dataclass(frozen=True, slots=True)
class ZarrFormat(Format):
    """Zarr of version 2 or 3: a folder with a group, or with one array. Version 3 is written."""

    name: str = "zarr"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_group(storage.names(), name)

    def open(self, storage: Storage, name: str) -> ZarrSource:
        return open_group(storage, name)

    def lay_out(self, new: NewCheckpoint) -> ArraysSink:
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


FORMAT = ZarrFormat()

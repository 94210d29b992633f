"""``.metadata`` as it is written: the pickle of one ``Metadata`` (``formats.torch.metadata``
describes it).

It names the files, and no path, no machine and no time. One more attribute, ``shardvar``, which
torch does not look at, is a dict of what torch has no place for:

    description, writer, user   the policy's description, the program, the user's metadata
    generation                  the run of the processes that wrote it, if there were several
    crc32                       the CRC-32 of the elements of each item, in the order of ``storage_data``, as 32-bit
                                numbers: items say nothing about the tensor that they belong to, and one file could
                                take the place of another
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.formats.torch.metadata import ABOUT, DCP
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import Metadata
from shardvar.planning.slices import SliceTable
from shardvar.wire.inert import SIZE, Global
from shardvar.wire.opcode_writer import Call, Instance, build_pickle

_VERSION = "1.0.0"
_CONTIGUOUS = 0
"""The number of C order among torch's memory formats."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemTable:
    """The items of a checkpoint, and the place of each."""

    slices: SliceTable
    """[m] the slices of tensors."""
    file: Ints
    """[m] the number of the file of each."""
    start: Ints
    """[m] the first byte of the item of each, in bytes of its file."""
    nbytes: Ints
    """[m] the size of the item of each."""
    checksum: Ints
    """[m] the CRC-32 of the elements of each."""
    objects: Mapping[str, bytes]
    """The items of objects, which lie one after the other in the last file."""


def build_metadata(items: ItemTable, names: Sequence[str], about: Metadata) -> bytes:
    """Return the content of the index; ``names`` are the names of the files, by number."""
    described: dict[str, Any] = {}
    stored: dict[Instance, Instance] = {}
    order, bounds = items.slices.by_tensor(by_offset=True)
    for tensor in np.flatnonzero(np.diff(bounds)).tolist():
        key = items.slices.tensors.keys[tensor]
        described[key], places = _tensor(
            items, tensor, order[bounds[tensor] : bounds[tensor + 1]].tolist(), names
        )
        stored |= places
    start = 0
    for key, item in items.objects.items():
        described[key] = Call(f"{DCP}metadata.BytesStorageMetadata", ())
        stored[_index(key, None, None)] = _info(names[-1], start, len(item))
        start += len(item)
    said: dict[str, Any] = {
        "description": about.description,
        "writer": about.writer,
        "user": dict(about.user),
    }
    if about.generation:
        said["generation"] = about.generation
    crc = {"crc32": items.checksum[order].astype("<u4").tobytes()}
    state = {
        "state_dict_metadata": described,
        "planner_data": {key: about.paths.get(key, (key,)) for key in described},
        "storage_data": stored,
        "version": _VERSION,
        ABOUT: said | crc,
    }
    return build_pickle(_instance("metadata.Metadata", **state), 4)


def _tensor(
    items: ItemTable, tensor: int, rows: Sequence[int], names: Sequence[str]
) -> tuple[Instance, dict[Instance, Instance]]:
    """Return the description of a tensor, and the place of each of its slices."""
    slices, chunks, places = items.slices, list[Instance](), dict[Instance, Instance]()
    for number, row in enumerate(rows):
        region = slices.region(row)
        offset = _size(region.offset)
        chunks.append(
            _instance("metadata.ChunkStorageMetadata", offsets=offset, sizes=_size(region.shape))
        )
        place = _info(names[items.file[row]], int(items.start[row]), int(items.nbytes[row]))
        places[_index(slices.tensors.keys[tensor], offset, number)] = place
    properties, full = (
        _properties(slices.tensors.dtype(tensor)),
        _size(slices.tensors.shape(tensor)),
    )
    return _instance(
        "metadata.TensorStorageMetadata", properties=properties, size=full, chunks=chunks
    ), places


def _index(key: str, offset: Call | None, number: int | None) -> Instance:
    """Return the key of a place; the number of the slice is a hint."""
    return _instance("metadata.MetadataIndex", fqn=key, offset=offset, index=number)


def _instance(name: str, **state: Any) -> Instance:
    """Return an instance of a class of torch, with its attributes."""
    return Instance(DCP + name, state)


def _info(name: str, start: int, nbytes: int) -> Instance:
    return _instance("filesystem._StorageInfo", relative_path=name, offset=start, length=nbytes)


def _size(extents: Sequence[int]) -> Call:
    return Call(SIZE, (tuple(extents),))


def _properties(dtype: str) -> Instance:
    """Return the properties of a tensor: its dtype, and that it is dense, without gradient, in C
    order, not pinned."""
    layout = Call("torch.serialization._get_layout", ("torch.strided",))
    memory_format = Call(f"{DCP}metadata._MEM_FORMAT_ENCODING", (_CONTIGUOUS,))
    state = (Global(f"torch.{dtype}"), layout, False, memory_format, False)
    return Instance(f"{DCP}metadata.TensorProperties", state)

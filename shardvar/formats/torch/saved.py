"""The format of files that ``torch.save`` writes: state dicts and other values, in one file or a
set.

What is written is a dict of tensors, which ``torch.load`` also reads with ``weights_only=True`` and
``mmap=True``. Keys are the keys of the dict: dots in them separate nothing. Each tensor is whole
and contiguous, and has its own storage, except for tied ones. Plain objects, such as steps and
parameter groups, follow the tensors in the dict. The same tensors make the same bytes. ``archive``
describes the file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.leaves import leaves_of
from shardvar.formats.protocol import FileChecksums, FileWriter, Format
from shardvar.formats.sinks import OneFileSink, check_uncut, remove_one_file
from shardvar.formats.torch.archive import (
    PackedRecord,
    build_frame,
    plan_starts,
    records_of,
    tensor_call,
)
from shardvar.formats.torch.llama import open_llama
from shardvar.formats.torch.names import (
    RANKWISE,
    SAVED_SUFFIXES,
    UNIVERSAL,
    find_llama,
    find_ranks,
    find_saved,
    find_universal,
    find_zero,
    set_of,
    world_size_of,
)
from shardvar.formats.torch.objects import pickled_of
from shardvar.formats.torch.parameter_folders import UniversalFormat
from shardvar.formats.torch.ranks import open_ranks
from shardvar.formats.torch.rankwise import open_rankwise
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.formats.torch.tensors import DTYPES, is_tensor
from shardvar.formats.torch.universal import open_universal
from shardvar.formats.torch.zero import open_zero
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.opcode_writer import Call, LazyDict, build_pickle
from shardvar.wire.plain import decode_value


@dataclass(frozen=True, slots=True)
class SavedWriter(FileWriter):
    """The frame and the checksums of a file."""

    objects: Mapping[str, Any]
    """The objects in addition to the tensors, as ``build_pickle`` takes them."""
    ties: Mapping[str, str] = field(default_factory=dict)
    """Further keys, each with the key of the tensor whose storage it has."""

    @property
    def crc(self) -> Checksum:
        """The checksum of a payload, which equals its record's."""
        return CRC32

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the headers of all records, the pickle, the directory and the end records."""
        return build_frame(_records(slices, self), checksums.payload.tolist())


def plan_saved(
    storage: Storage,
    name: str,
    assignment: Assignment,
    metadata: Metadata,
    capabilities: Capabilities,
    generation: str,
) -> OneFileSink:
    """Lay the tensors out, and the objects with these encodings; ``UnsupportedError`` if the format
    cannot hold them."""
    slices, file = assignment.slices, file_name(name)
    check_holds(slices, capabilities, "pt")
    if assignment.num_files > 1:
        raise UnsupportedError(
            "A pt checkpoint is one file.", "Choose another format for several files."
        )
    check_uncut(slices, "pt")
    if name not in storage.names() and find_ranks(storage.names(), name):
        cause = (
            f"{storage.path} has files of single ranks of {name}, which are read and not written."
        )
        raise UnsupportedError(cause, "Choose another name.")
    writer = SavedWriter(
        {
            key: pickled_of(decode_value(encoding.decode("ascii")))
            for key, encoding in metadata.objects.items()
        },
        metadata.ties,
    )
    records = _records(slices, writer)
    if records[0].nbytes > MAX_PICKLE_NBYTES:
        cause = (
            f"The pickle of {len(slices)} tensors has {records[0].nbytes} bytes, more than "
            f"{MAX_PICKLE_NBYTES}"
        )
        raise UnsupportedError(f"{cause} (MAX_PICKLE_NBYTES).", "Choose the format safetensors.")
    placed = zip(records, plan_starts(records), strict=True)
    starts = [start for record, start in placed if record.content is None]
    start = np.array(starts, dtype=np.int64)
    return OneFileSink(storage, file, generation, start, writer, lambda: _empty(writer))


def remove_saved(storage: Storage, name: str) -> None:
    """Remove the file of that name."""
    remove_one_file(storage, file_name(name))


def file_name(name: str) -> str:
    """Return the name of the file that a target's name means; ``UnsupportedError`` for the index of
    a set.

    >>> file_name("model"), file_name("model.pth")
    ('model.pt', 'model.pth')
    """
    if set_of(name) is not None:
        cause = f"{name} is the index of a set of files, which is read and not written."
        raise UnsupportedError(
            cause, "Choose a name that ends with .pt, or the format safetensors."
        )
    return name if name.endswith(SAVED_SUFFIXES) else f"{name}.pt"


def _records(slices: SliceTable, writer: SavedWriter) -> list[PackedRecord]:
    """Return the records of the file that holds these tensors, and the objects of the writer."""
    tensors, rows = slices.tensors, slices.tensor.tolist()

    def call_of(number: int) -> Call:
        row = rows[number]
        return tensor_call(tensors.dtype(row), tensors.shape(row), number)

    def values() -> Iterator[tuple[str, Any]]:
        for number, row in enumerate(rows):
            yield tensors.keys[row], call_of(number)
        firsts = {*writer.ties.values()}
        numbers = {
            tensors.keys[row]: number
            for number, row in enumerate(rows)
            if tensors.keys[row] in firsts
        }
        for key, first in writer.ties.items():
            yield key, call_of(numbers[first])
        yield from writer.objects.items()

    pickle = build_pickle(LazyDict(values))
    return records_of(pickle, slices.nbytes.tolist(), _entered(writer.objects))


def _entered(objects: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values a reader would take for several keys."""
    # A dict, or a list with one in it; torch has such tuples as one object.
    return [
        key
        for key, value in objects.items()
        if isinstance(value, dict | list | tuple)
        and [*leaves_of({key: value}, is_tensor)[0]] != [key]
    ]


def _empty(writer: SavedWriter) -> bytes:
    """Return a file without tensors, whose ranges follow one another: only the frame."""
    records = records_of(build_pickle({**writer.objects}), [], _entered(writer.objects))
    return b"".join(octets for _, octets in build_frame(records, []))


__all__ = ["FOLDER", "FORMAT"]

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(),
    many_files=False,
    holds_objects=True,
    holds_texts=False,
    holds_ties=True,
    folders=frozenset({RANKWISE, UNIVERSAL}),
)
"""Whole tensors of the dtypes that torch has, in one file."""


@dataclass(frozen=True, slots=True)
class SavedFormat(Format):
    """torch.save: a file; a set of files with an index, or of all ranks, which is only read."""

    name: str = "pt"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that torch can read back."""
    is_whole: bool = False
    """True to list all that a Universal Checkpoint of DeepSpeed is written of."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_saved(storage, name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open a file, the set of that index, or the files of all ranks."""
        if find_zero(storage.names(), name) == [name]:
            return open_zero(storage, name, is_whole=self.is_whole)
        if name == RANKWISE:
            return open_rankwise(storage)
        if name == UNIVERSAL and find_universal(storage, name):
            return open_universal(storage, is_whole=self.is_whole)
        if find_llama(storage.names(), name) == [name]:
            return open_llama(storage)
        if world_size_of(name) is not None and find_ranks(storage.names(), name):
            return open_ranks(storage, name)
        return open_set(storage, name) if set_of(name) is not None else open_file(storage, name)

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        generation: str,
    ) -> OneFileSink:
        """Lay out a file. Of the metadata only objects are kept: a state dict has no more room."""
        return plan_saved(storage, name, assignment, metadata, self.capabilities, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file; ``UnsupportedError`` for files of all ranks, and for folders."""
        names = storage.names()
        is_joined = name in (RANKWISE, UNIVERSAL) or name in find_zero(names, name)
        if is_joined or name in find_llama(names, name) or find_ranks(names, name):
            cause = f"{storage.path}: The checkpoint {name} is several files of another program."
            raise UnsupportedError(cause, "Remove the files, or the folder.")
        remove_saved(storage, name)


FORMAT = SavedFormat()
WHOLE = SavedFormat(is_whole=True)
FOLDER = UniversalFormat(reads=WHOLE)

"""The format of files that ``torch.save`` writes: state dicts and other values, in one file or a set.

What is written is a dict of tensors, which ``torch.load`` also reads with ``weights_only=True`` and
``mmap=True``. Keys are the keys of the dict: dots in them separate nothing. Each tensor is whole,
contiguous, and has its own storage. Plain objects, such as steps and parameter groups, follow the
tensors in the dict. The same tensors make the same bytes. ``archive`` describes the file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import discard_files, put_in_place, remove_unnamed, take_away
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.torch.archive import (
    PackedRecord,
    build_frame,
    plan_starts,
    records_of,
    tensor_call,
)
from shardvar.formats.torch.names import (
    SAVED_SUFFIXES,
    find_ranks,
    find_saved,
    set_of,
    world_size_of,
)
from shardvar.formats.torch.ranks import open_ranks
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.formats.torch.tensors import DTYPES, value_of
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.opcode_writer import build_pickle


@dataclass(frozen=True, slots=True)
class SavedWriter:
    """The frame and the checksums of a file."""

    objects: Mapping[str, Any]
    """The objects in addition to the tensors: plain values."""
    run_nbytes: int = 0
    """0: a record has one checksum, and its runs have none."""

    @property
    def crc(self) -> Checksum:
        """The checksum of a payload, which equals its record's."""
        return CRC32

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the bytes; the format holds neither strings nor variants."""
        return CRC32.compute(payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        """Return the headers of all records, the pickle, the directory and the end records."""
        return [*build_frame(_records(slices, self.objects), checksums.payload.tolist())]


@dataclass(frozen=True, slots=True, eq=False)
class SavedSink:
    """A file of ``torch.save`` that is being written."""

    storage: Storage
    """The directory for the file."""
    name: str
    """The final name of the file."""
    asides: list[str]
    """Its temporary name, as the only item."""
    start: Ints
    """[m] the first byte of each payload, in bytes of the file."""
    writer: SavedWriter
    """The frame and the checksums of the file."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished file in place."""
        # Without slices no file was written: its bytes are only the frame.
        records = records_of(build_pickle({**self.writer.objects}), [])
        empty = None if checksums else _join(build_frame(records, []))
        # The rename is the commit. What earlier writers left is removed only after it.
        put_in_place(self.storage, [], (self.asides[0], self.name), empty, tidy=self._tidy)

    def withdraw(self) -> None:
        """Remove the file if it has its temporary name; a commit leaves none."""
        discard_files(self.storage, self.asides)

    def is_in_place(self) -> bool:
        """Return False: until the commit, no other process puts files under these names."""
        return False

    def _tidy(self) -> None:
        remove_unnamed(self.storage, lambda names: _asides(self.name, names))


def plan_saved(
    storage: Storage,
    name: str,
    assignment: Assignment,
    objects: Mapping[str, bytes],
    capabilities: Capabilities,
    generation: str,
) -> SavedSink:
    """Lay the tensors out, and the objects with these literals; ``UnsupportedError`` if the format
    cannot hold them."""
    slices, file = assignment.slices, file_name(name)
    check_holds(slices, capabilities, "pt")
    if assignment.num_files > 1:
        raise UnsupportedError(
            "A pt checkpoint is one file.", "Choose another format for several files."
        )
    cut = np.flatnonzero(~slices.is_whole())
    if len(cut):
        cause = (
            f"The format pt cannot hold the slice {slices.region(int(cut[0]))} of "
            f"{slices.key(int(cut[0]))!r}."
        )
        raise UnsupportedError(cause, "Write the tensor whole.")
    if name not in storage.names() and find_ranks(storage.names(), name):
        cause = (
            f"{storage.path} has files of single ranks of {name}, which are read and not written."
        )
        raise UnsupportedError(cause, "Choose another name.")
    writer = SavedWriter(
        {
            key: value_of(literal.decode("utf-8", "surrogatepass"))
            for key, literal in objects.items()
        }
    )
    records = _records(slices, writer.objects)
    if records[0].nbytes > MAX_PICKLE_NBYTES:
        cause = (
            f"The pickle of {len(slices)} tensors has {records[0].nbytes} bytes, more than "
            f"{MAX_PICKLE_NBYTES}"
        )
        raise UnsupportedError(f"{cause} (MAX_PICKLE_NBYTES).", "Choose the format safetensors.")
    placed = zip(records, plan_starts(records), strict=True)
    starts = [start for record, start in placed if record.content is None]
    return SavedSink(
        storage, file, [f"{file}.{generation}.tmp"], np.array(starts, dtype=np.int64), writer
    )


def remove_saved(storage: Storage, name: str) -> None:
    """Remove the file of that name."""
    file = file_name(name)
    take_away(storage, [(file, f"{file}.removed.tmp")], lambda names: _asides(file, names))


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


def _records(slices: SliceTable, objects: Mapping[str, Any]) -> list[PackedRecord]:
    """Return the records of the file that holds these tensors and objects."""
    tensors, rows = slices.tensors, slices.tensor.tolist()
    calls = {
        tensors.keys[row]: tensor_call(tensors.dtype(row), tensors.shape(row), number)
        for number, row in enumerate(rows)
    }
    return records_of(build_pickle({**calls, **objects}), slices.nbytes.tolist())


def _join(ranges: Iterator[tuple[int, bytes]]) -> bytes:
    """Return an archive without storages, whose ranges follow one another."""
    return b"".join(octets for _, octets in ranges)


def _asides(name: str, names: list[str]) -> list[str]:
    """Return the temporary files of that file's writers, and their journals."""
    aside = re.compile(re.escape(name) + r"\.[A-Za-z0-9]+\.tmp" + JOURNAL_ENDING, re.DOTALL)
    return list(filter(aside.fullmatch, names))


CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()), slice_dtypes=frozenset(), many_files=False
)
"""Whole tensors of the dtypes that torch has, in one file."""


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """torch.save: a file, or a set of files with an index, which is only read."""

    name: str = "pt"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that torch can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_saved(storage, name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open a file, the set of that index, or the files of all ranks."""
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
    ) -> SavedSink:
        """Lay out a file. Of the metadata only objects are kept: a state dict has no more room."""
        return plan_saved(
            storage, name, assignment, metadata.objects, self.capabilities, generation
        )

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file."""
        remove_saved(storage, name)


FORMAT = SavedFormat()

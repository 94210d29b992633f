"""Writing a Universal Checkpoint of DeepSpeed: a folder for each parameter (``universal``).

Each tensor is a file:

    NAME                        zero/NAME/fp32.pt: {"cat_dim": 0, "param": tensor}
    optimizer.state.NAME.STATE  zero/NAME/STATE.pt, the same; of a step only the number
    optimizer.step              in zero/optimizer_state.pt, where stage 3 looks for it
    mp_rank_00_model_states.pt  that file, as it is (``whole``); if there is none, it is written as
                                of a new run, without a schedule, for all stages

A parameter that is trained has states. All others, such as buffers, have only a file of values.
What a whole checkpoint lacks is an error that names it (``completeness``).

The folder is built next to its place and put there in one step (``storage.exchange``). Then
``latest_universal`` in the folder above names it, by which DeepSpeed finds it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import StorageError, TargetExists, UnsupportedError
from shardvar.formats.files import put_in_place
from shardvar.formats.folders import FolderSink
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint
from shardvar.formats.sinks import check_uncut, temporary_files
from shardvar.formats.torch.archive import (
    PackedRecord,
    build_frame,
    plan_starts,
    records_of,
    tensor_call,
)
from shardvar.formats.torch.completeness import STEP, UniversalPlan, path_of, with_step
from shardvar.formats.torch.deepspeed import (
    OF_MODEL,
    OF_OPTIMIZER,
    STATE,
    UNIVERSAL,
    find_universal,
    open_universal,
)
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.slices import SliceTable
from shardvar.storage.exchange import FolderBeside
from shardvar.storage.local import LocalStorage
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.opcode_writer import build_pickle
from shardvar.wire.plain import decode_value

_LATEST = "latest_universal"
_OWN = re.compile(rf"{UNIVERSAL}/(?:[^/]+/[^/]+|optimizer_state)\.pt", re.DOTALL)
_ASIDE = r"universal-\d+"


@dataclass(frozen=True, slots=True)
class UniversalWriter(FileWriter):
    """The frame and the checksum of each file."""

    run: Mapping[str, Any]
    """The content of ``zero/optimizer_state.pt``, without the step."""

    @property
    def crc(self) -> Checksum:
        """The checksum of a payload, which equals its record's."""
        return CRC32

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what surrounds the elements in a file; nothing surrounds a file of the model."""
        records = self.records(slices, 0)
        return build_frame(records, checksums.payload.tolist()) if records else iter(())

    def records(self, slices: SliceTable, row: int) -> list[PackedRecord]:
        """Return the records of the file of a slice; none if its bytes are the file."""
        key, number = slices.key(row), slices.tensor[row]
        if OF_MODEL.fullmatch(key):
            return []
        tensor = tensor_call(slices.tensors.dtype(number), slices.tensors.shape(number), 0)
        value: Any = {"cat_dim": 0, "param": tensor}
        if key == STEP:
            value = with_step(self.run, tensor)
        elif key.startswith(STATE) and key.endswith(".step"):
            value = tensor
        return records_of(build_pickle(value), [int(slices.nbytes[row])])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UniversalSink(FolderSink):
    """A Universal Checkpoint that is being written."""

    def own(self, folder: str) -> set[str]:
        """Return the files in a folder that are of a Universal Checkpoint, or of its writers."""
        storage = LocalStorage(folder)
        paths = [*storage.tree()]
        models = filter(OF_MODEL.fullmatch, paths)
        return {*models, *filter(_OWN.fullmatch, paths), *temporary_files(_ASIDE, storage.names())}

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the folder in place, and name it in the folder above."""
        self.new.storage.claim()
        beside = FolderBeside(self.new.storage.path)
        self.exchange(beside)
        self._name(beside)

    def _name(self, beside: FolderBeside) -> None:
        """Name the folder in the one above it."""
        above, aside = LocalStorage(os.path.dirname(beside.place)), f"{_LATEST}.{beside.token}.tmp"
        name = os.path.basename(beside.place)
        try:
            put_in_place(above, [], (aside, _LATEST), os.fsencode(name), is_checkpoint=False)
        except StorageError as error:
            cause = f"{self.new.storage.path}: it is in place, but {_LATEST} does not name it."
            remedy = f"Write {name!r} into {os.path.join(above.path, _LATEST)}."
            raise StorageError(f"{cause} {error.cause}", remedy) from None


CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(),
    atomic_overwrite=False,
    holds_objects=True,
    holds_ties=True,
    is_grid=True,
    is_separate=True,
    folder_index=UNIVERSAL,
    folders=frozenset({UNIVERSAL}),
)
"""Whole tensors of the dtypes that torch has, each in a file."""


@dataclass(frozen=True, slots=True)
class UniversalFormat(Format):
    """A Universal Checkpoint of DeepSpeed, which is written under this name and read as ``pt``."""

    reads: Format
    """The format as which files of ``torch.save`` are read to become one."""
    name: str = "pt"
    """The name under which it is read."""
    capabilities: Capabilities = CAPABILITIES
    """The limits of the format."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the checkpoint of the folder."""
        return find_universal(storage, name, storage.names())

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open the checkpoint of the folder."""
        return open_universal(storage, name)

    def lay_out(self, new: NewCheckpoint) -> UniversalSink:
        """Lay the tensors out; raise what lacks."""
        assignment, slices = new.assignment, new.assignment.slices
        check_holds(slices, self.capabilities, "universal")
        check_uncut(slices, "universal")
        _check_place(new.storage)
        objects = {
            key: decode_value(encoding.decode("ascii"))
            for key, encoding in new.metadata.objects.items()
        }
        plan = UniversalPlan.of(slices.tensors, objects, new.metadata.ties)
        writer = UniversalWriter(plan.run)
        records = [writer.records(slices, row) for row in range(len(slices))]
        start = [plan_starts(each)[2] if each else 0 for each in records]
        of_file = [""] * assignment.num_files
        for number, row in zip(assignment.file.tolist(), slices.tensor.tolist(), strict=True):
            of_file[number] = path_of(slices.tensors.keys[row])
        return UniversalSink(
            new=new,
            paths=of_file,
            start=np.array(start, np.int64),
            writer=writer,
            documents=plan.documents,
            stem="universal",
        )

    def remove(self, storage: Storage, name: str) -> None:
        """Refuse, as of any folder that DeepSpeed may have made."""
        self.reads.remove(storage, name)


def _check_place(storage: Storage) -> None:
    """Raise unless the folder can be put in place in one step."""
    if storage.local_path is None:
        cause = f"{storage.path}: A Universal Checkpoint is written on a disk."
        raise UnsupportedError(cause, "Write it there, and copy the folder.")
    other = next(filter(OF_OPTIMIZER.fullmatch, storage.names()), "")
    if other:
        cause = f"{storage.path} has files of ZeRO: {other}."
        raise TargetExists(cause, "Write into another folder.")
    if os.path.isdir(storage.local_path):
        reason, remedy = FolderBeside(storage.local_path).complaint()
        if reason:
            cause = f"{storage.path} cannot be put in place in one step: {reason}."
            raise StorageError(cause, remedy)

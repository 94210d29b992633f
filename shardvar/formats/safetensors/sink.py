"""Writing a safetensors checkpoint: one file, or a set with its index where the policy asks for several.

Within a file, header and data keep the order of the assignment. The data begin at a multiple of 64 bytes and follow
each other without gaps, which the format forbids; so payloads are aligned as long as larger elements come first.

One file replaces another in one step. The names of a set are fixed by its count, so a set replaces one of another count
by renaming the index last, in one step too. Over a set of the same count no order of renames is safe: the old index is
removed first, so that whoever comes in between is told that it is missing, and never gets a mixture.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import put_in_place, remove_unnamed, take_away
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.safetensors.names import SUFFIX, index_name, part_name, parts_of, prefix_of
from shardvar.formats.safetensors.source import DESCRIPTION, WRITER
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32C
from shardvar.wire.safetensors_header import build_header


@dataclass(frozen=True, slots=True)
class SafetensorsWriter:
    """How a file is framed: by its header. Nothing guards it."""

    metadata: Mapping[str, str]
    """What every file says about itself."""
    crc: None = None
    """No checksums are kept."""
    run_nbytes: int = 0
    """Nor of runs."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Of strings the format holds none."""
        return CRC32C.compute(payload)

    def frame(self, slices: SliceTable, start: Ints, checksums: FileChecksums) -> Sequence[tuple[int, bytes]]:
        """The header."""
        return [(0, build_header(_rows(slices), self.metadata))]


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsSink:
    """A safetensors checkpoint that is being written."""

    storage: Storage
    """Where the files go."""
    prefix: str
    """The checkpoint's name."""
    assignment: Assignment
    """What goes where."""
    asides: list[str]
    """The name of each file before the commit."""
    index_aside: str
    """The name of the index before the commit."""
    start: Ints
    """[m] where each payload begins in its file."""
    writer: SafetensorsWriter
    """How each file is framed."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove what it does not name."""
        filled = np.unique(self.assignment.file).tolist()
        is_own = _is_own(self.prefix, self.storage.names())
        if len(filled) > 1:
            kept = [part_name(self.prefix, number + 1, len(filled)) for number in range(len(filled))]
            self._commit_set([self.asides[number] for number in filled], kept)
            kept.append(index_name(self.prefix))
        else:
            kept = [self.prefix + SUFFIX]
            self._commit_single(self.asides[filled[0]] if filled else None)
        for _ in ("an index", "the files that it names"):
            remove_unnamed(self.storage, lambda names: _unnamed(self.prefix, names, kept, is_own))

    def _commit_single(self, aside: str | None) -> None:
        content = build_header([], self.writer.metadata) if aside is None else None
        put_in_place(self.storage, [], (aside or self.index_aside, self.prefix + SUFFIX), content)

    def _commit_set(self, asides: list[str], finals: list[str]) -> None:
        slices, number = self.assignment.slices, np.unique(self.assignment.file, return_inverse=True)[1]
        weight_map = {slices.key(row): finals[number[row]] for row in range(len(slices))}
        index = {"metadata": {"total_size": int(slices.nbytes.sum())}, "weight_map": weight_map}
        content = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        final = index_name(self.prefix)
        is_clash = not set(finals).isdisjoint(self.storage.names())
        put_in_place(
            self.storage,
            list(zip(asides, finals, strict=True)),
            (self.index_aside, final),
            content.encode("utf-8"),
            [final] if is_clash else [],
        )


def plan_sink(
    storage: Storage, name: str, assignment: Assignment, metadata: Metadata, capabilities: Capabilities, generation: str
) -> SafetensorsSink:
    """Lay the assigned tensors out; ``UnsupportedError`` where the format cannot hold them."""
    slices = assignment.slices
    check_holds(slices, capabilities, "safetensors")
    cut = np.flatnonzero(~slices.is_whole())
    if len(cut):
        cause = (
            f"The format safetensors cannot hold the slice {slices.region(int(cut[0]))} of {slices.key(int(cut[0]))!r}."
        )
        raise UnsupportedError(cause, "Write the tensor whole.")
    said = {DESCRIPTION: metadata.description or assignment.description, WRITER: metadata.writer, **metadata.user}
    writer = SafetensorsWriter({key: text for key, text in said.items() if text or key in metadata.user})
    prefix = prefix_of(name)
    asides = [f"{prefix}-{number + 1:05}{SUFFIX}.{generation}.tmp" for number in range(assignment.num_files)]
    start = np.zeros(len(slices), dtype=np.int64)
    for number in range(assignment.num_files):
        rows = np.flatnonzero(assignment.file == number)
        mine = slices.take(rows)
        start[rows] = len(build_header(_rows(mine), writer.metadata)) + np.cumsum(mine.nbytes) - mine.nbytes
    return SafetensorsSink(storage, prefix, assignment, asides, f"{index_name(prefix)}.{generation}.tmp", start, writer)


def remove_checkpoint(storage: Storage, prefix: str) -> None:
    """Take away the file of that prefix, and the set of which an index is there or was about to be."""
    index, single = index_name(prefix), prefix + SUFFIX
    is_own = _is_own(prefix, storage.names())
    indexes = [(index, f"{index}.removed.tmp"), (single, f"{prefix}-00001{SUFFIX}.removed.tmp")]
    take_away(storage, indexes, lambda names: _unnamed(prefix, names, (), is_own))


def _rows(slices: SliceTable) -> list[tuple[str, str, tuple[int, ...]]]:
    tensors = slices.tensors
    return [(tensors.keys[row], tensors.dtype(row), tensors.shape(row)) for row in slices.tensor.tolist()]


def _is_own(prefix: str, names: Sequence[str]) -> bool:
    """Whether files of a set with that prefix are this checkpoint's: its index is there, or was about to be.

    Without any index they may be somebody's last copy, of which a writer of one file knows nothing.
    """
    return any(name == index_name(prefix) or _is_aside(prefix, name, of_index=True) for name in names)


def _is_aside(prefix: str, name: str, of_index: bool = False) -> bool:
    """Whether a file is one that writers of that prefix put aside, or its journal; ``of_index`` for an index alone."""
    kinds = r"\.safetensors\.index\.json" if of_index else r"(-\d{5,}\.safetensors|\.safetensors\.index\.json)"
    return re.fullmatch(re.escape(prefix) + kinds + r"\.[A-Za-z0-9]+\.tmp(\.[a-z]+)?", name, re.DOTALL) is not None


def _unnamed(prefix: str, names: Sequence[str], kept: Sequence[str], is_own: bool) -> list[str]:
    """The files of a checkpoint of this prefix that are no longer part of it, and those that writers left who died."""
    index = index_name(prefix)
    # Files go once their index is gone or another: those of an index that could not be removed stay a checkpoint.
    parts = parts_of(prefix, names) if is_own and (index in kept or index not in names) else []
    old = [name for name in (prefix + SUFFIX, index, *parts) if name in names and name not in kept]
    return [*old, *(name for name in names if _is_aside(prefix, name))]

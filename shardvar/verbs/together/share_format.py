"""Shares as checkpoints: the file that one of several processes writes, and an index of what is in
it.

    data file   laid out as the format of the checkpoint lays out a file, so that the commit only
                has to rename it
    index always of the native format: it can say where any payload lies

So one mechanism serves all formats that can adopt finished files (``SharedFormat``), and none of
them knows of shares. The checksums of a share have the kind of its format, CRC32C for a format that
has none: equal replicas are known by them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.native import FORMAT as NATIVE
from shardvar.formats.native.entries import RUN_NBYTES
from shardvar.formats.native.sink import NativeSink
from shardvar.formats.native.source import NativeSource
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, SharedFormat, Sink
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import CRC32C, Checksum


@dataclass(frozen=True, slots=True)
class ShareWriter:
    """The frame of a file of a format, and a checksum of every payload."""

    own: FileWriter
    """The frame and the checksums that the format has."""

    @property
    def crc(self) -> Checksum:
        """The kind of checksum: the format's, or CRC32C."""
        return self.own.crc or CRC32C

    @property
    def run_nbytes(self) -> int:
        """Size of a run of a payload, 0 without runs."""
        return self.own.run_nbytes

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the payload of ``count`` strings or variants."""
        return self.own.checksum_whole(dtype, count, payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterable[tuple[int, bytes]]:
        """Return the bytes around the payloads, as the format has them."""
        return self.own.frame(slices, start, checksums)


@dataclass(frozen=True, slots=True, eq=False)
class ShareSink(Sink):
    """A share that is being written."""

    native: NativeSink
    """The sink of its index; it names the data file."""
    start: Ints = field()
    """[m] the first byte of each payload, in bytes of the file."""
    writer: ShareWriter = field()
    """The frame and the checksums of the file."""

    @property
    def asides(self) -> Sequence[str]:
        """The name of the data file, if there is one."""
        return self.native.asides

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the index in place."""
        storage, slices = self.native.storage, self.native.assignment.slices
        sizes = [status.nbytes if (status := storage.status(name)) else 0 for name in self.asides]
        about = replace(self.native.overview, file_nbytes=np.array(sizes, np.int64))
        # An index of the native format has checksums of runs. Where the format has none, zeros take
        # their places: only the commit reads this index, and it takes only the payloads' checksums.
        if not self.writer.run_nbytes:
            count = int((-(-slices.nbytes // RUN_NBYTES)).sum())
            checksums = [
                FileChecksums(each.payload, np.zeros(count, np.uint32)) for each in checksums
            ]
        replace(self.native, start=self.start, overview=about).commit(checksums)

    def withdraw(self) -> None:
        """Remove the files of the share."""
        self.native.withdraw()


@dataclass(frozen=True, slots=True)
class ShareFormat(Format):
    """The shares of a checkpoint, as a format."""

    target: SharedFormat
    """The format of the checkpoint."""
    target_name: str
    """The name of the checkpoint."""
    name: str = NATIVE.name
    """The name of the format of the index, whose endings name the files."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the format of the checkpoint."""
        return self.target.capabilities

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the shares that a name may mean: none, since no path means a share."""
        return NATIVE.locate(storage, name)

    def open(self, storage: Storage, name: str) -> NativeSource:
        """Open the share of that prefix."""
        share = NATIVE.open(storage, name)
        if share.index.overview.run_nbytes != RUN_NBYTES:
            cause = (
                f"{share.file.name} has runs of {share.index.overview.run_nbytes} bytes, not "
                f"{RUN_NBYTES}."
            )
            raise InvalidCheckpoint(cause, "Save all shares with the same release of shardvar.")
        return share

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        generation: str,
    ) -> ShareSink:
        """Lay the slices out in one file, as the format of the checkpoint does."""
        planned = self.plan(storage, assignment, metadata, generation)
        native = NATIVE.create(storage, name, assignment, metadata, generation)
        return ShareSink(native, planned.start, ShareWriter(planned.writer))

    def plan(
        self, storage: Storage, assignment: Assignment, metadata: Metadata, generation: str
    ) -> Sink:
        """Return the sink of a checkpoint with only this file: it knows places and frames."""
        return self.target.create(storage, self.target_name, assignment, metadata, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the share."""
        NATIVE.remove(storage, name)

"""The payloads of Keras' files: read in place, or decoded by h5py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import cast

import numpy as np

from shardvar.errors import CheckpointError, InvalidCheckpoint, prefix_errors
from shardvar.forks import new_lock
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.keras.archive import is_right
from shardvar.formats.keras.contents import KerasContents, close_all
from shardvar.formats.protocol import Finding
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex, find_shared
from shardvar.planning.slices import TensorTable
from shardvar.wire.damage import DISTRUST, corrupt


@dataclass(frozen=True, slots=True, eq=False)
class KerasSource(FileSource):
    """An open file, archive or set."""

    contents: KerasContents
    """The arrays."""
    index: TableIndex = field(init=False)
    """The table of contents; ``start`` of a non-plain entry numbers ``contents.rows``."""
    _compared: dict[int, bool] = field(init=False, default_factory=dict)
    """True if the member of an archive agrees with its checksum, by the number of the file, once it
    was compared."""
    _lock: RLock = field(init=False, default_factory=new_lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", _index(self.contents))

    @property
    def data(self) -> DataFiles:
        """The files."""
        return self.contents.data

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file = int(entries.file[row])
        if entries.plain[row]:
            self.read_span(file, int(entries.start[row]) + start, buffer)
            return
        self._check(file)
        # By its number: a caller may have renamed the key.
        _, dataset = self.contents.rows[int(entries.start[row])]
        with prefix_errors(f"{self.contents.data.open(file).name}: {dataset.key!r}"):
            self.contents.opened[file].read_into(dataset, start, buffer)

    @property
    def bare_index(self) -> str:
        """Empty: a checksum covers each member of an archive. Other files have none at all."""
        return ""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one file, from byte ``start`` of it on."""
        self._check(file)
        self.contents.data.open(file).read_into(start, buffer)

    def close(self) -> None:
        """Close the files."""
        close_all(self.contents)

    def findings(self) -> Sequence[Finding]:
        """Return the links that were not followed; compares an archive without arrays."""
        found = list(self.contents.findings)
        for number, span in self.contents.spans.items():
            if not self.contents.rows and not self._is_right(number):
                cause = (
                    f"The {span.nbytes} bytes at offset {span.start}, which hold all arrays, "
                    "disagree with their CRC."
                )
                found.append(Finding(self.contents.data.names[number], cause, True))
        return found

    def is_guarded(self, key: str) -> bool:
        """Return True if the checksum of an archive covers a key and agrees.

        Fletcher-32 finds most damage to the bytes of a chunk. It does not cover the places and the
        filter mask of the chunk, nor the shape and the dtype of the dataset.
        """
        if key not in self.contents.datasets:
            return False
        number, _ = self.contents.datasets[key]
        return self.contents.spans[number].crc is not None

    def _check(self, number: int) -> None:
        """Raise ``CorruptCheckpoint`` if an archive disagrees with its checksum, which covers all
        arrays at once."""
        if not self._is_right(number):
            span, name = self.contents.spans[number], self.contents.data.open(number).name
            raise corrupt(
                f"{name}: The {span.nbytes} bytes at offset {span.start} disagree with their CRC."
            )

    def _is_right(self, number: int) -> bool:
        """Return True unless a checksum covers a file and disagrees; it is compared once."""
        with self._lock:
            if number not in self._compared:
                span = self.contents.spans[number]
                self._compared[number] = span.crc is None or is_right(
                    self.contents.data.open(number), span
                )
            return self._compared[number]


def _index(contents: KerasContents) -> TableIndex:
    """Return the table of contents."""
    datasets = [dataset for _, dataset in contents.rows]
    table = TensorTable.of((each.key, each.dtype, each.shape) for each in datasets)
    plain = np.array([each.start is not None for each in datasets], np.bool)
    start = np.array(
        [row if each.start is None else each.start for row, each in enumerate(datasets)], np.int64
    )
    file = np.array([number for number, _ in contents.rows], np.int64)
    entries = EntryTable(table.whole(), file, start, np.full(len(datasets), NO_CHECKSUM), plain)
    # The same bytes may have several names, but a small file does not become a thousand large
    # arrays.
    spans = [contents.spans.get(number) for number in range(len(contents.data.names))]
    sizes = np.array([span.nbytes if span else 0 for span in spans], np.int64)
    rows = np.flatnonzero(plain)
    faults = dict(contents.faults)
    for row in rows[find_shared(entries.take(rows), sizes)].tolist():
        cause = (
            f"{contents.data.names[file[row]]}: {datasets[row].key!r}: Its bytes also belong to "
            "other arrays."
        )
        faults[datasets[row].key] = InvalidCheckpoint(cause, DISTRUST)
    readable = cast(Mapping[str, CheckpointError], faults)
    return TableIndex(entries, contents.data.names, Metadata(user=contents.attributes), readable)

"""What a way of laying an index and payloads in files must offer: every format answers to this, and none to another.

A format never sees a plan. It sees slices and the files that they are assigned to, and says where each payload lies.

Reading. ``Format.locate`` finds the checkpoints that a name may mean, ``Format.open`` gives a ``Source``. The engine
reads payloads through it, by rows of the entry tables that the source's own index handed out:

    plain entries      lie in a file byte for byte: read in spans of the file, several payloads at a time, or mapped;
                       the engine compares their checksums, with ``Source.crc``
    all other entries  (deflated, byte-swapped, strings that are encoded) are decoded by ``Source.read_into``, which
                       checks whatever checksum there is by itself, at the latest when the payload's last byte is read

Writing. ``Format.create`` lays the assigned slices out and gives a ``Sink``. The engine writes every payload at its
place in a file that stands aside under a name of its own, then what frames the payloads, and syncs it. Once all files
are finished, ``Sink.commit`` puts them in place, the index last; nothing is visible before.

Removing. ``Format.remove`` takes a checkpoint away, the index first; whoever comes in between finds none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import EntryTable, Index, Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import Checksum


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a checkpoint that ``verify`` tells and that keeps no key from being read."""

    place: str
    """The file, or the key, that it is about."""
    message: str
    """One sentence."""
    is_damage: bool
    """Whether a careful reader calls the checkpoint damaged for it."""


class Source(Protocol):
    """An open checkpoint. Safe to use from several threads. Closing it leaves maps valid."""

    @property
    def index(self) -> Index:
        """The table of contents."""

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that guards plain entries; None where the format has none."""

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""

    def close(self) -> None:
        """Give the files back."""


class Inspected(Protocol):
    """What a source may offer beside: findings that no single key shows."""

    def findings(self) -> Sequence[Finding]:
        """Everything that is odd about the files: sizes, leftovers, disagreements. Reads no payload."""


@dataclass(frozen=True, slots=True, eq=False)
class FileChecksums:
    """What was written into one file, in the order of its slices."""

    payload: Ints
    """[k] the checksum of each payload, as ``FileWriter.crc`` computes it (0 where it is None)."""
    runs: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The CRC32C of every run of every payload, one payload after the other; empty without runs."""


class FileWriter(Protocol):
    """How one data file is framed and guarded: small, picklable, without an open file."""

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that is kept of a payload; None for none."""

    @property
    def run_nbytes(self) -> int:
        """The bytes of a run that has a checksum of its own; 0 for none."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """The checksum of the payload of ``count`` strings or variants, which some formats compute in another way."""

    def frame(self, slices: SliceTable, start: Ints, checksums: FileChecksums) -> Sequence[tuple[int, bytes]]:
        """The bytes around the payloads (headers, directories) and where in the file each piece goes."""


class Sink(Protocol):
    """A checkpoint that is being written."""

    @property
    def asides(self) -> Sequence[str]:
        """The name under which each data file is written before the commit; of this generation alone."""

    @property
    def start(self) -> Ints:
        """[m] where in its file each assigned slice's payload begins."""

    @property
    def writer(self) -> FileWriter:
        """How each file is framed and guarded."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove what no index names any more.

        Where it raises, the new checkpoint is in place whole, or nothing of it is left (``formats.commit``).
        """


class Format(Protocol):
    """A way of laying an index and payloads in files."""

    @property
    def name(self) -> str:
        """The name that ``format=`` takes."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can hold."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """The checkpoints in the directory that ``name`` may mean, each as the name that ``open`` takes.

        ``name`` is what a person typed: a prefix, an index file, one of the data files; empty for all that are there.
        Decided by names, and by a file's first or last bytes where names do not tell. Never raises for other files.
        """

    def open(self, storage: Storage, name: str) -> Source:
        """Open a checkpoint that ``locate`` found. Reads as little as the format allows."""

    def create(self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str) -> Sink:
        """Lay the assigned slices out as a new checkpoint ``name`` (in the form that ``locate`` returns, or a new one).

        ``generation`` is a token of letters and digits that no other writer uses at the same time. Existing files are
        read at most. ``UnsupportedError`` where the format cannot hold the slices (``planning.capabilities``).
        """

    def remove(self, storage: Storage, name: str) -> None:
        """Take the checkpoint ``name`` (as ``create`` takes it) away: its index first, then its other files.

        Files that writers of that very name left go too, also where there is no checkpoint; no file of another's does.
        What an index says is not believed: the files are those whose names a writer of this checkpoint gives them.
        """

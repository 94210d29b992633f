"""The interface of a format, which lays the index and the payloads of a checkpoint out in files.

A format never sees a plan. It gets slices with the files that they are assigned to, and decides
where each payload lies. Formats know this interface and not each other.

Reading. ``Format.locate`` finds the checkpoints that a name may mean, and ``Format.open`` returns a
``Source``. The engine reads payloads through it, by rows of the entry tables that the source's own
index handed out:

    plain entries      lie in a file byte for byte: the engine reads them in ranges of the file, several payloads at a
                       time, or maps them, and compares their checksums with ``Source.crc``
    all other entries  (deflated, byte-swapped, encoded strings) are decoded by ``Source.read_into``, which compares
                       their checksums itself, at the latest when the payload's last byte is read

A source may also have these methods, which ``verify`` calls if they exist:

    findings() -> Sequence[Finding]   everything that is odd about the files and that no single key shows, such as sizes
                                      and files left over; reads the payload of no key
    is_guarded(key) -> bool           True if checksums cover every byte of the key; the engine or the source compares
                                      them. A format that guards some keys and not others has this method. Without it, a
                                      ``crc`` guards all keys
    compare_bytes(key) -> bool        compares the checksums of a key that cannot be read, since its dtype cannot be
                                      held. Raises ``CheckpointError`` if its bytes are damaged; returns False if they
                                      could not be compared

A source of a format that holds encoded numbers, such as blocks of quantised ones, lists a key of
them with the dtype and the shape of the encoded bytes, and has these methods:

    encodings() -> Mapping[str, str]  the name of the encoding of each such key
    dequantized() -> Source           the same checkpoint with the numbers of such keys in their place
    objects(keys, form) -> Mapping[str, bytes]
                                      the objects among the keys, each in bytes that a ``Sink`` of
                                      the format of that name takes (``Metadata.objects``); compares
                                      their checksums. Without the ones that the source cannot give
                                      in this way. ``reshard`` calls it

A source that decodes slowly may have these methods, which the engine calls if they exist:

    expect(entries, rows) -> None     says which entries that are not plain will be read next, in that order, so that
                                      they can be decoded ahead; others may be read all the same
    decode(entries, row) -> memoryview   returns the payload of an entry that is not plain, in fresh memory that the
                                      caller keeps: what ``read_into`` would give, and one copy less

A source of files that may be remote has this attribute, by which the engine plans its reads:

    traits: Traits | None             the cost of a request (``storage.protocol``); None on a local disk

Writing. ``Format.create`` lays the assigned slices out and returns a ``Sink``. The engine writes
every payload at its place in a file that has a temporary name, then the bytes that frame the
payloads, and syncs the file. Once all files are finished, ``Sink.commit`` puts them in place, the
index last. Nothing is visible before.

Sharing. A ``SharedFormat`` is one in which many processes may write a checkpoint together: each
writes a data file as ``create`` lays it out, and ``SharedFormat.adopt`` makes one checkpoint of
these files.

Removing. ``Format.remove`` removes a checkpoint, the index first, so that a reader finds the whole
checkpoint or none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Ints
from shardvar.pictures.words import message
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import EntryTable, Index, Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.crc import Checksum


@dataclass(frozen=True, slots=True)
class Finding:
    """An oddity of a checkpoint that ``verify`` reports although every key can be read."""

    place: str
    """The file, or the key, that it is about."""
    message: str
    """One sentence."""
    is_damage: bool
    """True if ``verify`` counts it as a problem, False if it is only worth knowing."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "message", message(self.message)
        )  # as of an error: it may name keys of the file


class Source(Protocol):
    """An open checkpoint; safe to use from several threads. Maps stay valid after it is closed."""

    @property
    def index(self) -> Index:
        """The table of contents."""

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that guards plain entries; None if the format has none."""

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""

    def map(self, file: int) -> memoryview:
        """Return a data file as a read-only memory map."""

    def close(self) -> None:
        """Close the files."""


@dataclass(frozen=True, slots=True, eq=False)
class FileChecksums:
    """The checksums of what was written into one file, in the order of its slices."""

    payload: Ints
    """[k] the checksum of each payload, as ``FileWriter.crc`` computes it; 0 if that is None."""
    runs: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The CRC32C of every run of every payload, one payload after the other; empty without runs."""


class FileWriter(Protocol):
    """The frame and the checksums of one data file: a small value that can be pickled."""

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that is kept of a payload, or None."""

    @property
    def run_nbytes(self) -> int:
        """Size of a run of a payload; each run has a checksum. 0 if the format has no runs."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return this format's checksum of the payload of ``count`` strings or variants."""

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterable[tuple[int, bytes]]:
        """Return the bytes around the payloads (headers, directories) by offset in the file."""


class Sink(Protocol):
    """A checkpoint that is being written."""

    @property
    def asides(self) -> Sequence[str]:
        """The temporary name of each data file until the commit; no other generation has it."""

    @property
    def start(self) -> Ints:
        """[m] the first byte of each assigned slice's payload, in bytes of its file."""

    @property
    def writer(self) -> FileWriter:
        """The frame and the checksums of each file."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove the files that no index names
        any more.

        If it raises, the new checkpoint is in place whole, or ``withdraw`` leaves nothing of it
        (``formats.files``).
        """

    def withdraw(self) -> None:
        """Remove what was written, as far as the disk allows, unless the commit has put it in
        place.

        Called after an error or an interrupt, at any time; it does not raise ``StorageError``.
        """

    def is_in_place(self) -> bool:
        """Return True if another process may have put the same files in place, so that they must
        stay.

        It can where data files have their final names from the beginning, and the storage has no
        lock.
        """


class Format(Protocol):
    """A file layout: the way in which an index and payloads lie in files."""

    @property
    def name(self) -> str:
        """The name for ``format=``."""

    @property
    def capabilities(self) -> Capabilities:
        """The dtypes, slices and files that it can hold; no dtype if it is only read."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the checkpoints in the directory that ``name`` may mean, each as the name that
        ``open`` takes.

        ``name`` is what a person typed: a prefix, an index file, one of the data files, or nothing
        for all checkpoints of the directory. Names decide, and a file's first or last bytes if its
        name is not enough. Files of other kinds are never an error. ``formats.table.formats_of``
        finds, by names only, which formats need to be asked.
        """

    def open(self, storage: Storage, name: str) -> Source:
        """Open a checkpoint that ``locate`` found. Reads as little as the format allows."""

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        generation: str,
    ) -> Sink:
        """Lay the assigned slices out as a new checkpoint ``name``: a name that ``locate`` returns,
        or a new one.

        ``generation`` is a token of letters and digits that no other writer uses at the same time.
        Existing files may be read and are not changed. ``UnsupportedError`` if the format cannot
        hold the slices (``planning.capabilities``).
        """

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the checkpoint ``name`` (a name for ``create``): its index first, then its other
        files.

        Files that writers of this name left behind are removed too, even if it has no checkpoint.
        Files of other checkpoints stay: the index is not believed, and only names that a writer of
        this checkpoint uses are removed.
        """


@dataclass(frozen=True, slots=True, eq=False)
class WrittenFiles:
    """Data files that are finished, under the names that they have until a commit."""

    names: Sequence[str]
    """[files] the name of each."""
    nbytes: Ints
    """[files] the size of each."""
    start: Ints
    """[m] the first byte of each assigned slice's payload, in bytes of its file."""


class SharedFormat(Format, Protocol):
    """A format in which many processes may write one checkpoint, each a file as ``create`` lays it
    out.

    Its index keeps ``Metadata.generation``, by which a process knows the checkpoint that it took
    part in.
    """

    def adopt(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        files: WrittenFiles,
    ) -> Sink:
        """Return the sink that commits files which are written already, each with the slices
        assigned to it.

        ``metadata.generation`` is the token of this write. ``MissingFile`` or
        ``IncompleteCheckpoint`` if a file is missing or has another size; then nothing was changed.
        ``commit`` renames the files.
        """

"""The interface of a format, which lays the index and the payloads of a checkpoint out in files.

A format never sees a plan. It gets slices with the files that they are assigned to, and decides
where each payload lies. Formats know this interface and not each other.

Reading. ``Format.locate`` finds the checkpoints that a name may mean, and ``Format.open`` returns a
``Source``. The engine reads payloads through it, by rows of the entry tables that the source's own
index handed out:

    plain entries      lie in a file byte for byte: the engine reads them in ranges of the file,
                       several payloads at a time, or maps them, and compares their checksums with
                       ``Source.crc``
    all other entries  (deflated, byte-swapped, encoded strings) are decoded by
                       ``Source.read_into``, which compares their checksums itself, at the latest
                       when the payload's last byte is read

``Source`` has defaults for everything that only some sources do. A source that reads through
another one inherits from ``WrappedSource``.

Writing. ``Format.lay_out`` lays the assigned slices out and returns a ``Sink``. The engine writes
every payload at its place in a file that has a temporary name, then the bytes that frame the
payloads, and syncs the file. Once all files are finished, ``Sink.commit`` puts them in place, the
index last. Nothing is visible before.
"""

from abc import ABC, abstractmethod, update_abstractmethods
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from shardvar.errors import ReadError, UnsupportedError
from shardvar.layout.dtypes import Bools, Ints
from shardvar.pictures.words import message
from shardvar.planning.index import EntryTable, Index, Metadata
from shardvar.planning.slices import Assignment, Capabilities, SliceTable
from shardvar.records import entity, field, frozen
from shardvar.storage.protocol import Storage, Traits
from shardvar.wire.crc import CRC32C, Checksum

__all__ = [
    "READ_ONLY",
    "FileChecksums",
    "FileWriter",
    "Finding",
    "Format",
    "NewCheckpoint",
    "SharedFormat",
    "Sink",
    "Source",
    "WrappedSource",
    "WrittenFiles",
]


@frozen
class Finding:
    """An oddity of a checkpoint that ``verify`` reports although every key can be read."""

    place: str
    """The file, or the key, that it is about."""
    message: str
    """One sentence."""
    is_damage: bool
    """True if ``verify`` counts it as a problem, False if it is only worth knowing."""

    def __post_init__(self) -> None:
        # As of an error: it may name keys of the file.
        object.__setattr__(self, "message", message(self.message))


class Source(ABC):
    """An open checkpoint; safe to use from several threads. Maps stay valid after it is closed.

    A format defines the abstract members. The others have defaults. A member that gets a key gets one
    of ``index``; a caller may have renamed the keys of its entries.

    A dataclass with slots may have a property of this class as a field. It declares the field with
    ``field()``: otherwise ``dataclasses`` would take the property for the field's default value.
    """

    __slots__ = ()

    # The index, and the bytes.

    @property
    @abstractmethod
    def index(self) -> Index:
        """The table of contents."""

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that guards plain entries; None if the format has none."""
        return None

    @property
    def traits(self) -> Traits | None:
        """The cost of a request to the files' storage, by which reads are planned; None on disks."""
        return None

    @abstractmethod
    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""

    @abstractmethod
    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""

    @abstractmethod
    def map(self, file: int) -> memoryview:
        """Return a data file as a read-only memory map; ``UnsupportedError`` if it is in a bucket."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""

    def hold_no_files(self) -> None:  # noqa: B027  # few open files again
        """Hold no file open between reads from now on; all entries were read. A file that is opened
        again is the same one, or an error."""

    def files_read(self, entries: EntryTable) -> Ints:
        """Return the numbers of the data files that the payloads of entries are read from, which a
        process that was given the entries compares with its caller's."""
        return np.flatnonzero(np.bincount(entries.file[entries.slices.nbytes > 0]))

    # Entries that are not plain: the order in which they are read, and decoding ahead.

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read from their beginning to their end.

        By default all payloads that the source decodes. A source that converts what lies in a file
        byte for byte returns False for it: then a part is read without the rest, which a checksum
        that is compared at the payload's end would need.
        """
        return ~entries.plain[rows]

    def expect(self, entries: EntryTable, rows: Ints) -> None:  # noqa: B027  # by default, nothing
        """Prepare for reads of some entries that are not plain, in that order, such as by decoding
        ahead; the caller may read other entries first, or none."""

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        """Return the payload of an entry that is not plain, in fresh memory that the caller keeps.

        It has the bytes that ``read_into`` gives, and saves a copy. None if that is as fast.
        """
        return None

    # What ``verify`` asks.

    def findings(self) -> Sequence[Finding]:
        """Return everything odd about the files that no single key shows, such as files left over;
        no payload of a key is read."""
        return ()

    def file_faults(self) -> Mapping[str, ReadError]:
        """Return the faults of files, by name, that keep no tensor from being read by itself, such
        as a size that is not the written one. Reading all that there is raises the first."""
        return {}

    def is_guarded(self, key: str) -> bool | None:
        """Return True if checksums cover every byte of a key, which the engine or the source
        compares.

        None if the entries show it: a key is guarded if each of them has a checksum.
        """
        return None

    @property
    def bare_index(self) -> str:
        """The file whose keys, dtypes and shapes no checksum covers; empty if checksums cover them.

        A format says "" only if any changed bit of them is found: ``verify`` says "ok" then.
        """
        return "the index"

    def compare_bytes(self, key: str) -> bool:
        """Compare the checksums of a key that cannot be read, since its dtype cannot be held.

        Raises ``CheckpointError`` if its bytes are damaged. Returns False if they could not be
        compared.
        """
        return False

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        """Return the errors of those keys whose tensors are parts of damaged storages.

        A storage of PyTorch has one checksum, and may hold several tensors, or a tensor and
        padding. No read of a tensor that is a part of it compares that checksum, so the verbs ask:

            verify, reshard       always: a copy would give damaged values checksums that fit them
            load                  with ``only_read``: only storages are compared of which ``keys``
                                  have every byte between them
            verify="full"         always
            otherwise             not, and ``Reader.unverified`` has the key
        """
        return {}

    def is_part(self, key: str) -> bool:
        """Return True if a tensor is part of a storage, so that reading only it compares no
        checksum."""
        return False

    # Other forms of the same checkpoint.

    def encodings(self) -> Mapping[str, str]:
        """Return the encodings of keys that are listed with the dtype and shape of encoded
        bytes."""
        return {}

    def dequantized(self) -> "Source":
        """Return the same checkpoint, as a format opened it, with numbers in place of encoded bytes."""
        return self

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes] | None:
        """Return the objects among keys, each in the bytes that the format ``form`` keeps of it.

        Their checksums are compared. The objects that ``form`` cannot keep are left out. None if
        the source's format has no objects: all its keys are tensors.
        """
        return None

    @property
    def places(self) -> Sequence[tuple[Storage, str]]:
        """[files] the directory and name of each data file; empty if all are in the checkpoint's."""
        return ()


@entity
class FileChecksums:
    """The checksums of what was written into one file, in the order of its slices."""

    payload: Ints
    """[k] the checksum of each payload, as ``FileWriter.crc`` computes it; 0 if that is None."""
    runs: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """The CRC32C of every run of every payload, one payload after the other; empty without runs."""


class FileWriter(Protocol):
    """The frame and the checksums of one data file: a small value that can be pickled. By default,
    each payload has a CRC32C, and the file has only payloads."""

    __slots__ = ()

    @property
    def crc(self) -> Checksum | None:
        """The kind of checksum that is kept of a payload, or None."""
        return CRC32C

    @property
    def run_nbytes(self) -> int:
        """Size of a run of a payload; each run has a checksum. 0 if the format has no runs."""
        return 0

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return this format's checksum of the payload of ``count`` strings or variants."""
        return (self.crc or CRC32C).compute(payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Iterable[tuple[int, bytes]]:
        """Return the bytes around the payloads (headers, directories) by offset in the file."""
        return ()


class Sink(ABC):
    """A checkpoint that is being written. ``formats.sinks`` has bases for most formats."""

    __slots__ = ()

    @property
    @abstractmethod
    def asides(self) -> Sequence[str]:
        """The temporary name of each data file until the commit; no other generation has it."""

    @property
    @abstractmethod
    def start(self) -> Ints:
        """[m] the first byte of each assigned slice's payload, in bytes of its file."""

    @property
    @abstractmethod
    def writer(self) -> FileWriter:
        """The frame and the checksums of each file."""

    @abstractmethod
    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove the files that no index names
        any more.

        If it raises, the new checkpoint is in place whole, or ``withdraw`` leaves nothing of it
        (``formats.files``).
        """

    @abstractmethod
    def withdraw(self) -> None:
        """Remove what was written, as far as the disk allows, unless the commit has put it in place.

        Called after an error or an interrupt, at any time; it does not raise ``StorageError``.
        """

    def holding(self) -> AbstractContextManager[None]:
        """Keep files of other checkpoints that this one needs until the commit; by default none."""
        return nullcontext()

    @property
    def forces_files(self) -> bool:
        """True if the commit forces the data files to the disk, so that closing them need not."""
        return False

    def is_in_place(self) -> bool:
        """Return True if another process may have put the files in place, so that they must stay.

        It can if data files have their final names from the beginning, and the storage has no lock.
        By default they have temporary names, which only they put in place.
        """
        return False


@entity
class WrittenFiles:
    """Data files that are finished, under the names that they have until a commit."""

    names: Sequence[str]
    """[files] the name of each."""
    nbytes: Ints
    """[files] the size of each."""
    start: Ints
    """[m] the first byte of each assigned slice's payload, in bytes of its file."""
    digests: npt.NDArray[np.uint8] | None = None
    """[m] the digests of the payloads, as in ``EntryTable``."""


@entity
class NewCheckpoint:
    """A checkpoint that is to be written: the arguments of ``create``, or of ``adopt``."""

    storage: Storage
    """The directory for the files."""
    name: str
    """A name that ``locate`` returns, or a new one."""
    assignment: Assignment
    """The slices, and the file of each."""
    metadata: Metadata
    """The metadata, with the objects."""
    generation: str
    """A token of letters and digits that no other writer uses at the same time."""
    files: WrittenFiles | None = None
    """The data files, if they are written already."""

    @property
    def run(self) -> str:
        """The generation that the index keeps: only of files that several processes have written."""
        return "" if self.files is None else self.generation


READ_ONLY = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset())
"""The capabilities of a format that is only read: it can hold nothing."""


class Format(ABC):
    """A file layout: the way in which an index and payloads lie in files.

    Formats of other packages inherit from it; one only read defines ``name``, ``locate``, ``open``.
    """

    __slots__ = ()

    name: str
    """The name for ``format=``."""
    reads: "Format | None" = None
    """The format as which one of its name is read to become one; None if as always."""

    @property
    def capabilities(self) -> Capabilities:
        """The dtypes, slices and files that it can hold; no dtype if it is only read, the default."""
        return READ_ONLY

    @abstractmethod
    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the checkpoints in the directory that ``name`` may mean, each as the name that
        ``open`` takes.

        ``name`` is what a person typed: a prefix, an index file, one of the data files, or nothing
        for all checkpoints of the directory. Names decide, and a file's first or last bytes if its
        name is not enough. Files of other kinds are never an error. ``formats.table.formats_of``
        finds, by names only, which formats need to be asked.
        """

    @abstractmethod
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
        Existing files may be read and are not changed. ``UnsupportedError`` if the format cannot hold
        the slices, or is only read, the default.
        """
        return self.lay_out(NewCheckpoint(storage, name, assignment, metadata, generation))

    def lay_out(self, new: NewCheckpoint) -> Sink:
        """Return the sink of a new checkpoint, for ``create`` and ``adopt``."""
        cause = f"The format {self.name} is read and not written."
        raise UnsupportedError(cause, "Choose another format, such as safetensors.")

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the checkpoint ``name`` (a name for ``create``): its index first, then its other
        files.

        Files that writers of this name left behind are also removed, even if it has no checkpoint.
        Files that other checkpoints need stay, and only names that a writer of this format uses are
        removed. ``UnsupportedError`` if the format is only read.
        """
        raise UnsupportedError(
            f"The format {self.name} is read and not written.", "Remove the file."
        )

    def owned(self, folder: Storage) -> set[str]:
        """Return the paths of the files in a folder that belong to the checkpoint that it is, or to its
        writers; by default none: a checkpoint has no folders."""
        return set()


class SharedFormat(Format):
    """A format in which many processes write one checkpoint, each a file as ``create`` has it.

    Its index keeps ``Metadata.generation``, by which a process knows the checkpoint that it took
    part in.
    """

    __slots__ = ()

    def process_file(self, name: str, token: str, process: int, count: int) -> str:
        """Return a final name for the data file of one process that no other token gives.

        Empty, the default, if final names follow from the number of files: then ``adopt`` renames.
        """
        return ""

    def adopts_objects(self) -> bool:
        """Return True if ``adopt`` takes objects of ``metadata``, which no file of a process has."""
        return False

    def generation_of(self, storage: Storage, name: str) -> str:
        """Return the generation that the index in place keeps; empty if it keeps none.

        Reads no more than the index. Raises what ``open`` raises.
        """
        with closing(self.open(storage, name)) as source:
            return source.index.metadata.generation

    def adopt(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        files: WrittenFiles,
    ) -> Sink:
        """Return the sink that commits written files, each with the slices assigned to it.

        ``metadata.generation`` is the token of this write. ``MissingFile`` or
        ``IncompleteCheckpoint`` if a file is missing or has another size; then nothing was changed.
        ``commit`` renames the files, unless they have names of ``process_file``.
        """
        return self.lay_out(
            NewCheckpoint(storage, name, assignment, metadata, metadata.generation, files)
        )


# Sources that read through another source, and change some of its answers.
#
# A wrapper inherits from ``WrappedSource``, which forwards every member of ``Source``, and overrides
# only its own. So a wrapper around a checkpoint in a bucket has the bucket's ``traits`` without a
# line about them.


class WrappedSource(Source):
    """A source that answers like another one, except for members that a subclass overrides."""

    __slots__ = ()

    @property
    @abstractmethod
    def inner(self) -> Source:
        """The other source."""

    if TYPE_CHECKING:  # The loop below defines them.
        index: Any
        read_into: Any
        read_span: Any
        map: Any
        close: Any


def _forwarding(name: str, member: Any) -> Any:
    """Return a property or a method that hands on to the inner source."""
    if isinstance(member, property):
        return property(lambda self: getattr(self.inner, name), doc=member.__doc__)

    @wraps(member)
    def method(self: WrappedSource, *values: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*values, **named)

    vars(method).pop("__isabstractmethod__", None)
    return method


for _name, _member in vars(Source).items():
    if not _name.startswith("_"):
        setattr(WrappedSource, _name, _forwarding(_name, _member))
update_abstractmethods(WrappedSource)  # type: ignore[type-abstract]

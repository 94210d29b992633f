"""The files of a checkpoint: held open for reading, put in place by a commit.

Reading. ``DataFiles`` is the one cache of open files. A reader must never mix the files of two
checkpoints, so a file that is opened again must be the file that it was. It is also the one judge
of sizes: a file of another size than was written has a fault (``fault_of_size``), and so has each
key that needs bytes behind its end (``lost``). All others can be read.

Committing. The steps are the same for every format. The index, or the only file, is renamed last:
in that step the new checkpoint replaces the old one. An error or an interrupt before that step
leaves nothing of the new checkpoint. An error in it or after it removes nothing that may be in
place. A process that is killed leaves the files of that moment, and the next commit removes them.

To add a step, ask what a power cut before and after it leaves; ``storage.protocol`` states the
promises of a rename and of closing a file, and ``spec_tests`` cuts the power at each step.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from threading import RLock
from typing import Generic, TypeVar

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    ArgumentError,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    LockHeld,
    MissingFile,
    ReadError,
    ServerError,
    StorageError,
    replaced_error,
)
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.formats.unfinished import ASIDE
from shardvar.layout.dtypes import Ints
from shardvar.pictures.words import named
from shardvar.planning.index import EntryTable
from shardvar.records import field, frozen, mutable
from shardvar.storage.concurrency import do_all
from shardvar.storage.posix import check_stays_inside
from shardvar.storage.protocol import FileOpener, ReadableFile, Storage, Traits
from shardvar.wire.damage import SNIFF_NBYTES, incomplete

# The state of a checkpoint after a write that raised an error.
#
# The commit knows the state. The disk that is full does not know what was there before. ``add_state``
# adds the state to the remedy of an error, the first time that it is called: where a commit fails, or
# where a write ends that has not come to its commit.


class State(Enum):
    """Sentences about what there is after an error; empty where nothing is known."""

    OLD = "What was there before is as it was."
    NEW = "The new checkpoint is in place, but may not survive a power cut."
    NEITHER = "The old checkpoint is removed, and the new one is not in place."
    ASIDE = (
        "What was there before is next to its place, under a name that ends in .was.tmp: rename it "
        "back, or write again, which does so first."
    )
    REMOVED = "The checkpoint is removed, and files of it are left: remove it again."
    UNKNOWN = ""


def add_state(error: BaseException, state: State) -> None:
    """Add to an error of the storage the state of the checkpoint, unless it has one."""
    if not isinstance(error, StorageError) or isinstance(error, LockHeld):
        return
    if error.state is None:
        error.state = state.value
        error.remedy = f"{error.remedy} {state.value}".strip()
        error.args = error.cause, error.remedy


Found = TypeVar("Found")

OPEN_FILES = 64
"""Files that are held open at a time; a process may have 256 on some systems."""

_KEPT_COPIES = 2
"""Ranges of files outside of a disk that are kept in memory, each as large as a tensor."""

_SAVE_AGAIN = "Save again, under a new run."

ATTEMPTS = 16
"""Attempts to open a checkpoint before giving up; each fails if a writer replaces it before."""


def look_into(
    storage: Storage, name: str, look: Callable[[ReadableFile], Found], otherwise: Found
) -> Found:
    """Return the result of ``look``, or ``otherwise``; raise if a server does not answer."""
    try:
        with closing(storage.open(name)) as file:
            return look(file)
    except ServerError:
        raise
    except (CheckpointError, StorageError):
        return otherwise


def read_beginning(storage: Storage, name: str, nbytes: int) -> bytes:
    """Return the first bytes of a file, at most ``nbytes``; none if it cannot be read."""
    return look_into(storage, name, lambda file: first_bytes(file, nbytes), b"")


def first_bytes(file: ReadableFile, nbytes: int = SNIFF_NBYTES) -> bytes:
    return file.read(0, min(nbytes, file.size))


def read_first_bytes(storage: Storage, name: str, nbytes: int = SNIFF_NBYTES) -> bytes:
    # As ``read_beginning``, except that it raises.
    with closing(storage.open(name)) as file:
        return first_bytes(file, nbytes)


BLOCK_NBYTES = 1 << 22


def read_blocks(file: ReadableFile, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a range, as much at a time as memory spares."""
    for at in range(start, stop, BLOCK_NBYTES):
        yield file.read(at, min(BLOCK_NBYTES, stop - at))


def check_same(storage: FileOpener, name: str, stamp: str) -> None:
    """Raise ``CorruptCheckpoint`` if the file of that name is gone, or has another stamp."""
    try:
        file = storage.open(name)
    except MissingFile:
        raise replaced_error(name) from None
    file.close()
    if file.stamp != stamp:
        raise replaced_error(file.name)


def open_below(root: Storage, path: str) -> ReadableFile:
    *steps, last = path.split("/")
    for step in steps:
        root = root.folder(step)
    return root.open(last)


@frozen
class FilesBelow:
    """The files in and below a folder, by their paths."""

    root: Storage

    @property
    def traits(self) -> Traits | None:
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        return open_below(self.root, name)


def strangers(storage: FileOpener, wanted: Sequence[str]) -> list[str]:
    """Return files that could be of a set of its kind, if all ``wanted`` files are missing."""
    # An opener of paths below a folder has no names.
    names: Sequence[str] = getattr(storage, "names", list)()
    kinds = set(map(_kind, wanted)) - {("", "")}
    return [name for name in names if _kind(name) in kinds] * set(wanted).isdisjoint(names)


def _kind(name: str) -> tuple[str, str]:
    """Return the ending without numbers; before numbers, as in ``ck.data-0-of-2``, the name."""
    stem, _, end = name.rpartition("/")[2].rpartition(".")
    return (stem, end.split("-")[0]) if "-" in end else ("", end.rstrip("0123456789_"))


def of_another_set(others: Sequence[str], wanted: Sequence[str], index: str = "") -> MissingFile:
    """Return the error of an index whose files are all missing, given other files of its kind."""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    cause = (
        f"No file that the index names is here, such as {named(wanted[:1])} of {len(wanted)}, but "
        f"{named(others[:1])}{more}: it may be the index of another set."
    )
    remedy = "Fetch the index that was written with these files, or the files that this one names."
    if index:
        remedy += f" Or move {index} away: without it, each file opens by its own path, and their "
        remedy += "folder if their numbers are complete."
    return MissingFile(cause, remedy)


def is_replaced(storage: Storage, name: str, file: ReadableFile) -> bool:
    return storage.stamp(name) not in (None, file.stamp)


def size_fault(
    name: str, size: int, written: int, whose: str = "the index says"
) -> CheckpointError | None:
    """Return the fault of a file that has fewer or more bytes than were written."""
    cause = f"{name} has {size} bytes, but {whose} {written}"
    if size == written:
        return None
    if size < written:
        return incomplete(f"{cause}: it is cut off.").in_file(name)
    return InvalidCheckpoint(f"{cause}.", COPY_AGAIN).in_file(name)


KeptKey = TypeVar("KeptKey")


@mutable
class KeptValues(Generic[KeptKey, Found]):
    """The values that were asked for last, at most ``most``; safe to use from several threads."""

    most: int
    _values: OrderedDict[KeptKey, Found] = field(init=False, default_factory=OrderedDict)
    _lock: RLock = field(init=False, default_factory=new_lock)

    def get(self, key: KeptKey, make: Callable[[], Found]) -> Found:
        with self._lock:
            value = self._values.get(key)
        # The lock is not held while a value is made, so that readers of others go on.
        if value is None:
            value = make()
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


@mutable
class DataFiles:
    """The data files by number, at most ``OPEN_FILES`` open; safe to use from several threads.
    Others are dropped and not closed, since a thread may be reading."""

    storage: FileOpener
    names: Sequence[str]
    nbytes: Ints | None = None
    """[files] the size that a listing gave each file, without which it is not opened."""
    written: Ints | None = None
    """[files] the size that the index says was written; None if it says none."""
    about: Callable[[str], str] = lambda _name: ""
    """Returns a sentence about a file for its faults."""
    named: str = ""
    """The file that is the checkpoint: it may be a link that leads anywhere."""
    index: str = ""
    """The index of a set whose files can also be opened one by one."""
    _open: OrderedDict[int, ReadableFile] = field(init=False, default_factory=OrderedDict)
    _stamps: dict[int, str] = field(init=False, default_factory=dict)
    _copies: KeptValues[tuple[int, int, int], memoryview] = field(
        init=False, default_factory=partial(KeptValues, _KEPT_COPIES)
    )
    _faults: dict[int, CheckpointError | None] = field(init=False, default_factory=dict)
    _noted: dict[int, ReadError | None] = field(init=False, default_factory=dict)
    _watched: list[Callable[[], bool]] = field(init=False, default_factory=list)
    strangers: list[str] | None = field(init=False, default=None)
    """The files of another set, looked for once a file was missing."""
    _is_closed: bool = field(init=False, default=False)
    _holds_none: bool = field(init=False, default=False)
    _lock: RLock = field(init=False, default_factory=new_lock)

    @property
    def traits(self) -> Traits | None:
        return self.storage.traits

    def open(self, number: int) -> ReadableFile:
        """Return a file, open; ``CorruptCheckpoint`` if another has taken its place."""
        with self._lock:
            if self._is_closed:
                raise ArgumentError("The checkpoint was closed.", "Open it again.")
            if self._holds_none:
                return self._open_anew(number)
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._open_anew(number)
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return file

    def hold_none(self) -> None:
        """Close all files, and open each only to read it. None in a bucket is open."""
        if self.storage.traits is None:
            with self._lock:
                self._holds_none = True
                self._open.clear()

    def map(self, number: int) -> memoryview:
        """Return a file as a read-only memory map."""
        return self.open(number).map()

    def view(self, number: int, start: int, stop: int) -> memoryview:
        """Return bytes of a file: of its map on a disk, else a copy, of which the last are kept."""
        if self.storage.traits is None:
            return self.map(number)[start:stop]
        return self._copies.get(
            (number, start, stop),
            lambda: memoryview(self.open(number).read(start, stop - start)),
        )

    def fault(self, number: int) -> CheckpointError | None:
        """Return the damage of a file, or None; a missing permission is raised when it is read."""
        if number not in self._faults:
            self._faults[number] = None
            try:
                self.open(number)
            except CheckpointError as error:
                self._faults[number] = self._explained(number, error)
            except StorageError:
                pass
        return self._faults[number]

    def fault_of_size(self, number: int) -> ReadError | None:
        """Return the fault of a file of another size than was written, whose bytes can be read."""
        if number not in self._noted:
            self._noted[number] = None
            if self.written is not None and self.fault(number) is None:
                with suppress(StorageError):
                    self.judge(number, int(self.written[number]))
        return self._noted[number]

    def judge(self, number: int, written: int, whose: str = "the index says") -> None:
        """Note the fault of a file if it has not the size that was written."""
        fault = size_fault(self.names[number], self.open(number).size, written, whose)
        self.note(number, fault and self._explained(number, fault))

    def note(self, number: int, fault: ReadError | None) -> None:
        """Note a fault of a file that keeps none of its bytes from being read."""
        self._noted[number] = fault and fault.in_file(self.names[number])

    def file_faults(self) -> dict[str, ReadError]:
        """Return the noted faults, and the faults of sizes, by the names of the files."""
        faults = {name: self.fault_of_size(number) for number, name in enumerate(self.names)}
        return {name: fault for name, fault in faults.items() if fault}

    def lost(self, entries: EntryTable) -> dict[str, CheckpointError]:
        """Return the keys with a plain payload that is not all there, each with its fault."""
        lost: dict[str, CheckpointError] = {}
        rows = self.lost_rows(entries.file, entries.start, entries.slices.nbytes)
        for row, fault in sorted(rows.items()):
            key = entries.slices.key(row)
            lost.setdefault(key, fault.at(repr(key)))
        return lost

    def lost_rows(self, file: Ints, start: Ints, nbytes: Ints) -> dict[int, CheckpointError]:
        """Return the faults of ranges that are in missing files, or reach over the end of a file."""
        lost: dict[int, CheckpointError] = {}
        for number in np.flatnonzero(np.bincount(file[nbytes > 0])).tolist() if self.names else ():
            fault, room = self.fault(number), np.zeros_like(start)
            short = None if fault else self.fault_of_size(number)
            if isinstance(short, IncompleteCheckpoint):
                fault, room = short, self.open(number).size - start
            if fault is not None:
                rows = np.flatnonzero((file == number) & (nbytes > np.maximum(room, 0)))
                lost |= dict.fromkeys(rows.tolist(), fault)
        return lost

    def _explained(self, number: int, fault: CheckpointError) -> CheckpointError:
        about = self.about(self.names[number])
        cause = f"{fault.cause} {about}"
        return type(fault)(cause, fault.remedy).in_file(fault.file) if about else fault

    def hold(self) -> bool:
        """Open as many of the files as are held open; return False if one is missing."""
        for number in range(min(len(self.names), OPEN_FILES)):
            if isinstance(self.fault(number), MissingFile):
                return False
        return True

    def check_in_place(self) -> None:
        """Raise ``CorruptCheckpoint`` if a file, of several, was replaced since it was opened."""
        for number, stamp in self._stamps.items() if len(self._stamps) > 1 else ():
            check_same(self.storage, self.names[number], stamp)

    def watch(self, is_replaced: Callable[[], bool]) -> None:
        """From now on ask ``is_replaced`` about the index when a file is opened for the first time."""
        self._watched.append(is_replaced)

    def close(self) -> None:
        """Close all files. Maps that were handed out stay valid."""
        with self._lock:
            self._is_closed = True
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._copies.clear()

    def _open_anew(self, number: int) -> ReadableFile:
        """Open a file, and raise if it is another one than before, or of a wrong size."""
        try:
            file = self.storage.open(self.names[number])
        except CheckpointError as error:
            if isinstance(error, MissingFile) and number in self._stamps:  # it was there
                raise replaced_error(self.names[number]) from error
            if isinstance(error, MissingFile):
                if self.strangers is None:
                    wanted = self.names[len(self.names) == 1 :]  # one file may have no index
                    self.strangers = strangers(self.storage, wanted)
                if self.strangers:  # so that no single file is missing
                    raise of_another_set(self.strangers, self.names, self.index) from None
            error.in_file(self.names[number])
            raise
        if self.traits is None and self.names[number] != self.named:
            check_stays_inside(file.name.removesuffix(self.names[number]), self.names[number])
        is_new = number not in self._stamps and any(asks() for asks in self._watched)
        if is_new or self._stamps.setdefault(number, file.stamp) != file.stamp:
            file.close()
            raise replaced_error(file.name)
        if self.nbytes is not None:
            fault = size_fault(self.names[number], file.size, int(self.nbytes[number]))
            if fault is not None:
                file.close()
                raise fault
        return file


class FileSource(Source):
    __slots__ = ()

    @property
    @abstractmethod
    def data(self) -> DataFiles: ...

    @property
    def traits(self) -> Traits | None:
        return self.data.storage.traits

    def file_faults(self) -> Mapping[str, ReadError]:
        return self.data.file_faults()

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        self.data.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """Return a data file as a read-only memory map."""
        return self.data.map(file)

    def close(self) -> None:
        self.data.close()

    def hold_no_files(self) -> None:
        self.data.hold_none()


def put_in_place(
    storage: Storage,
    renames: Sequence[tuple[str, str]],
    last: tuple[str, str],
    content: bytes | None = None,
    tidy: Callable[[], None] = lambda: None,
    *,
    is_shared: bool = False,
    is_checkpoint: bool = True,
) -> None:
    """Rename data files, then the ``last`` file, whose ``content`` may still have to be written.

    On an error, either the new checkpoint is in place whole or all its files are removed, but for
    files of others (``is_shared``), so that the commit can be made again."""
    (aside, final), moved, is_committing = last, list[str](), False

    def move(pair: tuple[str, str]) -> None:
        moved.append(pair[1])  # before the move, which an interrupt may follow
        storage.move(*pair)

    try:
        # Prepare: closing the index forces its bytes to the disk, so that its final name never
        # leads to a part of them.
        if content is not None:
            write_file(storage, aside, content)
        # Move: no index names these files yet, so their order does not matter. The commit syncs
        # them all at once.
        do_all(move, [(old, new) for old, new in renames if old != new], storage.traits)
        sync_folders(storage, renames)
        # Commit: this rename makes the new checkpoint visible. It syncs the directory before (the
        # names of the data files must be on the disk before an index that names them) and after
        # (the old files are removed next).
        is_committing = True
        storage.rename(aside, final)
        tidy()
    except BaseException as error:
        # In a bucket files are copied to their final names, so that what had a temporary one is
        # there as before.
        olds = [old for old, _ in renames] if storage.local_path is not None else []
        state = _give_up(storage, aside, () if is_shared else (*olds, *moved), is_committing, tidy)
        if is_checkpoint:
            add_state(error, state)
        raise


def sync_folders(storage: Storage, renames: Iterable[tuple[str, str]]) -> None:
    for folder in {path.rpartition("/")[0] for _, path in renames} - {""}:
        storage.sync(folder)


def _give_up(
    storage: Storage,
    aside: str,
    written: Iterable[str],
    is_committing: bool,
    tidy: Callable[[], None],
) -> State:
    """Remove files that were written, or, after the last rename, files that it replaced."""
    # All files stay as long as it is unknown which checkpoint is in place.
    try:
        if is_committing and aside not in storage.names():
            # The uploads of a bucket know what has become of its commit.
            state = State.NEW if storage.local_path is not None else State.UNKNOWN
            tidy()
        else:
            state = State.OLD
            discard_files(storage, (aside, *written))
    except StorageError:
        return State.UNKNOWN if is_committing else State.OLD
    return state


def check_written(storage: Storage, names: Sequence[Sequence[str]], nbytes: Ints) -> list[str]:
    """Return the existing name of each file; raise if it is missing, or its size is another."""
    there = []
    for may, expected in zip(names, nbytes.tolist(), strict=True):
        sizes = {
            name: status.nbytes for name in may if (status := storage.status(name)) is not None
        }
        if not sizes:
            raise MissingFile(f"{may[0]} is missing in {storage.path}.", _SAVE_AGAIN)
        name = next(iter(sizes))
        if sizes[name] != expected:
            cause = f"{name} has {sizes[name]} bytes, but its index says {expected}."
            raise IncompleteCheckpoint(cause, _SAVE_AGAIN)
        there.append(name)
    return there


def write_file(storage: Storage, name: str, content: bytes) -> None:
    """Write a small file whole, and force it to the disk."""
    with closing(storage.create(name)) as file:
        file.write(0, content)


def replace_file(storage: Storage, name: str, content: bytes) -> None:
    """Write a single small file, and put it in place in one step."""
    write_file(storage, name + ASIDE, content)
    storage.rename(name + ASIDE, name)


def discard_files(storage: Storage, names: Iterable[str]) -> None:
    """Remove files as far as the disk allows; the next commit removes the others."""
    # Errors are suppressed: one raised here would hide the error that led here, or report a
    # checkpoint as failed that is in place.

    def discard(name: str) -> None:
        with suppress(StorageError):
            storage.remove(name)

    do_all(discard, names, storage.traits)


def remove_unnamed(storage: Storage, unnamed: Callable[[list[str]], Iterable[str]]) -> None:
    with suppress(StorageError):
        names = list(unnamed(storage.names()))
        if storage.traits is None:
            discard_files(storage, names)
        else:
            storage.discard(names)


# A file that is read mostly forwards, a few bytes at a time.


WINDOW_NBYTES = 1 << 16
"""The bytes of one read: many headers of small members at once, or one header of a large member."""

_FEW_NBYTES = 1 << 12
"""The bytes that are read after a jump: more than most headers have."""


@mutable
class Window:
    """A file, and the bytes of it that were read last."""

    file: ReadableFile
    most: int = WINDOW_NBYTES
    """The bytes that are read at once, unless more are asked for."""
    near: int | None = None
    """The longest jump after which so many are read, and only a few after a longer one. None if all
    jumps count as short."""
    start: int = 0
    data: bytes = b""

    def read(self, start: int, nbytes: int) -> bytes:
        begin = start - self.start
        if begin < 0 or begin + nbytes > len(self.data):
            # Not past the end of the file, unless the caller asks for bytes there: only then is a
            # lack of bytes an error.
            room = max(self.file.size - start, 0)
            jump = start - (self.start + len(self.data))
            is_far = self.near is not None and not 0 <= jump <= self.near
            most = min(self.most, _FEW_NBYTES) if is_far else self.most
            self.data = self.file.read(start, max(min(room, most), nbytes))
            self.start, begin = start, 0
        return self.data[begin : begin + nbytes]


def structure_of(file: ReadableFile, traits: Traits | None) -> Window:
    """Return a window for one pass over a file's structure, which jumps over large payloads."""
    most = WINDOW_NBYTES if traits is None else traits.small_nbytes
    return Window(file, most, most)


def find_files(
    storage: Storage,
    name: str,
    suffixes: tuple[str, ...],
    begins: Callable[[Storage, str], bool] = lambda _storage, _name: False,
) -> list[str]:
    """Return the files that a name may mean: an ending is believed, else ``begins`` decides."""
    names = storage.names()
    if not name:
        return [each for each in names if each.endswith(suffixes)]
    if name in names and (name.endswith(suffixes) or begins(storage, name)):
        return [name]
    return [name + suffix for suffix in suffixes if name + suffix in names]

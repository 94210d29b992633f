"""Sinks whose files have temporary names until the commit.

``SetSink`` is the commit of all formats whose checkpoint is a set of files with an index, or one
file; a format gives only the frame of a file (``FileWriter.frame``), and the index
(``SetSink.index``). ``take_away`` removes a checkpoint in the reverse order of a commit: the file
that makes the others a checkpoint goes first.

``FolderSink`` is the commit of a checkpoint that is a folder: it is built next to its place, and put
there in one step (``storage.exchange``).

    prepare  finished files stand aside in the folder of the checkpoint
    build    a folder next to it gets descriptions, files and index, and is forced to the disk
    commit   the two folders are exchanged
    retire   the old one is removed, but for the files of the user's, which are in both
"""

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardvar.errors import StorageError, UnsupportedError
from shardvar.formats.files import (
    State,
    add_state,
    check_written,
    discard_files,
    put_in_place,
    read_blocks,
    remove_unnamed,
    sync_folders,
    write_file,
)
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint, Sink
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.planning.slices import SliceTable, check_holds
from shardvar.records import entity, field
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import Storage

if TYPE_CHECKING:
    from shardvar.storage.exchange import FolderBeside


# A small file that a commit puts in place with the checkpoint.
class SideFile(NamedTuple):
    path: str  # its place in the folder of the checkpoint
    storage: Storage  # the folder of the copied file
    name: str
    content: bytes | None = None  # other bytes than the copied file's

    def read(self) -> Iterator[bytes]:
        if self.content is not None:
            yield self.content
            return
        with closing(self.storage.open(self.name)) as file:
            yield from read_blocks(file, 0, file.size)

    def write(self, storage: Storage, aside: str) -> None:
        start = 0
        with closing(storage.create(aside)) as file:
            for part in self.read():
                file.write(start, part)
                start += len(part)

    def is_at(self, storage: Storage) -> bool | None:
        # None if nothing is in its place.
        *folders, name = self.path.split("/")
        for folder in folders:
            storage = storage.folder(folder)
        if name not in storage.names():
            return None
        there = SideFile(self.path, storage, name)
        return all(new == old for new, old in zip_longest(self.read(), there.read()))


class CommitSteps(NamedTuple):
    """The last steps of a commit: the names that files get, and the index."""

    renames: Sequence[tuple[str, str]]
    """The finished data files: the name of each until now, and its final one."""
    last: tuple[str, str]
    """The same of the file whose rename is the commit: the index, or the only file."""
    content: bytes | None
    """The content of that file, if it is not written yet."""
    tidy: Callable[[], None]
    """Removes the files that the new checkpoint leaves unnamed."""


@entity(kw_only=True)
class SetSink(Sink):
    """The sink of a set of data files with an index, or of one file; a format defines ``index``."""

    new: NewCheckpoint
    asides: Sequence[str] = field()
    start: Ints = field()
    writer: FileWriter = field()
    index_aside: str = ""
    """The temporary name of the index; empty if the only data file is the checkpoint."""
    objects: tuple[str, bytes] | None = None
    """The temporary name and the content of a file that has only objects."""
    is_shared: bool = False
    """True if the data files were written by others, and stay after an error."""
    side_files: Sequence[tuple[str, SideFile]] = ()

    @abstractmethod
    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """Return what the commit puts in place, in a directory with the names ``there``."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove files that it does not name."""
        storage = self.new.storage
        if self.objects:
            write_file(storage, *self.objects)
        new, old = list[tuple[str, str]](), list[tuple[str, str]]()
        for aside, each in self.side_files:
            is_there = each.is_at(storage)
            if not is_there:
                each.write(storage, aside)
                (new if is_there is None else old).append((aside, each.path))
        # The old index names the old files until it is replaced.
        renames, last, content, tidy = self.index(checksums, storage.names())

        def finish() -> None:
            # The old checkpoint has its own files until the new one is in place.
            there = storage.names()
            for pair in old:
                if pair[0] in there:
                    storage.move(*pair)
            sync_folders(storage, old)
            storage.sync()
            tidy()

        moves, steps = [*renames, *new], finish if old else tidy
        put_in_place(storage, moves, last, content, steps, is_shared=self.is_shared)

    def withdraw(self) -> None:
        own = [self.objects[0] if self.objects else "", self.index_aside]
        own += [aside for aside, _ in self.side_files]
        discard_files(self.new.storage, [*self.asides, *filter(None, own)])

    def by_row(self, checksums: Sequence[FileChecksums]) -> Ints:
        """[m] Return the checksum of each payload; each file has its own in order."""
        order, _ = self.new.assignment.by_file()
        crc = np.zeros(len(order), np.int64)
        crc[order] = np.concatenate([np.zeros(0, np.int64), *(file.payload for file in checksums)])
        return crc

    def sweep(self, unnamed: Callable[[list[str]], Iterable[str]]) -> Callable[[], None]:
        return partial(remove_unnamed, self.new.storage, unnamed)


@entity(kw_only=True)
class OneFileSink(SetSink):
    final: str
    empty: Callable[[], bytes]
    """Returns the bytes of a file without payloads, which the engine does not write."""

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        unnamed = partial(temporary_files, re.escape(self.final))
        content = None if checksums else self.empty()
        return CommitSteps((), (self.asides[0], self.final), content, self.sweep(unnamed))


def one_file(
    new: NewCheckpoint,
    final: str,
    start: Sequence[int],
    writer: FileWriter,
    empty: Callable[[], bytes],
) -> OneFileSink:
    return OneFileSink(
        new=new,
        asides=[f"{final}.{new.generation}.tmp"],
        start=np.array(start, np.int64),
        writer=writer,
        final=final,
        empty=empty,
    )


def check_one_file(new: NewCheckpoint, form: Format) -> None:
    """Raise ``UnsupportedError`` if a format of one file with whole tensors cannot hold these."""
    check_holds(new.assignment.slices, form.capabilities, form.name)
    if new.assignment.num_files > 1:
        cause = f"{'An' if form.name == 'npz' else 'A'} {form.name} checkpoint is one file."
        raise UnsupportedError(cause, "Choose another format for several files.")
    check_uncut(new.assignment.slices, form.name)


def aside_names(new: NewCheckpoint, name_of: Callable[[int], str]) -> list[str]:
    """Return temporary names of the data files, or, checked, those already written."""
    if new.files is not None:
        return check_written(new.storage, [[each] for each in new.files.names], new.files.nbytes)
    return [f"{name_of(number)}.{new.generation}.tmp" for number in range(new.assignment.num_files)]


def take_away(
    storage: Storage,
    indexes: Sequence[tuple[str, str]],
    unnamed: Callable[[list[str]], Iterable[str]],
    *,
    has_mark: bool = False,
) -> None:
    """Remove a checkpoint: its index (or its only file) in one step, then files left unnamed.

    ``indexes`` are names, each with a temporary one. A format whose names of files differ between
    writers, and which ``has_mark`` of the files that it removes, needs no claim."""
    # Commit: a rename is forced to the disk, a removal is not. If the index were removed, it could
    # be back after a power cut, and the files that it names could be gone. A bucket forgets no
    # removal; a mark is there in the place of the renamed index.
    is_disk = storage.local_path is not None
    if not is_disk and not has_mark:
        storage.claim(removes=True)
    there = {*storage.names()}
    with telling_of_removal(storage, [name for name, _ in indexes]):
        for name, aside in indexes:
            if name in there and is_disk:
                storage.rename(name, aside)
            elif name in there:
                if not has_mark and [*unnamed(sorted(there - {name}))]:
                    storage.announce([aside])
                    write_file(storage, aside, b"")
                    storage.finish(aside)
                storage.remove(name)
        # Remove: the renamed indexes are among the unnamed files. After a crash here, the next commit or
        # removal removes the rest. What tells it of this one goes last.
        left, asides = [*unnamed(storage.names())], [aside for _, aside in indexes]
        do_all(storage.remove, [name for name in left if name not in asides], storage.traits)
        do_all(storage.remove, [name for name in left if name in asides], storage.traits)


@contextmanager
def telling_of_removal(storage: Storage, indexes: Sequence[str]) -> Iterator[None]:
    """Let an error of the storage say that the checkpoint is removed, if no index is there."""
    try:
        yield
    except StorageError as error:
        with suppress(StorageError):
            if not {*indexes}.intersection(storage.names()):
                add_state(error, State.REMOVED)
        raise


def remove_one_file(storage: Storage, name: str) -> None:
    removed = name, f"{name}.removed.tmp"
    take_away(storage, [removed], lambda names: temporary_files(re.escape(name), names))


def temporary_files(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the temporary files of names that match a pattern, and their journals."""
    aside = re.compile(rf"(?:{pattern})\.[A-Za-z0-9]+\.tmp{JOURNAL_ENDING}", re.DOTALL)
    return list(filter(aside.fullmatch, names))


def check_uncut(slices: SliceTable, form: str) -> None:
    """Raise ``UnsupportedError`` if a format that holds whole tensors is given a part of one."""
    cut = np.flatnonzero(~slices.is_whole())
    if len(cut):
        region, key = slices.region(int(cut[0])), slices.key(int(cut[0]))
        cause = f"The format {form} cannot hold the slice {region} of {key!r}."
        raise UnsupportedError(cause, "Write the tensor whole.")


@entity(kw_only=True)
class FolderSink(Sink):
    """A folder that is being written; a format defines ``own``."""

    new: NewCheckpoint
    paths: Sequence[str]
    """[files] the place of each file; empty for files that are not needed, as of arrays without
    elements."""
    start: Ints = field()
    writer: FileWriter = field()
    documents: Mapping[str, bytes]
    """The small files, by path."""
    stem: str
    """The beginning of the temporary names."""

    @property
    def asides(self) -> list[str]:
        return folder_asides(self.stem, len(self.paths), self.new.generation)

    @property
    def forces_files(self) -> bool:
        """True on a disk: many small files are forced faster together than one by one."""
        return self.new.storage.local_path is not None

    @abstractmethod
    def own(self, folder: str) -> set[str]:
        """Return the files in a folder that belong to a checkpoint, or to its writers."""

    def conclude(self) -> Mapping[str, bytes]:
        """Return the small files that are made of finished files, by path."""
        return {}

    def ends(self) -> Mapping[str, bytes]:
        """Return the files that are written last, such as the index, by path."""
        return {}

    def moves(self) -> list[tuple[str, str]]:
        """Return the temporary name and the place of each file that is needed."""
        return [(aside, path) for aside, path in zip(self.asides, self.paths, strict=True) if path]

    def exchange(self, beside: "FolderBeside") -> None:
        """Build the new folder next to its place, and exchange the two."""
        try:
            beside.make()
            for path, content in {**self.documents, **self.conclude()}.items():
                beside.write(path, content)
            for aside, path in self.moves():
                beside.take(aside, path)
            for path, content in self.ends().items():
                beside.write(path, content)
            beside.put_in_place(self.own)
        except BaseException as error:
            beside.discard(self.own)
            old = State.OLD if os.path.isdir(beside.place) else State.ASIDE
            add_state(error, State.NEW if beside.is_in_place() else old)
            raise

    def withdraw(self) -> None:
        discard_files(self.new.storage, self.asides)


def folder_asides(stem: str, count: int, generation: str) -> list[str]:
    return [f"{stem}-{number:05}.{generation}.tmp" for number in range(count)]

"""An open npz archive: its directory, and the headers of its arrays when they are asked for.

The directory has the keys; dtypes and shapes are only in the members. So opening an archive and
listing its keys takes three reads. Everything else reads the headers of all members, together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock

from shardvar.errors import prefix_errors
from shardvar.forks import new_lock
from shardvar.formats.deferred import LateIndex
from shardvar.formats.files import DataFiles
from shardvar.formats.npz.contents import MEMBER_SUFFIX, ArchiveContents, read_contents
from shardvar.limits import MAX_DIRECTORY_NBYTES
from shardvar.planning.index import Index
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    foreign_archive,
    foreign_file,
    is_known_archive,
    malformed,
)
from shardvar.wire.zip import (
    TAIL_NBYTES,
    DirectoryPlace,
    Member,
    find_directory,
    parse_directory,
)


@dataclass(slots=True, eq=False)
class NpzArchive:
    """An open archive: its directory, and the headers of its arrays once they were asked for."""

    files: DataFiles
    """The archive."""
    name: str
    """Its name."""
    members: Sequence[Member]
    """Its members, in the order of the directory."""
    stop: int
    """The first byte of the directory: members end before it."""
    _contents: ArchiveContents | None = None
    _index: Index | None = None
    _lock: RLock = field(default_factory=new_lock)

    @property
    def index(self) -> Index:
        """The table of contents. Its keys are known from the directory if all members have the
        names of arrays; dtypes and shapes are only in the members."""
        if self._index is None:
            names = [member.name for member in self.members]
            if all(name.endswith(MEMBER_SUFFIX) for name in names):
                keys = sorted({name.removesuffix(MEMBER_SUFFIX) for name in names})
                self._index = LateIndex(keys, [self.name], lambda: self.contents.index)
            else:
                self._index = self.contents.index
        return self._index

    @property
    def contents(self) -> ArchiveContents:
        """The contents; the first call reads the header of each member."""
        with self._lock:
            if self._contents is None:
                self._contents = self._read()
            return self._contents

    def _read(self) -> ArchiveContents:
        return read_contents(self.files, self.name, self.members, self.stop)


def open_npz(storage: Storage, name: str) -> NpzArchive:
    """Open an archive. Only its directory is read, unless a name leaves open if it is an array."""
    files = DataFiles(storage, [name], named=name)
    file = files.open(0)
    with prefix_errors(file.name):
        place = _find_directory(file)
        members = parse_directory(file.read(place.start, place.nbytes), place.count)
        # The archive of another program is refused by the names of its members; none of them is
        # read.
        names = [member.name for member in members]
        if not any(each.endswith(MEMBER_SUFFIX) for each in names) and is_known_archive(names):
            raise foreign_archive("an npz file", names)
    archive = NpzArchive(files, name, members, place.start)
    if not all(each.endswith(MEMBER_SUFFIX) for each in names):
        _ = archive.contents
    return archive


def _find_directory(file: ReadableFile) -> DirectoryPlace:
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    # PK 3 4 begins a member, PK 5 6 the end record of an archive without members.
    if not first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise foreign_file(
            "an npz file", first, file.size, "it does not begin as a zip archive does"
        )
    tail_nbytes = min(TAIL_NBYTES, file.size)
    place = find_directory(file.read(file.size - tail_nbytes, tail_nbytes), file.size)
    if place.nbytes > MAX_DIRECTORY_NBYTES:
        raise malformed(
            f"The central directory has {place.nbytes} bytes, more than {MAX_DIRECTORY_NBYTES}."
        )
    return place

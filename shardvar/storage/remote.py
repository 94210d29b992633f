"""A prefix of a bucket, or a folder of a remote file system, as a ``Storage``.

    RemoteStorage --key--> Client (``objects``: obstore; ``urls``: fsspec, HTTP) --requests-->
        server

Requests are what costs here, so three rules differ from a disk's.

Listing. A folder is listed once by each ``RemoteStorage``, and the listing tells sizes and
versions, so that a file is opened without a request; a tree's storage does so for the folders in
it. A path that is split again lists again.

Reading ahead. A small read also brings the bytes next to it, which the next small reads take
without a request. What was brought and not yet taken is bounded by ``AHEAD_NBYTES`` for all files
of a folder together, for as long as its ``RemoteStorage`` is used. So any read transfers at most
``AHEAD_NBYTES`` more bytes than a disk would read.

Believing. Servers and what lies between cut answers short without an error. So the length of every
answer is compared, and every read states the version that was opened: a file that was replaced
is an error, never a mixture.

    read --SpanAhead--> ReadAhead --take--> the next read, without a request

What was taken is held all the same: a file that is sniffed, and then read, is brought once.
"""

import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from shardvar.errors import (
    AccessDenied,
    ArgumentError,
    InvalidCheckpoint,
    StorageError,
    UnsupportedError,
)
from shardvar.forks import new_lock
from shardvar.records import field, frozen, mutable
from shardvar.storage import settings
from shardvar.storage.concurrency import do_all, is_blind, is_exact, uninterrupted
from shardvar.storage.posix import check_range
from shardvar.storage.protocol import FileStatus, ReadableFile, Traits, WritableFile
from shardvar.storage.requests import (
    Client,
    FolderListing,
    Head,
    find_head,
    join_key,
    put_once,
    read_whole,
)
from shardvar.storage.uploads import Upload, describe_claim

_MOST_SPANS = 32  # Spans that are held, so that they take at most 8 MiB


@mutable
class SpanAhead:
    key: str
    version: str
    start: int  # the first byte, in the file
    octets: memoryview
    surplus: int  # the number of bytes that were not taken yet


@mutable
class ReadAhead:
    """The bytes that are held ahead for all files of a folder together; used under the lock."""

    nbytes: int = 0  # bytes that were brought and not taken yet, dropped spans included
    spans: list[SpanAhead] = field(default_factory=list)
    """The spans that are held, the newest at the end."""

    def take(self, key: str, version: str, start: int, nbytes: int) -> memoryview | None:
        """Return bytes that are held, and count them as taken."""
        for span in self.spans:
            first = start - span.start
            if (
                (span.key, span.version) == (key, version)
                and first >= 0
                and first + nbytes <= len(span.octets)
            ):
                # Bytes that are taken twice count twice: so a span counts less rather than for ever.
                taken = min(nbytes, span.surplus)
                span.surplus -= taken
                self.nbytes -= taken
                return span.octets[first : first + nbytes]
        return None

    def hold(self, span: SpanAhead) -> None:
        """Hold one more span. A span that is dropped for it stays counted: it was brought in vain."""
        self.spans.append(span)
        if len(self.spans) > _MOST_SPANS:
            # A span that was taken goes before one that may still be asked for.
            spent = (number for number, held in enumerate(self.spans) if not held.surplus)
            del self.spans[next(spent, 0)]


AHEAD_NBYTES = 3 << 19
"""The most bytes that are held because they lay next to requested bytes: 1.5 MiB."""

_SPAN_NBYTES = 256 << 10
"""Reads of at least this size are made as they are; smaller ones are extended to it. About the
bytes that a connection brings in the time of one request: 100 MB/s times 2.5 ms."""

_TAIL_NBYTES = 64 << 10
"""A small read this near to a file's end is extended backwards, as for indexes."""

_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # Each request takes a connection

_MOST_SHORT = 1024 if _OPEN_FILES < 0 else max(64, _OPEN_FILES // 2)

TRAITS = Traits(
    small_nbytes=1 << 20,
    gap_nbytes=512 << 10,
    waste_nbytes=512 << 10,
    requests=64,
    short_requests=min(512, _MOST_SHORT),
)
"""A request takes 10 to 50 ms, in which a connection brings 1 to 5 MB. More than 64 large ones at a
time, and a machine of few cores works at the requests instead of waiting for them."""


@mutable
class RemoteReadableFile:
    """A file on a server, open for reading by several threads."""

    name: str  # the URL, for messages
    size: int  # the number of bytes
    stamp: str  # the version
    _client: Client
    _key: str
    _head: Head
    _ahead: ReadAhead
    _is_closed: bool = False

    def read_into(self, start: int, buffer: memoryview) -> None:
        octets = buffer.cast("B") if buffer.nbytes else buffer
        if len(octets):
            octets[:] = self._bytes(start, len(octets))

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes ``[start, start + nbytes)``; no request if the file is too short."""
        return bytes(self._bytes(start, nbytes))

    def map(self) -> memoryview:
        """Raise ``UnsupportedError``: only a local disk has memory maps."""
        cause = f"{self.name} cannot be mapped into memory, because it is not on a local disk."
        raise UnsupportedError(
            cause, "Read it without mmap, or copy the checkpoint to a local disk."
        )

    def close(self) -> None:
        self._is_closed = True

    def _bytes(self, start: int, nbytes: int) -> memoryview:
        if self._is_closed:
            raise ArgumentError(f"{self.name} was closed.", "Open the checkpoint again.")
        check_range(self, start, nbytes)
        if not nbytes:
            return memoryview(b"")
        # The bytes that are held when a read begins depend on the others under way: none is counted on.
        if nbytes >= _SPAN_NBYTES or is_blind():
            return self._fetch(start, nbytes)
        with _lock:
            held = self._ahead.take(self._key, self._head.version, start, nbytes)
            if held is not None:
                return held
            begin, end = start, start + nbytes
            if not is_exact():
                begin, end = self._extended(start, start + nbytes)
            surplus = end - begin - nbytes
            # Before the request: other threads ask for their share.
            self._ahead.nbytes += surplus
        octets = self._fetch(begin, end - begin)
        if surplus or len(octets) == self.size:
            with _lock:
                self._ahead.hold(SpanAhead(self._key, self._head.version, begin, octets, surplus))
        return octets[start - begin : start - begin + nbytes]

    def _extended(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range extended by bytes next to it, as far as there is room for them."""
        room = min(_SPAN_NBYTES - (stop - start), max(AHEAD_NBYTES - self._ahead.nbytes, 0))
        if self.size <= _SPAN_NBYTES and room >= self.size - (stop - start):
            return 0, self.size
        if start >= self.size - _TAIL_NBYTES:
            return max(min(start, stop - min(room, _TAIL_NBYTES)), 0), stop
        return start, min(stop + room, self.size)

    def _fetch(self, start: int, nbytes: int) -> memoryview:
        return read_whole(self._client, self._key, self._head, start, nbytes)


_lock = new_lock()  # Guards the bytes held ahead: short work, so that one lock serves all files


@frozen
class RemoteStorage:
    """One folder of a server: files whose keys begin with its key."""

    client: Client
    key: str  # the folder's key; empty for the root
    _only: str = field(default="", compare=False, repr=False)
    """The file that is known of a folder that cannot be listed; others are found only by their names."""
    _listings: dict[str, FolderListing] = field(default_factory=dict, compare=False, repr=False)
    _walked: dict[str, Head] = field(default_factory=dict, compare=False, repr=False)
    """The files below the folder of ``tree``, by key; shared by the folders in it."""
    _ahead: ReadAhead = field(default_factory=ReadAhead, compare=False, repr=False)
    _uploads: list[Upload] = field(default_factory=list, compare=False, repr=False)
    """The writes under way, each within its predecessor: a manager's, its checkpoint's."""

    def __reduce__(self) -> tuple[type[Self], tuple[Client, str, str]]:
        # Another process lists again, and has no part in a write.
        return type(self), (self.client, self.key, self._only)

    @property
    def path(self) -> str:
        return self.client.place(self.key)

    @property
    def local_path(self) -> None:
        return None

    @property
    def traits(self) -> Traits:
        options = settings.current()
        return TRAITS._replace(
            requests=options.requests,
            short_requests=min(options.short_requests, _MOST_SHORT),
            in_flight_nbytes=options.in_flight_nbytes,
            rehearsal=getattr(self.client, "rehearsal", None),
        )

    def open(self, name: str) -> ReadableFile:
        key = self._join(name)
        upload = self._uploads[-1] if self._uploads else None
        if upload:
            staged = upload.open(name)
            if staged is not None:
                return staged
            head = upload.there.get(name)
        else:
            listed = self._listing().files if self._listings else {}
            head = listed.get(name) or self._walked.get(key)
        # What was written in this write has no version until its upload has ended.
        if head is None or not head.version:
            head = upload.ask(name) if upload else self.client.head(key)
        return RemoteReadableFile(
            self.client.place(key), head.nbytes, head.stamp, self.client, key, head, self._ahead
        )

    def names(self) -> list[str]:
        return self._uploads[-1].names() if self._uploads else sorted(self._listing().files)

    def stamp(self, name: str) -> str | None:
        head = find_head(self.client, self._join(name))
        if head is None:
            return None
        with _lock:
            self._listings.clear()  # what was listed may be of the checkpoint before
            self._walked.clear()
        return head.stamp

    def refreshed(self) -> "RemoteStorage":
        """Return the same folder, to be listed again, outside of any write."""
        return RemoteStorage(self.client, self.key, self._only)

    def folders(self) -> list[str]:
        return list(self._listing().folders)

    def folder(self, name: str) -> "RemoteStorage":
        if not self._walked:
            return RemoteStorage(self.client, self._join(name))
        # The files of one checkpoint: the bytes held ahead are bounded for all of them together.
        return RemoteStorage(
            self.client, self._join(name), _walked=self._walked, _ahead=self._ahead
        )

    def tree(self) -> dict[str, FileStatus]:
        heads = dict(sorted(self.client.walk(self.key).items()))
        with _lock:
            self._walked.clear()
            self._walked.update({join_key(self.key, path): head for path, head in heads.items()})
        return {path: head.status for path, head in heads.items()}

    def status(self, name: str) -> FileStatus | None:
        head = self._uploads[-1].head(name) if self._uploads else self._listing().files.get(name)
        return None if head is None else head.status

    def create(self, name: str) -> WritableFile:
        """Open a new file, which is on this machine until it is uploaded; only within ``lock``."""
        return self._writing(name).create(name)

    def create_once(self, name: str, content: bytes) -> bool:
        self.check_writable(name)
        client: Any = self.client
        head = uninterrupted(lambda: put_once(client, self._join(name), content))
        if head and self._uploads:
            self._uploads[-1].there[name] = head
        return head is not None

    def rename(self, old: str, new: str) -> None:
        """Upload the last file of a checkpoint in one step: the commit (``storage.uploads``)."""
        upload = self._writing(new)
        self.sync()
        uninterrupted(lambda: upload.rename(old, new))

    def move(self, old: str, new: str) -> None:
        upload = self._writing(new)
        uninterrupted(lambda: upload.move(old, new))

    def sync(self, folder: str = "") -> None:  # noqa: ARG002
        """Upload the announced files, which are all finished; what a server has taken is stored."""
        if self._uploads:
            upload = self._uploads[-1]
            names = upload.unsent()
            try:
                do_all(upload.send, names, self.traits)
            finally:
                # After an error: the next steps remove files, and must not upload these.
                for name in names:
                    upload.drop(name)

    def announce(self, names: Iterable[str]) -> None:
        """Upload these files as soon as they are finished; their names are final."""
        if self._uploads:
            self._uploads[-1].announced.update(names)

    def finish(self, name: str) -> None:
        upload = self._writing(name)
        uninterrupted(lambda: upload.send(name))

    def lend(self, names: Iterable[str], nbytes: int = 0) -> None:
        """Leave files to other processes, claiming temporary names; ``LockHeld``."""
        if self._uploads:
            upload = self._uploads[-1]
            uninterrupted(lambda: upload.lend(names, nbytes))

    def claim(self, *, removes: bool = False) -> None:
        upload = self._writing(self.key)
        upload.claim.removes |= removes
        uninterrupted(upload.hold)

    @contextmanager
    def borrowed(self, name: str) -> Iterator["RemoteStorage"]:
        """Give a storage with a write for only this file, which is uploaded at the end."""
        upload = Upload(self.client, self.key, name, {}, announced={name}, is_borrowed=True)  # type: ignore[arg-type]
        try:
            yield RemoteStorage(self.client, self.key, _uploads=[upload])
            do_all(upload.send, upload.unsent(), self.traits)
        finally:
            upload.end()

    def remove(self, name: str) -> None:
        upload = self._writing(name)
        uninterrupted(lambda: upload.remove(name))

    def discard(self, names: Iterable[str]) -> None:
        upload, names, client = self._writing(self.key), sorted(names), self.client
        keys = [self._join(name) for name in names]
        if upload.is_committed and keys:
            with suppress(StorageError):
                uninterrupted(lambda: client.delete_all(keys))  # type: ignore[attr-defined]
                for name in names:
                    upload.there.pop(name, None)
                    upload.lent.discard(name)
                    upload.drop(name)
                return
        for name in names:
            with suppress(StorageError):
                self.remove(name)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Begin a write, which replaces the files that are listed now; nothing is locked."""
        self.check_writable(name)
        with _lock:
            self._listings.clear()
            self._walked.clear()
        # Not as ``_only`` lists: a file that is not seen may be needed.
        before = dict((self.client.listing(self.key) if self._only else self._listing()).files)
        if self._uploads:
            before.pop(name, None)
            if head := self._uploads[-1].there.get(name):
                before[name] = head
        upload = Upload(self.client, self.key, name, dict(before))  # type: ignore[arg-type]
        self._uploads.append(upload)
        try:
            yield
        finally:
            self._uploads.remove(upload)
            with _lock:
                self._listings.clear()
            uninterrupted(upload.end)
            if self._uploads:
                self._uploads[-1].learn(before, upload.there)

    def break_claim(self, name: str) -> str:
        """Remove a claim of another writer, and return whose it was; empty if there is none."""
        whose = describe_claim(self.client, self._join(name))
        if whose:
            uninterrupted(lambda: self.client.delete(self._join(name)))  # type: ignore[attr-defined]
        return whose

    def make(self) -> None:
        """Do nothing: a prefix exists when something is in it."""

    def check_writable(self, name: str) -> None:
        if not self.client.can_write:
            cause = f"{self.client.place(self._join(name))} can be read, and not written."
            raise UnsupportedError(
                cause, "Write to a bucket (s3, gs, az), or to a local disk and copy it there."
            )

    def check_names(self, names: Iterable[str]) -> None:
        for name in names:
            self._join(name)

    def free_nbytes(self) -> int:
        """Return the free bytes of the disk on which files are finished before they go up."""
        return shutil.disk_usage(tempfile.gettempdir()).free

    def _writing(self, name: str) -> Upload:
        self.check_writable(name)
        if not self._uploads:
            cause = f"{self.client.place(self._join(name))} is written outside of a write."
            raise UnsupportedError(cause, "Write it with sv.save or sv.reshard.")
        return self._uploads[-1]

    def _listing(self) -> FolderListing:
        with _lock:
            listing = self._listings.get("")
        if listing is None:
            try:
                listing = self.client.listing(self.key)
            except (AccessDenied, UnsupportedError):
                if not self._only:
                    raise
                files = dict[str, Head]()
                if head := find_head(self.client, self._join(self._only)):
                    files[self._only] = head
                listing = FolderListing(files, [])
            with _lock:
                self._listings[""] = listing
        return listing

    def _join(self, name: str) -> str:
        """Return the key of a file; ``InvalidCheckpoint`` if the name is not bare."""
        if name in ("", ".", "..") or "/" in name or any(ord(character) < 32 for character in name):
            cause = f"Invalid file name {name!r} in {self.path}: it is not the name of one file."
            raise InvalidCheckpoint(cause, "Use a name that stays in its folder.")
        return join_key(self.key, name)

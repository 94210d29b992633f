"""The requests to a server that holds files: what clients offer, and what they answer.

``objects`` and ``filesystems`` have the clients, ``remote`` and ``uploads`` use them. A key is a
path from the server's root, with "/" between its steps and none at its ends. Clients raise only
shardvar's errors.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shardvar.errors import ServerError
from shardvar.storage.protocol import FileStatus

PART_NBYTES = 8 << 20
"""A part of an upload. No service takes parts below 5 MiB."""
ONE_PUT_NBYTES = 16 << 20
"""A file of at most this size is uploaded in one request. A process that is killed leaves the parts
of an upload, and nothing of a request."""
PARTS_AHEAD = 3
"""Parts of an upload that are held in memory at a time."""
UPLOAD_NBYTES = PARTS_AHEAD * PART_NBYTES
"""The most that an upload holds in memory; files of 9000 such parts have 75 GB."""
MOST_COPIED_NBYTES = 5 << 30
"""S3 copies no larger file in one request; such a one comes here in parts, and goes up again."""


@dataclass(frozen=True, slots=True)
class Head:
    """The facts of one stored file."""

    nbytes: int
    """Its size."""
    version: str
    """A text that differs for other content: an entity tag, a generation, or size and time; empty
    if not known."""
    changed: float | None
    """The time of its last change, in seconds since the Epoch."""
    condition: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """The version for a conditional request; None if unknown, as from a listing."""

    @property
    def stamp(self) -> str:
        """The text that differs for other content."""
        return f"{self.nbytes}-{self.version}"

    @property
    def status(self) -> FileStatus:
        """The facts that the folder tells."""
        return FileStatus(self.nbytes, self.changed, self.stamp)


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The content of one folder."""

    files: Mapping[str, Head]
    """The files, by bare name."""
    folders: Sequence[str]
    """The bare names of the folders, sorted."""


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without the server's page and what may be secret
    in its URLs.

    These are the name of a user, a password, parameters and queries.

    >>> first_line(ValueError("GET http://user:pw@host/a;sig=1?x failed.\\nrequest id 7"))
    'GET http://host/a failed'
    """
    line = (str(error).splitlines() or [""])[0].partition(": <")[0] or type(error).__name__
    line = re.sub(r"(?<=://)[^/\s]*@", "", line)
    return re.sub(r"[?;][\w%]\S*", "", line).strip().rstrip(".:")


def read_whole(client: "Client", key: str, head: Head, start: int, nbytes: int) -> memoryview:
    """Return a range of a file; ``ServerError`` if the server sends another number of bytes twice."""
    for _ in range(2):  # what was cut on its way once comes whole then
        octets = client.read(key, head, start, nbytes)
        if len(octets) == nbytes:
            return octets
    cause = (
        f"{client.place(key)}: the server sent {len(octets)} of {nbytes} bytes at offset {start}."
    )
    raise ServerError(cause, "Try again. If it persists, a proxy may be truncating responses.")


class Client(Protocol):
    """The requests to one server. A key is a path from its root, without "/" at its ends."""

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range; ``CorruptCheckpoint`` if the file has
        another version."""

    def listing(self, key: str) -> FolderListing:
        """Return the content of a folder; empty if it does not exist."""

    def walk(self, key: str) -> dict[str, Head]:
        """Return the facts of all files below a folder, by their paths from it."""

    @property
    def can_write(self) -> bool:
        """Return True if it is a ``storage.uploads.BucketClient``."""


class BucketClient(Client, Protocol):
    """The requests that write."""

    def put(self, key: str, path: str) -> Head:
        """Upload a local file, in parts if large, and return its facts; whole or not at all."""

    def copy(self, old: str, new: str, *, is_new: bool = False) -> None:
        """Copy a file, without its bytes coming here if the service can; ``MissingFile``.

        It replaces a file that has the name. With ``is_new``, such a file stays where it would get
        a new version.
        """

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        """Write a file in one step if the one there is ``old``, which ``head`` has answered, or
        none is.

        ``LockHeld`` otherwise.
        """

    def delete(self, key: str) -> None:
        """Delete a file; does nothing if it does not exist."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete files, as many in one request as the service takes."""

"""A rehearsal: the requests of a write, counted by kind, while nothing is written.

A dry run makes the steps of the write itself, with other clients:

    look        requests that only look are made, as the write would make them
    rehearse    the payloads are planned, read and committed, all by the write's own functions; but
                a read of a payload gives zeros, and a request that changes something only changes
                what later ones find (``Rehearsal.written``)

So the numbers and the write have one plan. ``CountedClient`` has the requests of each call of a
client; tests compare them with the requests that a server and a fake get.

    list      pages of listings         put     files, and beginnings and ends of uploads in parts
    head      looks at one file         part    parts of files
    get       ranges                    copy    copies within the bucket
    delete    removals of some files    decode  reads that were given up, as they need the bytes: each
                                                may take more of ``get``
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

from shardvar.errors import COPY_AGAIN, MissingFile
from shardvar.records import field, frozen, mutable
from shardvar.storage.concurrency import is_blind
from shardvar.storage.objects import nbytes_of_part
from shardvar.storage.requests import FolderListing, Head
from shardvar.storage.settings import ONE_PUT_NBYTES

_zeros = lru_cache(4)(lambda nbytes: memoryview(bytes(nbytes)))
_PAGE = 1000  # the files of an answer to a listing, and of a removal in S3


@mutable
class Rehearsal:
    asked: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """The kinds of requests that were made, and of requests that were only counted."""
    is_on: bool = False
    """True while requests that change something are only counted."""
    written: dict[str, tuple[Head, bytes] | None] = field(default_factory=dict)
    """The files that were written, by place, with the content of small ones; None for removed ones."""


_current: ContextVar[Rehearsal | None] = ContextVar("rehearsal", default=None)
current_rehearsal = _current.get


@contextmanager
def rehearsing() -> Iterator[Rehearsal]:
    """Count the requests to paths that are looked up within; an outer rehearsal goes on."""
    rehearsal = _current.get() or Rehearsal()
    token = _current.set(rehearsal)
    try:
        yield rehearsal
    finally:
        _current.reset(token)


def counted(client: Any) -> Any:
    """Return a client, or in a rehearsal one that counts its requests."""
    return CountedClient(client, rehearsal) if (rehearsal := _current.get()) else client


@frozen
class CountedClient:
    client: Any
    rehearsal: Rehearsal = field(compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def _ask(self, kind: str, count: int = 1) -> None:
        self.rehearsal.asked[self.rehearsal.is_on].extend([kind] * count)

    def head(self, key: str) -> Any:
        self._ask("head")
        place = self.place(key)
        if (known := self.rehearsal.written.get(place, ())) is None:
            raise MissingFile(f"{place} is missing.", COPY_AGAIN)
        return known[0] if known else self.client.head(key)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> Any:
        self._ask("get")
        known = self.rehearsal.written.get(self.place(key))
        if known:
            return memoryview(known[1][start : start + nbytes].ljust(nbytes, b"\0"))
        return _zeros(nbytes) if is_blind() else self.client.read(key, head, start, nbytes)

    def listing(self, key: str) -> FolderListing:
        found = self.client.listing(key)
        files = self._changed(key, found.files, len(found.folders))
        deep = {path.partition("/")[0] for path in files if "/" in path}
        here = {name: head for name, head in files.items() if "/" not in name}
        return FolderListing(here, sorted({*found.folders, *deep}))

    def walk(self, key: str) -> dict[str, Head]:
        return self._changed(key, self.client.walk(key))

    # A callback may save something in a dry run: a step that is not rehearsed is done.

    def put(self, key: str, path: str) -> Any:
        nbytes = os.path.getsize(path)
        has_parts = nbytes > ONE_PUT_NBYTES
        self._ask("put", 1 + has_parts)  # a beginning and an end
        self._ask("part", has_parts * -(-nbytes // nbytes_of_part(nbytes)))
        return self._write(partial(self.client.put, key, path), key, nbytes)

    def put_if(self, key: str, content: bytes, old: Head | None) -> Any:
        self._ask("put")
        return self._write(
            partial(self.client.put_if, key, content, old), key, len(content), content
        )

    def copy(self, old: str, new: str, **options: bool) -> None:
        self._ask("copy")
        self._write(partial(self.client.copy, old, new, **options), new, self.head(old).nbytes)

    def delete(self, key: str) -> None:
        self.delete_all([key])

    def delete_all(self, keys: Sequence[str]) -> None:
        self._ask("delete", -(-len(keys) // (_PAGE if self.place("").startswith("s3:") else 1)))
        if self.rehearsal.is_on:
            self.rehearsal.written |= dict.fromkeys(map(self.place, keys))
        else:
            self.client.delete_all(keys)

    def _write(self, act: Callable[[], Any], key: str, nbytes: int, content: bytes = b"") -> Any:
        if not self.rehearsal.is_on:
            return act()
        head = Head(nbytes, f"rehearsed {os.urandom(8).hex()}", None)
        self.rehearsal.written[self.place(key)] = head, content
        return head

    def _changed(self, key: str, files: Mapping[str, Head], others: int = 0) -> dict[str, Head]:
        """Return the files below a key after the changes, by path, and count a listing of them."""
        above = self.place(key) + "/"
        found = {above + path: (head, b"") for path, head in files.items()} | self.rehearsal.written
        there = {
            place.removeprefix(above): known[0]
            for place, known in found.items()
            if known and place.startswith(above)
        }
        self._ask("list", (len(there) + others) // _PAGE + 1)
        return there

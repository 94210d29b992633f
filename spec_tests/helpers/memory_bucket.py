"""A bucket in memory with the requests of a real one, each of which can fail, before or after it
took effect."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, RLock, local
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

from shardvar.errors import CheckpointError, CorruptCheckpoint, LockHeld, MissingFile, StorageError
from shardvar.storage.requests import FolderListing, Head
from spec_tests.helpers.system_calls import snapshot

PATIENCE_SECONDS = 60
"""Requests that are made together come before that, on any machine."""


class Dead(BaseException):
    """The writer is killed."""


@dataclass(eq=False)
class MemoryBucket:
    """A client of ``storage.uploads`` over a dictionary."""

    files: dict[str, bytes] = field(default_factory=dict)
    """The content by key."""
    log: list[str] = field(default_factory=list)
    """The requests that change something."""
    fail_at: int | None = None
    """The number of the changing request that fails, counted from 0."""
    takes_effect: bool = False
    """True if it takes effect all the same: its answer is lost."""
    lies: bool = False
    """True if it is answered, and has no effect."""
    error: type[BaseException] = StorageError
    """What is raised then; after ``Dead`` every request raises it."""
    times: dict[str, float] = field(default_factory=dict)
    """When each file was written, by the clock of the bucket: the number of the request."""
    is_dead: bool = False
    """True once ``Dead`` was raised."""
    lock: Any = field(default_factory=RLock, repr=False)
    """Held by each request: those of several threads are carried out one after the other."""
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """The key and the size of each range that was read."""
    gate: Callable[[str], object] = lambda _what: None
    """Called with each changing request, before it is carried out."""
    heads: dict[str, tuple[bytes, Head]] = field(default_factory=dict, repr=False)
    """The content of each key that was asked for, and what is known of it: it is hashed once."""

    can_write = True

    def __post_init__(self) -> None:
        _alive[id(self)] = self

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return find_bucket, (id(self),)  # what is unpickled is a client of the same bucket

    def place(self, key: str) -> str:
        return f"s3://bucket/{key}"

    def head(self, key: str) -> Head:
        self.live()
        with self.lock:
            if key not in self.files:
                raise MissingFile(f"{key} is missing.", "Find it.")
            return self.facts(key)

    def facts(self, key: str) -> Head:
        content = self.files[key]
        known = self.heads.get(key)
        if known is None or known[0] is not content:
            known = self.heads[key] = content, head_of(content)
        return replace(known[1], changed=self.times.get(key))

    def write(self, key: str, content: bytes) -> None:
        self.files[key], self.times[key] = content, float(len(self.log))

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        with self.lock:
            self.ranges.append((key, nbytes))
            if self.head(key).version != head.version and head.version:
                raise CorruptCheckpoint(f"{key} was replaced.", "Open it again.")
            return memoryview(self.files[key])[start : start + nbytes]

    def listing(self, key: str) -> FolderListing:
        self.live()
        with self.lock:
            below = [
                path.removeprefix(f"{key}/") for path in self.files if path.startswith(f"{key}/")
            ]
            files = {name: self.facts(f"{key}/{name}") for name in below if "/" not in name}
        return FolderListing(
            files, sorted({name.partition("/")[0] for name in below if "/" in name})
        )

    def walk(self, key: str) -> dict[str, Head]:
        self.live()
        first = len(key) + 1
        with self.lock:
            return {
                path[first:]: self.facts(path) for path in self.files if path.startswith(f"{key}/")
            }

    def put(self, key: str, path: str) -> Head:
        content = Path(path).read_bytes()
        self.change(f"put {key}", lambda: self.write(key, content))
        return head_of(content)

    def copy(self, old: str, new: str, *, is_new: bool = False) -> None:
        def copy() -> None:
            self.head(old)
            if not (is_new and new in self.files):
                self.write(new, self.files[old])

        self.change(f"copy {new}", copy)

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        def put() -> None:
            there = self.files.get(key)
            if (there and head_of(there).version) != (old and old.version):
                raise LockHeld(f"{key} was written by another.", "Look.")
            self.write(key, content)

        self.change(f"put_if {key}", put)
        return head_of(content)

    def delete(self, key: str) -> None:
        self.change(f"delete {key}", lambda: self.files.pop(key, None))

    def delete_all(self, keys: Sequence[str]) -> None:
        def remove() -> None:
            for key in keys:
                self.files.pop(key, None)

        self.change(f"delete {len(keys)} files", remove)

    def live(self) -> None:
        if self.is_dead:
            raise Dead

    def change(self, what: str, do: Callable[[], object]) -> None:
        """Carry a change out, unless it is the one that fails."""
        self.gate(what)
        with self.lock:
            self.live()
            fails = len(self.log) == self.fail_at
            self.log.append(what)
            if not fails or self.takes_effect:
                do()
            if fails and self.lies:
                return
            if fails and self.error is Dead:
                self.is_dead = True
                raise Dead
            if fails:
                raise StorageError("The server does not answer.", "Wait.")


_KINDS = {
    "head": "head", "read": "get", "listing": "list", "walk": "list", "put": "put", "put_if": "put",
    "copy": "copy", "delete": "delete", "delete_all": "delete",
}  # fmt: skip


@dataclass(eq=False)
class CountingBucket(MemoryBucket):
    """A bucket that counts the requests which a bucket of S3 would get, by kind."""

    counts: "Counter[str]" = field(default_factory=Counter)
    """The requests since it was cleared."""
    _inside: Any = field(default_factory=local, repr=False)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name not in _KINDS or getattr(self._inside, "is_set", False):
            return found

        def counted(*arguments: Any, **options: Any) -> Any:
            self._inside.is_set = True  # what a request asks of the dictionary is no request
            try:
                answer = found(*arguments, **options)
            finally:
                self._inside.is_set = False
            with self.lock:
                self.counts.update(requests_of(name, arguments))
            return answer

        return counted


def requests_of(name: str, arguments: Sequence[Any]) -> "Counter[str]":
    """Return the requests to S3 that a call of its client makes."""
    if name == "put" and (nbytes := Path(arguments[1]).stat().st_size) > 16 << 20:
        return Counter(put=2, part=-(-nbytes // (8 << 20)))
    return Counter([_KINDS[name]] + ["head"] * (name == "copy"))  # of the file that is copied


@dataclass(eq=False)
class Raced(MemoryBucket):
    """A bucket in which something happens before one of the requests that change it."""

    at: int = 0
    """The number of the request, counted from 0."""
    race: Callable[[], object] | None = None
    """The thing that happens; None once it has happened."""
    lists: bool = False
    """True if it may happen before a listing too."""
    count: int = 0
    """The requests before which it could have happened."""

    def meet(self) -> None:
        with self.lock:
            race = self.race if self.count == self.at else None
            self.race = None if race else self.race
            self.count += 1
        if race:
            race()

    def change(self, what: str, do: Callable[[], object]) -> None:
        self.meet()
        super().change(what, do)

    def listing(self, key: str) -> FolderListing:
        if self.lists:
            self.meet()
        return super().listing(key)


@dataclass(eq=False)
class Gate:
    """A gate that opens once so many threads stand before it, and stays open."""

    count: int
    """The threads that it waits for."""
    is_meant: Callable[[Any], bool]
    """Selects the requests that must wait."""
    _inside: int = 0
    _lock: Any = field(default_factory=RLock)
    _opened: Event = field(default_factory=Event)

    def __call__(self, request: Any) -> None:
        """Wait, and raise if the others do not come."""
        if self.is_meant(request):
            with self._lock:
                self._inside += 1
            if self._inside >= self.count:
                self._opened.set()
            assert self._opened.wait(PATIENCE_SECONDS), (
                f"{self._inside} of {self.count} requests were under way"
            )


_alive: "WeakValueDictionary[int, MemoryBucket]" = WeakValueDictionary()
"""All buckets, by their ids."""


def find_bucket(number: int) -> MemoryBucket:
    return _alive[number]


def head_of(content: bytes) -> Head:
    return Head(len(content), hashlib.md5(content).hexdigest(), None)


@contextmanager
def in_bucket(bucket: MemoryBucket) -> Iterator[None]:
    """Every URL of a bucket means this one."""
    with mock.patch("shardvar.storage.urls.ObjectClient", lambda root: bucket):
        yield


def in_memory(folder: Path) -> MemoryBucket:
    return MemoryBucket({f"run/{name}": octets for name, octets in snapshot(folder).items()})


def count_requests(bucket: MemoryBucket, verb: Callable[[], Any]) -> int:
    """Return the requests of every kind that a verb makes."""
    made: list[str] = []

    def counted(name: str) -> Any:
        inner = getattr(MemoryBucket, name)

        def call(self: MemoryBucket, *arguments: Any) -> Any:
            made.append(name)
            return inner(self, *arguments)

        return mock.patch.object(MemoryBucket, name, call)

    with counted("read"), counted("listing"), counted("walk"):
        verb()
    return len(made)


def ended_at_each(
    files: Mapping[str, bytes], act: Callable[[], object], **options: Any
) -> Iterator[MemoryBucket]:
    """Yield the buckets in which an act was ended at its first changing request, at its second and
    so on, and the one in which it came to its end."""
    for number in itertools.count():
        bucket = MemoryBucket(dict(files), fail_at=number, **options)
        with in_bucket(bucket), suppress(Dead, StorageError, CheckpointError):
            act()
        yield bucket
        if len(bucket.log) <= number:
            return


def raced_at_each(
    files: Mapping[str, bytes],
    act: Callable[[], object],
    race: Callable[[], object],
    step: int = 1,
    **options: Any,
) -> Iterator[Raced]:
    """Yield the buckets in which something happened before a request of an act: the first, and so
    on. In the last one it did not happen."""
    for number in itertools.count(0, step):
        bucket = Raced(dict(files), at=number, race=race, **options)
        with in_bucket(bucket):
            act()
        yield bucket
        if bucket.race is not None:
            return

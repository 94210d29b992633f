"""The operating system's calls under a storage: counted, refused, cut short, deadly, and recorded
for a power cut.

``faulty`` stands in the place of a storage; this stands under ``LocalStorage`` itself, so that the
calls of which one storage call is made (a rename is two syncs of the directory and a rename) fail
one by one. Calls that concern other directories are passed on unseen.

After a power cut the disk holds what was forced to it, and of the rest anything: ``survivors``
lists what may be left.
"""

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

from shardvar.storage import exchange

PATHS = ("open", "unlink", "replace", "makedirs", "rmdir", "scandir", "statvfs", "stat", "link")
"""Calls of ``os`` that take a path first."""
DESCRIPTORS = ("fsync", "pwrite", "pread", "preadv", "fstat")
"""Calls of ``os`` that take a descriptor first."""
WRITING = {"pwrite", "fsync", "replace", "makedirs", "create", "link", "swap"}
"""Calls that a full or broken disk refuses; files can still be removed and read."""
ALL_SUBSETS = 3
"""Changes of a directory that are not forced to the disk and of which every choice may have reached
it."""

MANY_CONTENTS = 64
"""Of so many ways in which unsynced files may be left together, only those are tried in which all
are left alike."""


class Killed(BaseException):
    """The process is gone; nothing in it catches this."""


@dataclass(frozen=True)
class Event:
    """Something that was done to the disk."""

    kind: str
    """``create``, ``link``, ``write``, ``sync``, ``rename``, ``swap``, ``unlink``, ``mkdir``,
    ``rmdir`` or ``sync directory``."""
    path: str
    """Of what; relative to the root, which is empty."""
    target: str = ""
    """The new name of a renamed file, the second one of a linked file, or what a folder changes
    places with."""
    start: int = 0
    """The first byte that was written,"""
    octets: bytes = b""
    """and what."""
    site: str = ""
    """The line of the program that asked for a sync."""


@dataclass
class Disk:
    """A disk below `root` that counts the calls made of it, and fails at one of them."""

    root: str
    at: int = -1
    """The call that fails; 0 is the first."""
    fault: Callable[[], BaseException] = lambda: OSError(errno.EIO, os.strerror(errno.EIO))
    """Makes the exception to raise there."""
    cut: Callable[[int], int] = lambda nbytes: 0
    """The number of bytes that a failing write has written, from the number that it was to
    write."""
    stays: bool = False
    """True if all writing fails from then on."""
    after: bool = False
    """True if the call takes effect before it fails, as where an interrupt comes at its end."""
    has_swap: bool = True
    """False if the system cannot exchange folders."""
    taken: int = 0
    """Calls so far."""
    is_dead: bool = False
    """True once the process is gone: all that it would still do is refused."""
    log: list[str] = field(default_factory=list)
    """The names of the calls, in order."""
    events: list[Event] = field(default_factory=list)
    """The effects of the calls, in order."""
    _open: dict[int, str] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)

    @contextmanager
    def meeting(self) -> Iterator["Disk"]:
        """Within, calls are met."""
        real = {name: getattr(os, name) for name in (*PATHS, *DESCRIPTORS, "close")}
        with ExitStack() as stack:
            for name in (*PATHS, *DESCRIPTORS):
                stack.enter_context(mock.patch.object(os, name, self._met(name, real[name])))
            stack.enter_context(mock.patch.object(os, "close", self._closing(real["close"])))
            stack.enter_context(mock.patch.object(fcntl, "flock", self._met("flock", fcntl.flock)))
            swap = self._met("swap", exchange._swap) if self.has_swap else lambda _, __: False
            stack.enter_context(mock.patch.object(exchange, "_swap", swap))
            yield self

    def _met(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **options: Any) -> Any:
            path = self._path(name, first)
            if path is None:
                return real(first, *rest, **options)
            with self._lock:
                return self._do(name, path, real, first, *rest, **options)

        return call

    def _do(
        self, name: str, path: str, real: Callable[..., Any], first: Any, *rest: Any, **options: Any
    ) -> Any:
        is_new = (
            name == "makedirs" or (name == "open" and rest[0] & os.O_CREAT)
        ) and not os.path.lexists(first)
        what = "create" if name == "open" and is_new else name
        if self.is_dead:
            raise self.fault()
        number, self.taken = self.taken, self.taken + 1
        self.log.append(f"{what} {path}")
        if number == self.at or (self.stays and number > self.at >= 0 and what in WRITING):
            if name == "pwrite":
                count = self.cut(len(rest[0])) if number == self.at else 0
                done = real(first, rest[0][:count], *rest[1:]) if count else 0
                error = self.fault()
                self.is_dead = isinstance(error, Killed)
                if done and isinstance(error, OSError):
                    self.at = (
                        self.at if self.stays else self.taken
                    )  # as the kernel has it: first fewer bytes, then why
                    self.events.append(
                        Event("write", path, start=rest[1], octets=bytes(rest[0][:done]))
                    )
                    return done
                raise error
            if self.after:
                result = real(first, *rest, **options)
                if hasattr(result, "close"):  # of scandir
                    result.close()
            error = self.fault()
            self.is_dead = isinstance(error, Killed)
            raise error
        result = (
            None if name == "fsync" else real(first, *rest, **options)
        )  # nobody cuts the power in earnest
        self._record(what, path, bool(is_new), rest, result)
        return result

    def _record(
        self, what: str, path: str, is_new: bool, rest: tuple[Any, ...], result: Any
    ) -> None:
        match what:
            case "open" | "create":
                self._open[result] = path
                if is_new:
                    self.events.append(Event("create", path))
            case "pwrite":
                self.events.append(
                    Event("write", path, start=rest[1], octets=bytes(rest[0][:result]))
                )
            case "fsync":
                kind = "sync directory" if os.path.isdir(os.path.join(self.root, path)) else "sync"
                self.events.append(Event(kind, path, site=_site()))
            case "replace" | "link" | "swap" if result is not False:
                kind = "rename" if what == "replace" else what
                self.events.append(Event(kind, path, os.path.relpath(rest[0], self.root)))
            case "unlink" | "rmdir":
                self.events.append(Event(what, path))
            case "makedirs" if is_new:
                self.events.append(Event("mkdir", path))

    def _path(self, name: str, first: Any) -> str | None:
        """The path below the root that a call is about; None for calls that are none of this disk's
        business."""
        path = os.path.join(self.root, self._open[first]) if first in self._open else first
        if not isinstance(path, str) or not (
            path == self.root or path.startswith(self.root + os.sep)
        ):
            return None
        relative = os.path.relpath(path, self.root)
        return "" if relative == os.curdir else relative

    def _closing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def close(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real(descriptor)

        return close


def _site() -> str:
    """The function and line that asked for a sync."""
    frame: Any = sys._getframe(1)
    while (
        frame.f_globals.get("__name__", "").startswith(__name__) or "sync" in frame.f_code.co_name
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_name}, line {frame.f_lineno}"


@dataclass
class _Content:
    """The contents of a file: as readers see them, and as far as they were forced to the disk."""

    seen: bytearray
    durable: bytes

    def survivors(self) -> list[bytes]:
        """Return the contents that may be left: all, a part, nothing, or the length alone."""
        seen = bytes(self.seen)
        if seen == self.durable:
            return [seen]
        return list(dict.fromkeys([self.durable, seen[: len(seen) // 2], bytes(len(seen)), seen]))


@dataclass(eq=False)
class _Folder:
    """A folder: the names in it as far as they were forced to the disk, and as readers see them."""

    durable: "dict[str, _Node]" = field(default_factory=dict)
    seen: "dict[str, _Node]" = field(default_factory=dict)

    def add(self, path: str, node: "_Node") -> None:
        """Put something at a path, on the disk."""
        first, _, rest = path.partition("/")
        if not rest:
            self.durable[first] = self.seen[first] = node
            return
        below = self.seen.get(first)
        if below is None:
            below = self.durable[first] = self.seen[first] = _Folder()
        assert isinstance(below, _Folder)
        below.add(rest, node)

    def at(self, path: str) -> "_Node":
        """Return what readers see at a path."""
        node: _Node = self
        for step in path.split("/") if path else ():
            assert isinstance(node, _Folder), path
            node = node.seen[step]
        return node


_Node = _Folder | _Content


@dataclass(eq=False)
class _Change:
    """A change of the names in a folder, made as a whole or not at all."""

    folder: _Folder
    names: "dict[str, _Node | None]"
    """What each name stands for; None if for nothing."""

    def make(self, names: "dict[str, _Node]") -> None:
        for name, node in self.names.items():
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node


def snapshot(root: Path) -> dict[str, bytes]:
    """The files below a directory."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def survivors(
    before: dict[str, bytes], events: Sequence[Event]
) -> Iterator[tuple[bool, dict[str, bytes]]]:
    """Yield the states of the disk after a power cut, each once: True if all events took place, and
    the files.

    A file's bytes are forced to the disk by its sync, its name by its directory's. What is not may
    be there or not: each change of a directory by itself, and of a file's bytes any. Lock files are
    left out: nothing is in them.
    """
    root = _Folder()
    for path, octets in before.items():
        root.add(path, _Content(bytearray(octets), octets))
    pending: list[_Change] = []
    known: set[tuple[bool, frozenset[tuple[str, bytes]]]] = set()
    events = [Event("begin", ""), *(event for event in events if not event.path.endswith(".lock"))]
    for number, event in enumerate(events, 1):
        if event.kind == "sync directory":
            folder = root.at(event.path)
            for change in pending:
                if change.folder is folder:
                    change.make(change.folder.durable)
            pending = [change for change in pending if change.folder is not folder]
        elif event.kind in ("write", "sync"):
            content = root.at(event.path)
            assert isinstance(content, _Content)
            if event.kind == "sync":
                content.durable = bytes(content.seen)
            else:
                content.seen.extend(
                    bytes(max(0, event.start + len(event.octets) - len(content.seen)))
                )
                content.seen[event.start : event.start + len(event.octets)] = event.octets
        elif event.kind != "begin":
            for change in _changes(root, event):
                change.make(change.folder.seen)
                pending.append(change)
        for files in _left(root, pending):
            state = number == len(events), frozenset(files.items())
            if state not in known:
                known.add(state)
                yield number == len(events), files


def _changes(root: _Folder, event: Event) -> list[_Change]:
    """Return what an event changes in each folder.

    A rename from one folder into another is two changes: of either folder, its sync forces its own.
    """
    folder, name = _split(root, event.path)
    node = folder.seen.get(name)
    if event.kind in ("create", "mkdir"):
        made: _Node = _Folder() if event.kind == "mkdir" else _Content(bytearray(), b"")
        return [_Change(folder, {name: made})]
    if event.kind in ("unlink", "rmdir"):
        return [_Change(folder, {name: None})]
    above, target = _split(root, event.target)
    if event.kind == "swap":
        assert above is folder, "folders are exchanged with one beside them"
        return [_Change(folder, {name: folder.seen[target], target: node})]
    if event.kind == "link":
        return [_Change(above, {target: node})]
    if above is folder:
        return [_Change(folder, {name: None, target: node})]
    return [_Change(above, {target: node}), _Change(folder, {name: None})]


def _split(root: _Folder, path: str) -> tuple[_Folder, str]:
    """Return the folder that a path is in, and the name there."""
    above, _, name = path.rpartition("/")
    folder = root.at(above)
    assert isinstance(folder, _Folder), path
    return folder, name


def _left(root: _Folder, pending: Sequence[_Change]) -> Iterator[dict[str, bytes]]:
    """The files that there may be where some of the changes were made, and in unsynced files any
    bytes."""
    for chosen in _choices(len(pending)):
        made: dict[int, dict[str, _Node]] = {}
        for number in chosen:
            change = pending[number]
            change.make(made.setdefault(id(change.folder), dict(change.folder.durable)))
        contents = dict(_contents(root, made))
        reached = {path: content.survivors() for path, content in contents.items()}
        kinds = max(map(len, reached.values()), default=1)
        choices: Iterable[tuple[bytes, ...]] = product(*reached.values())
        if prod(map(len, reached.values())) > MANY_CONTENTS:
            choices = [
                tuple(each[min(kind, len(each) - 1)] for each in reached.values())
                for kind in range(kinds)
            ]
        for octets in choices:
            yield dict(zip(reached, octets, strict=True))


def _contents(
    folder: _Folder, made: dict[int, dict[str, _Node]], below: str = ""
) -> Iterator[tuple[str, _Content]]:
    """Yield the files below a folder, by their paths, as names that were changed lead to them."""
    for name, node in made.get(id(folder), folder.durable).items():
        if isinstance(node, _Folder):
            yield from _contents(node, made, f"{below}{name}/")
        else:
            yield below + name, node


def _choices(count: int) -> Iterator[tuple[int, ...]]:
    """Which of so many changes were made: all choices of a few; of many the first, all but one, and
    one alone."""
    if count <= ALL_SUBSETS:
        for size in range(count + 1):
            yield from combinations(range(count), size)
        return
    for number in range(count + 1):
        yield tuple(range(number))
        yield tuple(range(number, count))
    for number in range(count):
        yield (number,)
        yield tuple(other for other in range(count) if other != number)

"""A storage that fails, is interrupted or dies at its n-th step: for the tests of what is left
behind.

Every call that changes the directory is a step. One thread makes them all, so that every run takes
the same steps in the same order; ``in_threads`` is for what must hold in any order. A write that
dies has written some of its bytes. After a death nothing changes any more, as if the process were
gone: what cleaning up would do is refused, and the lock file stays.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from unittest import mock

import numpy as np

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import AmbiguousPath, CheckpointError, StorageError
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage, split_path
from shardvar.storage.protocol import WritableFile
from spec_tests.helpers.system_calls import Killed

FORMATS = {
    "shardvar": ("shardvar", "ck", 3),
    "tensorflow": ("tensorflow", "ck", 3),
    "safetensors": ("safetensors", "ck.safetensors", 1),
    "safetensors set": ("safetensors", "ck.safetensors.index.json", 3),
    "npz": ("npz", "ck.npz", 1),
    "torch": ("torch", ".metadata", 3),
}
"""For each way of writing files of a prefix: the format, the name of the target, and the number of
its files."""

FOLDERS = {"zarr": ("zarr", "ck", 1), "orbax": ("orbax", "ck", 1)}
"""The same for a checkpoint that is a folder, with a file for each tensor."""

WRITTEN = {**FORMATS, "pt": ("pt", "ck.pt", 1), **FOLDERS}
"""All ways of writing."""


CUTS: tuple[Callable[[int], int], ...] = (
    lambda nbytes: 0,
    lambda nbytes: 1,
    lambda nbytes: nbytes // 2,
    lambda nbytes: nbytes - 1,
)
"""Numbers of bytes of a write that may have been written: none, one, half of them, all but one."""


@dataclass
class Fault:
    """A failure at one step."""

    at: int
    """The step; 0 is the first."""
    kind: Callable[[], BaseException] = Killed
    """Makes the exception to raise there."""
    after: bool = False
    """True if the step takes effect before it fails, like a rename whose directory cannot be
    synced."""
    cut: Callable[[int], int] = lambda nbytes: nbytes // 2
    """The number of bytes that a dying write has written, from the number that it was to write."""
    taken: int = 0
    """Steps so far."""
    is_cut: bool = False
    """True after a write has died."""
    is_dead: bool = False
    log: list[str] = field(default_factory=list)
    """The steps taken, in order."""
    counting: Lock = field(default_factory=Lock)
    """Held while a step gets its number, so that no two threads have the same."""

    def step(
        self, what: str, do: Callable[[], Any], part: Callable[[], object] = lambda: None
    ) -> Any:
        """Take a step, or fail in it."""
        self.live()
        with self.counting:
            number, self.taken = self.taken, self.taken + 1
        if number != self.at:
            self.log.append(what)
            return do()
        if self.after:
            self.log.append(what)
            do()
        error = self.kind()
        if isinstance(error, Killed):
            if not self.after:
                part()
            self.is_dead = True
        raise error

    def live(self) -> None:
        if self.is_dead:
            raise Killed


@dataclass
class FaultyFile:
    """A file whose writes are steps."""

    inner: WritableFile
    bare: str
    fault: Fault

    @property
    def name(self) -> str:
        return self.inner.name

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        view = memoryview(buffer)

        def write_part() -> None:
            self.fault.is_cut = True
            self.inner.write(start, view[: self.fault.cut(len(view))])

        self.fault.step(f"write {self.bare}", lambda: self.inner.write(start, view), write_part)

    def close(self) -> None:
        self.fault.step(f"close {self.bare}", self.inner.close)


@dataclass(frozen=True)
class FaultyStorage:
    """A directory whose changes are steps."""

    inner: LocalStorage
    fault: Fault

    def __getattr__(self, name: str) -> Any:
        """Return a method or an attribute of the directory; a dead process has none that looks."""
        if name in ("open", "stamp", "status", "names", "tree", "folders"):
            self.fault.live()
        return getattr(self.inner, name)

    def refreshed(self) -> "FaultyStorage":
        return self

    def borrowed(self, name: str) -> AbstractContextManager["FaultyStorage"]:
        return nullcontext(self)

    def create(self, name: str) -> FaultyFile:
        file: WritableFile = self.fault.step(f"create {name}", lambda: self.inner.create(name))
        return FaultyFile(file, name, self.fault)

    def rename(self, old: str, new: str) -> None:
        self.fault.step(f"rename {old} {new}", lambda: self.inner.rename(old, new))

    def move(self, old: str, new: str) -> None:
        self.fault.step(f"move {old} {new}", lambda: self.inner.move(old, new))

    def sync(self, folder: str = "") -> None:
        self.fault.step(f"sync {folder}", lambda: self.inner.sync(folder))

    def remove(self, name: str) -> None:
        self.fault.step(f"remove {name}", lambda: self.inner.remove(name))

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self.fault.live()
        with self.inner.lock(name):
            yield
        if self.fault.is_dead:
            (Path(self.path) / f".{name}.lock").touch()


@contextmanager
def failing(directory: Path, fault: Fault, in_threads: bool = False) -> Iterator[None]:
    """The verbs meet the fault where they touch ``directory``, and nowhere else."""

    def faulty_split(path: Any) -> tuple[Any, str]:
        storage, name = split_path(path)
        return (FaultyStorage(storage, fault) if Path(storage.path) == directory else storage), name

    threads = nullcontext() if in_threads else in_this_thread()
    with mock.patch("shardvar.verbs.locate.split_place", faulty_split), threads:
        yield


def arrays(seed: int) -> dict[str, Any]:
    """Tensors for three files, of which none has the values of another seed's."""
    rng = np.random.default_rng(seed)
    keys = [f"w{number}" for number in range(6)] + [f"only in {seed}"]
    return {key: rng.standard_normal((9, 4)).astype(np.float32) for key in keys}


def save(path: Path, form: str, tensors: dict[str, Any], **options: Any) -> Any:
    form, name, files = WRITTEN[form]
    policy = BalancedPolicy(files) if files > 1 else None
    return sv.save(path / name, tensors, format=form, policy=policy, **options)


def reshard(source: Path, path: Path, form: str, **options: Any) -> Any:
    form, name, files = WRITTEN[form]
    policy = BalancedPolicy(files) if files > 1 else None
    return sv.reshard(source, path / name, format=form, policy=policy, **options)


OLD, NEW = arrays(1), arrays(2)


def is_same(read: dict[str, Any], written: dict[str, Any]) -> bool:
    return read.keys() == written.keys() and all(
        np.array_equal(read[key], written[key]) for key in written
    )


def state(directory: Path, form: str) -> str:
    """Return "old" or "new" for a whole checkpoint in a directory, or the name of the error that a
    reader gets."""
    try:
        read = sv.load(directory / WRITTEN[form][1])
    except (CheckpointError, AmbiguousPath) as error:
        return type(error).__name__
    assert is_same(read, OLD) or is_same(read, NEW), "a mixture"
    return "old" if is_same(read, OLD) else "new"


def paths(directory: Path) -> list[str]:
    """The files and folders below a directory, by their paths in it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def strays(directory: Path) -> list[str]:
    """Files and folders that a reader of the directory cannot explain."""
    return [
        path
        for path in paths(directory)
        if any(step.endswith((".tmp", ".done", ".lock")) for step in path.split("/"))
        or "svindex." in path
    ]


def assert_clean(directory: Path, form: str, clean: Path, more: int = 0) -> None:
    """As many files as one clean write leaves, and ``more``, and none that stood aside."""
    if not clean.exists():
        clean.mkdir()
        save(clean, form, NEW)
    assert len(paths(directory)) == len(paths(clean)) + more and not strays(directory), paths(
        directory
    )


def full() -> StorageError:
    return StorageError("The disk is full.", "Free some space.")


def kill_myself() -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    return Killed()

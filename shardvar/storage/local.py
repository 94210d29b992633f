"""A directory of the local disk as a ``Storage``, and the directory and bare name that a path or a
URL means.

    /data/run/model           LocalStorage /data/run, "model"
    s3://bucket/run/model     RemoteStorage s3://bucket/run, "model"             (``storage.urls``)

Nothing of the remote side is loaded before a URL asks for it.

A bare name has no separators and is neither ``.`` nor ``..``, so that an index cannot lead out of
the directory. A path of a file in a folder of the directory consists of bare names, joined by "/".
Symbolic links are followed in reading (caches of downloaded checkpoints consist of them) and never
in writing.

Locks. One writer at a time. The lock is ``flock`` on a separate file, so it ends with its process.
Its holder deletes the file before the lock is released. A writer that gets the lock therefore
checks that its file still has that name; if not, another writer was faster, and it
tries again. A killed process leaves a file without a lock on it, which the next writer takes over.

The lock belongs to the open file, and a forked child inherits that. So the child closes its
descriptors of locks: otherwise a lock would last until the last child of its holder has ended.

Preview. A writer makes the directory, takes the lock and creates files, and each of these may be
refused. ``check_writable`` raises without a change what would be raised then, as far as it can be
known: the disk may still fill up, or another writer come first.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    InvalidCheckpoint,
    LockHeld,
    ShardvarError,
    StorageError,
)
from shardvar.forks import unforked
from shardvar.records import frozen
from shardvar.storage.posix import (
    LocalReadableFile,
    LocalWritableFile,
    create_local,
    open_local,
    reading,
    stamp_of,
    sync_path,
    writing,
)
from shardvar.storage.protocol import FileStatus, Storage

_ATTEMPTS = 1000  # Attempts to lock the file; each fails if another writer comes and goes


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_lock_files: set[int] = set()
"""The descriptors of lock files that this process has open, locked or not."""


@contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; ``LockHeld``, with ``what``, at once if another writer does."""
    held: list[int] = []
    is_locked, process = False, os.getpid()
    try:
        with writing(what):  # the caller knows this path, and not its lock
            _lock(path, what, held)
        is_locked = True
        yield
    finally:
        # And not in a forked child, whose lock it is not.
        if os.getpid() == process:
            # Delete first, release then: a writer that has opened this file sees that it is gone
            # and opens the next.
            if is_locked:
                with suppress(OSError):  # a file that stays is taken over by the next writer
                    os.unlink(path)
            for descriptor in held:
                _close_lock(descriptor)
            if not is_locked:
                _remove_unused(path)


def _lock(path: str, what: str, held: list[int]) -> None:
    for _ in range(_ATTEMPTS):
        with unforked:
            held.append(os.open(path, _LOCK_FLAGS, 0o666))
            _lock_files.update(held)
        try:
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(held[0], path):
                return
        except BlockingIOError:
            _close_lock(held.pop())
            break
        _close_lock(held.pop())
    raise held_error(path, what)


def held_error(path: str, what: str) -> LockHeld:
    return LockHeld(
        f"{what} is being written by another writer, which holds {path}.",
        "Wait until it is done, or stop it.",
    )


def _remove_unused(path: str) -> None:
    """Remove a lock file after an error in locking, unless another writer holds it."""
    with suppress(OSError), unforked:
        descriptor = os.open(path, _LOCK_FLAGS & ~os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                os.unlink(path)
        finally:
            os.close(descriptor)


def _close_lock(descriptor: int) -> None:
    with unforked:
        _lock_files.discard(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    """Close what a forked child has of its parent's locks; the parent still holds them."""
    while _lock_files:
        os.close(_lock_files.pop())


os.register_at_fork(after_in_child=_close_inherited)


def _is_at(descriptor: int, path: str) -> bool:
    """Return True if the open file has that path."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def check_directory(path: str) -> None:
    there = path
    with writing(path):
        while not _exists(there):
            there = os.path.dirname(there)
    with writing(there):
        if not os.path.isdir(there):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        # The effective user writes; not every system can ask for it.
        effective = os.access in os.supports_effective_ids
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=effective):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_unlocked(path: str, what: str) -> None:
    """Raise ``LockHeld``, with ``what`` is guarded, if a writer holds the lock ``path``."""
    with writing(path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        try:
            # Shared, and released at once: two previews do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # By name: a child that is forked now has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            raise held_error(path, what) from None
        finally:
            os.close(descriptor)


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


_NAME_NBYTES = 255  # the longest name that the usual file systems take

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")  # the beginning of a URL

_LOST_SLASH = r"(s3|gs|az|abfss?|https?|hf):/[^/]"
"""The beginning of a URL that was made a path."""


_MOST_ATTEMPTS, _ATTEMPT_SECONDS = 500, 0.01
"""Attempts at a name that others hold: 5 s, for what takes a sync of a small file each."""


@frozen
class LocalStorage:
    """One directory; it need not exist until something is created in it."""

    path: str  # the directory's path

    @property
    def local_path(self) -> str:
        return self.path

    @property
    def traits(self) -> None:
        return None

    def open(self, name: str) -> LocalReadableFile:
        return open_local(self._join(name, InvalidCheckpoint))

    def create(self, name: str) -> LocalWritableFile:
        return create_local(self._inside(name, with_folders=True))

    def names(self) -> list[str]:
        return self._entries(lambda entry: not _is_directory(entry))

    def stamp(self, name: str) -> str | None:
        status = self.status(name)
        return None if status is None else status.stamp

    def refreshed(self) -> "LocalStorage":
        """Return this storage: a disk is looked at each time."""
        return self

    def folders(self) -> list[str]:
        return self._entries(lambda entry: entry.is_dir(follow_symlinks=False))

    def _entries(self, is_wanted: Callable[["os.DirEntry[str]"], bool]) -> list[str]:
        with reading(self.path):
            try:
                with os.scandir(self.path) as entries:
                    return sorted([entry.name for entry in entries if is_wanted(entry)])
            except (FileNotFoundError, NotADirectoryError):
                return []

    def folder(self, name: str) -> "LocalStorage":
        return LocalStorage(self._join(name, InvalidCheckpoint))

    def status(self, name: str) -> FileStatus | None:
        try:
            status = os.stat(self._join(name))
        except OSError:
            return None
        return _status(status)

    def tree(self) -> dict[str, FileStatus]:
        files: dict[str, FileStatus] = {}
        left = [""]
        while left:
            below = left.pop()
            path = os.path.join(self.path, *below.split("/"))
            with reading(path), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(f"{below}{entry.name}/")
                    elif not _is_directory(entry):
                        try:
                            files[below + entry.name] = _status(entry.stat())
                        except OSError:  # a broken link, which is refused when opened
                            files[below + entry.name] = FileStatus(0, None, "")
        return dict(sorted(files.items()))

    def create_once(self, name: str, content: bytes) -> bool:
        self.make()
        # A rename replaces a file, and hard links are not everywhere: so the name is locked.
        for attempt in range(_MOST_ATTEMPTS):
            try:
                with self.lock(name):
                    if os.path.lexists(self._join(name)):
                        return False
                    aside = _attempt(name)
                    with closing(self.create(aside)) as file:
                        file.write(0, content)
                    self.rename(aside, name)
                    return True
            except LockHeld:
                if attempt == _MOST_ATTEMPTS - 1:
                    raise
                time.sleep(_ATTEMPT_SECONDS)
        return False

    def rename(self, old: str, new: str) -> None:
        source, target = self._join(old), self._join(new)
        with writing(target):
            # Names reach the disk in any order; only a sync of their directory orders them.
            #
            # Before the rename: the file may be an index. Whenever it is on the disk, the data
            # files that it names must be there, and an older index whose data files it replaces
            # must be gone.
            sync_path(self.path)
            os.replace(source, target)
            # After the rename: the caller removes the files of the replaced checkpoint next, and
            # reports success. Both are wrong if a power cut can still undo the rename.
            sync_path(self.path)

    def move(self, old: str, new: str) -> None:
        """Rename ``old`` to the name or path ``new`` in one step, forced by the next ``sync``."""
        source, target = self._join(old), self._inside(new, with_folders=True)
        with writing(target):
            os.replace(source, target)

    def announce(self, names: Iterable[str]) -> None:
        """Do nothing: a file is in its directory from the beginning."""

    def finish(self, name: str) -> None:
        """Do nothing: a file is on the disk once it is closed."""

    def lend(self, names: Iterable[str], nbytes: int = 0) -> None:  # noqa: ARG002
        """Check the names under which other processes begin the files."""
        self.check_names(_attempt(name) for name in names)

    def claim(self, *, removes: bool = False) -> None:
        """Do nothing: a writer that holds the lock is the only one."""

    @contextmanager
    def borrowed(self, name: str) -> Iterator["LocalStorage"]:
        """Write the file under a name that no other attempt has, until it is whole."""
        lent = _LentDirectory(self.path, _attempt(name))
        try:
            yield lent
            self.move(lent.attempt, name)
        except BaseException:
            with suppress(StorageError):
                self.remove(lent.attempt)
            raise

    def sync(self, folder: str = "") -> None:
        path = self._inside(folder) if folder else self.path
        with writing(path), suppress(FileNotFoundError) if folder else nullcontext():
            sync_path(path)

    def remove(self, name: str) -> None:
        """Delete a file by its name or path, and folders that this leaves empty; does nothing if it
        does not exist."""
        path = self._inside(name)
        with writing(path), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
        with suppress(OSError):  # of a folder that is not empty, or not there
            for _ in range(name.count("/")):
                path = os.path.dirname(path)
                os.rmdir(path)

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(StorageError):
                self.remove(name)

    def lock(self, name: str) -> AbstractContextManager[None]:
        return locked(self._join(f".{name}.lock"), self._join(name))

    def make(self) -> None:
        """Make the directory, and those above it, if they do not exist."""
        above = LocalStorage(os.path.dirname(self.path))
        if not os.path.isdir(self.path) and any(
            name.endswith(".was.tmp") for name in above.folders()
        ):
            from shardvar.storage.exchange import restore  # only where there may be such a folder

            restore(self.path)
        missing = []
        path = self.path
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with writing(path):
                os.makedirs(path, exist_ok=True)  # another writer may have been faster
                # The files in a directory are lost with it if the directory's name is not on the
                # disk.
                sync_path(os.path.dirname(path) or os.curdir)

    def check_writable(self, name: str) -> None:
        check_directory(self.path)
        check_unlocked(self._join(f".{name}.lock"), self._join(name))

    def check_names(self, names: Iterable[str]) -> None:
        """Raise if a name cannot be a new file's: not bare, too long, or a directory's."""
        for name in names:
            path = self._join(name)
            if os.path.isdir(path):
                raise StorageError(
                    f"{path} is a directory.", "Choose another name, or move the directory away."
                )

    def free_nbytes(self) -> int:
        path = self.path
        while not os.path.isdir(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        with writing(path):
            disk = os.statvfs(path or os.curdir)
        return disk.f_bavail * disk.f_frsize

    def _inside(self, name: str, *, with_folders: bool = False) -> str:
        """Return the path of a file in the directory or its folders, which are made on request."""
        if "/" not in name:
            return self._join(name)
        *folders, last = name.split("/")
        storage = self
        for folder in folders:
            storage = LocalStorage(storage._join(folder))
            if os.path.islink(storage.path):
                raise StorageError(
                    f"{storage.path} is a symbolic link, behind which nothing is written.",
                    "Remove it.",
                )
        path = storage._join(last)
        if with_folders:
            with writing(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def _join(self, name: str, error: type[ShardvarError] = ArgumentError) -> str:
        """Return the path of a file; raise ``error`` if the name is not bare."""
        complaint = _complaint(name)
        if complaint:
            cause = f"Invalid file name {name!r} in {self.path}: {complaint}."
            raise error(cause, "Use a name that stays in its directory.")
        return os.path.join(self.path, name)


@frozen
class _LentDirectory(LocalStorage):
    """A directory in which one file is written, under a name that no other attempt at it has."""

    attempt: str  # the name of the file for as long as it is written

    def create(self, name: str) -> LocalWritableFile:  # noqa: ARG002
        return create_local(self._join(self.attempt))


@frozen
class UnforcedDirectory(LocalStorage):
    """A directory whose new files are forced to the disk by the commit, all together."""

    def create(self, name: str) -> LocalWritableFile:
        return create_local(self._inside(name, with_folders=True), is_forced=False)


@frozen
class ListedDirectory(LocalStorage):
    """A directory that is listed once, for a search of many files in it."""

    listed: list[str]

    def names(self) -> list[str]:
        return self.listed


def _attempt(name: str) -> str:
    """Return a name for one attempt at a file (``formats.unfinished.JOURNAL_ENDING``)."""
    return f"{name}.{os.urandom(8).hex()}.tmp"


def split_path(path: str | os.PathLike[str]) -> tuple[LocalStorage, str]:
    """Return the directory of a path, made absolute, and the bare name, empty for a directory.
    Nothing is created, ``~`` is not expanded."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(
            f"Invalid path {path!r}.", "Give the path of a checkpoint."
        ) from None
    if not text or "\0" in text:
        raise ArgumentError(f"Invalid path {text!r}.", "Give the path of a checkpoint.")
    if URL.match(text):
        raise ArgumentError(
            "A URL was given where a path is needed.", "Give the path of something on a local disk."
        )
    if ("://" in text or re.match(_LOST_SLASH, text)) and not os.path.lexists(text):
        # It may have a password, and is not repeated.
        if lost := re.match(_LOST_SLASH, text):
            remedy = f"Write {lost[1]}://, and give URLs as text, not as pathlib.Path."
            raise ArgumentError(f"The URL {lost[1]}:/... lost a slash.", remedy)
        raise ArgumentError(
            "A path has :// in it, and does not begin as a URL does.",
            "Give SCHEME://NAME/PATH, with nothing before it, such as a blank or a scheme and ::.",
        )
    try:
        full = os.path.join(os.getcwd(), text)
    except OSError as error:
        raise StorageError(
            "The working directory is gone.", "Change to another directory."
        ) from error
    # Empty steps and "." are dropped. ".." stays: behind a link it leads elsewhere, so "a/link/.."
    # is not "a".
    steps = [step for step in full.split(os.sep) if step not in ("", os.curdir)]
    if os.path.isdir(full) or full.endswith((os.sep, os.sep + os.curdir, os.sep + os.pardir)):
        return LocalStorage(os.sep + os.sep.join(steps)), ""
    complaint = _complaint(steps[-1])
    if complaint:
        raise ArgumentError(
            f"Invalid checkpoint name {steps[-1]!r}: {complaint}.", "Choose another name."
        )
    return LocalStorage(os.sep + os.sep.join(steps[:-1])), steps[-1]


def is_url(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and URL.match(path) is not None


def split_place(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    if isinstance(path, str) and URL.match(path):
        from shardvar.storage.urls import path_of_file, split_url

        is_here = path[:7].lower() == "file://"
        return split_path(path_of_file(path)) if is_here else split_url(path)
    return split_path(path)


def _complaint(name: str) -> str:
    """Return why a name is not a bare name of a file; empty if it is one."""
    if name in ("", os.curdir, os.pardir):
        return "it does not name a file"
    if "\0" in name or os.sep in name:
        return "it contains a separator or a NUL"
    try:
        nbytes = len(os.fsencode(name))
    except UnicodeEncodeError:
        return "it cannot be encoded"
    return f"it has {nbytes} bytes, more than {_NAME_NBYTES}" if nbytes > _NAME_NBYTES else ""


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    """Return True for a directory or a link to one; a broken link is listed."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _status(status: os.stat_result) -> FileStatus:
    return FileStatus(status.st_size, status.st_mtime, stamp_of(status))

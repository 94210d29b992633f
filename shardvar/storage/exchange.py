"""A folder that is replaced whole: a new one is built next to it, and the two change places.

    run/ck                      the folder, as readers see it
    run/.ck.TOKEN.new.tmp       the new one, which is being built; or one that is being removed
    run/.ck.TOKEN.old.tmp       the new one once it is on the disk; after the exchange the old one
    run/.ck.TOKEN.was.tmp       the old one, for a moment, where the system has no exchange

    make -> write, take -> put_in_place: link the user's files, force all to the disk, exchange

Until the exchange the old folder is unchanged. The exchange is one step (``renameat2`` on Linux,
``renamex_np`` on macOS). Where the system or the file system has neither, it is two renames: between
them the folder is missing, and both are whole next to it. The next writer puts the old one back
(``restore``), and a reader reports it.

Files of the user's own are in both folders: hard links lead to the same file, whichever folder a
program has found. Where there are no links, and where a file came in between, it is moved after the
exchange.

Nothing is removed of a folder that may be the only one. What a killed writer left is known by its
name: nothing of ``.new.tmp`` is needed, and ``.old.tmp`` is one that the folder in place has
replaced, or one that was to replace it and did not. Files of the user's that came late may be only
there.
"""

import ctypes
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress

from shardvar.errors import StorageError
from shardvar.records import field, mutable
from shardvar.storage.concurrency import Threads
from shardvar.storage.posix import create_local, sync_path, writing

_SYNCS = 16
"""Syncs under way together: a disk forces many files in one turn. 1,500 of them take 3.5 s one
after the other on a virtual disk, and 0.1 s with 16 or 64 at a time."""
_FEW = 16  # So many are forced sooner than threads begin
_NAME_NBYTES = 200  # a longer name has a digest in its place, so that the token has room behind it
_NO_LINK = {errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP}
"""The reasons why a file gets no second name; it is moved later then."""
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}
"""The errors of a file system, or of a kernel, that does not know the exchange."""
_ELSEWHERE = "or write into another folder."

Own = Callable[[str], Collection[str]]
"""Returns the paths, in a folder of that path, of the files that belong to its checkpoint."""


BESIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.(?P<kind>new|old|was)\.tmp", re.DOTALL)
"""The name of a folder next to another; a long name has a digest in its place."""


@mutable
class FolderBeside:
    """A new folder that is to take the place of another."""

    path: str  # the folder in place, as the caller calls it
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    place: str = field(init=False)  # the folder itself, where the path leads through links
    _folders: set[str] = field(default_factory=set)  # the folders of the new folder that were made
    _made: tuple[int, int] | None = None  # Device and inode of the new folder
    _is_forced: bool | None = None
    """True once the exchange is on the disk, False once that was tried."""
    _files: list[str] = field(default_factory=list)
    """The files of the new checkpoint, which are not forced to the disk yet."""

    def __post_init__(self) -> None:
        self.place = os.path.realpath(self.path)

    def complaint(self) -> tuple[str, str]:
        """Return why the folder cannot change places with another, and a remedy; or empty texts."""
        place, above = self.place, os.path.dirname(self.place)
        if os.path.join(_working_directory(), "").startswith(os.path.join(place, "")):
            return "a working directory is in it", f"Change to another directory, {_ELSEWHERE}"
        if os.path.ismount(place):
            return "it is a mount point", f"Move it away first, {_ELSEWHERE}"
        if not os.access(above, os.W_OK | os.X_OK):
            return f"{above} is not writable", f"Change the permissions of {above}, {_ELSEWHERE}"
        if os.geteuid() not in (0, os.stat(place).st_uid):
            return "it belongs to another user", f"Run as that user, {_ELSEWHERE}"
        return "", ""

    def is_new(self, own: Own) -> bool:
        """Return True if nothing in the folder is the user's, and it can change places."""
        with writing(self.path):
            files, folders = others(self.path, own(self.path))
            # Locks of writers have such names.
            are_hidden = all(path.startswith(".") for path in files)
            return not folders and are_hidden and not self.complaint()[0]

    def check(self) -> None:
        with writing(self.path):
            reason, remedy = self.complaint()
        if reason:
            cause = f"{self.path} has a checkpoint and cannot be replaced in one step: {reason}."
            raise StorageError(cause, remedy)

    def make(self) -> None:
        """Make the new folder, empty, with the rights of the old one."""
        remove_new(self.place)
        new = self._beside("new")
        with writing(self.path):
            os.makedirs(new, 0o700)
            status = os.stat(new)
            self._made = status.st_dev, status.st_ino
            _copy_rights(self.place, new)

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with writing(path):
            self._make_folder(os.path.dirname(path))
        with closing(create_local(path, is_forced=False)) as file:
            self._files.append(path)
            file.write(0, content)

    def take(self, name: str, new: str) -> None:
        """Move a file of the old folder into the new one, under a path."""
        path = self._path(new)
        with writing(os.path.join(self.path, new)):
            self._make_folder(os.path.dirname(path))
            os.replace(os.path.join(self.place, name), path)
        self._files.append(path)

    def _make_folder(self, folder: str) -> None:
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)

    def put_in_place(self, own: Own) -> None:
        """Exchange the folders, on the disk too; remove the old one but for the user's files."""
        with writing(self.path):
            new, ready, above = self._beside("new"), self._beside("old"), self._above
            # The user's files are in both folders before they are exchanged.
            _link(self.place, new, own(self.place))
            # Nothing of the new folder is named by anything yet, so nothing needs an order.
            _, folders = _listing(new)
            sync_all([*self._files, new, *(os.path.join(new, folder) for folder in folders)])
            # From here on its name means that it is whole. The name must be on the disk before the
            # exchange: a folder with the other name is removed without a look at its content.
            os.replace(new, ready)
            sync_path(above)
            self._exchange(ready)
            # Before the old folder is removed, and success reported.
            self._force()
        self._retire(own)

    def is_in_place(self) -> bool:
        try:
            status = os.stat(self.place)
        except OSError:
            return False
        return self._made == (status.st_dev, status.st_ino)

    def discard(self, own: Own) -> None:
        """Remove the new folder after an error, or, if it is in place, the old one."""
        if self.is_in_place():
            if self._is_forced is None:
                with suppress(OSError):
                    self._force()
            # If the exchange may be undone by a power cut, the old folder is the only one.
            if self._is_forced:
                self._retire(own)
            return
        with suppress(OSError):
            _remove_tree(self._beside("new"))
        with suppress(OSError):
            # Under this name it may also be the old one, and where the place is empty, the only one.
            status = os.stat(self._beside("old"))
            if os.path.isdir(self.place) and self._made == (status.st_dev, status.st_ino):
                self._remove(self._beside("old"), own)

    def _force(self) -> None:
        """Force the exchange to the disk, once: a second sync may report success for lost data."""
        self._is_forced = False
        sync_path(self._above)
        self._is_forced = True

    def _path(self, name: str) -> str:
        return os.path.join(self._beside("new"), *name.split("/"))

    @property
    def _above(self) -> str:
        return os.path.dirname(self.place)

    def _beside(self, kind: str) -> str:
        return os.path.join(self._above, f"{_stem(self.place)}.{self.token}.{kind}.tmp")

    def _exchange(self, ready: str) -> None:
        if _swap(ready, self.place):
            return
        was = self._beside("was")
        try:
            os.replace(self.place, was)
            # A power cut must not leave the second rename without the first.
            sync_path(self._above)
            os.replace(ready, self.place)
        except BaseException:
            if not self.is_in_place():
                with suppress(OSError):  # else the next writer does it, and readers name it
                    os.replace(was, self.place)
            raise
        os.replace(was, ready)

    def _retire(self, own: Own) -> None:
        """Remove the folders next to the one in place, as far as the disk allows."""
        # Twice: after one call that fails, the others are made.
        for path in (path for _ in range(2) for path in left_beside(self.place)):
            with suppress(StorageError):
                if path.endswith(".new.tmp"):
                    _remove_tree(path)
                else:
                    self._remove(path, own)

    def _remove(self, folder: str, own: Own) -> None:
        """Remove a folder that is not in place; files of the user's that only it has are moved."""
        with writing(folder):
            files, folders = others(folder, own(folder))
            for name in folders:
                if not os.path.lexists(os.path.join(self.place, name)):
                    _copy_folder(folder, self.place, name)
            for name in files:
                _move_newer(os.path.join(folder, name), os.path.join(self.place, name))
            # From here on it is removed without a look at its content. A part of a checkpoint
            # would be taken for files of the user's.
            gone = self._beside("new")
            os.replace(folder, gone)
            sync_path(self._above)
            _remove_tree(gone)


def left_beside(path: str) -> list[str]:
    """Return the folders that writers of a folder have left next to it, sorted."""
    place = os.path.realpath(path)
    above = os.path.dirname(place)
    pattern = re.compile(re.escape(_stem(place)) + r"\.[0-9a-f]{16}\.(new|old|was)\.tmp")
    try:
        with os.scandir(above) as entries:
            return sorted(entry.path for entry in entries if pattern.fullmatch(entry.name))
    except OSError:  # making or removing a folder there raises it again
        return []


def restore(path: str) -> None:
    """Put a folder back that a writer had renamed and was killed before the new one had its
    name."""
    place = os.path.realpath(path)
    for was in left_beside(place):
        if was.endswith(".was.tmp") and not os.path.lexists(place):
            with writing(path):
                os.replace(was, place)
                sync_path(os.path.dirname(place))


def others(folder: str, own: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the files and folders that are not of the checkpoint; folders with its files are."""
    files, folders = _listing(folder)
    checkpoint, above = set(own), set[str]()
    for path in own:
        while path := os.path.dirname(path):
            above.add(path)
    return (
        [path for path in files if path not in checkpoint],
        [path for path in folders if path not in above],
    )


def sync_all(paths: Iterable[str]) -> None:
    paths = list(dict.fromkeys(paths))
    if len(paths) <= _FEW:
        for path in paths:
            sync_path(path)
        return
    with Threads(_SYNCS) as threads:
        for future in [threads.submit(sync_path, path) for path in paths]:
            future.result()


def _stem(place: str) -> str:
    """Return the beginning of the names that folders have next to this one."""
    name = os.path.basename(place)
    octets = os.fsencode(name)
    return f".{name if len(octets) <= _NAME_NBYTES else hashlib.sha256(octets).hexdigest()}"


def _listing(folder: str) -> tuple[list[str], list[str]]:
    files, folders, left = list[str](), list[str](), [""]
    while left:
        below = left.pop()
        with os.scandir(os.path.join(folder, below) if below else folder) as entries:
            for entry in entries:
                path = os.path.join(below, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                    left.append(path)
                else:
                    files.append(path)
    return files, folders


def _link(old: str, new: str, own: Collection[str]) -> None:
    """Give the user's files in the old folder a second name in the new one."""
    files, folders = others(old, own)
    for name in folders:
        _copy_folder(old, new, name)
    for name in files:
        # The new checkpoint may have a file or a folder of that name.
        with writing(os.path.join(old, name)):
            os.makedirs(os.path.dirname(os.path.join(new, name)), exist_ok=True)
            try:
                os.link(os.path.join(old, name), os.path.join(new, name), follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise


def _copy_folder(old: str, new: str, name: str) -> None:
    made = os.path.join(new, name)
    os.makedirs(made, exist_ok=True)
    _copy_rights(os.path.join(old, name), made)


def _copy_rights(old: str, new: str) -> None:
    """Give a folder the owner, the mode and the attributes of another."""
    was, status = os.stat(old), os.stat(new)
    if (was.st_uid, was.st_gid) != (status.st_uid, status.st_gid):
        os.chown(new, was.st_uid, was.st_gid)
    shutil.copystat(old, new)


def _move_newer(source: str, target: str) -> None:
    """Move a file that came into the old folder after its files were linked, if it is newer."""
    try:
        there = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(source, target)
        return
    here = os.lstat(source)
    if not os.path.samestat(here, there) and here.st_mtime_ns > there.st_mtime_ns:
        os.replace(source, target)


def remove_new(place: str) -> None:
    """Remove the new folders that killed writers have left next to a folder."""
    for path in left_beside(place):
        if path.endswith(".new.tmp"):
            _remove_tree(path)


def remove_beside(path: str, own: Own) -> None:
    """Remove a folder that a killed writer has left; files of the user's that only it has are moved."""
    match = BESIDE.fullmatch(os.path.basename(path))
    if match and match["kind"] != "new":
        place = FolderBeside(os.path.join(os.path.dirname(path), match["name"]))
        place._remove(path, own)
    else:
        _remove_tree(path)


def _remove_tree(folder: str) -> None:
    """Remove a folder and all that is in it, as far as the disk allows."""
    files, folders = list[str](), list[str]()
    with suppress(OSError):
        files, folders = _listing(folder)
    for name in files:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))
    for name in ("", *folders)[::-1]:
        with suppress(OSError):
            os.rmdir(os.path.join(folder, name))


def _working_directory() -> str:
    """Return the working directory; empty if it is gone."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return ""


def _swap(a: str, b: str) -> bool:
    """Exchange what two paths lead to, in one step; False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(a), os.fsencode(b)
    if hasattr(libc, "renameat2"):
        # The paths are absolute, so the descriptors of directories are not used.
        result = libc.renameat2(-100, first, -100, second, ctypes.c_uint(2))  # RENAME_EXCHANGE
    elif hasattr(libc, "renamex_np"):
        result = libc.renamex_np(first, second, ctypes.c_uint(2))  # RENAME_SWAP
    else:
        return False
    if result == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number))

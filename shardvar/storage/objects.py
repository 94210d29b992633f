"""Buckets of S3, Google Cloud Storage and Azure, and files of web servers: the one module that
imports obstore.

obstore finds credentials itself (the environment, a service account, an instance's role). None is
taken from a URL, kept, pickled or shown: an ``ObjectClient`` pickles only its root, and makes its
store when it is used.

Its errors become shardvar's (``storage.refusals``). Its threads do not survive a fork: a child of a
process that has used it is refused, since it would wait for ever.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from shardvar.errors import (
    ArgumentError,
    LockHeld,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    UnsupportedError,
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.storage.answers import is_copy
from shardvar.storage.concurrency import check_wanted
from shardvar.storage.refusals import ALLOW_HTTP, broken_error, refused_error
from shardvar.storage.requests import (
    MOST_COPIED_NBYTES,
    PART_NBYTES,
    PARTS_AHEAD,
    FolderListing,
    Head,
    first_line,
)

OBJECT_SCHEMES = frozenset(["s3", "gs", "az", "abfs", "abfss", "https", "http"])
"""The schemes of URLs that this module serves."""

_RETRIES: dict[str, Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
"""Seven attempts; where answers come at once, the last one is some seconds after the first."""

_CLIENT = {"timeout": "120s", "connect_timeout": "5s"}
"""A request with its body may take two minutes: 8 MiB at 70 KB/s."""

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_"}
"""The beginnings of the variables that obstore reads, by scheme; else Azure's."""

_MOST_PARTS = 9000
"""S3 takes 10,000 parts of a file."""

_lock = new_lock()
_loaded: dict[str, Any] = {}
"""The module, and the process that imported it."""


def _obstore() -> Any:
    """Return the module; ``MissingExtra`` if it is not installed."""
    with _lock:
        if not _loaded:
            try:
                import obstore
                import obstore.store
            except ImportError:
                cause = (
                    "Reading and writing in buckets needs the package obstore, which is not "
                    "installed."
                )
                raise missing_extra(cause, "cloud") from None
            _loaded.update(module=obstore, process=os.getpid())
        if _loaded["process"] != os.getpid():
            cause = (
                "This process was forked from one that has used a bucket, whose threads it does "
                "not have."
            )
            raise UnsupportedError(
                cause, "Start it with multiprocessing's method 'spawn', or fork before."
            )
        return _loaded["module"]


@dataclass(frozen=True, slots=True)
class ObjectClient:
    """The requests to one bucket, container or web server."""

    root: str
    """The URL of the bucket or the server, without "/" at its end."""
    _stores: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.root,)  # a store that is pickled may have keys in it

    @property
    def is_web(self) -> bool:
        """Return True for a web server, which lists nothing."""
        return self.root.startswith("http")

    @property
    def can_write(self) -> bool:
        """Return True for a bucket, which has conditional requests."""
        return not self.is_web

    @property
    def _variables(self) -> str:
        """The beginning of the names of this service's environment variables."""
        return _VARIABLES.get(self.root.partition(":")[0], "AZURE_")

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""
        return f"{self.root}/{quote(key) if self.is_web else key}" if key else self.root

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""
        with self._asking(key):
            meta = _obstore().head(self._store(), key)
            # Google asks for a generation, which listings lack; the others for the entity tag as it
            # is sent.
            condition = {
                name: meta[name] for name in ("e_tag", "version") if meta[name] is not None
            }
            return replace(_head_of(meta), condition=condition)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range; ``CorruptCheckpoint`` if the file has
        another version."""
        options: dict[str, Any] = {"range": (start, start + nbytes)}
        condition = None if self.is_web else _condition(head.version)
        if condition is not None:
            options["if_match"] = condition
        with self._asking(key, is_conditional=condition is not None):
            answer = _obstore().get(self._store(), key, options=options)
            found = _head_of(answer.meta)
            is_other_size = found.nbytes != head.nbytes
            # A time is not a version: a file that is replaced within a second has the same.
            if found.version != head.version or (
                is_other_size and _condition(head.version) is None
            ):
                raise replaced_error(self.place(key))
            if is_other_size:
                cause = (
                    f"{self.place(key)}: the server says {head.nbytes} bytes once, and "
                    f"{found.nbytes} for a range"
                )
                raise ServerError(
                    f"{cause}, of the same version.", "Look at the server, or at a proxy between."
                )
            return memoryview(answer.bytes())

    def listing(self, key: str) -> FolderListing:
        """Return the content of a folder; empty if it does not exist."""
        if self.is_web:
            raise UnsupportedError(
                f"{self.place(key)} is a folder of a web server, which cannot be listed.",
                "Give the URL of a file: the index of a checkpoint, or its only file.",
            )
        with self._listing(key):
            found = _obstore().list_with_delimiter(self._store(), key or None)
        first = len(key) + 1 if key else 0
        files = {
            each["path"][first:]: _head_of(each)
            for each in found["objects"]
            if len(each["path"]) > first
        }
        return FolderListing(files, sorted(path[first:] for path in found["common_prefixes"]))

    def walk(self, key: str) -> dict[str, Head]:
        """Return the facts of all files below a folder, by their paths from it."""
        first = len(key) + 1 if key else 0
        with self._listing(key):
            pages = _obstore().list(self._store(), key or None)
            return {each["path"][first:]: _head_of(each) for page in pages for each in page}

    def put(self, key: str, path: str) -> Head:
        """Upload a local file, in parts if large, and return its facts; whole or not at all.

        After an error the file is read back: if it has these bytes, only the answer was lost.
        """
        nbytes = os.path.getsize(path)
        part_nbytes = max(PART_NBYTES, -(-nbytes // _MOST_PARTS))
        try:
            with self._asking(key), open(path, "rb") as file:
                parts = _wanted(iter(lambda: file.read(part_nbytes), b""))
                found = _obstore().put(
                    self._store(),
                    key,
                    Path(path) if nbytes <= part_nbytes else parts,
                    chunk_size=part_nbytes,
                    max_concurrency=PARTS_AHEAD,
                )
        except (StorageError, MissingFile) as error:
            # The answer to the last request may be lost, and the file whole all the same.
            head = self._stored(key, path)
            if head is not None:
                return head
            if isinstance(error, MissingFile):
                error = self._unwritable(key)
            if nbytes <= part_nbytes:
                raise error from None
            raise _in_parts(error) from None
        return Head(nbytes, _version(found), None)

    def _stored(self, key: str, path: str) -> Head | None:
        """Return the facts of a file that has the bytes of a local one; None if it has others, or
        none can be read.

        An older file of the same name may have the same size.
        """
        with suppress(ShardvarError), open(path, "rb") as file:
            head = self.head(key)
            if head.nbytes != os.path.getsize(path):
                return None
            for start in range(0, head.nbytes, PART_NBYTES):
                part = file.read(PART_NBYTES)
                if bytes(self.read(key, head, start, len(part))) != part:
                    return None
            return head
        return None

    def copy(self, old: str, new: str, *, is_new: bool = False) -> None:
        """Copy a file, without its bytes coming here if the service can; ``MissingFile``.

        It replaces a file that has the name. With ``is_new``, such a file stays where it would get
        a new version: S3 gives the same bytes the same one, and has no such condition.
        """
        module, is_s3 = _obstore(), self.root.startswith("s3:")
        with self._asking(old):
            if is_s3 and (head := self.head(old)).nbytes > MOST_COPIED_NBYTES:
                self._copy_in_parts(old, head, new)
                return
            with suppress(module.exceptions.AlreadyExistsError):
                module.copy(self._store(), old, new, overwrite=is_s3 or not is_new)

    def _copy_in_parts(self, old: str, head: Head, new: str) -> None:
        """Read a file and upload it again; after an error it is read back, as for ``put``."""
        part_nbytes = max(PART_NBYTES, -(-head.nbytes // _MOST_PARTS))
        try:
            # obstore cannot be asked for a part by the thread that uploads: that one drives its
            # runtime.
            with self._asking(new), ThreadPoolExecutor(1) as reader:
                starts = range(0, head.nbytes, part_nbytes)
                sizes = [min(part_nbytes, head.nbytes - start) for start in starts]
                parts = (
                    reader.submit(self.read, old, head, start, nbytes).result()
                    for start, nbytes in zip(starts, sizes, strict=True)
                )
                _obstore().put(
                    self._store(),
                    new,
                    _wanted(parts),
                    chunk_size=part_nbytes,
                    max_concurrency=PARTS_AHEAD,
                )
        except (StorageError, MissingFile) as error:
            with suppress(ShardvarError):
                found = self.head(new)
                if is_copy(self, (old, head), (new, found), found):
                    return
            raise _in_parts(
                self._unwritable(new) if isinstance(error, MissingFile) else error
            ) from None

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        """Write a file in one step if the one there is ``old``, which ``head`` has answered, or
        none is.

        ``LockHeld`` otherwise.
        """
        kinds = _obstore().exceptions
        mode: Any = "create" if old is None else dict(old.condition or {})
        try:
            with self._asking(key):
                found = _put_in_mode(self._store(), key, content, mode, kinds)
        except MissingFile:
            raise self._unwritable(key) from None
        if found is None:
            raise LockHeld(
                f"{self.place(key)} was written by another writer.", "Look at what is there now."
            )
        return Head(len(content), _version(found), None)

    def delete(self, key: str) -> None:
        """Delete a file; does nothing if it does not exist."""
        with suppress(MissingFile), self._asking(key):
            _obstore().delete(self._store(), key)

    def _store(self) -> Any:
        """Return the store, made from the environment of the moment in which it is used first."""
        module = _obstore()
        with _lock:
            if "" not in self._stores:
                # These options replace what the environment says of the connection, so that is
                # asked here.
                allowed = any(
                    os.environ.get(name, "").lower() in ("true", "1") for name in ALLOW_HTTP
                )
                is_plain = any(
                    url.startswith("http:")
                    for url in (self.root, os.environ.get("GOOGLE_BASE_URL", ""))
                )
                options = {**_CLIENT, "allow_http": allowed or is_plain}
                try:
                    store = module.store.from_url(
                        self.root, client_options=options, retry_config=_RETRIES
                    )
                except module.exceptions.BaseError as error:
                    remedy = (
                        "Set what the service needs in the environment, in the variables "
                        f"{self._variables}*."
                    )
                    raise ArgumentError(
                        f"{self.root} cannot be used: {first_line(error)}.", remedy
                    ) from None
                self._stores[""] = store
            return self._stores[""]

    @contextmanager
    def _asking(self, key: str, *, is_conditional: bool = False) -> Iterator[None]:
        """Turn obstore's errors that are raised inside into shardvar's.

        With ``is_conditional``, a request states the version that it reads.
        """
        module = _obstore()
        try:
            yield
        except ShardvarError:
            raise
        except (module.exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
            if is_conditional and isinstance(error, module.exceptions.PreconditionError):
                raise replaced_error(self.place(key)) from None
            raise refused_error(module.exceptions, self.place(key), error) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of a module that cannot be imported
                raise
            raise broken_error(self.root, self.place(key), self._variables, error) from None

    @contextmanager
    def _listing(self, key: str) -> Iterator[None]:
        """Do as ``_asking`` for a listing: if something is missing, it is the bucket."""
        try:
            with self._asking(key):
                yield
        except MissingFile:
            if self.is_web:
                raise
            raise StorageError(
                f"{self.root} does not exist.", "Create the bucket, or check its name."
            ) from None

    def _unwritable(self, key: str) -> StorageError:
        cause = (
            f"{self.place(key)} cannot be written: the service says that the bucket or the upload "
            "is gone."
        )
        return StorageError(cause, "Look at the bucket, and write again.")


def _in_parts(error: StorageError) -> StorageError:
    """Return the error of an upload in parts; some parts may be left."""
    remedy = (
        f"{error.remedy} A rule of the bucket that ends unfinished uploads frees what this one "
        "left."
    )
    return StorageError(error.cause, remedy)


def _wanted(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield parts for an upload as long as it is wanted; obstore aborts it otherwise."""
    for part in parts:
        check_wanted()
        yield part


def _put_in_mode(store: Any, key: str, content: bytes, mode: Any, kinds: Any) -> Any:
    """Return the answer to a conditional request; None if its condition does not hold."""
    try:
        return _obstore().put(store, key, content, mode=mode)
    except (kinds.AlreadyExistsError, kinds.PreconditionError):
        return None


def _head_of(meta: Any) -> Head:
    """Return the facts that obstore gives of an object."""
    changed = meta["last_modified"].timestamp()
    return Head(meta["size"], _version(meta) or f"time {changed}", changed)


def _version(meta: Any) -> str:
    """Return the entity tag that an answer has, else the version; empty if it has none."""
    # Listings of Azure have entity tags without the quotation marks that its other answers have.
    tag = (meta["e_tag"] or "").strip('"')
    return tag or (f"version {meta['version']}" if meta["version"] else "")


def _condition(version: str) -> str | None:
    """Return the entity tag as a request states it; None for a weak one, and for what is another
    kind of version.

    >>> _condition("5d41"), _condition('W/"5d41'), _condition("time 12.5")
    ('"5d41"', None, None)
    """
    return None if not version or " " in version or version.startswith("W/") else f'"{version}"'

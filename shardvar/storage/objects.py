"""Buckets of S3, Google Cloud Storage and Azure, by obstore.

obstore finds credentials itself (the environment, a service account, an instance's role). None is
taken from a URL, kept, pickled or shown: an ``ObjectClient`` pickles only its root, and makes its
store when it is used.

Its errors become shardvar's (``storage.requests``). It makes each attempt of a request, and only
the parts of an upload more than once: which request is made again, and when, is the matter of
``storage.requests``.

Only this module imports obstore. A store is made from the environment. obstore's threads
do not survive a fork: a child of a process that has used it is refused, since it would wait for
ever.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardvar.errors import (
    ArgumentError,
    LockHeld,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.records import frozen, replace
from shardvar.storage import requests, settings
from shardvar.storage.concurrency import Result, check_wanted
from shardvar.storage.requests import (
    ALLOW_HTTP,
    MOST_COPIED_NBYTES,
    FolderListing,
    Head,
    Operation,
    RootClient,
    broken_error,
    check_process,
    first_line,
    is_copy,
    passing_fault,
    pause_of_header,
    refused_error,
)
from shardvar.storage.settings import ONE_PUT_NBYTES, StorageOptions

CLIENTS = {"reading": 10, "writing 0": 1, "writing 1": 2, "writing 2": 4, "parts": 2}
"""The patience with one attempt, by its kind, in ``upload_seconds``; ``requests.Pace`` has that with a
request.

An answer that comes slowly is not stalled. A body that goes up slowly cannot be told from one that
is stalled, so later attempts have more time: 16 MiB in the end at 140 KB/s.
"""

_ONCE: dict[str, Any] = {"max_retries": 0}
_PARTS: dict[str, Any] = {
    "max_retries": 1000,
    "backoff": {
        "init_backoff": timedelta(seconds=0.5),
        "max_backoff": timedelta(seconds=8),
        "base": 3,
    },
}
"""obstore repeats the parts of an upload itself: nothing else knows them."""

_SIGNED = timedelta(seconds=60)
_LOOK_SECONDS = 5  # the time for a look at the pause that a service asks for

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_"}
"""The beginnings of the variables that obstore reads, by scheme; else Azure's."""

_library_lock = new_lock()
_loaded: dict[str, Any] = {}  # the module, and the process that imported it


def library() -> Any:
    with _library_lock:
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
        check_process(_loaded["process"], "a bucket")
        return _loaded["module"]


def variables_of(root: str) -> str:
    """Return the beginning of the names of a service's environment variables, by its URL."""
    return _VARIABLES.get(root.partition(":")[0], "AZURE_")


def asked_pause(root: str, store: Any) -> float:
    """Return the pause that a service asks for, by a signed URL: obstore hides ``Retry-After``."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.request import getproxies, proxy_bypass

    # What cannot be signed or reached names no pause.
    with suppress(library().exceptions.BaseError, HTTPException, OSError, ValueError):
        is_web = root.startswith("http")
        url = urlsplit(root if is_web else library().sign(store, "HEAD", "none", _SIGNED))
        if url.scheme in getproxies() and not proxy_bypass(url.hostname or ""):
            return 0.0
        kind = HTTPConnection if url.scheme == "http" else HTTPSConnection
        with closing(kind(url.netloc, timeout=_LOOK_SECONDS)) as connection:
            connection.request("HEAD", f"{url.path or '/'}?{url.query}".removesuffix("?"))
            answer = connection.getresponse()
            if answer.status in (429, 503):
                return pause_of_header(answer.getheader("Retry-After"))
    return 0.0


def make_store(root: str, kind: str) -> Any:
    module, chosen = library(), settings.current()
    # These options replace the environment's for the connection, so that is asked here.
    allowed = any(os.environ.get(name, "").lower() in ("true", "1") for name in ALLOW_HTTP)
    is_plain = any(url.startswith("http:") for url in (root, os.environ.get("GOOGLE_BASE_URL", "")))
    options = {
        "connect_timeout": "5s",
        "allow_http": allowed or is_plain,
        "timeout": f"{CLIENTS[kind] * round(1000 * chosen.upload_seconds)}ms",
    }
    if kind == "reading":
        options["read_timeout"] = f"{round(1000 * chosen.answer_seconds)}ms"
    longest = {"retry_timeout": timedelta(seconds=1.5 * chosen.patience_seconds)}
    retries = _PARTS | longest if kind == "parts" else _ONCE
    try:
        return module.store.from_url(root, client_options=options, retry_config=retries)
    except module.exceptions.BaseError as error:
        remedy = f"Set what the service needs in the environment, in the variables {variables_of(root)}*."
        raise ArgumentError(f"{root} cannot be used: {first_line(error)}.", remedy) from None


OBJECT_SCHEMES = frozenset(["s3", "gs", "az", "abfs", "abfss"])
"""The schemes of URLs that this module serves."""

_lock = new_lock()

_thread = threading.local()
"""``what``: the request of this thread, for the log."""

_MOST_PARTS = 9000  # S3 takes 10,000 parts of a file


def nbytes_of_part(nbytes: int) -> int:
    """Return the bytes of a part of the upload of a file of so many bytes."""
    return max(settings.current().part_nbytes, -(-nbytes // _MOST_PARTS))


@frozen
class ObjectClient(RootClient):
    @property
    def can_write(self) -> bool:
        return True  # A bucket has conditional requests

    def head(self, key: str) -> Head:
        with self._asking(key):
            meta = self._ask(lambda store: library().head(store, key))
            # Google asks for a generation, which listings lack; the others for the entity tag as it
            # is sent.
            condition = {
                name: meta[name] for name in ("e_tag", "version") if meta[name] is not None
            }
            return replace(_head_of(meta), condition=condition)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        options: dict[str, Any] = {"range": (start, start + nbytes)}
        # No condition for a weak tag, or another kind of version.
        is_tag = bool(head.version) and " " not in head.version and head.version[:2] != "W/"
        if is_tag:
            options["if_match"] = f'"{head.version}"'

        def get(store: Any) -> tuple[Head, memoryview]:
            answer = library().get(store, key, options=options)
            return _head_of(answer.meta), memoryview(answer.bytes())

        with self._asking(key, is_conditional=is_tag):
            answered, octets = self._ask(get)
            is_other_size = answered.nbytes != head.nbytes
            # A time is not a version: a file that is replaced within a second has the same.
            if answered.version != head.version or (is_other_size and not is_tag):
                raise replaced_error(self.place(key))
            if is_other_size:
                raise ServerError(
                    f"{self.place(key)}: the server says {head.nbytes} bytes once, and "
                    f"{answered.nbytes} for a range, of the same version.",
                    "Look at the server, or at a proxy between.",
                )
            return octets

    def listing(self, key: str) -> FolderListing:
        with self._listing(key):
            page = self._ask(lambda store: library().list_with_delimiter(store, key or None))
        first = len(key) + 1 if key else 0
        files = {
            meta["path"][first:]: _head_of(meta)
            for meta in page["objects"]
            if len(meta["path"]) > first
        }
        return FolderListing(files, sorted(path[first:] for path in page["common_prefixes"]))

    def walk(self, key: str) -> dict[str, Head]:
        first = len(key) + 1 if key else 0
        with self._listing(key):
            pages = self._ask(lambda store: list(library().list(store, key or None)))
            return {meta["path"][first:]: _head_of(meta) for page in pages for meta in page}

    def put(self, key: str, path: str) -> Head:
        nbytes, has_parts = os.path.getsize(path), False
        try:
            with self._asking(key, "put"):
                if has_parts := nbytes > ONE_PUT_NBYTES:
                    part_nbytes = nbytes_of_part(nbytes)

                    def put_parts(_store: Any) -> Any:
                        with open(path, "rb") as file:
                            parts = iter(lambda: file.read(part_nbytes), b"")
                            return self._put_stream(key, parts, part_nbytes)

                    # Of a request that begins an upload, obstore repeats none to Google.
                    meta = self._ask(put_parts)
                else:
                    meta = self._ask(
                        lambda store: library().put(store, key, Path(path), use_multipart=False),
                        is_writing=True,
                    )
        except (StorageError, MissingFile) as error:
            # The answer to the last request may be lost, and the file whole all the same.
            head = self._stored(key, path)
            if head is not None:
                return head
            raise self._unwritten(key, error, has_parts=has_parts) from None
        return Head(nbytes, _version(meta), None)

    def _put_stream(self, key: str, parts: Iterable[Any], part_nbytes: int) -> Any:
        """Upload parts, and wait before each until requests are welcome."""
        return library().put(
            self._store("parts"),
            key,
            _wanted(parts),
            chunk_size=part_nbytes,
            max_concurrency=settings.current().parts_ahead,
        )

    def _stored(self, key: str, path: str) -> Head | None:
        """Return the facts of a file if it has the bytes of a local one."""
        with suppress(ShardvarError), open(path, "rb") as file:
            head = self.head(key)
            if head.nbytes != os.path.getsize(path):
                return None
            part_nbytes = nbytes_of_part(head.nbytes)
            for start in range(0, head.nbytes, part_nbytes):
                part = file.read(part_nbytes)
                if bytes(self.read(key, head, start, len(part))) != part:
                    return None
            return head
        return None

    def copy(self, old: str, new: str, *, is_new: bool) -> None:
        module, is_s3 = library(), self.root.startswith("s3:")
        with self._asking(old, "put"):
            if is_s3 and (head := self.head(old)).nbytes > MOST_COPIED_NBYTES:
                self._copy_in_parts(old, head, new)
                return
            with suppress(module.exceptions.AlreadyExistsError):
                self._ask(
                    lambda store: module.copy(store, old, new, overwrite=is_s3 or not is_new),
                    is_writing=True,
                )

    def _copy_in_parts(self, old: str, head: Head, new: str) -> None:
        """Read a file and upload it again; after an error it is read back, as for ``put``."""
        part_nbytes = nbytes_of_part(head.nbytes)
        try:
            # obstore cannot be asked for a part by the thread that uploads: that one drives its
            # runtime.
            with self._asking(new, "put"), ThreadPoolExecutor(1) as reader:
                starts = range(0, head.nbytes, part_nbytes)
                sizes = [min(part_nbytes, head.nbytes - start) for start in starts]
                parts = (
                    reader.submit(self.read, old, head, start, nbytes).result()
                    for start, nbytes in zip(starts, sizes, strict=True)
                )
                self._put_stream(new, parts, part_nbytes)
        except (StorageError, MissingFile) as error:
            with suppress(ShardvarError):
                copied = self.head(new)
                if is_copy(self, (old, head), (new, copied), copied):
                    return
            raise self._unwritten(new, error, has_parts=True) from None

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        kinds = library().exceptions
        mode: Any = "create" if old is None else dict(old.condition or {})
        # S3's word for a writer at the same time, of a file that is there; of a new one it is an
        # answer.
        passes = old is not None and self.root.startswith("s3:")
        meta = None
        try:
            with (
                self._asking(key, "put"),
                suppress(kinds.AlreadyExistsError, kinds.PreconditionError),
            ):
                meta = self._ask(
                    lambda store: library().put(store, key, content, mode=mode),
                    is_writing=True,
                    conflicts_pass=passes,
                )
        except MissingFile as error:
            raise self._unwritten(key, error) from None
        if meta is None:
            raise LockHeld(
                f"{self.place(key)} was written by another writer.", "Look at what is there now."
            )
        return Head(len(content), _version(meta), None)

    def delete(self, key: str) -> None:
        with suppress(MissingFile), self._asking(key, "delete"):
            self._ask(lambda store: library().delete(store, key))

    def delete_all(self, keys: Sequence[str]) -> None:
        with suppress(MissingFile), self._asking(keys[0], "delete"):
            self._ask(lambda store: library().delete(store, list(keys)))

    def _ask(
        self,
        request: Callable[[Any], Result],
        *,
        is_writing: bool = False,
        conflicts_pass: bool = False,
    ) -> Result:
        """Return the result of a request to a store, which is made again where that may help."""
        kinds = library().exceptions
        last = sum(kind.startswith("writing") for kind in CLIENTS) - 1

        def attempt(number: int) -> Result:
            return request(self._store(f"writing {min(number, last)}" if is_writing else "reading"))

        return requests.PACE.ask(
            attempt,
            lambda error: passing_fault(kinds, error, conflicts_pass=conflicts_pass),
            lambda: asked_pause(self.root, self._store("reading")),
            getattr(_thread, "what", "a request"),
        )

    def _store(self, kind: str) -> Any:
        options = settings.current()
        key: Any = kind if options == StorageOptions() else (kind, options)
        with _lock:
            if key not in self._opened:
                self._opened[key] = make_store(self.root, kind)
            return self._opened[key]

    @contextmanager
    def _asking(
        self, key: str, operation: Operation = "get", *, is_conditional: bool = False
    ) -> Iterator[None]:
        module, _thread.what = library(), f"{operation} {self.place(key)}"
        try:
            yield
        except ShardvarError:
            raise
        except (module.exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
            if is_conditional and isinstance(error, module.exceptions.PreconditionError):
                raise replaced_error(self.place(key)) from None
            raise refused_error(module.exceptions, self.place(key), error, operation) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of a module that cannot be imported
                raise
            raise broken_error(self.root, self.place(key), variables_of(self.root), error) from None

    @contextmanager
    def _listing(self, key: str) -> Iterator[None]:
        """Do as ``_asking`` for a listing: if something is missing, it is the bucket."""
        try:
            with self._asking(key, "list"):
                yield
        except MissingFile:
            raise StorageError(
                f"{self.root} does not exist.", "Create the bucket, or check its name."
            ) from None

    def _unwritten(
        self, key: str, error: StorageError | MissingFile, *, has_parts: bool = False
    ) -> StorageError:
        """Return the error of an upload that failed; of one in parts, some may be left."""
        if isinstance(error, MissingFile):
            error = StorageError(
                f"{self.place(key)} cannot be written: the service says that the bucket or the "
                "upload is gone.",
                "Look at the bucket, and write again.",
            )
        frees = "A rule of the bucket that ends unfinished uploads frees what this one left."
        return StorageError(error.cause, f"{error.remedy} {frees}") if has_parts else error


def _wanted(parts: Iterable[Any]) -> Iterator[Any]:
    for part in parts:
        requests.PACE.wait()
        check_wanted()
        yield part


def _head_of(meta: Any) -> Head:
    changed = meta["last_modified"].timestamp()
    return Head(meta["size"], _version(meta) or f"time {changed}", changed)


def _version(meta: Any) -> str:
    """Return the entity tag that an answer has, else the version; empty if it has none."""
    # Listings of Azure have entity tags without the quotation marks that its other answers have.
    tag = (meta["e_tag"] or "").strip('"')
    return tag or (f"version {meta['version']}" if meta["version"] else "")

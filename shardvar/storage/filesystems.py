"""File systems of fsspec, such as ``hf://``, ``sftp://`` and ``hdfs://``: the one module that
imports it.

A read cannot ask for a version, so the facts of a file are asked for again after each read of it.
Nothing is written: fsspec cannot replace a file only if it is unchanged.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from shardvar.errors import (
    COPY_AGAIN,
    ArgumentError,
    MissingExtra,
    MissingFile,
    ServerError,
    ShardvarError,
    UnsupportedError,
    replaced_error,
)
from shardvar.extras import missing_extra
from shardvar.forks import new_lock
from shardvar.storage import attempts
from shardvar.storage.attempts import Fault, pause_of_header
from shardvar.storage.concurrency import Result
from shardvar.storage.refusals import Operation, denied_error
from shardvar.storage.requests import FolderListing, Head, first_line

_lock = new_lock()
_processes: dict[str, int] = {}
"""The process that used fsspec first."""

_BROKEN = {"ConnectionError", "ClientConnectionError", "ClientPayloadError", "ChunkedEncodingError"}
"""Errors of connections, by their names in Python, requests and aiohttp."""

_TIMES = ("mtime", "last_modified", "LastModified", "created")
"""The names under which file systems give the time of the last change."""


@dataclass(frozen=True, slots=True)
class FilesystemClient:
    """The requests to one file system."""

    root: str
    """Scheme and server, or scheme and first step, without "/" at its end."""
    _opened: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.root,)  # a file system that is pickled may have keys in it

    @property
    def can_write(self) -> bool:
        """Return False."""
        return False

    def place(self, key: str) -> str:
        """Return the URL of a key, for messages and for users."""
        return f"{self.root}/{key}" if key else self.root

    def head(self, key: str) -> Head:
        """Return the facts of a file; ``MissingFile`` if it does not exist."""
        found = self._ask(key, lambda system, base: system.info(_below(base, key)))
        if found.get("type") != "file":
            raise MissingFile(f"{self.place(key)} is not a file.", COPY_AGAIN)
        return _head_of_info(found)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """Return the bytes that the server sends for a range, up to the size from ``head``;
        ``CorruptCheckpoint`` if the file has another version."""
        stop = min(start + nbytes, head.nbytes)

        def cat(system: Any, base: str) -> tuple[Any, Any]:
            # Without this, files of systems that are not asynchronous read 5 MiB ahead.
            options = {} if getattr(system, "async_impl", False) else {"cache_type": "none"}
            path = _below(base, key)
            return system.cat_file(path, start=start, end=stop, **options), system.info(path)

        octets, found = self._ask(key, cat)
        if _head_of_info(found).stamp != head.stamp:
            raise replaced_error(self.place(key))
        return memoryview(octets)

    def listing(self, key: str) -> FolderListing:
        """Return the content of a folder; empty if it does not exist."""
        try:
            base, listed = self._ask(
                key, lambda system, base: (base, system.ls(_below(base, key), detail=True)), "list"
            )
        except MissingFile:
            return FolderListing({}, [])
        folder = _below(base, key).rpartition("/")[2]
        found = [each for each in listed if _name(each) != folder]
        files = {_name(each): _head_of_info(each) for each in found if each["type"] == "file"}
        return FolderListing(
            files, sorted(_name(each) for each in found if each["type"] == "directory")
        )

    def walk(self, key: str) -> dict[str, Head]:
        """Return the facts of all files below a folder, by their paths from it."""
        base, found = self._ask(
            key, lambda system, base: (base, system.find(_below(base, key), detail=True)), "list"
        )
        first = len(_below(base, key).strip("/"))
        return {
            name.strip("/")[first:].strip("/"): _head_of_info(each) for name, each in found.items()
        }

    def _ask(
        self, key: str, request: Callable[[Any, str], Result], operation: Operation = "get"
    ) -> Result:
        """Return the result of a request, which is made again where that may help; it gets the file
        system and the root's path."""
        with self._asking(key, operation):
            system, base = self._system()
            return attempts.PACE.ask(lambda _: request(system, base), _passing_fault)

    @contextmanager
    def _asking(self, key: str, operation: Operation) -> Iterator[None]:
        """Turn errors of a file system into shardvar's."""
        try:
            yield
        except ShardvarError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFile(f"{self.place(key)} is missing.", COPY_AGAIN) from error
        except PermissionError:
            raise denied_error(self.place(key), operation) from None
        except Exception as error:  # noqa: BLE001 - each file system raises errors of its library
            cause = f"{self.place(key)} does not answer as it should: {first_line(error)}."
            raise ServerError(
                cause, "Check address, credentials and connection, and try again."
            ) from None

    def _system(self) -> tuple[Any, str]:
        with _lock:
            if _processes.setdefault("first", os.getpid()) != os.getpid():
                cause = (
                    "This process was forked from one that has used a remote file system, whose "
                    "threads it lacks."
                )
                raise UnsupportedError(
                    cause, "Start it with multiprocessing's method 'spawn', or fork before."
                )
            if "" not in self._opened:
                self._opened[""] = _open_system(self.root)
            found: tuple[Any, str] = self._opened[""]
            return found


def _open_system(root: str) -> tuple[Any, str]:
    """Return a file system, and the path of the root in it."""
    scheme = root.partition("://")[0]
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations, registry
    except ImportError:
        cause = f"Reading {scheme}:// needs the package fsspec, which is not installed."
        raise missing_extra(cause, "cloud") from None
    if scheme not in known_implementations and scheme not in registry:
        raise ArgumentError(
            f"The scheme {scheme}:// is not known.",
            "Use s3, gs, az, abfs, https, or a scheme that fsspec knows.",
        )
    try:
        system, base = url_to_fs(root, use_listings_cache=False)
    except ImportError as error:
        # The text of fsspec's error has the package; a failed import has the name of its module.
        remedy = f"Install it: pip install {error.name}" if error.name else f"{error}."
        raise MissingExtra(
            f"Reading {scheme}:// needs a package that is not installed.", remedy
        ) from None
    return system, base


def _passing_fault(error: Exception) -> Fault | None:
    """Return the fault of a request that failed with ``error``, if it may pass; None otherwise."""
    # The libraries of HTTP have the answer at the error, or its status and headers.
    answer = getattr(error, "response", None)
    answer = error if answer is None else answer
    status = getattr(answer, "status_code", getattr(answer, "status", None))
    if status in (429, 503):
        headers = getattr(answer, "headers", None) or {}
        return Fault("refused", pause_of_header(headers.get("Retry-After")))
    if status in (408, 500, 502, 504):
        return Fault("broken")
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"TimeoutError", "ReadTimeout"} and "ConnectTimeout" not in kinds:
        return Fault("stalled")
    return Fault("broken") if kinds & _BROKEN else None


def _below(base: str, key: str) -> str:
    return f"{base.rstrip('/')}/{key}" if key else base


def _name(found: Mapping[str, Any]) -> str:
    """Return the bare name of an item of a listing."""
    return str(found["name"]).rstrip("/").rpartition("/")[2]


def _head_of_info(found: Mapping[str, Any]) -> Head:
    """Return the facts that fsspec gives of a file; its version is all that is said of it."""
    time = next((found[name] for name in _TIMES if found.get(name) is not None), None)
    changed = (
        time.timestamp()
        if isinstance(time, datetime)
        else float(time)
        if isinstance(time, int | float)
        else None
    )
    tag = next(
        (found[name] for name in ("ETag", "etag", "blob_id", "sha256") if found.get(name)), None
    )
    return Head(found["size"], str(tag or changed or ""), changed)
